#include "weights/fetch_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tests/doubles/weights/random_layouts.h"

namespace tryst {
namespace {

constexpr uint32_t kOwners = 12;
constexpr uint32_t kNothing = 0xffffffff;

int64_t PlaceOf(const Box& box, const Strides& lies, const Extents& element) {
  int64_t place = lies.offset;
  for (int i = 0; i < box.rank(); ++i) place += (element[i] - box.begin[i]) * lies.steps[i];
  return place;
}

struct View {
  Strides strides;
  uint64_t elements = 0;  // So many has its memory.
};

// A box inside a larger dense tensor; if `turned`, its dimensions stand in another order, some
// reversed.
View RandomView(Random* random, const Extents& extent, bool turned) {
  std::vector<int> order(extent.size());
  std::iota(order.begin(), order.end(), 0);
  if (turned) std::shuffle(order.begin(), order.end(), *random);
  View view;
  view.strides.steps.resize(extent.size());
  int64_t step = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    const int64_t before = Below(random, 3) == 0 ? Below(random, 3) : 0;
    const int64_t after = Below(random, 3) == 0 ? Below(random, 3) : 0;
    view.strides.steps[*dim] = step;
    view.strides.offset += before * step;
    if (turned && Below(random, 4) == 0 && extent[*dim] > 0) {
      view.strides.offset += (extent[*dim] - 1) * step;
      view.strides.steps[*dim] = -step;
    }
    step *= before + extent[*dim] + after;
  }
  view.elements = step;
  return view;
}

template <typename T>
std::vector<T> Numbered(uint64_t size) {
  std::vector<T> numbers(size);
  std::iota(numbers.begin(), numbers.end(), T{1});
  return numbers;
}

// Runs of bytes that are contiguous at both ends, counted one element after the other.
uint64_t CountRuns(std::vector<std::pair<int64_t, int64_t>> places) {
  std::sort(places.begin(), places.end());
  uint64_t runs = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    runs += i == 0 || places[i].first != places[i - 1].first + 1 ||
            places[i].second != places[i - 1].second + 1;
  }
  return runs;
}

TEST(FetchPlanTest, CopiesAreWhatElementsSay) {
  Random random(4500020);
  int transposed = 0, many_loops = 0;
  for (int i = 0; i < 20000; ++i) {
    const TensorShape shape = RandomShape(&random, 4, 5);
    const Box box = i % 8 == 0 ? RandomBox(&random, shape) : Box::Whole(shape);
    const bool plain = i / 8 % 2 == 0;
    const View from = RandomView(&random, box.extent, !plain);
    const View to = RandomView(&random, box.extent, !plain);
    ASSERT_TRUE(CheckView(box.extent, from.strides, from.elements, ViewUse::kSource).ok());
    const absl::Status checked =
        CheckView(box.extent, to.strides, to.elements, ViewUse::kDestination);
    ASSERT_TRUE(checked.ok()) << checked;
    const std::vector<uint32_t> source = Numbered<uint32_t>(from.elements);
    std::vector<uint32_t> expected(to.elements, kNothing), copied = expected;
    std::vector<std::pair<int64_t, int64_t>> places;
    for (const Extents& element : ElementsOf(box)) {
      places.emplace_back(PlaceOf(box, from.strides, element), PlaceOf(box, to.strides, element));
      expected.at(places.back().second) = source.at(places.back().first);
    }
    const StridedCopy copy = PlanCopy(box.extent, sizeof(uint32_t), from.strides, to.strides);
    ASSERT_EQ(copy.bytes(), box.elements() * sizeof(uint32_t));
    const uint64_t runs = CountRuns(places);
    // Where blocks are turned, the end of one may happen to meet the next at both ends.
    ASSERT_TRUE(plain ? copy.runs() == runs : copy.runs() >= runs) << box.ToString();
    RunCopy(copy, source.data(), copied.data());
    ASSERT_EQ(copied, expected);
    transposed += !plain && copy.run_bytes == sizeof(uint32_t) && copy.runs() > 10;
    many_loops += copy.loops.size() > 2;
  }
  EXPECT_GT(transposed, 1000);
  EXPECT_GT(many_loops, 500);
}

