// The seeds that every `./run test` runs; `./run sim` runs any number of others.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/reached.h"
#include "gtest/gtest.h"
#include "tests/sim/channel_cluster.h"

namespace tryst {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 200;
constexpr uint64_t kStorms = 40;
#else
constexpr uint64_t kSeeds = 2000;
constexpr uint64_t kStorms = 400;
#endif
constexpr uint64_t kShards = 4;

// Seeds that found something once, or that reach what few do. Each names a guard that it must
// reach: one that no longer gets there proves nothing.
struct PinnedSeed {
  uint64_t seed;
  const char* guard;
  bool with_runs = false;

  ChannelClusterOptions Options() const {
    ChannelClusterOptions options = OptionsOfSeed(seed);
    return with_runs ? options : options.WithoutRuns();
  }
};
constexpr PinnedSeed kPinned[] = {
    {1003456, "sim: a hello of an older epoch"},
    {38, "sim: a session goes on by another kind of link"},
    {118, "sim: a landing is refused registration"},
    {76, "sim: a wrong digest"},
    {53, "sim: memory of a caller is refused registration"},
    {2540005689, "sim: memory of a caller is not passed on"},
    {2180006329, "sim: a fetch has ended before its queue pair has drained"},
    {2530000065, "sim: works of a broken queue pair do not come back"},
    {2014001718, "sim: a work of before the peace would flip a bit unseen"},
    {43, "sim: a registration was still to fail when peace came"},
    {25, "sim: a fetch waits behind an abort"},
    {81, "sim: HERE of a ticket that was given up", /*with_runs=*/true},
    {1273, "sim: a key leaves a run that holds a fetch of it", /*with_runs=*/true},
};

uint64_t TimesReached(absl::string_view guard) {
  uint64_t sum = 0;
  ForEachGuard([&](absl::string_view name, uint64_t times) {
    if (name == guard) sum += times;
  });
  return sum;
}

void ExpectNone(const ChannelClusterReport& report, const char* flags, uint64_t seed) {
  for (const std::string& violation : report.violations) {
    ADD_FAILURE() << "replay with: ./run sim " << flags << "--seeds 1 --from " << seed
                  << " --verbose\n"
                  << violation;
  }
}

// Guards of the simulator that nothing in this process has reached.
std::vector<std::string> NotReached() {
  std::vector<std::string> names;
  ForEachGuard([&names](absl::string_view name, uint64_t times) {
    const bool is_ours = absl::StartsWith(name, "sim: ") || absl::StartsWith(name, "storms: ");
    if (is_ours && times == 0) names.emplace_back(name);
  });
  return names;
}

class ChannelSimTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  static void SetUpTestSuite() { KeepFreedMemory(); }
};

TEST_P(ChannelSimTest, KeepsEveryPromise) {
  ChannelClusterReport sum;
  for (uint64_t seed = 1 + GetParam(); seed <= kSeeds; seed += kShards) {
    const ChannelClusterReport report = RunChannelCluster(OptionsOfSeed(seed));
    ExpectNone(report, "", seed);
    if (HasFailure()) return;
    sum += report;
  }
  // A simulation in which nothing happens proves nothing.
  EXPECT_GT(sum.load.delivered, 10 * kSeeds);
  EXPECT_GT(sum.faults, kSeeds / 4);
  EXPECT_GT(sum.replays, kSeeds / 20);
  EXPECT_GT(sum.load.aborts, kSeeds / 20);
  EXPECT_GT(sum.load.left, kSeeds);
  EXPECT_GT(sum.standing_claimed, kSeeds / 4);
  EXPECT_GT(sum.standing_dropped, kSeeds / 16);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ChannelSimTest, ::testing::Range<uint64_t>(0, kShards));

TEST(ChannelSimOneTest, SeedsThatFoundSomethingFindNothing) {
  for (const PinnedSeed& pinned : kPinned) {
    const uint64_t before = TimesReached(pinned.guard);
    ExpectNone(RunChannelCluster(pinned.Options()), "", pinned.seed);
    EXPECT_GT(TimesReached(pinned.guard), before)
        << "seed " << pinned.seed << " no longer reaches the guard \"" << pinned.guard << "\"";
  }
}

// By seeds that the other tests run, too, but in processes of their own. What one seed in a
// thousand reaches is pinned.
TEST(ChannelSimOneTest, EveryGuardIsReached) {
  for (const PinnedSeed& pinned : kPinned) {
    if (TimesReached(pinned.guard) == 0) RunChannelCluster(pinned.Options());
  }
  for (uint64_t seed = 1; seed <= kSeeds && !NotReached().empty(); ++seed) {
    RunChannelCluster(seed % 4 == 0 ? StormOfSeed(seed) : OptionsOfSeed(seed));
  }
  EXPECT_EQ(NotReached(), std::vector<std::string>());
}

