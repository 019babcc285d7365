#include "verbs/soft/soft_pace.h"

#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;

SoftPace Paced(uint64_t bytes_a_second) {
  SoftPace pace;
  for (int i = 0; i < 20; ++i) pace.Set((900 + i) * kMs, bytes_a_second);
  return pace;
}

TEST(SoftPaceTest, ABurstCountsForLittle) {
  SoftPace pace = Paced(12'500'000);
  pace.Set(1000 * kMs, 3'000'000'000);
  EXPECT_EQ(pace.frame_bytes(), 31'250u);
  pace.Set(1010 * kMs, 12'500'000);
  EXPECT_EQ(pace.frame_bytes(), 25'000u);
}

TEST(SoftPaceTest, AFrameIsWhatPassesInTwoMilliseconds) {
  EXPECT_EQ(Paced(50'000'000).frame_bytes(), 100'000u);
  EXPECT_EQ(Paced(12'500'000).frame_bytes(), 25'000u);
  EXPECT_EQ(Paced(10).frame_bytes(), 16u << 10);
  EXPECT_EQ(Paced(10'000'000'000).frame_bytes(), 512u << 10);
}

TEST(SoftPaceTest, WhatWasMeasuredLongAgoIsForgotten) {
  SoftPace pace = Paced(12'500'000);
  pace.Set(1000 * kMs, 12'500'000);
  EXPECT_TRUE(pace.IsLate(100'000, 100'000, 300'000));
  EXPECT_FALSE(pace.ForgetsRate(3999 * kMs));
  EXPECT_TRUE(pace.ForgetsRate(4000 * kMs));
  pace.Set(4000 * kMs, 12'500'000);
  EXPECT_FALSE(pace.ForgetsRate(4001 * kMs));
}

TEST(SoftPaceTest, ItIsLookedAtNowAndThen) {
  SoftPace pace;
  EXPECT_TRUE(pace.Due(1000 * kMs));
  pace.Set(1000 * kMs, 50'000'000);
  EXPECT_FALSE(pace.Due(1009 * kMs));
  EXPECT_TRUE(pace.Due(1010 * kMs));
}

// A socket that tells no rate, or not yet.
TEST(SoftPaceTest, WhereNoRateIsKnownFramesGrow) {
  SoftPace pace = Paced(50'000'000);
  pace.Set(2000 * kMs, 0);
  EXPECT_EQ(pace.frame_bytes(), 125'000u);
  EXPECT_FALSE(pace.Due(2001 * kMs));
  for (int i = 1; i < 20; ++i) pace.Set((2000 + 10 * i) * kMs, 0);
  EXPECT_EQ(pace.frame_bytes(), 512u << 10);
}

TEST(SoftPaceTest, ASocketHoldsAboutTwoFrames) {
  SoftPace pace;
  int told = 0;
  for (int i = 0; i < 1000; ++i) {
    const uint32_t before = pace.unsent_bytes();
    const bool changed = pace.Set(i * kMs, 1'000'000 + static_cast<uint64_t>(i) * 200'000);
    EXPECT_EQ(changed, pace.unsent_bytes() != before);
    told += changed;
    EXPECT_GT(pace.unsent_bytes(), pace.frame_bytes());
    EXPECT_LE(pace.unsent_bytes(), 3 * pace.frame_bytes() + 3);
  }
  EXPECT_GE(told, 2);
  EXPECT_LE(told, 12) << "each is a system call";
}

TEST(SoftPaceTest, WhatIsMuchSlowerTakesNoneOfTheRest) {
  const SoftPace slow = Paced(12'500'000);
  const SoftPace fast = Paced(125'000'000);
  const uint64_t most = fast.frame_bytes();
  EXPECT_TRUE(slow.IsLate(512 << 10, most, most));
  EXPECT_FALSE(slow.IsLate(16 << 20, most, most));
  EXPECT_TRUE(slow.IsLate(2 << 20, most, 4 * most)) << "the others together are sooner";
  EXPECT_FALSE(fast.IsLate(1, most, most)) << "somebody has to bring the last byte";
}

}  // namespace
}  // namespace tryst