template <size_t kBytes>
struct Element {
  uint8_t bytes[kBytes];
};

// Elements of each size, and more of them than a tile has in each direction.
template <size_t kBytes>
void Transpose() {
  constexpr int64_t kPlanes = 2, kRows = 77, kColumns = 45;
  std::vector<Element<kBytes>> from(kPlanes * kRows * kColumns), to(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    for (size_t n = 0; n < kBytes; ++n) from[i].bytes[n] = static_cast<uint8_t>(i * 31 + n * 7);
  }
  Strides transposed;
  transposed.steps = {1, kPlanes, kPlanes * kRows};
  const Extents extent = {kPlanes, kRows, kColumns};
  const StridedCopy copy = PlanCopy(extent, kBytes, Dense(extent), transposed);
  EXPECT_EQ(copy.run_bytes, kBytes);
  RunCopy(copy, from.data(), to.data());
  for (int64_t plane = 0; plane < kPlanes; ++plane) {
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < kColumns; ++column) {
        ASSERT_EQ(memcmp(&from[(plane * kRows + row) * kColumns + column],
                         &to[plane + kPlanes * (row + kRows * column)], kBytes),
                  0);
      }
    }
  }
}

TEST(FetchPlanTest, TransposedElementsOfEachSize) {
  Transpose<1>();
  Transpose<2>();
  Transpose<4>();
  Transpose<8>();
  Transpose<16>();
}

TEST(FetchPlanTest, RunsAreLong) {
  const Box rows = {{2, 0}, {2, 8}}, columns = {{0, 4}, {8, 4}};
  const Strides dense = Dense({8, 8});
  const Box whole = {{0, 0}, {8, 8}};
  // Rows of a dense matrix into a dense matrix: one run.
  StridedCopy copy = PlanCopy(rows.extent, 2, PartOf(whole, dense, rows), Dense(rows.extent));
  EXPECT_EQ(copy.runs(), 1u);
  EXPECT_EQ(copy.run_bytes, 32u);
  EXPECT_EQ(copy.from, 32);
  // Columns: one for each row.
  copy = PlanCopy(columns.extent, 2, PartOf(whole, dense, columns), Dense(columns.extent));
  EXPECT_EQ(copy.runs(), 8u);
  EXPECT_EQ(copy.run_bytes, 8u);
  // Planes of rows go on as the rows do.
  const Box planes = {{0, 0, 8}, {4, 4, 8}};
  copy = PlanCopy(planes.extent, 2, PartOf({{0, 0, 0}, {4, 4, 16}}, Dense({4, 4, 16}), planes),
                  Dense(planes.extent));
  EXPECT_EQ(copy.runs(), 16u);
  EXPECT_EQ(copy.loops.size(), 1u);
  // A scalar has one element, an empty box none.
  EXPECT_EQ(PlanCopy({}, 4, {}, {}).bytes(), 4u);
  EXPECT_EQ(PlanCopy({0, 3}, 4, Dense({0, 3}), Dense({0, 3})).bytes(), 0u);
}

TEST(FetchPlanTest, SourcesHaveEachElementOnce) {
  Random random(4500021);
  int several = 0;
  for (int i = 0; i < 6000; ++i) {
    const TensorLayout layout =
        i % 2 == 0 ? RandomPlacedLayout(&random, kOwners) : RandomBoxedLayout(&random, kOwners);
    const Box asked = i % 3 == 0 ? RandomBox(&random, layout.shape) : Box::Whole(layout.shape);
    const auto sources = SourcesOf(layout, kOwners, asked);
    ASSERT_TRUE(sources.ok()) << sources.status();
    several += sources->size() > 1;
    const View into = RandomView(&random, asked.extent, true);
    const std::vector<uint32_t> global = Numbered<uint32_t>(layout.shape.elements());
    std::vector<uint32_t> got(into.elements, kNothing), expected = got;
    for (const Extents& element : ElementsOf(asked)) {
      expected[PlaceOf(asked, into.strides, element)] = global[NumberOf(element, layout.shape)];
    }
    for (const Source& source : *sources) {
      ASSERT_FALSE(source.owners.empty());
      for (const uint32_t owner : source.owners) {
        const std::vector<Box> its = BoxesOf(layout, owner);
        ASSERT_EQ(std::count(its.begin(), its.end(), source.box), 1);
      }
      std::vector<uint32_t> owned;  // As the owner has it.
      for (const Extents& element : ElementsOf(source.box)) {
        owned.push_back(global[NumberOf(element, layout.shape)]);
      }
      // The owner sends the part packed, without gaps.
      std::vector<uint32_t> part(source.part.elements());
      const Strides at_owner = PartOf(source.box, Dense(source.box.extent), source.part);
      RunCopy(PlanCopy(source.part.extent, 4, at_owner, Dense(source.part.extent)), owned.data(),
              part.data());
      const Strides at_consumer = PartOf(asked, into.strides, source.part);
      RunCopy(PlanCopy(source.part.extent, 4, Dense(source.part.extent), at_consumer), part.data(),
              got.data());
    }
    ASSERT_EQ(got, expected);
  }
  EXPECT_GT(several, 1000);
}

