#include "weights/boxes.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/printable.h"

namespace tryst {
namespace {

// Leaves of `box` what torch.chunk(..., parts, dim)[at] has of it: parts of equal length but the
// last, and then none for the rest.
void TakeShard(int dim, int64_t parts, int64_t at, Box* box) {
  const int64_t all = box->extent[dim];
  const int64_t each = all / parts + (all % parts != 0);
  const int64_t begin = std::min(each * at, all);
  box->begin[dim] += begin;
  box->extent[dim] = std::min(each, all - begin);
}

Box BoxAt(const TensorLayout& layout, size_t position) {
  Box box = Box::Whole(layout.shape);
  size_t below = layout.owners.size();
  for (size_t axis = 0; axis < layout.mesh.size(); ++axis) {
    below /= layout.mesh[axis];
    const int64_t at = position / below % layout.mesh[axis];
    const int dim = layout.placements[axis].dim;
    if (dim != Placement::kReplicate) TakeShard(dim, layout.mesh[axis], at, &box);
  }
  return box;
}

std::vector<SharedBox> Collect(std::vector<std::pair<Box, uint32_t>> owned) {
  std::sort(owned.begin(), owned.end());
  std::vector<SharedBox> shared;
  for (auto& [box, owner] : owned) {
    if (shared.empty() || shared.back().box != box) shared.push_back({std::move(box), {}});
    shared.back().owners.push_back(owner);
  }
  return shared;
}

// The dimensions in which some box is not as long as the tensor.
std::vector<int> CutDimensions(const std::vector<SharedBox>& boxes, const TensorShape& shape) {
  std::vector<int> cut;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    const bool is_cut = std::any_of(boxes.begin(), boxes.end(), [&](const SharedBox& shared) {
      return shared.box.extent[dim] != shape.dim(dim);
    });
    if (is_cut) cut.push_back(dim);
  }
  return cut;
}

using Corners = absl::flat_hash_map<Extents, int64_t>;

// Adds `times`, with alternating signs, at the corners of a box.
void AddCorners(const Box& box, const std::vector<int>& dims, int64_t times, Corners* corners) {
  Extents corner(dims.size());
  for (uint32_t which = 0; which < uint32_t{1} << dims.size(); ++which) {
    for (size_t i = 0; i < dims.size(); ++i) {
      corner[i] = box.begin[dims[i]] + ((which >> i & 1) != 0 ? box.extent[dims[i]] : 0);
    }
    (*corners)[corner] += __builtin_popcount(which) % 2 == 0 ? times : -times;
  }
}

}  // namespace

std::vector<Box> BoxesOf(const TensorLayout& layout, uint32_t owner) {
  std::vector<Box> boxes;
  if (!layout.boxes.empty()) {
    for (const auto& [its, box] : layout.boxes) {
      if (its == owner && !box.empty()) boxes.push_back(box);
    }
    return boxes;
  }
  Box box;
  if (layout.owners.empty()) {
    box = Box::Whole(layout.shape);
  } else {
    const auto found = std::find(layout.owners.begin(), layout.owners.end(), owner);
    if (found == layout.owners.end()) return boxes;
    box = BoxAt(layout, found - layout.owners.begin());
  }
  if (!box.empty()) boxes.push_back(std::move(box));
  return boxes;
}

std::vector<SharedBox> SharedBoxes(const TensorLayout& layout, uint32_t owners) {
  std::vector<std::pair<Box, uint32_t>> owned;
  if (!layout.boxes.empty()) {
    for (const auto& [owner, box] : layout.boxes) {
      if (!box.empty()) owned.emplace_back(box, owner);
    }
  } else if (layout.owners.empty()) {
    if (layout.shape.elements() == 0) return {};
    SharedBox whole{Box::Whole(layout.shape), {}};
    for (uint32_t owner = 0; owner < owners; ++owner) whole.owners.push_back(owner);
    return {std::move(whole)};
  } else {
    for (size_t position = 0; position < layout.owners.size(); ++position) {
      Box box = BoxAt(layout, position);
      if (!box.empty()) owned.emplace_back(std::move(box), layout.owners[position]);
    }
  }
  return Collect(std::move(owned));
}

