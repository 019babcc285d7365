#include "weights/layout_wire.h"

#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "proto/weights.pb.h"
#include "tests/doubles/weights/random_layouts.h"
#include "weights/digests.h"

namespace tryst {
namespace {

constexpr uint32_t kOwners = 12;

std::vector<TensorLayout> RandomSet(Random* random) {
  std::vector<TensorLayout> layouts;
  const int64_t count = 1 + Below(random, 6);
  for (int64_t i = 0; i < count; ++i) {
    layouts.push_back(Below(random, 2) == 0 ? RandomPlacedLayout(random, kOwners)
                                            : RandomBoxedLayout(random, kOwners));
    absl::StrAppend(&layouts.back().name, "/", i);
  }
  return layouts;
}

TEST(LayoutWireTest, ComesBackAsItWasSaid) {
  Random random(4500010);
  for (int i = 0; i < 2000; ++i) {
    std::vector<TensorLayout> layouts = RandomSet(&random);
    if (layouts.size() > 1) {  // One spread of two tensors.
      layouts.push_back(layouts[0]);
      layouts.back().name = "again";
    }
    const auto bytes = EncodeLayouts(layouts, kOwners);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(*bytes, *EncodeLayouts(layouts, kOwners));
    const auto declared = DecodeLayouts(*bytes);
    ASSERT_TRUE(declared.ok()) << declared.status();
    ASSERT_EQ(declared->owners, kOwners);
    ASSERT_EQ(declared->tensors, layouts);
    EXPECT_NE(DigestOf(*bytes), DigestOf(*EncodeLayouts(layouts, kOwners + 1)));
  }
}

TEST(LayoutWireTest, LayoutsThatDifferInOneThingAreNotEqual) {
  Random random(4500011);
  const TensorLayout layout = RandomPlacedLayout(&random, kOwners);
  const std::vector<std::function<void(TensorLayout*)>> changes = {
      [](TensorLayout* it) { it->name += "."; },
      [](TensorLayout* it) {
        it->dtype = it->dtype == DType::kInt8 ? DType::kUint8 : DType::kInt8;
      },
      [](TensorLayout* it) {
        it->shape = TensorShape({3, 1, 4, 1, 5});
      },
      [](TensorLayout* it) { it->owners.push_back(0); },
      [](TensorLayout* it) { it->mesh.push_back(1); },
      [](TensorLayout* it) { it->placements.emplace_back(); },
      [](TensorLayout* it) { it->boxes.emplace_back(); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    TensorLayout changed = layout;
    changes[i](&changed);
    EXPECT_FALSE(changed == layout) << "change " << i;
  }
  EXPECT_TRUE(TensorLayout(layout) == layout);
}

TEST(LayoutWireTest, ALargeModelFits) {
  std::vector<TensorLayout> layouts(70000);
  for (size_t i = 0; i < layouts.size(); ++i) {
    TensorLayout& layout = layouts[i];
    layout.name = absl::StrCat("model.layers.", i / 1200, ".mlp.experts.", i, ".gate_proj.weight");
    layout.dtype = DType::kBfloat16;
    layout.shape = {7168, 2048};
    for (uint32_t owner = 0; owner < 256; ++owner) layout.owners.push_back((owner + i % 4) % 256);
    layout.mesh = {32, 8};
    layout.placements = {{Placement::kReplicate}, {0}};
  }
  const auto bytes = EncodeLayouts(layouts, 256);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_LT(bytes->size(), 5u << 20);
  const auto declared = DecodeLayouts(*bytes);
  ASSERT_TRUE(declared.ok()) << declared.status();
  EXPECT_TRUE(declared->tensors == layouts);
}

TEST(LayoutWireTest, MoreThanTheBoundIsNotDeclared) {
  std::vector<TensorLayout> layouts(60000);
  for (size_t i = 0; i < layouts.size(); ++i) {
    layouts[i].name = absl::StrCat(std::string(300, 'n'), i);
    layouts[i].dtype = DType::kFloat;
  }
  EXPECT_EQ(EncodeLayouts(layouts, 1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DecodeLayouts(std::string(kMaxLayoutBytes + 1, '\0')).status().message(),
            absl::StrCat("the declaration of layouts is malformed: it has ", kMaxLayoutBytes + 1,
                         " bytes, and may have ", kMaxLayoutBytes));
}

// One tensor by a mesh, one by boxes.
rpc::WeightLayouts Message() {
  TensorLayout placed;
  placed.name = "placed";
  placed.dtype = DType::kFloat;
  placed.shape = {4, 4};
  placed.owners = {0, 1};
  placed.mesh = {2};
  placed.placements = {{0}};
  TensorLayout boxed;
  boxed.name = "boxed";
  boxed.dtype = DType::kFloat;
  boxed.shape = {4};
  boxed.boxes = {{0, {{0}, {3}}}, {1, {{3}, {1}}}};
  rpc::WeightLayouts message;
  EXPECT_TRUE(message.ParseFromString(*EncodeLayouts({placed, boxed}, 2)));
  return message;
}

TEST(LayoutWireTest, WhatIsWrongIsSaid) {
  using M = rpc::WeightLayouts;
  const std::vector<std::pair<std::function<void(M*)>, std::string>> cases = {
      {[](M* m) { m->set_owners(0); }, "owners, and 0 were given"},
      {[](M* m) { m->set_owners(1); }, "owner 1, and the set has 1 owners"},
      {[](M* m) { m->set_owners(LayoutLimits::kMaxOwners + 1); }, "owners, and 4097 were given"},
      {[](M* m) { m->Clear(); }, "tensors, and 0 were given"},
      {[](M* m) { m->mutable_names()->append("x"); }, "its columns hold more"},
      {[](M* m) { m->mutable_names()->pop_back(); }, "its columns hold less than its tensors need"},
      {[](M* m) {
         m->set_names("placeplace");
         m->set_name_bytes(0, 5);
       },
       "the same name"},
      {[](M* m) {
         m->set_name_bytes(0, 0);
         m->set_name_bytes(1, 11);
       },
       "a tensor's name has 0"},
      {[](M* m) { m->add_name_bytes(0); }, "its columns differ in length"},
      {[](M* m) { m->add_boxes(0); }, "its columns differ in length"},
      {[](M* m) { m->set_dtypes(0, 256); }, "its columns hold less"},
      {[](M* m) { m->set_dtypes(0, 7); }, "a tensor of type string cannot have"},
      {[](M* m) { m->set_dtypes(0, 62); }, "a tensor of type"},
      {[](M* m) { m->set_ranks(0, 9); }, "its columns hold less"},
      {[](M* m) { m->set_ranks(0, 1); }, "its columns hold more"},
      {[](M* m) { m->set_dims(0, -1); }, "-1"},
      {[](M* m) { m->set_dims(0, int64_t{1} << 61); }, ""},
      {[](M* m) { m->add_dims(1); }, "its columns hold more"},
      {[](M* m) { m->set_spreads(0, 2); }, "a spread that is not there"},
      {[](M* m) { m->set_spreads(1, 1); }, "both a mesh and explicit boxes"},
      {[](M* m) { m->set_boxes(1, 1); }, "its columns hold more"},
      {[](M* m) { m->set_boxes(1, 3); }, "its columns hold less than its boxes need"},
      {[](M* m) { m->set_boxes(1, uint32_t{0} - 1); }, "its columns hold less than its boxes need"},
      {[](M* m) { m->set_spread_owners(0, 1); }, "its columns hold more than its spreads need"},
      {[](M* m) { m->set_spread_owners(0, 3); }, "its columns hold less than its spreads need"},
      {[](M* m) {
         m->set_spread_owners(0, 0);
         m->clear_owner_numbers();
       },
       "its columns hold less than its spreads need"},
      {[](M* m) { m->set_spread_axes(0, 2); }, "its columns hold less than its spreads need"},
      {[](M* m) { m->set_spread_axes(0, 9); }, "its columns hold less than its spreads need"},
      {[](M* m) { m->add_spread_axes(0); }, "its columns differ in length"},
      {[](M* m) {
         for (int i = 0; i < 2; ++i) m->add_spread_axes(0), m->add_spread_owners(1);
       },
       "more spreads than tensors"},
      {[](M* m) { m->set_owner_numbers(0, 2); }, "owner 2, and the set has 2 owners"},
      {[](M* m) { m->set_owner_numbers(0, 1); }, "it names owner 1 twice"},
      {[](M* m) { m->set_mesh(0, 3); }, "its mesh has 3 positions and it names 2 owners"},
      {[](M* m) { m->set_mesh(0, -2); }, "an axis of its mesh has -2 positions"},
      {[](M* m) { m->set_placements(0, 3); }, "a placement names dimension 2"},
      {[](M* m) { m->set_placements(0, 9); },
       "a placement names a dimension that no tensor can have"},
      {[](M* m) { m->set_box_owners(0, 2); }, "owner 2, and the set has 2 owners"},
      {[](M* m) { m->add_box_owners(0); }, "its columns hold more"},
      {[](M* m) { m->set_box_begins(0, -1); }, "lies outside the shape"},
      {[](M* m) {
         m->set_box_begins(0, INT64_MAX);
         m->set_box_extents(0, INT64_MAX);
       },
       "lies outside the shape"},
      {[](M* m) { m->set_box_extents(0, 2); }, "element [2] of [4] is in no owner's box"},
      {[](M* m) { m->set_box_extents(0, 4); }, "element [3] of [4] is in 2 boxes"},
  };
  const std::string good = Message().SerializeAsString();
  ASSERT_TRUE(DecodeLayouts(good).ok());
  EXPECT_EQ(DecodeLayouts(good + std::string("\xf8\x01\x00", 3)).status().message(),
            "the declaration of layouts is malformed: it is no message that can be parsed")
      << "a field that no release has";
  int number = 0;
  for (const auto& [spoil, said] : cases) {
    rpc::WeightLayouts message = Message();
    spoil(&message);
    const auto declared = DecodeLayouts(message.SerializeAsString());
    EXPECT_EQ(declared.status().code(), absl::StatusCode::kInvalidArgument) << number;
    EXPECT_NE(declared.status().message().find(said), absl::string_view::npos)
        << number << ": " << declared.status();
    ++number;
  }
}

// The product is 5 * 2^64 + 384: in 64 bits as many as the owners.
TEST(LayoutWireTest, AMeshWhosePositionsDoNotFitANumberIsRefused) {
  TensorLayout layout;
  layout.name = "w";
  layout.dtype = DType::kFloat;
  layout.shape = {4};
  layout.mesh = {2939, 2942, 3412, 3427, 2479, 368};
  layout.placements.assign(6, {Placement::kReplicate});
  for (uint32_t owner = 0; owner < 384; ++owner) layout.owners.push_back(owner);
  EXPECT_EQ(CheckLayout(layout, 384).message(),
            "layout of tensor \"w\": its mesh has 8646538 positions and it names 384 owners: make "
            "both numbers equal");
}

TEST(LayoutWireTest, BoxesStandAlone) {
  TensorLayout boxed;
  boxed.name = "w";
  boxed.dtype = DType::kFloat;
  boxed.shape = {4};
  boxed.boxes = {{0, Box::Whole(boxed.shape)}};
  ASSERT_TRUE(CheckLayout(boxed, 1).ok());
  TensorLayout with_mesh = boxed, with_placements = boxed, with_owners = boxed;
  with_mesh.mesh = {1};
  with_placements.placements = {{0}};
  with_owners.owners = {0};
  for (const TensorLayout& layout : {with_mesh, with_placements, with_owners}) {
    EXPECT_EQ(CheckLayout(layout, 1).message(),
              "layout of tensor \"w\": it has both a mesh and explicit boxes: give one of the two");
  }
}

TEST(LayoutWireTest, SharedSpreadsBecomeNoMoreThanTheBound) {
  rpc::WeightLayouts message;
  message.set_owners(4096);
  message.add_spread_owners(4096);
  for (int i = 0; i < 4096; ++i) message.add_owner_numbers(i);
  message.add_spread_axes(1);
  message.add_mesh(4096);
  message.add_placements(0);
  for (size_t i = 0; i <= LayoutLimits::kMaxOwnerNumbers / 4096; ++i) {
    const std::string name = absl::StrCat(i);
    message.mutable_names()->append(name);
    message.add_name_bytes(name.size());
    message.add_dtypes(1);
    message.add_ranks(0);
    message.add_spreads(1);
    message.add_boxes(0);
  }
  EXPECT_EQ(DecodeLayouts(message.SerializeAsString()).status().message(),
            "the declaration of layouts is malformed: it has more than 33554432 places in meshes");
}

}  // namespace
}  // namespace tryst
