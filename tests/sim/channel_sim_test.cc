// The seeds that every `./run test` runs; `./run sim` runs any number of others.

#include "gtest/gtest.h"
#include "tests/sim/channel_cluster.h"

namespace tryst {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 200;
#else
constexpr uint64_t kSeeds = 2000;
#endif
constexpr uint64_t kShards = 4;

class ChannelSimTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ChannelSimTest, KeepsEveryPromise) {
  ChannelClusterReport sum;
  for (uint64_t seed = 1 + GetParam(); seed <= kSeeds; seed += kShards) {
    const ChannelClusterReport report = RunChannelCluster(OptionsOfSeed(seed));
    sum.delivered += report.delivered;
    sum.faults += report.faults;
    sum.replays += report.replays;
    for (const std::string& violation : report.violations) {
      ADD_FAILURE() << "replay with: ./run sim --seeds 1 --from " << seed << " --verbose\n"
                    << violation;
    }
    if (!report.violations.empty()) return;
  }
  // A simulation in which nothing happens proves nothing.
  EXPECT_GT(sum.delivered, 10 * kSeeds);
  EXPECT_GT(sum.faults, kSeeds / 4);
  EXPECT_GT(sum.replays, kSeeds / 20);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ChannelSimTest, ::testing::Range<uint64_t>(0, kShards));

TEST(ChannelSimOneTest, TheSameSeedGivesTheSameRun) {
  for (uint64_t seed : {3, 17, 40}) {
    const ChannelClusterReport first = RunChannelCluster(OptionsOfSeed(seed));
    const ChannelClusterReport second = RunChannelCluster(OptionsOfSeed(seed));
    EXPECT_EQ(first.events, second.events);
    EXPECT_EQ(first.delivered, second.delivered);
    EXPECT_EQ(first.bytes, second.bytes);
    EXPECT_EQ(first.epochs, second.epochs);
  }
}

// No late byte: memory that was given back is poisoned, and whoever writes it is caught.
TEST(ChannelSimOneTest, CancelsInFlightAreFenced) {
  ChannelClusterReport sum;
  for (uint64_t seed = 1; seed <= kSeeds / 8; ++seed) {
    ChannelClusterOptions options = OptionsOfSeed(seed);
    options.cancel_storm = true;
    options.kills = false;
    const ChannelClusterReport report = RunChannelCluster(options);
    for (const std::string& violation : report.violations) {
      ADD_FAILURE() << "replay with: ./run sim --cancels --seeds 1 --from " << seed << "\n"
                    << violation;
    }
    if (!report.violations.empty()) return;
    sum.early += report.early;
    sum.delivered += report.delivered;
  }
  EXPECT_GT(sum.early, 4 * kSeeds);
  EXPECT_GT(sum.delivered, kSeeds);
}

TEST(ChannelSimOneTest, WithoutFaultsNothingBreaks) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    ChannelClusterOptions options = OptionsOfSeed(seed);
    options.faults = options.kills = false;
    const ChannelClusterReport report = RunChannelCluster(options);
    EXPECT_TRUE(report.violations.empty()) << seed << ": " << report.violations[0];
    EXPECT_EQ(report.replays, 0u);
    EXPECT_EQ(report.faults, 0u);
  }
}

}  // namespace
}  // namespace tryst