absl::Status CheckCover(const TensorLayout& layout, uint32_t owners) {
  const auto wrong = [&layout](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout of tensor \"", Printable(layout.name), "\": ", what));
  };
  const std::vector<SharedBox> boxes = SharedBoxes(layout, owners);
  for (const SharedBox& shared : boxes) {
    const auto twice = std::adjacent_find(shared.owners.begin(), shared.owners.end());
    if (twice != shared.owners.end()) {
      return wrong(absl::StrCat("owner ", *twice, " has box ", shared.box.ToString(), " twice"));
    }
  }
  // How many boxes hold an element, less one, is a function of the element. Its differences along
  // each dimension are the signed corners of the boxes and of the tensor. So they all cancel if and
  // only if the function is 0 everywhere; and at the first one left, in the order of elements, it
  // is the function itself, because only corners before an element count for it.
  const std::vector<int> dims = CutDimensions(boxes, layout.shape);
  if (boxes.size() > LayoutLimits::kMaxCorners >> dims.size()) {
    return wrong(absl::StrCat(boxes.size(), " boxes that cut ", dims.size(),
                              " dimensions have more than ", LayoutLimits::kMaxCorners,
                              " corners: cut fewer dimensions"));
  }
  Corners corners;
  for (const SharedBox& shared : boxes) AddCorners(shared.box, dims, 1, &corners);
  if (layout.shape.elements() > 0) AddCorners(Box::Whole(layout.shape), dims, -1, &corners);
  const Corners::value_type* first = nullptr;
  for (const auto& corner : corners) {
    if (corner.second != 0 && (first == nullptr || corner.first < first->first)) first = &corner;
  }
  if (first == nullptr) return absl::OkStatus();
  Extents element(layout.shape.rank(), 0);
  for (size_t i = 0; i < dims.size(); ++i) element[dims[i]] = first->first[i];
  const std::string where = absl::StrCat("element [", absl::StrJoin(element, ","), "] of ",
                                         layout.shape.ToString(), " is in ");
  if (first->second < 0) return wrong(absl::StrCat(where, "no owner's box"));
  return wrong(absl::StrCat(where, first->second + 1, " boxes that are not equal"));
}

void CutBox(const Box& box, uint64_t most, std::vector<Box>* parts) {
  const auto longer =
      std::find_if(box.extent.begin(), box.extent.end(), [](int64_t extent) { return extent > 1; });
  if (longer == box.extent.end() || static_cast<uint64_t>(box.elements()) <= most) {
    parts->push_back(box);
    return;
  }
  const size_t dim = longer - box.extent.begin();
  Box first = box, second = box;
  first.extent[dim] /= 2;
  second.begin[dim] += first.extent[dim];
  second.extent[dim] -= first.extent[dim];
  CutBox(first, most, parts);
  CutBox(second, most, parts);
}

bool Intersect(const Box& a, const Box& b, Box* both) {
  TRYST_CHECK(a.rank() == b.rank());
  Box found = a;
  for (int i = 0; i < a.rank(); ++i) {
    found.begin[i] = std::max(a.begin[i], b.begin[i]);
    const int64_t end = std::min(a.begin[i] + a.extent[i], b.begin[i] + b.extent[i]);
    if (end <= found.begin[i]) return false;
    found.extent[i] = end - found.begin[i];
  }
  *both = std::move(found);
  return true;
}

bool Contains(const Box& outer, const Box& inner) {
  TRYST_CHECK(outer.rank() == inner.rank());
  if (inner.empty()) return true;
  for (int i = 0; i < outer.rank(); ++i) {
    if (inner.begin[i] < outer.begin[i]) return false;
    if (inner.begin[i] + inner.extent[i] > outer.begin[i] + outer.extent[i]) return false;
  }
  return true;
}

}  // namespace tryst
