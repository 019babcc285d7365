#include "weights/boxes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/doubles/weights/random_layouts.h"

namespace tryst {
namespace {

constexpr uint32_t kOwners = 12;

// torch.chunk of a list, as its documentation says it, and then empty lists up to `parts`.
std::vector<std::vector<int64_t>> Shards(const std::vector<int64_t>& list, int64_t parts) {
  std::vector<std::vector<int64_t>> shards;
  const int64_t size = list.size();
  const int64_t each = (size + parts - 1) / parts;
  for (int64_t at = 0; at < size; at += each) {
    shards.emplace_back(list.begin() + at, list.begin() + std::min(at + each, size));
  }
  shards.resize(parts);
  return shards;
}

// The numbers of the elements that the owner at this place of the mesh has.
std::set<int64_t> ElementsAt(const TensorLayout& layout, size_t position) {
  std::vector<std::vector<int64_t>> lists;
  for (const int64_t dim : layout.shape.dims()) {
    lists.emplace_back();
    for (int64_t i = 0; i < dim; ++i) lists.back().push_back(i);
  }
  // Row-major: the last axis changes first.
  std::vector<int64_t> coordinates(layout.mesh.size());
  for (size_t axis = layout.mesh.size(); axis-- > 0;) {
    coordinates[axis] = position % layout.mesh[axis];
    position /= layout.mesh[axis];
  }
  for (size_t axis = 0; axis < layout.mesh.size(); ++axis) {
    const int dim = layout.placements[axis].dim;
    if (dim >= 0) lists[dim] = Shards(lists[dim], layout.mesh[axis])[coordinates[axis]];
  }
  std::set<int64_t> numbers = {0};
  for (int dim = 0; dim < layout.shape.rank(); ++dim) {
    std::set<int64_t> longer;
    for (const int64_t number : numbers) {
      for (const int64_t i : lists[dim]) longer.insert(number * layout.shape.dim(dim) + i);
    }
    numbers = longer;
  }
  return numbers;
}

std::set<int64_t> Numbers(const std::vector<Box>& boxes, const TensorShape& shape) {
  std::set<int64_t> numbers;
  for (const Box& box : boxes) {
    for (const Extents& element : ElementsOf(box)) {
      EXPECT_TRUE(numbers.insert(NumberOf(element, shape)).second);
    }
  }
  return numbers;
}

TEST(BoxesTest, PlacedBoxesAreTheShardsOfTorch) {
  Random random(4500001);
  int empty_shards = 0;
  for (int i = 0; i < 5000; ++i) {
    const TensorLayout layout = RandomPlacedLayout(&random, kOwners);
    ASSERT_TRUE(CheckLayout(layout, kOwners).ok()) << CheckLayout(layout, kOwners);
    for (uint32_t owner = 0; owner < kOwners; ++owner) {
      std::set<int64_t> expected;
      if (layout.owners.empty()) {
        expected = ElementsAt(layout, 0);
      } else {
        const auto found = std::find(layout.owners.begin(), layout.owners.end(), owner);
        if (found != layout.owners.end()) {
          expected = ElementsAt(layout, found - layout.owners.begin());
          empty_shards += expected.empty();
        }
      }
      const std::vector<Box> boxes = BoxesOf(layout, owner);
      for (const Box& box : boxes) EXPECT_FALSE(box.empty());
      ASSERT_EQ(Numbers(boxes, layout.shape), expected) << layout.shape.ToString();
    }
  }
  EXPECT_GT(empty_shards, 1000);
}

TEST(BoxesTest, KnownShards) {
  TensorLayout layout;
  layout.name = "w";
  layout.dtype = DType::kBfloat16;
  layout.shape = {5, 8};
  layout.owners = {3, 2, 1, 0};
  layout.mesh = {4};
  layout.placements = {{0}};
  // Five rows in chunks of two: 2, 2, 1, 0.
  EXPECT_EQ(BoxesOf(layout, 3), std::vector<Box>({{{0, 0}, {2, 8}}}));
  EXPECT_EQ(BoxesOf(layout, 1), std::vector<Box>({{{4, 0}, {1, 8}}}));
  EXPECT_TRUE(BoxesOf(layout, 0).empty());
  // The outer axis divides the columns, the inner one what the outer has left of them.
  layout.mesh = {2, 2};
  layout.placements = {{1}, {1}};
  EXPECT_EQ(BoxesOf(layout, 2), std::vector<Box>({{{0, 2}, {5, 2}}}));
  EXPECT_EQ(BoxesOf(layout, 1), std::vector<Box>({{{0, 4}, {5, 2}}}));
  // The largest dimension there is does not overflow.
  layout.shape = *TensorShape::Make({int64_t{1} << 61, 1});
  layout.dtype = DType::kInt8;
  layout.placements = {{0}, {0}};
  EXPECT_EQ(BoxesOf(layout, 0)[0].begin[0], 3 * (int64_t{1} << 59));
}

// How many different boxes hold each element.
std::map<int64_t, int> Counts(const TensorLayout& layout) {
  std::map<int64_t, int> counts;
  std::set<Box> boxes;
  for (const auto& [owner, box] : layout.boxes) boxes.insert(box);
  for (const Extents& element : ElementsOf(Box::Whole(layout.shape))) {
    counts[NumberOf(element, layout.shape)] = 0;
  }
  for (const Box& box : boxes) {
    for (const Extents& element : ElementsOf(box)) ++counts[NumberOf(element, layout.shape)];
  }
  return counts;
}

void Spoil(Random* random, TensorLayout* layout) {
  auto& [owner, box] = layout->boxes[Below(random, layout->boxes.size())];
  switch (Below(random, 3)) {
    case 0:
      box = RandomBox(random, layout->shape);
      break;
    case 1:
      box.extent.assign(box.rank(), 0);
      break;
    case 2:
      // Its owner has no other box, so that none has one twice.
      layout->boxes.emplace_back(kOwners - 1, RandomBox(random, layout->shape));
      break;
  }
}

TEST(BoxesTest, CoverIsWhatCountingSays) {
  Random random(4500002);
  int right = 0, wrong = 0;
  for (int i = 0; i < 20000; ++i) {
    TensorLayout layout = RandomBoxedLayout(&random, kOwners - 1);
    ASSERT_TRUE(CheckLayout(layout, kOwners).ok()) << CheckLayout(layout, kOwners);
    if (i % 2 != 0) Spoil(&random, &layout);
    std::set<std::pair<uint32_t, Box>> different;
    bool twice = false;
    for (const auto& owned : layout.boxes) {
      twice |= !owned.second.empty() && !different.insert(owned).second;
    }
    if (twice) continue;  // Spoiled so that one owner has a box twice.
    const std::map<int64_t, int> counts = Counts(layout);
    const auto first = std::find_if(counts.begin(), counts.end(),
                                    [](const auto& count) { return count.second != 1; });
    const absl::Status cover = CheckCover(layout, kOwners);
    ASSERT_EQ(cover.ok(), first == counts.end()) << cover;
    if (cover.ok()) {
      ++right;
      continue;
    }
    ++wrong;
    Extents element(layout.shape.rank());
    int64_t rest = first->first;
    for (int dim = layout.shape.rank(); dim-- > 0; rest /= layout.shape.dim(dim)) {
      element[dim] = rest % layout.shape.dim(dim);
    }
    std::string where = "element [";
    for (size_t d = 0; d < element.size(); ++d) {
      absl::StrAppend(&where, d == 0 ? "" : ",", element[d]);
    }
    absl::StrAppend(&where, "] of ", layout.shape.ToString(), " is in ",
                    first->second == 0 ? "no" : absl::StrCat(first->second));
    ASSERT_NE(cover.message().find(where), absl::string_view::npos) << cover << " not " << where;
  }
  EXPECT_GT(right, 10000);
  EXPECT_GT(wrong, 1000);
}

TEST(BoxesTest, OneOwnerHasABoxOnce) {
  TensorLayout layout;
  layout.name = "w\n";
  layout.shape = {2};
  layout.boxes = {{1, {{0}, {2}}}, {1, {{0}, {2}}}};
  EXPECT_EQ(CheckCover(layout, 2).message(),
            "layout of tensor \"w\\n\": owner 1 has box [0:2] twice");
}

TEST(BoxesTest, CornersAreBounded) {
  TensorLayout layout;
  layout.name = "w";
  layout.shape = *TensorShape::Make({1 << 13, 2, 2, 2, 2, 2, 2, 2});
  for (const Extents& element : ElementsOf(Box::Whole(layout.shape))) {
    layout.boxes.emplace_back(0, Box{element, Extents(8, 1)});
    if (layout.boxes.size() > LayoutLimits::kMaxCorners / 256) break;
  }
  EXPECT_NE(CheckCover(layout, 1).message().find("corners"), absl::string_view::npos);
}

TEST(BoxesTest, SharedBoxesTileTheTensor) {
  Random random(4500003);
  for (int i = 0; i < 4000; ++i) {
    const TensorLayout layout =
        i % 2 == 0 ? RandomPlacedLayout(&random, kOwners) : RandomBoxedLayout(&random, kOwners);
    std::vector<Box> boxes;
    for (const SharedBox& shared : SharedBoxes(layout, kOwners)) {
      boxes.push_back(shared.box);
      EXPECT_TRUE(std::is_sorted(shared.owners.begin(), shared.owners.end()));
      for (uint32_t owner = 0; owner < kOwners; ++owner) {
        const std::vector<Box> its = BoxesOf(layout, owner);
        EXPECT_EQ(std::count(its.begin(), its.end(), shared.box),
                  std::count(shared.owners.begin(), shared.owners.end(), owner));
      }
    }
    ASSERT_EQ(Numbers(boxes, layout.shape).size(), layout.shape.elements());
    ASSERT_TRUE(std::is_sorted(boxes.begin(), boxes.end()));
  }
}

TEST(BoxesTest, IntersectionsAndContents) {
  Random random(4500004);
  int met = 0, contained = 0;
  for (int i = 0; i < 5000; ++i) {
    const TensorShape shape = RandomShape(&random, 3, 5);
    const Box a = RandomBox(&random, shape), b = RandomBox(&random, shape);
    std::set<int64_t> of_a = Numbers({a}, shape), of_b = Numbers({b}, shape), of_both;
    std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                          std::inserter(of_both, of_both.begin()));
    Box both = a;
    ASSERT_EQ(Intersect(a, b, &both), !of_both.empty());
    if (of_both.empty()) {
      ASSERT_EQ(both, a);
    } else {
      ASSERT_EQ(Numbers({both}, shape), of_both);
      ++met;
    }
    ASSERT_EQ(Contains(a, b), of_both == of_b);
    contained += Contains(a, b) && !of_b.empty();
  }
  EXPECT_GT(met, 1000);
  EXPECT_GT(contained, 100);
}

}  // namespace
}  // namespace tryst
