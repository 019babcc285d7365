#include "weights/layout.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/printable.h"
#include "weights/boxes.h"

namespace tryst {
namespace {

absl::Status Wrong(const TensorLayout& layout, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("layout of tensor \"", Printable(layout.name), "\": ", what));
}

absl::Status CheckMesh(const TensorLayout& layout, uint32_t owners) {
  if (layout.mesh.size() > TensorShape::kMaxRank) {
    return Wrong(layout, absl::StrCat("its mesh has ", layout.mesh.size(),
                                      " axes, and may have at most ", TensorShape::kMaxRank));
  }
  if (layout.mesh.size() != layout.placements.size()) {
    return Wrong(layout, absl::StrCat("its mesh has ", layout.mesh.size(), " axes and ",
                                      layout.placements.size(),
                                      " placements: give one placement for each axis"));
  }
  uint64_t positions = 1;
  for (const int64_t axis : layout.mesh) {
    if (axis < 1 || axis > LayoutLimits::kMaxOwners) {
      return Wrong(layout,
                   absl::StrCat("an axis of its mesh has ", axis, " positions, and may have 1 to ",
                                LayoutLimits::kMaxOwners));
    }
    positions *= axis;
    if (positions > LayoutLimits::kMaxOwners) break;
  }
  if (positions != layout.owners.size()) {
    return Wrong(layout, absl::StrCat("its mesh has ", positions, " positions and it names ",
                                      layout.owners.size(), " owners: make both numbers equal"));
  }
  std::vector<bool> seen(owners);
  for (const uint32_t owner : layout.owners) {
    if (owner >= owners) {
      return Wrong(layout, absl::StrCat("it names owner ", owner, ", and the set has ", owners,
                                        " owners, counted from 0"));
    }
    if (seen[owner]) return Wrong(layout, absl::StrCat("it names owner ", owner, " twice"));
    seen[owner] = true;
  }
  for (const Placement& placement : layout.placements) {
    if (placement.dim < Placement::kReplicate || placement.dim >= layout.shape.rank()) {
      return Wrong(layout,
                   absl::StrCat("a placement names dimension ", placement.dim, ", which the shape ",
                                layout.shape.ToString(), " does not have"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBoxes(const TensorLayout& layout, uint32_t owners) {
  if (!layout.mesh.empty() || !layout.placements.empty() || !layout.owners.empty()) {
    return Wrong(layout, "it has both a mesh and explicit boxes: give one of the two");
  }
  for (const auto& [owner, box] : layout.boxes) {
    if (owner >= owners) {
      return Wrong(layout, absl::StrCat("it names owner ", owner, ", and the set has ", owners,
                                        " owners, counted from 0"));
    }
    if (!Within(box, layout.shape)) {
      return Wrong(layout, absl::StrCat("box ", box.ToString(), " of owner ", owner,
                                        " lies outside the shape ", layout.shape.ToString()));
    }
  }
  return CheckCover(layout, owners);
}

}  // namespace

Box Box::Whole(const TensorShape& shape) {
  Box box;
  box.begin.assign(shape.rank(), 0);
  box.extent.assign(shape.dims().begin(), shape.dims().end());
  return box;
}

int64_t Box::elements() const {
  int64_t product = 1;
  for (const int64_t length : extent) {
    if (length == 0) return 0;
    product *= length;
  }
  return product;
}

std::string Box::ToString() const {
  std::string text = "[";
  for (int i = 0; i < rank(); ++i) {
    // Whatever a stranger wrote: their sum may not be an int64.
    const uint64_t end = static_cast<uint64_t>(begin[i]) + static_cast<uint64_t>(extent[i]);
    absl::StrAppend(&text, i == 0 ? "" : ",", begin[i], ":", static_cast<int64_t>(end));
  }
  return text + "]";
}

bool operator==(const TensorLayout& a, const TensorLayout& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.owners == b.owners &&
         a.mesh == b.mesh && a.placements == b.placements && a.boxes == b.boxes;
}

bool Within(const Box& box, const TensorShape& shape) {
  if (box.rank() != shape.rank() || box.begin.size() != box.extent.size()) return false;
  for (int i = 0; i < box.rank(); ++i) {
    if (box.begin[i] < 0 || box.begin[i] > shape.dim(i)) return false;
    if (box.extent[i] < 0 || box.extent[i] > shape.dim(i) - box.begin[i]) return false;
  }
  return true;
}

absl::Status CheckLayout(const TensorLayout& layout, uint32_t owners) {
  if (owners < 1 || owners > LayoutLimits::kMaxOwners) {
    return absl::InvalidArgumentError(absl::StrCat("a set of weights has 1 to ",
                                                   LayoutLimits::kMaxOwners, " owners, and ",
                                                   owners, " were given"));
  }
  if (layout.name.empty() || layout.name.size() > LayoutLimits::kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor's name has ", layout.name.size(),
                                                   " bytes, and may have from 1 to ",
                                                   LayoutLimits::kMaxNameBytes));
  }
  if (layout.shape.rank() > TensorShape::kMaxRank) {
    return Wrong(layout, absl::StrCat("the tensor has ", layout.shape.rank(),
                                      " dimensions, and may have at most ", TensorShape::kMaxRank));
  }
  if (layout.dtype == DType::kPacked || !TensorBytes(layout.dtype, layout.shape).ok()) {
    return Wrong(layout, absl::StrCat("a tensor of type ", DTypeName(layout.dtype),
                                      " cannot have the shape ", layout.shape.ToString()));
  }
  if (!layout.boxes.empty()) return CheckBoxes(layout, owners);
  if (layout.owners.empty()) {
    if (layout.mesh.empty() && layout.placements.empty()) return absl::OkStatus();
    return Wrong(layout, "it has a mesh, and names no owners");
  }
  return CheckMesh(layout, owners);
}

absl::Status CheckLayouts(absl::Span<const TensorLayout> layouts, uint32_t owners) {
  if (layouts.empty() || layouts.size() > LayoutLimits::kMaxTensors) {
    return absl::InvalidArgumentError(absl::StrCat("a set of weights has 1 to ",
                                                   LayoutLimits::kMaxTensors, " tensors, and ",
                                                   layouts.size(), " were given"));
  }
  absl::flat_hash_set<absl::string_view> names;
  size_t boxes = 0, owner_numbers = 0;
  for (const TensorLayout& layout : layouts) {
    boxes += layout.boxes.size();
    owner_numbers += layout.owners.size();
    if (boxes > LayoutLimits::kMaxBoxes || owner_numbers > LayoutLimits::kMaxOwnerNumbers) {
      return absl::InvalidArgumentError(
          absl::StrCat("the layouts of the set have more than ", LayoutLimits::kMaxBoxes,
                       " explicit boxes or ", LayoutLimits::kMaxOwnerNumbers, " places in meshes"));
    }
    const absl::Status checked = CheckLayout(layout, owners);
    if (!checked.ok()) return checked;
    if (!names.insert(layout.name).second) return Wrong(layout, "another tensor has the same name");
  }
  return absl::OkStatus();
}

}  // namespace tryst
