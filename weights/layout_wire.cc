#include "weights/layout_wire.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/only_fields.h"
#include "proto/weights.pb.h"

namespace tryst {
namespace {

using Dims = std::vector<int>;
using Spread = std::tuple<std::vector<uint32_t>, Extents, Dims>;

Spread SpreadOf(const TensorLayout& layout) {
  Dims dims;
  for (const Placement& placement : layout.placements) dims.push_back(placement.dim);
  return {layout.owners, layout.mesh, std::move(dims)};
}

void AddSpread(const TensorLayout& layout, rpc::WeightLayouts* message) {
  message->add_spread_owners(layout.owners.size());
  for (const uint32_t owner : layout.owners) message->add_owner_numbers(owner);
  message->add_spread_axes(layout.mesh.size());
  for (const int64_t axis : layout.mesh) message->add_mesh(axis);
  for (const Placement& placement : layout.placements) message->add_placements(placement.dim + 1);
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the declaration of layouts is malformed: ", what));
}

// Takes entries of a column from its beginning.
template <typename Field>
class Column {
 public:
  explicit Column(const Field& field) : field_(field) {}
  bool Has(uint64_t count) const { return count <= static_cast<uint64_t>(field_.size() - at_); }
  bool ended() const { return at_ == field_.size(); }
  // REQUIRES: Has(1).
  auto Next() { return field_.Get(at_++); }

 private:
  const Field& field_;
  int at_ = 0;
};

class Decoder {
 public:
  explicit Decoder(const rpc::WeightLayouts& message)
      : message_(message),
        dims_(message.dims()),
        box_owners_(message.box_owners()),
        box_begins_(message.box_begins()),
        box_extents_(message.box_extents()) {}

  absl::StatusOr<DeclaredLayouts> Run() {
    const int tensors = message_.name_bytes_size();
    if (static_cast<size_t>(tensors) > LayoutLimits::kMaxTensors) {
      return Malformed(
          absl::StrCat("it has ", tensors, " tensors, and may have ", LayoutLimits::kMaxTensors));
    }
    for (const int size : {message_.dtypes_size(), message_.ranks_size(), message_.spreads_size(),
                           message_.boxes_size()}) {
      if (size != tensors) return Malformed("its columns differ in length");
    }
    absl::Status read = ReadSpreads();
    if (!read.ok()) return read;
    DeclaredLayouts declared;
    declared.owners = message_.owners();
    declared.tensors.resize(tensors);
    for (int i = 0; i < tensors; ++i) {
      read = ReadTensor(i, &declared.tensors[i]);
      if (!read.ok()) return read;
    }
    if (!names_.empty() || !dims_.ended() || !box_owners_.ended() || !box_begins_.ended() ||
        !box_extents_.ended()) {
      return Malformed("its columns hold more than its tensors need");
    }
    read = CheckLayouts(declared.tensors, declared.owners);
    if (!read.ok()) return read;
    return declared;
  }

 private:
  absl::Status ReadSpreads() {
    if (message_.spread_axes_size() != message_.spread_owners_size()) {
      return Malformed("its columns differ in length");
    }
    if (message_.spread_owners_size() > message_.name_bytes_size()) {
      return Malformed("it has more spreads than tensors");
    }
    Column owners(message_.owner_numbers());
    Column mesh(message_.mesh());
    Column placements(message_.placements());
    spreads_.resize(message_.spread_owners_size());
    for (size_t i = 0; i < spreads_.size(); ++i) {
      const uint32_t its_owners = message_.spread_owners(i), axes = message_.spread_axes(i);
      if (axes > TensorShape::kMaxRank || its_owners < 1 || !owners.Has(its_owners) ||
          !mesh.Has(axes) || !placements.Has(axes)) {
        return Malformed("its columns hold less than its spreads need");
      }
      auto& [numbers, extents, dims] = spreads_[i];
      for (uint32_t n = 0; n < its_owners; ++n) numbers.push_back(owners.Next());
      for (uint32_t n = 0; n < axes; ++n) extents.push_back(mesh.Next());
      for (uint32_t n = 0; n < axes; ++n) {
        const uint32_t placed = placements.Next();
        if (placed > TensorShape::kMaxRank)
          return Malformed("a placement names a dimension that no tensor can have");
        dims.push_back(static_cast<int>(placed) - 1);
      }
    }
    if (!owners.ended() || !mesh.ended() || !placements.ended()) {
      return Malformed("its columns hold more than its spreads need");
    }
    return absl::OkStatus();
  }

