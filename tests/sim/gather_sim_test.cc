// Gathers and cancels of groups over simulated links; `./run sim --gathers` runs any number of
// seeds.

#include <string>

#include "gtest/gtest.h"
#include "tests/sim/channel_cluster.h"

namespace tryst {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 20;
#else
constexpr uint64_t kSeeds = 150;
#endif

class GatherSimTest : public ::testing::TestWithParam<SimLinks> {
 protected:
  static void SetUpTestSuite() { KeepFreedMemory(); }
};

TEST_P(GatherSimTest, KeepsEveryPromise) {
  GatherCounts sum;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ChannelClusterOptions options = GathersOfSeed(seed);
    options.links = GetParam();
    const ChannelClusterReport report = RunChannelCluster(options);
    for (const std::string& violation : report.violations) {
      ADD_FAILURE() << "replay with: ./run sim --gathers --links " << SimLinksName(GetParam())
                    << " --seeds 1 --from " << seed << " --verbose\n"
                    << violation;
    }
    if (HasFailure()) return;
    sum += report.gathers;
  }
  // A simulation in which nothing happens proves nothing.
  EXPECT_GT(sum.gathers, 50 * kSeeds);
  EXPECT_GT(sum.filled, 20 * kSeeds);
  EXPECT_GT(sum.cancelled, 10 * kSeeds);
  EXPECT_GT(sum.misfits, kSeeds / 4);
  EXPECT_GT(sum.failed, kSeeds);
  EXPECT_GT(sum.in_flight, 5 * kSeeds);
  EXPECT_GT(sum.late, 5 * kSeeds);
}

INSTANTIATE_TEST_SUITE_P(Links, GatherSimTest,
                         ::testing::Values(SimLinks::kNics, SimLinks::kShm, SimLinks::kShmAndNics),
                         [](const auto& info) {
                           return info.param == SimLinks::kNics  ? "Nics"
                                  : info.param == SimLinks::kShm ? "Shm"
                                                                 : "ShmAndNics";
                         });

}  // namespace
}  // namespace tryst
