// The model of slots and the code are one: no seed does to a slot what the model does not
// (channel_cluster.h replays all of them), and here every edge of the model is taken by the code.

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "gtest/gtest.h"
#include "tests/model/slot_replay.h"
#include "tests/sim/channel_cluster.h"

namespace tryst {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 50;
#else
constexpr uint64_t kSeeds = 400;
#endif

// Seeds that take what one seed in a thousand does. They run first.
constexpr uint64_t kRare[] = {234, 961, 1139, 2158};
// On NICs that reorder, and with as many slots as it draws: what acknowledges in a new link
// overtakes the words. One seed in thousands takes that.
constexpr uint64_t kReordered = 3100690;

class SlotEdgesTest : public ::testing::TestWithParam<int> {};

TEST_P(SlotEdgesTest, TheCodeTakesEveryEdgeOfTheModel) {
  KeepFreedMemory();
  const SlotEdges& model = ModelEdges(GetParam());
  // More by --test_env=TRYST_EDGE_SEEDS=N; they end as soon as every edge was taken.
  const char* const more = getenv("TRYST_EDGE_SEEDS");
  const uint64_t seeds = more == nullptr ? kSeeds : strtoull(more, nullptr, 10);
  SlotEdges taken;
  if (seeds >= 400) {
    ChannelClusterOptions options = OptionsOfSeed(kReordered);
    options.nic = SimNicKind::kUnordered;
    const ChannelClusterReport report = RunChannelCluster(options);
    EXPECT_TRUE(report.violations.empty()) << report.violations.front();
    for (const auto& [edge, times] : report.slot_edges) taken[edge] += times;
  }
  uint64_t ran = 0;
  while (ran < seeds && taken.size() < model.size()) {
    const uint64_t seed = ran < std::size(kRare) ? kRare[ran] : ran - std::size(kRare) + 1;
    ++ran;
    ChannelClusterOptions options = seed % 8 == 0 ? StormOfSeed(seed) : OptionsOfSeed(seed);
    options.WithoutRuns().slots = static_cast<uint32_t>(GetParam());
    const ChannelClusterReport report = RunChannelCluster(options);
    for (const std::string& violation : report.violations) {
      ADD_FAILURE() << "seed " << seed << " at " << GetParam() << " slots: " << violation;
    }
    if (HasFailure()) return;
    for (const auto& [edge, times] : report.slot_edges) taken[edge] += times;
  }
  size_t reached = 0;
  for (const auto& [edge, unused] : model) {
    const auto found = taken.find(edge);
    const uint64_t times = found == taken.end() ? 0 : found->second;
    printf("%12" PRIu64 "  %s\n", times, edge.ToText().c_str());
    reached += times > 0;
    EXPECT_TRUE(times > 0 || seeds < 400)
        << "no seed of " << ran << " takes the edge \"" << edge.ToText() << "\"";
  }
  printf("%d slots: %zu of %zu edges in %" PRIu64 " seeds\n", GetParam(), reached, model.size(),
         ran);
}

INSTANTIATE_TEST_SUITE_P(Slots, SlotEdgesTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace tryst
