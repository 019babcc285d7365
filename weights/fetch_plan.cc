#include "weights/fetch_plan.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/printable.h"

namespace tryst {
namespace {

using Loop = StridedCopy::Loop;
__extension__ using Wide = __int128;

// Whether no two elements share a place. Of views that interleave some are refused although they
// do not.
bool PlacesDiffer(const Extents& extent, const Extents& steps) {
  std::vector<std::pair<Wide, int64_t>> by_step;
  for (size_t i = 0; i < extent.size(); ++i) {
    const Wide step = steps[i];
    if (extent[i] > 1) by_step.emplace_back(step < 0 ? -step : step, extent[i]);
  }
  std::sort(by_step.begin(), by_step.end());
  Wide reach = 0;
  for (const auto& [step, count] : by_step) {
    if (step <= reach) return false;
    reach += step * (count - 1);
  }
  return true;
}

// Takes loops that only make runs longer into the run.
void Lengthen(StridedCopy* copy) {
  for (;;) {
    const int64_t run = copy->run_bytes;
    const auto next = std::find_if(copy->loops.begin(), copy->loops.end(), [run](const Loop& loop) {
      return loop.from_step == run && loop.to_step == run;
    });
    if (next == copy->loops.end()) return;
    copy->run_bytes *= next->count;
    copy->loops.erase(next);
  }
}

// Makes one loop of two where the outer goes on where the inner ends, at both ends.
void Join(StridedCopy* copy) {
  auto& loops = copy->loops;
  for (size_t outer = 0; outer < loops.size(); ++outer) {
    for (Loop& inner : loops) {
      const Loop& over = loops[outer];
      if (&inner == &over || over.from_step != inner.from_step * inner.count ||
          over.to_step != inner.to_step * inner.count) {
        continue;
      }
      inner.count *= over.count;
      loops.erase(loops.begin() + outer);
      outer = static_cast<size_t>(-1);  // From the beginning.
      break;
    }
  }
}

constexpr uint64_t kMostTiledBytes = 16;

// Writes advance by the innermost loop. Where runs are short, reads advance by the next one, so
// that tiles of the two use whole lines of the cache at both ends.
void Order(StridedCopy* copy) {
  auto& loops = copy->loops;
  std::sort(loops.begin(), loops.end(),
            [](const Loop& a, const Loop& b) { return std::abs(a.to_step) > std::abs(b.to_step); });
  if (loops.size() < 3 || copy->run_bytes > kMostTiledBytes) return;
  const auto nearest = std::min_element(
      loops.begin(), loops.end() - 1,
      [](const Loop& a, const Loop& b) { return std::abs(a.from_step) < std::abs(b.from_step); });
  std::rotate(nearest, nearest + 1, loops.end() - 1);
}

template <size_t kBytes>
void CopyTiles(const Loop& outer, const Loop& inner, const char* from, char* to) {
  constexpr int64_t kTile = 32;
  for (int64_t o = 0; o < outer.count; o += kTile) {
    const int64_t o_end = std::min(outer.count, o + kTile);
    for (int64_t i = 0; i < inner.count; i += kTile) {
      const int64_t i_end = std::min(inner.count, i + kTile);
      for (int64_t at = o; at < o_end; ++at) {
        const char* read = from + at * outer.from_step + i * inner.from_step;
        char* write = to + at * outer.to_step + i * inner.to_step;
        for (int64_t n = i; n < i_end; ++n) {
          memcpy(write, read, kBytes);
          read += inner.from_step;
          write += inner.to_step;
        }
      }
    }
  }
}

void CopyTwoLoops(uint64_t run_bytes, const Loop& outer, const Loop& inner, const char* from,
                  char* to) {
  switch (run_bytes) {
    case 1:
      return CopyTiles<1>(outer, inner, from, to);
    case 2:
      return CopyTiles<2>(outer, inner, from, to);
    case 4:
      return CopyTiles<4>(outer, inner, from, to);
    case 8:
      return CopyTiles<8>(outer, inner, from, to);
    case kMostTiledBytes:
      return CopyTiles<kMostTiledBytes>(outer, inner, from, to);
    default:
      break;
  }
  for (int64_t o = 0; o < outer.count; ++o) {
    const char* read = from + o * outer.from_step;
    char* write = to + o * outer.to_step;
    for (int64_t i = 0; i < inner.count; ++i) {
      memcpy(write, read, run_bytes);
      read += inner.from_step;
      write += inner.to_step;
    }
  }
}

}  // namespace

Strides Dense(const Extents& extent) {
  Strides dense;
  dense.steps.resize(extent.size());
  int64_t step = 1;
  for (size_t i = extent.size(); i-- > 0;) {
    dense.steps[i] = step;
    step *= std::max<int64_t>(extent[i], 1);
  }
  return dense;
}

bool LiesDense(const Extents& extent, const Strides& lies) {
  const Strides dense = Dense(extent);
  for (size_t i = 0; i < extent.size(); ++i) {
    if (extent[i] > 1 && lies.steps[i] != dense.steps[i]) return false;
  }
  return true;
}

Strides PartOf(const Box& box, const Strides& lies, const Box& part) {
  TRYST_CHECK(Contains(box, part));
  Strides its = lies;
  if (part.empty()) return its;
  for (int i = 0; i < box.rank(); ++i) its.offset += (part.begin[i] - box.begin[i]) * lies.steps[i];
  return its;
}

absl::Status CheckView(const Extents& extent, const Strides& view, uint64_t elements, ViewUse use) {
  if (view.steps.size() != extent.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a view of ", extent.size(), " dimensions has ",
                                                   view.steps.size(),
                                                   " strides: give one for each dimension"));
  }
  if (std::find(extent.begin(), extent.end(), 0) != extent.end()) return absl::OkStatus();
  Wide first = view.offset, last = view.offset;
  for (size_t i = 0; i < extent.size(); ++i) {
    const Wide reach = static_cast<Wide>(view.steps[i]) * (extent[i] - 1);
    (reach < 0 ? first : last) += reach;
    if (first < 0 || last >= static_cast<Wide>(elements)) break;  // One more might not fit.
  }
  if (first < 0 || last >= static_cast<Wide>(elements)) {
    return absl::OutOfRangeError(absl::StrCat("a view that begins at element ", view.offset,
                                              " reaches out of its memory of ", elements,
                                              " elements: correct its offset or strides"));
  }
  if (use == ViewUse::kDestination && !PlacesDiffer(extent, view.steps)) {
    return absl::InvalidArgumentError(
        "two elements of the destination lie at the same place in its memory: correct the strides");
  }
  return absl::OkStatus();
}