TEST(FetchPlanTest, WhatCannotBeAskedFor) {
  TensorLayout layout;
  layout.name = "w";
  layout.dtype = DType::kInt8;
  layout.shape = {4, 4};
  EXPECT_EQ(SourcesOf(layout, 1, {{0, 3}, {4, 2}}).status().message(),
            "box [0:4,3:5] of tensor \"w\" lies outside its shape [4,4]");
  EXPECT_FALSE(SourcesOf(layout, 1, {{0}, {4}}).ok());
  EXPECT_FALSE(SourcesOf(layout, 1, {{0, INT64_MAX}, {4, INT64_MAX}}).ok());
  layout.shape = *TensorShape::Make({kMaxSources + 1});
  for (int64_t i = 0; i < layout.shape.elements(); ++i) layout.boxes.push_back({0, {{i}, {1}}});
  EXPECT_EQ(SourcesOf(layout, 1, Box::Whole(layout.shape)).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(SourcesOf(layout, 1, {{1}, {kMaxSources}})->size(), kMaxSources);
}

TEST(FetchPlanTest, ViewsStayWithinTheirMemory) {
  const auto check = [](Extents extent, int64_t offset, Extents steps, uint64_t elements,
                        ViewUse use = ViewUse::kDestination) {
    return CheckView(extent, {offset, steps}, elements, use).code();
  };
  constexpr auto kOk = absl::StatusCode::kOk, kOutOfRange = absl::StatusCode::kOutOfRange,
                 kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(check({2, 3}, 0, {3, 1}, 6), kOk);
  EXPECT_EQ(check({2, 3}, 0, {3, 1}, 5), kOutOfRange);
  EXPECT_EQ(check({2, 3}, 1, {3, 1}, 6), kOutOfRange);
  EXPECT_EQ(check({2, 3}, 5, {-3, -1}, 6), kOk);
  EXPECT_EQ(check({2, 3}, 4, {-3, -1}, 6), kOutOfRange);
  EXPECT_EQ(check({2, 3}, -1, {3, 1}, 6), kOutOfRange);
  EXPECT_EQ(check({2, 3}, 0, {1}, 6), kInvalid);
  EXPECT_EQ(check({}, 0, {}, 1), kOk);
  EXPECT_EQ(check({}, 0, {}, 0), kOutOfRange);
  EXPECT_EQ(check({0, 3}, 99, {3, 1}, 0), kOk);
  EXPECT_EQ(check({2, INT64_MAX}, INT64_MAX, {INT64_MAX, INT64_MAX}, 6), kOutOfRange);
  EXPECT_EQ(check({2, INT64_MAX}, 0, {INT64_MIN, INT64_MIN}, 6), kOutOfRange);
  // One number for all is well to read from, and no destination.
  EXPECT_EQ(check({2, 3}, 0, {0, 1}, 6, ViewUse::kSource), kOk);
  EXPECT_EQ(check({2, 3}, 0, {0, 1}, 6), kInvalid);
  EXPECT_EQ(check({1, 3}, 0, {0, 1}, 6), kOk);
  EXPECT_EQ(check({2, 3}, 0, {2, 1}, 6), kInvalid);
  EXPECT_EQ(check({2, 3}, 2, {-2, 1}, 6), kInvalid);
}

}  // namespace
}  // namespace tryst
