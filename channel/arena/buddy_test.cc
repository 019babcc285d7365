#include "channel/arena/buddy.h"

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr uint64_t kBytes = 1 << 20;

TEST(BuddyTest, RoundsToEighthsOfTheBlock) {
  EXPECT_EQ(Buddy::Rounded(0), Buddy::kGranule);
  EXPECT_EQ(Buddy::Rounded(1), Buddy::kGranule);
  EXPECT_EQ(Buddy::Rounded(Buddy::kGranule + 1), 2 * Buddy::kGranule);
  EXPECT_EQ(Buddy::Rounded(1 << 20), 1u << 20);
  EXPECT_EQ(Buddy::Rounded((1 << 20) + 1), (1u << 20) + (2u << 20) / 8);
}

TEST(BuddyTest, LendsAllOfItAndNoMore) {
  Buddy buddy(kBytes);
  EXPECT_EQ(buddy.Take(2 * kBytes), Buddy::kNone);
  EXPECT_EQ(buddy.Take(kBytes), 0u);
  EXPECT_EQ(buddy.Take(1), Buddy::kNone);
  buddy.Give(0, kBytes);
  EXPECT_TRUE(buddy.empty());
  for (uint64_t i = 0; i < kBytes / Buddy::kGranule; ++i) EXPECT_NE(buddy.Take(1), Buddy::kNone);
  EXPECT_EQ(buddy.Take(1), Buddy::kNone);
}

TEST(BuddyTest, WhatARequestDoesNotNeedIsLentToOthers) {
  Buddy buddy(kBytes);
  // Uses five eighths of a block; the other three are free.
  const uint64_t bytes = kBytes / 8 * 5;
  ASSERT_NE(buddy.Take(bytes), Buddy::kNone);
  EXPECT_NE(buddy.Take(kBytes / 4), Buddy::kNone);
  EXPECT_NE(buddy.Take(kBytes / 8), Buddy::kNone);
  EXPECT_EQ(buddy.Take(1), Buddy::kNone);
}

// Compares with a map of what is lent: blocks never overlap, are aligned, and merge again in the
// end.
TEST(BuddyTest, RandomLendingNeverOverlaps) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    Buddy buddy(kBytes);
    std::map<uint64_t, std::pair<uint64_t, uint64_t>> lent;  // Offset -> end and requested size.
    const auto give = [&](size_t which) {
      auto at = lent.begin();
      std::advance(at, static_cast<ptrdiff_t>(which));
      buddy.Give(at->first, at->second.second);
      lent.erase(at);
    };
    for (int i = 0; i < 3000; ++i) {
      if (!lent.empty() && random() % 2 == 0) {
        give(random() % lent.size());
        continue;
      }
      const uint64_t bytes = 1 + random() % (uint64_t{1} << (random() % 19));
      const uint64_t offset = buddy.Take(bytes);
      if (offset == Buddy::kNone) continue;
      const uint64_t end = offset + Buddy::Rounded(bytes);
      ASSERT_LE(end, kBytes);
      ASSERT_EQ(offset % Buddy::kGranule, 0u);
      auto next = lent.lower_bound(offset);
      ASSERT_TRUE(next == lent.end() || next->first >= end) << "seed " << seed;
      ASSERT_TRUE(next == lent.begin() || std::prev(next)->second.first <= offset);
      lent[offset] = {end, bytes};
      ASSERT_FALSE(buddy.empty());
    }
    while (!lent.empty()) give(random() % lent.size());
    EXPECT_TRUE(buddy.empty());
    EXPECT_EQ(buddy.Take(kBytes), 0u) << "it is in pieces, seed " << seed;
  }
}

TEST(BuddyDeathTest, GivingBackTwiceIsFound) {
  Buddy buddy(kBytes);
  const uint64_t offset = buddy.Take(4096);
  buddy.Give(offset, 4096);
  EXPECT_DEATH(buddy.Give(offset, 4096), "given back more than was taken");
}

}  // namespace
}  // namespace tryst