  absl::Status ReadTensor(int i, TensorLayout* layout) {
    const uint32_t name_bytes = message_.name_bytes(i), rank = message_.ranks(i);
    const uint64_t boxes = message_.boxes(i);
    if (name_bytes > names_.size() || rank > TensorShape::kMaxRank || !dims_.Has(rank) ||
        message_.dtypes(i) > 255) {
      return Malformed("its columns hold less than its tensors need");
    }
    layout->name = std::string(names_.substr(0, name_bytes));
    names_.remove_prefix(name_bytes);
    layout->dtype = static_cast<DType>(message_.dtypes(i));
    Extents dims;
    for (uint32_t n = 0; n < rank; ++n) dims.push_back(dims_.Next());
    auto shape = TensorShape::Make(dims);
    if (!shape.ok()) return shape.status();
    layout->shape = *shape;
    const uint32_t spread = message_.spreads(i);
    if (spread > spreads_.size()) return Malformed("a tensor names a spread that is not there");
    if (spread != 0) {
      const auto& [numbers, extents, placed] = spreads_[spread - 1];
      owner_numbers_ += numbers.size();
      if (owner_numbers_ > LayoutLimits::kMaxOwnerNumbers) {
        return Malformed(
            absl::StrCat("it has more than ", LayoutLimits::kMaxOwnerNumbers, " places in meshes"));
      }
      layout->owners = numbers;
      layout->mesh = extents;
      for (const int dim : placed) layout->placements.push_back({dim});
    }
    if (!box_owners_.Has(boxes) || !box_begins_.Has(boxes * rank) ||
        !box_extents_.Has(boxes * rank)) {
      return Malformed("its columns hold less than its boxes need");
    }
    box_count_ += boxes;
    if (box_count_ > LayoutLimits::kMaxBoxes) {
      return Malformed(
          absl::StrCat("it has more than ", LayoutLimits::kMaxBoxes, " explicit boxes"));
    }
    for (uint64_t n = 0; n < boxes; ++n) {
      Box box;
      for (uint32_t d = 0; d < rank; ++d) box.begin.push_back(box_begins_.Next());
      for (uint32_t d = 0; d < rank; ++d) box.extent.push_back(box_extents_.Next());
      layout->boxes.emplace_back(box_owners_.Next(), std::move(box));
    }
    return absl::OkStatus();
  }

  const rpc::WeightLayouts& message_;
  absl::string_view names_ = message_.names();
  Column<google::protobuf::RepeatedField<int64_t>> dims_;
  Column<google::protobuf::RepeatedField<uint32_t>> box_owners_;
  Column<google::protobuf::RepeatedField<int64_t>> box_begins_, box_extents_;
  std::vector<Spread> spreads_;
  uint64_t owner_numbers_ = 0, box_count_ = 0;
};

}  // namespace

absl::StatusOr<std::string> EncodeLayouts(absl::Span<const TensorLayout> layouts, uint32_t owners) {
  const absl::Status checked = CheckLayouts(layouts, owners);
  if (!checked.ok()) return checked;
  rpc::WeightLayouts message;
  message.set_owners(owners);
  std::map<Spread, uint32_t> spreads;
  for (const TensorLayout& layout : layouts) {
    message.mutable_names()->append(layout.name);
    message.add_name_bytes(layout.name.size());
    message.add_dtypes(static_cast<uint32_t>(layout.dtype));
    message.add_ranks(layout.shape.rank());
    for (const int64_t dim : layout.shape.dims()) message.add_dims(dim);
    uint32_t spread = 0;
    if (!layout.owners.empty()) {
      const auto [found, added] = spreads.emplace(SpreadOf(layout), spreads.size() + 1);
      if (added) AddSpread(layout, &message);
      spread = found->second;
    }
    message.add_spreads(spread);
    message.add_boxes(layout.boxes.size());
    for (const auto& [owner, box] : layout.boxes) {
      message.add_box_owners(owner);
      for (const int64_t begin : box.begin) message.add_box_begins(begin);
      for (const int64_t extent : box.extent) message.add_box_extents(extent);
    }
  }
  if (message.ByteSizeLong() > kMaxLayoutBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the layouts take ", message.ByteSizeLong(),
                                                     " bytes, and may take ", kMaxLayoutBytes));
  }
  return message.SerializeAsString();
}

absl::StatusOr<DeclaredLayouts> DecodeLayouts(absl::string_view bytes) {
  if (bytes.size() > kMaxLayoutBytes) {
    return Malformed(
        absl::StrCat("it has ", bytes.size(), " bytes, and may have ", kMaxLayoutBytes));
  }
  rpc::WeightLayouts message;
  constexpr int kFields = 16;
  if (!HasOnlyFields(bytes, kFields) ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Malformed("it is no message that can be parsed");
  }
  return Decoder(message).Run();
}

}  // namespace tryst