uint64_t StridedCopy::runs() const {
  uint64_t product = run_bytes != 0;
  for (const Loop& loop : loops) product *= loop.count;
  return product;
}

StridedCopy PlanCopy(const Extents& extent, uint32_t element_bytes, const Strides& from,
                     const Strides& to) {
  StridedCopy copy;
  if (std::find(extent.begin(), extent.end(), 0) != extent.end()) return copy;
  const int64_t bytes = element_bytes;
  copy.from = from.offset * bytes;
  copy.to = to.offset * bytes;
  copy.run_bytes = element_bytes;
  for (size_t i = 0; i < extent.size(); ++i) {
    if (extent[i] == 1) continue;
    copy.loops.push_back({extent[i], from.steps[i] * bytes, to.steps[i] * bytes});
  }
  Lengthen(&copy);
  Join(&copy);
  Order(&copy);
  return copy;
}

void RunCopy(const StridedCopy& copy, const void* from, void* to) {
  if (copy.run_bytes == 0) return;
  const char* read = static_cast<const char*>(from) + copy.from;
  char* write = static_cast<char*>(to) + copy.to;
  const size_t loops = copy.loops.size();
  const Loop once;
  const Loop& inner = loops > 0 ? copy.loops[loops - 1] : once;
  const Loop& outer = loops > 1 ? copy.loops[loops - 2] : once;
  absl::InlinedVector<int64_t, TensorShape::kMaxRank> at(loops > 2 ? loops - 2 : 0, 0);
  for (;;) {
    CopyTwoLoops(copy.run_bytes, outer, inner, read, write);
    size_t i = at.size();
    for (; i > 0; --i) {
      const Loop& loop = copy.loops[i - 1];
      read += loop.from_step;
      write += loop.to_step;
      if (++at[i - 1] < loop.count) break;
      read -= loop.count * loop.from_step;
      write -= loop.count * loop.to_step;
      at[i - 1] = 0;
    }
    if (i == 0) return;
  }
}

absl::StatusOr<std::vector<Source>> SourcesOf(const TensorLayout& layout, uint32_t owners,
                                              const Box& asked) {
  if (!Within(asked, layout.shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat("box ", asked.ToString(), " of tensor \"", Printable(layout.name),
                     "\" lies outside its shape ", layout.shape.ToString()));
  }
  std::vector<Source> sources;
  if (asked.empty()) return sources;
  for (SharedBox& shared : SharedBoxes(layout, owners)) {
    Source source;
    if (!Intersect(shared.box, asked, &source.part)) continue;
    if (sources.size() == kMaxSources) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "box ", asked.ToString(), " of tensor \"", Printable(layout.name),
          "\" is spread over more than ", kMaxSources, " boxes of the owners: fetch it in parts"));
    }
    source.box = std::move(shared.box);
    source.owners = std::move(shared.owners);
    sources.push_back(std::move(source));
  }
  return sources;
}

}  // namespace tryst
