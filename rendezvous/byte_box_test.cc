#include "rendezvous/byte_box.h"

#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

std::vector<ByteRun> Runs(const ByteBox& box) {
  const auto runs = RunsOfBox(box);
  EXPECT_TRUE(runs.ok()) << runs.status();
  return runs.value_or(std::vector<ByteRun>());
}

// Offsets of all bytes in their order.
std::vector<uint64_t> BytesOf(const std::vector<ByteRun>& runs) {
  std::vector<uint64_t> bytes;
  for (const ByteRun& run : runs) {
    for (uint64_t i = 0; i < run.count; ++i) {
      for (uint64_t k = 0; k < run.bytes; ++k) bytes.push_back(run.offset + i * run.stride + k);
    }
  }
  return bytes;
}

TEST(ByteBoxTest, ABoxIsItsElementsInRowMajorOrder) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 500; ++round) {
    std::vector<uint64_t> extent(random() % 5), strides(extent.size());
    const uint64_t element = 1 + random() % 3;
    uint64_t dense = element;
    for (size_t i = extent.size(); i-- > 0;) {
      extent[i] = random() % 4 + (random() % 8 == 0 ? 0 : 1);
      strides[i] = random() % 2 == 0 ? dense : dense + random() % 7;
      if (random() % 8 == 0) strides[i] = random() % 9;  // Any order will do for reading.
      dense = strides[i] * extent[i];
    }
    const ByteBox box = {random() % 100, element, extent, strides};
    std::vector<uint64_t> expected;
    const uint64_t elements =
        std::accumulate(extent.begin(), extent.end(), uint64_t{1}, std::multiplies<uint64_t>());
    for (uint64_t n = 0; n < elements; ++n) {
      uint64_t at = box.offset, rest = n;
      for (size_t i = extent.size(); i-- > 0; rest /= extent[i])
        at += rest % extent[i] * strides[i];
      for (uint64_t k = 0; k < element; ++k) expected.push_back(at + k);
    }
    EXPECT_EQ(BytesOf(Runs(box)), expected) << round;
  }
}

TEST(ByteBoxTest, WhatLiesWithoutAGapIsOneSpan) {
  // Heads 4 to 7 of 16, of 8 tokens of a pool whose tokens have a pitch: 4 x 128 x 2 bytes each.
  const std::vector<uint64_t> extent = {8, 4, 128}, strides = {5000, 256, 2};
  const auto runs = Runs({4 * 256, 2, extent, strides});
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].offset, 1024u);
  EXPECT_EQ(runs[0].bytes, 1024u);
  EXPECT_EQ(runs[0].stride, 5000u);
  EXPECT_EQ(runs[0].count, 8u);
  const std::vector<uint64_t> all = {8, 16, 128}, dense = {4096, 256, 2};
  EXPECT_EQ(Runs({0, 2, all, dense})[0].bytes, 32'768u);
  EXPECT_EQ(Runs({7, 2, {}, {}})[0].bytes, 2u) << "a scalar";
  const std::vector<uint64_t> none = {8, 0, 128};
  EXPECT_TRUE(Runs({0, 2, none, dense}).empty());
}

TEST(ByteBoxTest, WhatIsTooLargeIsRefused) {
  const std::vector<uint64_t> huge = {uint64_t{1} << 40, uint64_t{1} << 40, 2}, far = {9, 7, 5};
  EXPECT_TRUE(absl::IsInvalidArgument(RunsOfBox({0, 1, huge, far}).status()));
  const std::vector<uint64_t> many = {1 << 13, 1 << 12, 2};
  EXPECT_TRUE(absl::IsInvalidArgument(RunsOfBox({0, 1, many, far}).status()));
  const std::vector<uint64_t> two = {2, 2, 2}, over = {UINT64_MAX, UINT64_MAX, 5};
  EXPECT_TRUE(absl::IsInvalidArgument(RunsOfBox({0, 1, two, over}).status()));
  const std::vector<uint64_t> dense = {uint64_t{1} << 33, uint64_t{1} << 33},
                              steps = {uint64_t{1} << 33, 1};
  EXPECT_TRUE(absl::IsInvalidArgument(RunsOfBox({0, 1, dense, steps}).status()));
  const std::vector<uint64_t> one = {2};
  EXPECT_TRUE(absl::IsInvalidArgument(RunsOfBox({0, 1, two, one}).status()));
}

}  // namespace
}  // namespace tryst
