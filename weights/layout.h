#ifndef TRYST_WEIGHTS_LAYOUT_H_
#define TRYST_WEIGHTS_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rendezvous/tensor.h"

namespace tryst {

// One number for each dimension, or for each axis of a mesh.
using Extents = absl::InlinedVector<int64_t, TensorShape::kMaxRank>;

// A part of a global tensor: where it begins and how far it goes, in each dimension. A scalar's box
// has no dimensions, and one element.
struct Box {
  Extents begin, extent;

  static Box Whole(const TensorShape& shape);
  int rank() const { return static_cast<int>(extent.size()); }
  // REQUIRES: the box lies within a TensorShape, so that nothing overflows.
  int64_t elements() const;
  bool empty() const { return elements() == 0; }
  std::string ToString() const;  // "[0:4,8:16]"

  friend bool operator==(const Box& a, const Box& b) {
    return a.begin == b.begin && a.extent == b.extent;
  }
  friend bool operator!=(const Box& a, const Box& b) { return !(a == b); }
  friend bool operator<(const Box& a, const Box& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.extent < b.extent;
  }
};

// What one axis of a mesh does with the tensor.
struct Placement {
  static constexpr int kReplicate = -1;
  // kReplicate, or the dimension that is divided among the axis's positions as torch.chunk does.
  int dim = kReplicate;
  friend bool operator==(const Placement& a, const Placement& b) { return a.dim == b.dim; }
};

// Who owns which box of one tensor. Said in one of three ways, and kept as it was said, so that it
// converts back without loss:
//   nothing            every owner has the whole tensor
//   owners             they stand in a mesh in row-major order, outer axis first, and each axis is
//                      placed in turn, the outer first
//   boxes              explicit (owner, box) pairs, for what placements cannot say
struct TensorLayout {
  std::string name;
  DType dtype = DType::kInvalid;
  TensorShape shape;
  std::vector<uint32_t> owners;
  Extents mesh;
  std::vector<Placement> placements;
  std::vector<std::pair<uint32_t, Box>> boxes;

  friend bool operator==(const TensorLayout& a, const TensorLayout& b);
};

// Bounds of what a set may declare.
struct LayoutLimits {
  static constexpr uint32_t kMaxOwners = 4096;
  static constexpr size_t kMaxTensors = size_t{1} << 17;
  static constexpr size_t kMaxNameBytes = 512;
  // In all tensors together. A thousand explicit boxes for each of 256 owners; 256 owners' numbers
  // for each tensor.
  static constexpr size_t kMaxBoxes = size_t{1} << 18;
  static constexpr size_t kMaxOwnerNumbers = size_t{1} << 25;
  // What CheckCover() keeps of one tensor, at 100 bytes each.
  static constexpr size_t kMaxCorners = size_t{1} << 20;
};

// Whether `box` lies within `shape`; an empty one may stand at its edge.
bool Within(const Box& box, const TensorShape& shape);

// Checks one layout alone, for a set that has `owners` of them. What its boxes cover is checked by
// CheckCover() (boxes.h). kInvalidArgument names the tensor and says what is wrong.
absl::Status CheckLayout(const TensorLayout& layout, uint32_t owners);

// Checks all that a set declares: each layout, its cover, different names, and LayoutLimits. What
// this accepts, DecodeLayouts() accepts.
absl::Status CheckLayouts(absl::Span<const TensorLayout> layouts, uint32_t owners);

}  // namespace tryst

#endif  // TRYST_WEIGHTS_LAYOUT_H_