TEST(ChannelSimOneTest, StormsThatFoundSomethingFindNothing) {
  // In this seed a part of a cancelled fetch was once lost on its queue pair. That loss no longer
  // happens, but a part still arrives behind GONE.
  const uint64_t before = TimesReached("sim: GONE comes before the last part");
  ExpectNone(RunChannelCluster(StormOfSeed(428)), "--cancels ", 428);
  EXPECT_GT(TimesReached("sim: GONE comes before the last part"), before);
}

TEST(ChannelSimOneTest, TheSameSeedGivesTheSameRun) {
  for (uint64_t seed : {3, 17, 40}) {
    const ChannelClusterReport first = RunChannelCluster(OptionsOfSeed(seed));
    const ChannelClusterReport second = RunChannelCluster(OptionsOfSeed(seed));
    EXPECT_EQ(first.trace_hash, second.trace_hash);
    EXPECT_EQ(first.load.delivered, second.load.delivered);
  }
}

// No late byte: memory that was given back holds canaries and is used again at once; whoever
// writes it is caught, and where there is no fault a refused write is, too.
class ChannelStormTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ChannelStormTest, CancelsInFlightAreFenced) {
  ChannelClusterReport sum;
  for (uint64_t seed = 1 + GetParam(); seed <= kStorms; seed += kShards) {
    const ChannelClusterReport report = RunChannelCluster(StormOfSeed(seed));
    ExpectNone(report, "--cancels ", seed);
    if (HasFailure()) return;
    sum += report;
  }
  EXPECT_GT(sum.load.early, 30 * kStorms);
  EXPECT_GT(sum.load.cancels_in_flight, 5 * kStorms);
  EXPECT_GT(sum.load.delivered, 50 * kStorms);
}

// Each worker has three pollers, and its peers are spread over them.
TEST(ChannelSimPollersTest, ThreeKeepEveryPromise) {
  ChannelClusterReport sum;
  for (uint64_t seed = 1; seed <= kSeeds / 4; ++seed) {
    const bool storm = seed % 8 == 0;
    ChannelClusterOptions options = storm ? StormOfSeed(seed) : OptionsOfSeed(seed);
    options.pollers = 3;
    const ChannelClusterReport report = RunChannelCluster(options);
    ExpectNone(report, storm ? "--cancels --pollers 3 " : "--pollers 3 ", seed);
    if (HasFailure()) return;
    sum += report;
  }
  EXPECT_GT(sum.load.delivered, 2 * kSeeds);
  EXPECT_GT(sum.faults, kSeeds / 16);
  EXPECT_GT(sum.replays, kSeeds / 80);
  EXPECT_GT(sum.standing_claimed, kSeeds / 16);
}
INSTANTIATE_TEST_SUITE_P(Seeds, ChannelStormTest, ::testing::Range<uint64_t>(0, kShards));

// NICs that promise less than an RDMA NIC (NicLimits), under the same load and faults.
class ChannelSimNicTest : public ::testing::TestWithParam<SimNicKind> {};

TEST_P(ChannelSimNicTest, KeepsEveryPromise) {
  const std::string flags = absl::StrCat("--nic ", SimNicKindName(GetParam()), " ");
  ChannelClusterReport sum;
  for (uint64_t seed = 1; seed <= kSeeds / 8; ++seed) {
    ChannelClusterOptions options = OptionsOfSeed(seed);
    options.nic = GetParam();
    const ChannelClusterReport report = RunChannelCluster(options);
    ExpectNone(report, flags.c_str(), seed);
    if (HasFailure()) return;
    sum += report;
  }
  EXPECT_GT(sum.load.delivered, kSeeds);
  EXPECT_GT(sum.faults, kSeeds / 32);
  EXPECT_GT(sum.replays, kSeeds / 160);
}

TEST_P(ChannelSimNicTest, CancelsInFlightAreFenced) {
  const std::string flags = absl::StrCat("--cancels --nic ", SimNicKindName(GetParam()), " ");
  ChannelClusterReport sum;
  for (uint64_t seed = 1; seed <= kSeeds / 100; ++seed) {
    ChannelClusterOptions options = StormOfSeed(seed);
    options.nic = GetParam();
    const ChannelClusterReport report = RunChannelCluster(options);
    ExpectNone(report, flags.c_str(), seed);
    if (HasFailure()) return;
    sum += report;
  }
  EXPECT_GT(sum.load.cancels_in_flight, kSeeds / 8);
  EXPECT_GT(sum.load.delivered, kSeeds / 8);
}

