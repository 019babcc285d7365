#ifndef TRYST_WEIGHTS_BOXES_H_
#define TRYST_WEIGHTS_BOXES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "weights/layout.h"

// The boxes that a layout describes. All functions but CheckCover() REQUIRE that CheckLayout() has
// accepted the layout for the same number of owners.
namespace tryst {

// The boxes of one owner, in the order in which the layout gives them. Empty shards are no boxes.
std::vector<Box> BoxesOf(const TensorLayout& layout, uint32_t owner);

// A box and all who own it: they are replicas of each other.
struct SharedBox {
  Box box;
  std::vector<uint32_t> owners;  // Ascending.
};
// All different boxes of the tensor, ascending. They do not overlap, and cover the tensor.
std::vector<SharedBox> SharedBoxes(const TensorLayout& layout, uint32_t owners);

// Checks that the boxes, equal ones taken as one, hold each element exactly once. The time is
// linear in the boxes, times two for each dimension that they cut. kInvalidArgument names the first
// element that none holds, or that different boxes hold. REQUIRES: each box is within the shape.
absl::Status CheckCover(const TensorLayout& layout, uint32_t owners);

// Cuts the box along its first dimensions into boxes of at most so many elements, each of which
// lies without a gap where the box is dense, in row-major order.
void CutBox(const Box& box, uint64_t most, std::vector<Box>* parts);

// What both have. False, and `*both` is as it was: nothing. REQUIRES: equal ranks.
bool Intersect(const Box& a, const Box& b, Box* both);
// Whether every element of `inner` is in `outer`. REQUIRES: equal ranks.
bool Contains(const Box& outer, const Box& inner);

}  // namespace tryst

#endif  // TRYST_WEIGHTS_BOXES_H_
