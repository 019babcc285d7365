#ifndef TRYST_WEIGHTS_FETCH_PLAN_H_
#define TRYST_WEIGHTS_FETCH_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weights/boxes.h"
#include "weights/layout.h"

// From boxes to copies. Only boxes travel; each end derives from them which of its bytes are meant.
namespace tryst {

// How a box lies in some memory, in elements: where its first element is, and how far it is to the
// next one in each dimension. A transposed or reversed view is as good as a dense one.
struct Strides {
  int64_t offset = 0;
  Extents steps;
};
// A box that lies dense, in row-major order, at the beginning of its memory.
Strides Dense(const Extents& extent);
// Whether it lies dense, wherever it begins.
bool LiesDense(const Extents& extent, const Strides& lies);
// `part` of a box that lies so. REQUIRES: Contains(box, part).
Strides PartOf(const Box& box, const Strides& lies, const Box& part);

// Checks that a view of a caller's stays within its memory of `elements`. kInvalidArgument: a
// stride for each dimension is missing, or, of a destination, two elements may share a place.
// kOutOfRange: some element would be outside.
enum class ViewUse { kSource, kDestination };
absl::Status CheckView(const Extents& extent, const Strides& view, uint64_t elements, ViewUse use);

// Copies of equal runs of bytes, in nested loops: no more room for many runs than for few. The runs
// are contiguous at both ends. Between parts of dense tensors, none could be longer.
struct StridedCopy {
  struct Loop {
    int64_t count = 1;
    int64_t from_step = 0, to_step = 0;  // Bytes.
  };
  int64_t from = 0, to = 0;                                // Where the first run begins, in bytes.
  uint64_t run_bytes = 0;                                  // 0: there is nothing to copy.
  absl::InlinedVector<Loop, TensorShape::kMaxRank> loops;  // The outermost first.

  uint64_t runs() const;
  uint64_t bytes() const { return runs() * run_bytes; }
};
// REQUIRES: CheckView() has accepted both.
StridedCopy PlanCopy(const Extents& extent, uint32_t element_bytes, const Strides& from,
                     const Strides& to);
// REQUIRES: the memories do not overlap.
void RunCopy(const StridedCopy& copy, const void* from, void* to);

// What a consumer asks of whom.
struct Source {
  Box box;                       // An owner has it, dense.
  std::vector<uint32_t> owners;  // Any of these.
  Box part;                      // What the consumer wants of it.
};
// How many sources one asked box may have: each becomes a transfer.
inline constexpr size_t kMaxSources = 65536;
// Sources that have each element of `asked` once, in the order of their boxes. kInvalidArgument:
// `asked` is not within the tensor. kResourceExhausted: more than kMaxSources. REQUIRES:
// CheckLayout() has accepted the layout.
absl::StatusOr<std::vector<Source>> SourcesOf(const TensorLayout& layout, uint32_t owners,
                                              const Box& asked);

}  // namespace tryst

#endif  // TRYST_WEIGHTS_FETCH_PLAN_H_
