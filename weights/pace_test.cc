#include "weights/pace.h"

#include <gtest/gtest.h>

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000, kNow = 5'000 * kMs;

TEST(PaceTest, WithoutALimitNothingWaits) {
  Pace pace(0);
  pace.Charge(UINT64_MAX, kNow);
  EXPECT_EQ(pace.WaitNs(UINT64_MAX, kNow), 0);
}

TEST(PaceTest, WhatComesAfterARestIsABurst) {
  Pace pace(1000);
  EXPECT_EQ(pace.WaitNs(0, kNow), 0);
  pace.Charge(250, kNow);
  EXPECT_EQ(pace.WaitNs(0, kNow), 0);
  pace.Charge(1, kNow);
  EXPECT_EQ(pace.WaitNs(0, kNow), 1 * kMs);
}

TEST(PaceTest, ADebtIsPaidByTheRate) {
  Pace pace(1000);
  pace.Charge(1250, kNow);
  EXPECT_EQ(pace.WaitNs(0, kNow), 1000 * kMs);
  EXPECT_EQ(pace.WaitNs(0, kNow + 999 * kMs), 1 * kMs);
  EXPECT_EQ(pace.WaitNs(0, kNow + 1000 * kMs), 0);
  pace.Charge(100, kNow + 1000 * kMs);  // Nothing was left over.
  EXPECT_EQ(pace.WaitNs(0, kNow + 1000 * kMs), 100 * kMs);
}

TEST(PaceTest, ALongRestSavesNoMoreThanABurst) {
  Pace pace(1000);
  pace.Charge(1250, kNow);
  pace.Charge(251, kNow + 3'600'000 * kMs);
  EXPECT_EQ(pace.WaitNs(0, kNow + 3'600'000 * kMs), 1 * kMs);
}

TEST(PaceTest, WhatIsOutCountsAsLongAsItIsOut) {
  Pace pace(1000);
  EXPECT_EQ(pace.WaitNs(250, kNow), 0);
  EXPECT_EQ(pace.WaitNs(251, kNow), 1 * kMs);
  EXPECT_EQ(pace.WaitNs(0, kNow), 0);  // It never came.
}

TEST(PaceTest, TheSlowestRateAndTheLargestDebtEnd) {
  Pace pace(1);
  for (int i = 0; i < 20; ++i) pace.Charge(UINT64_MAX, kNow);
  EXPECT_GT(pace.WaitNs(UINT64_MAX, kNow), 0);
}

TEST(PaceTest, OverAllItKeepsToTheRate) {
  constexpr uint64_t kRate = 3'000'000'000;
  Pace pace(kRate);
  int64_t now_ns = kNow;
  uint64_t came = 0;
  for (int i = 0; i < 100'000; ++i) {
    now_ns += pace.WaitNs(0, now_ns);
    pace.Charge(1'000'003, now_ns);
    came += 1'000'003;
  }
  const double took = static_cast<double>(now_ns - kNow) / 1e9;
  EXPECT_NEAR(static_cast<double>(came) / kRate, took, 0.26);
  EXPECT_GE(took, static_cast<double>(came) / kRate - 0.26);
}

}  // namespace
}  // namespace tryst
