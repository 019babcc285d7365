#include "channel/compat/serial_set.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace tryst {
namespace {

TEST(SerialSetTest, OneThatFillsAGapJoinsTheRunsBesideIt) {
  SerialSet set;
  for (const uint64_t serial : {3, 4, 7, 6}) set.Insert(serial);
  EXPECT_EQ(set.runs(), 2u);
  set.Insert(5);
  EXPECT_EQ(set.runs(), 1u);
  EXPECT_EQ(set.below(), 1u);
  set.Insert(9);
  EXPECT_EQ(set.runs(), 2u);
  set.Insert(1);
  set.Insert(2);
  EXPECT_EQ(set.below(), 8u);
  EXPECT_EQ(set.runs(), 1u);
}

TEST(SerialSetTest, AMarkTakesTheRunsBelowIt) {
  SerialSet set;
  for (const uint64_t serial : {3, 5, 6, 9}) set.Insert(serial);
  set.InsertBelow(5);
  EXPECT_EQ(set.below(), 7u);
  EXPECT_EQ(set.runs(), 1u);
  set.InsertBelow(2);
  EXPECT_EQ(set.below(), 7u) << "it never decreases";
}

TEST(SerialSetTest, InWhateverOrderSerialsEndItHasThose) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    SerialSet set;
    std::set<uint64_t> plain;
    for (int i = 0; i < 60; ++i) {
      const uint64_t serial = 1 + random() % 40;
      set.Insert(serial);
      plain.insert(serial);
      size_t runs = 0;
      uint64_t below = 1;
      while (plain.count(below) != 0) ++below;
      for (uint64_t one = 1; one <= 41; ++one) {
        ASSERT_EQ(set.Contains(one), plain.count(one) != 0) << one << " of seed " << seed;
        runs += one > below && plain.count(one) != 0 && plain.count(one - 1) == 0;
      }
      ASSERT_EQ(set.below(), below) << "seed " << seed;
      ASSERT_EQ(set.runs(), runs) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace tryst
