// The bounded part of ./run fence: no late byte over the software NIC.

#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/process/faults/fence_storm.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

class FenceSoftTest : public ::testing::TestWithParam<int> {};

TEST_P(FenceSoftTest, NoByteLandsAfterACancelledFetchHasEnded) {
  FenceStormOptions options;
  options.open_nic = [] {
    auto nic = OpenSoftNic(SoftNicOptions());
    TRYST_CHECK(nic.ok()) << nic.status();
    return *std::move(nic);
  };
  options.cancels = 1000;
  options.queue_pairs = static_cast<uint32_t>(GetParam());
  options.bytes_per_second = 2'000'000'000;
  options.seed = 7;
  const FenceStormReport report = RunFenceStorm(options);
  EXPECT_EQ(report.late_words, 0u);
  EXPECT_EQ(report.wrong, 0u) << report.first_wrong;
  EXPECT_EQ(report.breaks, 0u);
  EXPECT_GE(report.cancels, options.cancels);
  EXPECT_GT(report.in_flight, 0u);
  EXPECT_GT(report.reused, options.cancels / 2);  // Most buffers were used before.
  EXPECT_GT(report.delivered, 0u);
}

INSTANTIATE_TEST_SUITE_P(QueuePairs, FenceSoftTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace tryst
