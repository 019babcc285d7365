#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_join.h"
#include "base/log.h"
#include "tests/weights/fleet_sim.h"
#include "weights/questions.h"

// A thousand members, on virtual time: a message takes 0.05 to 1.5 ms, and clocks are apart by up
// to 1.8 %. What a leader computes takes no time.
namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;

double Ms(int64_t ns) { return static_cast<double>(ns) / kMs; }

FleetOptions Thousand(uint64_t seed) {
  FleetOptions options;
  options.seed = seed;
  options.members = 1000;
  options.owners = 16;
  options.leaders = 3;
  options.seal_every_ns = 1000 * kMs;
  options.judge_every_ns = 10 * kMs;
  return options;
}

FleetReport RunAndPrint(const FleetOptions& options) {
  SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});
  const FleetReport report = RunFleet(options);
  EXPECT_TRUE(report.violations.empty()) << absl::StrJoin(report.violations, "; ");
  printf(
      "%d members: all had switched %.1f ms after PREPARE, at most, of %d versions; a leader "
      "knew %d; after the trouble all had permits in %.0f ms and the wished version in %.0f ms; "
      "%d events\n",
      options.members, Ms(report.switched_ns), static_cast<int>(report.switches_timed),
      static_cast<int>(report.most_peers), Ms(report.permits_again_ns), Ms(report.active_again_ns),
      static_cast<int>(report.events));
  return report;
}

// The decider is out of reach for five seconds.
FleetReport RunWithoutADecider(int64_t from_ns) {
  const GroupTimes times;
  FleetOptions options = Thousand(7'200'000'001);
  options.run_ns = 30'000 * kMs;
  options.decider_cut_at_ns = from_ns;
  options.decider_cut_ns = 5'000 * kMs;
  const FleetReport report = RunAndPrint(options);
  printf("%d served knowingly what nobody confirmed; the last permit was over after %.0f ms\n",
         static_cast<int>(report.unconfirmed), Ms(report.last_confirmed_ns));
  // Permits are given as long as the lease runs; each is looked at all the while.
  EXPECT_GT(report.last_confirmed_ns, 0);
  EXPECT_LT(report.last_confirmed_ns, SurelyOver(times.lease_ns) + SurelyOver(times.permit_ns));
  EXPECT_GE(report.permits_again_ns, 0);
  EXPECT_LE(report.permits_again_ns, times.permit_ns * 5 / 2);
  EXPECT_GE(report.active_again_ns, 0);
  EXPECT_LE(report.active_again_ns, times.permit_ns * 5 / 2);
  return report;
}

TEST(LargeFleet, NobodyServesUnknowinglyWithoutADecider) {
  EXPECT_EQ(RunWithoutADecider(3'000 * kMs).unconfirmed, 500);  // Every second one chose to.
}

TEST(LargeFleet, WhoHoldsServesNothingWithoutADecider) {
  EXPECT_EQ(RunWithoutADecider(3'500 * kMs).unconfirmed, 0);  // All hold for a barrier.
}

TEST(LargeFleet, AnotherLeadsWhereALeaderDies) {
  const GroupTimes times;
  for (uint64_t seed = 7'200'000'001; seed <= 7'200'000'002; ++seed) {
    FleetOptions options = Thousand(seed);
    options.run_ns = 16'000 * kMs;
    options.engines_at_once = true;
    options.kill_leader_at_ns = 3'500 * kMs;
    const FleetReport report = RunAndPrint(options);
    EXPECT_EQ(report.kills, 1);
    EXPECT_GE(report.permits_again_ns, 0);
    EXPECT_LE(report.permits_again_ns, times.permit_ns * 3 / 2);
    // The lease ends, somebody takes it, and all have the time to ask him.
    EXPECT_GE(report.active_again_ns, 0);
    EXPECT_LE(report.active_again_ns, times.permit_ns * 5 / 2);
    EXPECT_GT(report.switches_timed, 3);
    EXPECT_LE(report.switched_ns, 100 * kMs);
  }
}

}  // namespace
}  // namespace tryst
