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
    return Wrong(layout, absl::StrCat("a mesh of ", layout.mesh.size(), " axes, and there may be ",
                                      TensorShape::kMaxRank));
  }
  if (layout.mesh.size() != layout.placements.size()) {
    return Wrong(layout, absl::StrCat(layout.mesh.size(), " axes and ", layout.placements.size(),
                                      " placements: give one for each axis"));
  }
  uint64_t positions = 1;
  for (const int64_t axis : layout.mesh) {
    if (axis < 1 || axis > LayoutLimits::kMaxOwners) {
      return Wrong(layout, absl::StrCat("an axis of ", axis, " positions"));
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
      return Wrong(layout, absl::StrCat("owner ", owner, ", and there are ", owners));
    }
    if (seen[owner]) return Wrong(layout, absl::StrCat("owner ", owner, " stands twice"));
    seen[owner] = true;
  }
  for (const Placement& placement : layout.placements) {
    if (placement.dim < Placement::kReplicate || placement.dim >= layout.shape.rank()) {
      return Wrong(layout, absl::StrCat("a placement on dimension ", placement.dim, " of ",
                                        layout.shape.ToString()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBoxes(const TensorLayout& layout, uint32_t owners) {
  if (!layout.mesh.empty() || !layout.placements.empty() || !layout.owners.empty()) {
    return Wrong(layout, "has a mesh and explicit boxes: give one of them");
  }
  for (const auto& [owner, box] : layout.boxes) {
    if (owner >= owners) {
      return Wrong(layout, absl::StrCat("owner ", owner, ", and there are ", owners));
    }
    if (!Within(box, layout.shape)) {
      return Wrong(layout, absl::StrCat("box ", box.ToString(), " of owner ", owner,
                                        " is not within ", layout.shape.ToString()));
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
    return absl::InvalidArgumentError(absl::StrCat(
        "a set of ", owners, " owners, and it has from 1 to ", LayoutLimits::kMaxOwners));
  }
  if (layout.name.empty() || layout.name.size() > LayoutLimits::kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor's name has ", layout.name.size(),
                                                   " bytes, and may have from 1 to ",
                                                   LayoutLimits::kMaxNameBytes));
  }
  if (layout.shape.rank() > TensorShape::kMaxRank) {
    return Wrong(layout, absl::StrCat(layout.shape.rank(), " dimensions, and there may be ",
                                      TensorShape::kMaxRank));
  }
  if (layout.dtype == DType::kPacked || !TensorBytes(layout.dtype, layout.shape).ok()) {
    return Wrong(layout, absl::StrCat("no tensor of type ", DTypeName(layout.dtype), " is ",
                                      layout.shape.ToString()));
  }
  if (!layout.boxes.empty()) return CheckBoxes(layout, owners);
  if (layout.owners.empty()) {
    if (layout.mesh.empty() && layout.placements.empty()) return absl::OkStatus();
    return Wrong(layout, "has a mesh without owners");
  }
  return CheckMesh(layout, owners);
}

absl::Status CheckLayouts(absl::Span<const TensorLayout> layouts, uint32_t owners) {
  if (layouts.empty() || layouts.size() > LayoutLimits::kMaxTensors) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a set of ", layouts.size(), " tensors, and it has from 1 to ", LayoutLimits::kMaxTensors));
  }
  absl::flat_hash_set<absl::string_view> names;
  size_t boxes = 0, owner_numbers = 0;
  for (const TensorLayout& layout : layouts) {
    boxes += layout.boxes.size();
    owner_numbers += layout.owners.size();
    if (boxes > LayoutLimits::kMaxBoxes || owner_numbers > LayoutLimits::kMaxOwnerNumbers) {
      return absl::InvalidArgumentError(
          absl::StrCat("a set of more than ", LayoutLimits::kMaxBoxes, " explicit boxes or ",
                       LayoutLimits::kMaxOwnerNumbers, " places in meshes"));
    }
    const absl::Status checked = CheckLayout(layout, owners);
    if (!checked.ok()) return checked;
    if (!names.insert(layout.name).second) return Wrong(layout, "another has the same name");
  }
  return absl::OkStatus();
}

}  // namespace tryst