INSTANTIATE_TEST_SUITE_P(LesserNics, ChannelSimNicTest,
                         ::testing::Values(SimNicKind::kUnordered, SimNicKind::kNoImmediates));

// Shared memory, alone and before a NIC: its memory, sockets and reads are the kernel's.
class ChannelSimShmTest : public ::testing::TestWithParam<SimLinks> {
 protected:
  static std::string Flags(const std::string& more) {
    return absl::StrCat(more, "--links ", SimLinksName(GetParam()), " ");
  }
  static ChannelClusterReport Run(ChannelClusterOptions options) {
    options.links = GetParam();
    return RunChannelCluster(options);
  }
};

TEST_P(ChannelSimShmTest, KeepsEveryPromise) {
  ChannelClusterReport sum;
  const uint64_t taken = TimesReached("shm: a loan that was taken");
  const uint64_t not_taken = TimesReached("shm: a loan ends that was not taken");
  for (uint64_t seed = 1; seed <= kSeeds / 8; ++seed) {
    ChannelClusterOptions options = OptionsOfSeed(seed);
    options.pollers = seed % 4 == 0 ? 3 : 1;
    const ChannelClusterReport report = Run(options);
    ExpectNone(report, Flags(seed % 4 == 0 ? "--pollers 3 " : "").c_str(), seed);
    if (HasFailure()) return;
    sum += report;
  }
  EXPECT_GT(sum.shm.fetches, 20 * kSeeds);
  EXPECT_GT(sum.shm.by_reference, 4 * kSeeds);
  EXPECT_GT(sum.shm.in_parts, 4 * kSeeds);
  EXPECT_GT(sum.shm.pulled, kSeeds / 8);
  EXPECT_GT(sum.shm.breaks, kSeeds / 4);
  EXPECT_GT(sum.shm.replays, kSeeds / 8);
  EXPECT_GT(sum.kills, kSeeds / 40);
  EXPECT_GT(TimesReached("shm: a loan that was taken"), taken);
  EXPECT_GT(TimesReached("shm: a loan ends that was not taken"), not_taken);
}

TEST_P(ChannelSimShmTest, CancelsInFlightAreFenced) {
  ChannelClusterReport sum;
  for (uint64_t seed = 1; seed <= kSeeds / 40; ++seed) {
    const ChannelClusterReport report = Run(StormOfSeed(seed));
    ExpectNone(report, Flags("--cancels ").c_str(), seed);
    if (HasFailure()) return;
    sum += report;
  }
  EXPECT_GT(sum.load.cancels_in_flight, kSeeds / 40);
  EXPECT_GT(sum.load.delivered, 5 * kSeeds);
}

TEST_P(ChannelSimShmTest, WithoutFaultsNothingBreaks) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    ChannelClusterOptions options = OptionsOfSeed(seed);
    options.load.faults = options.kills = false;
    const ChannelClusterReport report = Run(options);
    ExpectNone(report, Flags("").c_str(), seed);
    EXPECT_EQ(report.shm.breaks, 0u);
    EXPECT_EQ(report.shm.replays, 0u);
  }
}

TEST_P(ChannelSimShmTest, TheSameSeedGivesTheSameRun) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const ChannelClusterReport first = Run(OptionsOfSeed(seed));
    const ChannelClusterReport second = Run(OptionsOfSeed(seed));
    EXPECT_EQ(first.trace_hash, second.trace_hash) << seed;
    EXPECT_EQ(first.load.delivered, second.load.delivered) << seed;
    EXPECT_EQ(first.shm.messages, second.shm.messages) << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Links, ChannelSimShmTest,
                         ::testing::Values(SimLinks::kShm, SimLinks::kShmAndNics));

// On a slow wire the peer's words wait behind megabytes: that is not silence.
TEST(ChannelSimOneTest, SlowLinksAreNoSilentPeers) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    ChannelClusterOptions options = StormOfSeed(seed);
    options.load.faults = false;
    options.load.operations = 200;
    options.load.link_bytes_per_second = 10'000'000;
    const ChannelClusterReport report = RunChannelCluster(options);
    ExpectNone(report, "(slow links) ", seed);
    EXPECT_GT(report.load.delivered, 100u);
  }
}

TEST(ChannelSimOneTest, WithoutFaultsNothingBreaks) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    ChannelClusterOptions options = OptionsOfSeed(seed);
    options.load.faults = options.kills = false;
    const ChannelClusterReport report = RunChannelCluster(options);
    ExpectNone(report, "", seed);
    EXPECT_EQ(report.breaks, 0u);
    EXPECT_EQ(report.replays, 0u);
    EXPECT_EQ(report.faults, 0u);
  }
}

}  // namespace
}  // namespace tryst
