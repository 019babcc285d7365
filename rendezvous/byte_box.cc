#include "rendezvous/byte_box.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

struct Dimension {
  uint64_t count;
  uint64_t stride;
};

absl::Status TooLarge() {
  return absl::InvalidArgumentError(
      absl::StrCat("a box has more than ", Selection::kMaxSpans,
                   " runs, or lies where 64 bits cannot count: select its parts in several calls"));
}

}  // namespace

absl::StatusOr<std::vector<ByteRun>> RunsOfBox(const ByteBox& box) {
  if (box.extent.size() != box.strides.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a box of ", box.extent.size(),
                                                   " dimensions has ", box.strides.size(),
                                                   " strides: give one for each"));
  }
  if (std::count(box.extent.begin(), box.extent.end(), 0) > 0) return std::vector<ByteRun>();
  // Those that are left when what lies without a gap is one span, the innermost last.
  std::vector<Dimension> outer;
  for (size_t i = 0; i < box.extent.size(); ++i) {
    if (box.extent[i] > 1) outer.push_back({box.extent[i], box.strides[i]});
  }
  ByteRun run = {box.offset, box.element_bytes, box.element_bytes, 1};
  for (; !outer.empty() && outer.back().stride == run.bytes; outer.pop_back()) {
    if (__builtin_mul_overflow(run.bytes, outer.back().count, &run.bytes)) return TooLarge();
  }
  run.stride = run.bytes;
  if (!outer.empty()) {
    run.stride = outer.back().stride;
    run.count = outer.back().count;
    outer.pop_back();
  }
  // No offset overflows if that of the last one does not.
  uint64_t runs = 1, last = run.offset;
  for (const Dimension& dimension : outer) {
    uint64_t reach = 0;
    if (__builtin_mul_overflow(runs, dimension.count, &runs) ||
        __builtin_mul_overflow(dimension.count - 1, dimension.stride, &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return TooLarge();
    }
  }
  if (runs > Selection::kMaxSpans) return TooLarge();
  std::vector<ByteRun> all(runs, run);
  uint64_t inner = runs;  // How many follow each other before this dimension's next.
  for (const Dimension& dimension : outer) {
    inner /= dimension.count;
    for (uint64_t i = 0; i < runs; ++i) {
      all[i].offset += i / inner % dimension.count * dimension.stride;
    }
  }
  return all;
}

}  // namespace tryst
