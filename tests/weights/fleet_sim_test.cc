#include "tests/weights/fleet_sim.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_join.h"
#include "base/log.h"

namespace tryst {
namespace {

// Errors are what these runs are made of.
void Quiet(LogSeverity severity, const char*, int, absl::string_view text) {
  if (severity == LogSeverity::kFatal) {
    fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
  }
}

class FleetSim : public ::testing::Test {
 protected:
  void SetUp() override { SetLogSink(Quiet); }

  // One fault at every `stride`th message of a small fleet: the death of either end, a loss, ...
  void EveryMessage(uint64_t seed, uint64_t stride, bool worker_decides, bool slow_member) {
    FleetOptions options;
    options.seed = seed;
    options.worker_decides = worker_decides;
    options.leaders = worker_decides ? 1 : 2;
    options.slow_member = slow_member;
    const uint64_t messages = RunFleet(options).messages_with_faults;
    ASSERT_GT(messages, 500);
    uint64_t kills = 0;
    for (uint64_t at = 1 + seed % stride; at <= messages; at += stride) {
      for (int fault = 1; fault < kFleetFaultCount; ++fault) {
        options.at_message = at;
        options.fault = static_cast<FleetFault>(fault);
        const FleetReport report = RunFleet(options);
        kills += report.kills;
        ASSERT_TRUE(report.violations.empty())
            << FleetFaultName(options.fault) << " at message " << at << " of seed " << seed << ": "
            << absl::StrJoin(report.violations, "; ");
      }
    }
    EXPECT_GT(kills, 0);
  }
};

TEST_F(FleetSim, AFaultAtMessagesOfAFleetWithEtcd) { EveryMessage(7'100'000'003, 9, false, false); }

// A member is put out while the others hold, so that its permit has to be waited for.
TEST_F(FleetSim, AFaultAtMessagesOfAFleetWithASlowMember) {
  EveryMessage(7'100'000'003, 5, false, true);
}

TEST_F(FleetSim, AFaultAtMessagesOfAFleetWhoseWorkerDecides) {
  EveryMessage(7'100'000'005, 9, true, false);
}

TEST_F(FleetSim, RandomFleetsKeepEveryPromise) {
  FleetReport sum;
  for (uint64_t seed = 7'000'000'001; seed <= 7'000'002'000; ++seed) {
    const FleetReport report = RunFleet(FleetOfSeed(seed));
    ASSERT_TRUE(report.violations.empty())
        << "seed " << seed << ": " << absl::StrJoin(report.violations, "; ")
        << "; replay: fleet_sim --seeds 1 --verbose --from " << seed;
    sum.sealed += report.sealed;
    sum.active += report.active;
    sum.barriers += report.barriers;
    sum.dropped += report.dropped;
    sum.terms += report.terms;
    sum.reigns += report.reigns;
    sum.lives += report.lives;
    sum.kills += report.kills;
    sum.held += report.held;
    sum.refused_votes += report.refused_votes;
    sum.based += report.based;
  }
  // The runs reach the situations in which something could break.
  EXPECT_GT(sum.sealed, 1000);
  EXPECT_GT(sum.barriers, 500);
  EXPECT_GT(sum.active, sum.barriers + 300);
  EXPECT_GT(sum.dropped, 300);
  EXPECT_GT(sum.terms, 1500);
  EXPECT_GT(sum.reigns, 1500);
  EXPECT_GT(sum.lives, 1000);
  EXPECT_GT(sum.kills, 3000);
  EXPECT_GT(sum.held, 1000);
  EXPECT_GT(sum.refused_votes, 50);
  EXPECT_GT(sum.based, 1000);
}

TEST_F(FleetSim, EqualSeedsAreEqualRuns) {
  for (uint64_t seed = 7'000'000'001; seed <= 7'000'000'020; ++seed) {
    EXPECT_EQ(RunFleet(FleetOfSeed(seed)).trace_hash, RunFleet(FleetOfSeed(seed)).trace_hash);
  }
}

}  // namespace
}  // namespace tryst
