#include "weights/sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/doubles/weights/random_layouts.h"

namespace tryst {
namespace {

constexpr uint32_t kOwners = 12;
constexpr uint32_t kSizes[] = {1, 2, 4, 8, 16};

std::vector<char> RandomBytes(Random* random, uint64_t size) {
  std::vector<char> bytes(size);
  for (char& byte : bytes) byte = static_cast<char>((*random)());
  return bytes;
}

// A box of a dense tensor, dense.
std::vector<char> PartOfTensor(const std::vector<char>& tensor, const TensorShape& shape,
                               const Box& box, uint32_t element_bytes) {
  std::vector<char> part(box.elements() * element_bytes);
  const Box whole = Box::Whole(shape);
  RunCopy(PlanCopy(box.extent, element_bytes, PartOf(whole, Dense(whole.extent), box),
                   Dense(box.extent)),
          tensor.data(), part.data());
  return part;
}

CoverSum SumOfWhole(uint32_t tensor, const TensorShape& shape, uint32_t element_bytes,
                    const std::vector<char>& bytes) {
  const Box whole = Box::Whole(shape);
  return SumOf(tensor, shape, whole, element_bytes, bytes.data(), Dense(whole.extent));
}

TEST(SumsTest, BoxesAddUpHoweverATensorIsCut) {
  Random random(4500030);
  for (int i = 0; i < 4000; ++i) {
    const TensorLayout layout =
        i % 2 == 0 ? RandomPlacedLayout(&random, kOwners) : RandomBoxedLayout(&random, kOwners);
    const uint32_t element_bytes = kSizes[i / 2 % 5];
    const std::vector<char> tensor = RandomBytes(&random, layout.shape.elements() * element_bytes);
    CoverSum sum;
    for (const SharedBox& shared : SharedBoxes(layout, kOwners)) {
      const std::vector<char> part = PartOfTensor(tensor, layout.shape, shared.box, element_bytes);
      const CoverSum its =
          SumOf(7, layout.shape, shared.box, element_bytes, part.data(), Dense(shared.box.extent));
      // The sum does not depend on where the box lies in memory.
      const Box whole = Box::Whole(layout.shape);
      ASSERT_EQ(its, SumOf(7, layout.shape, shared.box, element_bytes, tensor.data(),
                           PartOf(whole, Dense(whole.extent), shared.box)));
      sum += its;
    }
    ASSERT_EQ(sum, SumOfWhole(7, layout.shape, element_bytes, tensor));
  }
}

TEST(SumsTest, VectorsAndTheDefinitionAgree) {
  Random random(4500031);
  for (int i = 0; i < 2000; ++i) {
    const uint32_t element_bytes = kSizes[i % 5];
    // Rows begin anywhere in a stretch, and end in another.
    const TensorShape shape = {3, 2000 + Below(&random, 5000)};
    Box box = Box::Whole(shape);
    box.begin[1] = Below(&random, 20);
    box.extent[1] -= box.begin[1] + Below(&random, 20);
    const std::vector<char> part = RandomBytes(&random, box.elements() * element_bytes);
    ASSERT_EQ(SumOf(i, shape, box, element_bytes, part.data(), Dense(box.extent)),
              SumOfPortable(i, shape, box, element_bytes, part.data(), Dense(box.extent)));
  }
}

TEST(SumsTest, WhatGoesWrongShows) {
  Random random(4500032);
  for (int i = 0; i < 20000; ++i) {
    const uint32_t element_bytes = kSizes[i % 5];
    const TensorShape shape = {2 + Below(&random, 4), 2 + Below(&random, 60)};
    const int64_t row_bytes = shape.dim(1) * element_bytes;
    std::vector<char> right = RandomBytes(&random, shape.elements() * element_bytes);
    std::vector<char> wrong = right;
    const CoverSum sum = SumOfWhole(3, shape, element_bytes, right);
    ASSERT_NE(sum, SumOfWhole(4, shape, element_bytes, right)) << "another tensor";
    switch (Below(&random, 4)) {
      case 0:  // One bit.
        wrong[Below(&random, wrong.size())] ^= static_cast<char>(1 << Below(&random, 8));
        break;
      case 1:  // All is one element off.
        std::rotate(wrong.begin(), wrong.begin() + element_bytes, wrong.end());
        break;
      case 2:  // Two rows stand in each other's place.
        std::swap_ranges(wrong.begin(), wrong.begin() + row_bytes, wrong.begin() + row_bytes);
        break;
      case 3:  // An element's bytes are turned.
        if (element_bytes > 1) std::reverse(wrong.begin(), wrong.begin() + element_bytes);
        break;
    }
    if (wrong == right) continue;
    ASSERT_NE(sum, SumOfWhole(3, shape, element_bytes, wrong));
  }
}

TEST(SumsTest, ALostRowOfZeroesShows) {
  const TensorShape shape = {8, 16};
  const std::vector<char> zeroes(shape.elements() * 2);
  const CoverSum whole = SumOfWhole(0, shape, 2, zeroes);
  const CoverSum less = SumOf(0, shape, {{1, 0}, {7, 16}}, 2, zeroes.data(), Dense({7, 16}));
  EXPECT_NE(whole, less);
  EXPECT_NE(whole, CoverSum());
  EXPECT_EQ(SumOf(0, shape, {{1, 0}, {0, 16}}, 2, zeroes.data(), Dense({0, 16})), CoverSum());
}

TEST(SumsTest, SumsTravel) {
  // Members of other releases have to find the same sums. These were found by another program.
  const TensorShape shape = {4100};
  std::vector<char> bytes(8200);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  const CoverSum sum = SumOfWhole(5, shape, 2, bytes);
  EXPECT_EQ(sum.low, 4160082485249861638u);
  EXPECT_EQ(sum.high, 14112090058029790412u);
}

}  // namespace
}  // namespace tryst
