#include "tests/doubles/weights/random_layouts.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tryst {
namespace {

// Cuts the box in two, again and again.
void Cut(Random* random, const Box& box, int cuts, std::vector<Box>* out) {
  if (cuts > 0 && box.rank() > 0) {
    const int dim = Below(random, box.rank());
    const int64_t at = Below(random, box.extent[dim] + 1);  // One of the two may be empty.
    Box left = box, right = box;
    left.extent[dim] = at;
    right.begin[dim] += at;
    right.extent[dim] -= at;
    Cut(random, left, cuts - 1, out);
    Cut(random, right, cuts - 1, out);
    return;
  }
  out->push_back(box);
}

}  // namespace

TensorShape RandomShape(Random* random, int max_rank, int64_t max_dim) {
  std::vector<int64_t> dims(Below(random, max_rank + 1));
  for (int64_t& dim : dims) dim = Below(random, 20) == 0 ? 0 : 1 + Below(random, max_dim);
  return *TensorShape::Make(dims);
}

Box RandomBox(Random* random, const TensorShape& shape) {
  Box box;
  for (const int64_t dim : shape.dims()) {
    const int64_t begin = Below(random, dim + 1);
    box.begin.push_back(begin);
    box.extent.push_back(Below(random, dim - begin + 1));
  }
  return box;
}

TensorLayout RandomPlacedLayout(Random* random, uint32_t owners) {
  TensorLayout layout;
  layout.name = "placed";
  layout.dtype = DType::kInt32;
  layout.shape = RandomShape(random, 4, 6);
  if (Below(random, 10) == 0) return layout;
  uint32_t positions = 1;
  for (int64_t axes = Below(random, 4); axes > 0; --axes) {
    const int64_t axis = 1 + Below(random, 5);
    if (positions * axis > owners) continue;
    positions *= axis;
    layout.mesh.push_back(axis);
    layout.placements.push_back({static_cast<int>(Below(random, layout.shape.rank() + 1)) - 1});
  }
  std::vector<uint32_t> all(owners);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), *random);
  layout.owners.assign(all.begin(), all.begin() + positions);
  return layout;
}

TensorLayout RandomBoxedLayout(Random* random, uint32_t owners) {
  TensorLayout layout;
  layout.name = "boxed";
  layout.dtype = DType::kInt32;
  layout.shape = RandomShape(random, 4, 6);
  std::vector<Box> boxes;
  Cut(random, Box::Whole(layout.shape), Below(random, 5), &boxes);
  for (const Box& box : boxes) {
    std::vector<uint32_t> its(owners);
    std::iota(its.begin(), its.end(), 0);
    std::shuffle(its.begin(), its.end(), *random);
    its.resize(box.empty() ? 1 : 1 + Below(random, 2));
    for (const uint32_t owner : its) layout.boxes.emplace_back(owner, box);
  }
  std::shuffle(layout.boxes.begin(), layout.boxes.end(), *random);
  return layout;
}

std::vector<Extents> ElementsOf(const Box& box) {
  std::vector<Extents> all;
  if (box.empty()) return all;
  Extents at = box.begin;
  for (;;) {
    all.push_back(at);
    int dim = box.rank() - 1;
    while (dim >= 0 && ++at[dim] == box.begin[dim] + box.extent[dim]) {
      at[dim] = box.begin[dim];
      --dim;
    }
    if (dim < 0) return all;
  }
}

int64_t NumberOf(const Extents& element, const TensorShape& shape) {
  int64_t number = 0;
  for (int dim = 0; dim < shape.rank(); ++dim) number = number * shape.dim(dim) + element[dim];
  return number;
}

}  // namespace tryst
