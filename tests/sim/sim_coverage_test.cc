// What the seeds of the simulator reach is counted, and weights that are learned from it aim at
// what few of them reach.

#include "tests/sim/sim_coverage.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/sim/channel_cluster.h"
#include "tests/sim/sim_weights.h"

namespace tryst {
namespace {

Troubles Of(std::initializer_list<Trouble> troubles) {
  Troubles set;
  for (Trouble trouble : troubles) set.set(static_cast<size_t>(trouble));
  return set;
}

SimWeights AllOf(uint32_t percent) {
  SimWeights weights;
  for (size_t i = 0; i < kTroubleCount; ++i) weights.Set(static_cast<Trouble>(i), percent);
  return weights;
}

TEST(SimWeightsTest, TextIsReadAgain) {
  SimWeights weights;
  weights.Set(Trouble::kLose, 77);
  const auto again = SimWeights::Parse(weights.ToText());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->of(Trouble::kLose), 77u);
  EXPECT_EQ(again->ToText(), weights.ToText());
}

TEST(SimWeightsTest, OtherTextIsRefused) {
  for (const char* text : {"lose", "lose 101", "lose -1", "loss 20", "lose 1 2"}) {
    const auto weights = SimWeights::Parse(text);
    ASSERT_FALSE(weights.ok()) << text;
    EXPECT_TRUE(absl::StrContains(weights.status().message(), text)) << weights.status();
  }
}

TEST(SimWeightsTest, TheUsualWeightsLeaveEverySeedAsItWas) {
  for (uint64_t seed : {3, 17, 38}) {
    const ChannelClusterReport first = RunChannelCluster(OptionsOfSeed(seed));
    auto usual = SimWeights::Parse(SimWeights().ToText());
    ASSERT_TRUE(usual.ok());
    EXPECT_EQ(RunChannelCluster(OptionsOfSeed(seed, *usual)).trace_hash, first.trace_hash);
  }
}

TEST(SimWeightsTest, ASeedAndItsWeightsMakeARun) {
  int others = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const ChannelClusterReport first = RunChannelCluster(OptionsOfSeed(seed, AllOf(60)));
    EXPECT_EQ(RunChannelCluster(OptionsOfSeed(seed, AllOf(60))).trace_hash, first.trace_hash);
    others += RunChannelCluster(OptionsOfSeed(seed, AllOf(90))).trace_hash != first.trace_hash;
  }
  EXPECT_GE(others, 6);
}

TEST(SimWeightsTest, WhatWeighsNothingDoesNotHappenAndWhatWeighsAllIsDrawnAlways) {
  Troubles all;
  // So few works have a completion that comes twice, or never, that it may be missing: with every
  // other trouble about, a link has ended before.
  for (Trouble rare : {Trouble::kDuplicate, Trouble::kLoseForEver}) {
    all.set(static_cast<size_t>(rare));
  }
  for (uint64_t seed = 1; seed <= 20 || (seed <= 200 && !all.all()); ++seed) {
    const ChannelClusterReport none = RunChannelCluster(OptionsOfSeed(seed, AllOf(0)));
    EXPECT_TRUE(none.troubles.none()) << "seed " << seed << ": " << none.troubles;
    const ChannelClusterReport report = RunChannelCluster(OptionsOfSeed(seed, AllOf(100)));
    EXPECT_TRUE(report.violations.empty()) << "seed " << seed << ": " << report.violations[0];
    all |= report.troubles;
  }
  EXPECT_TRUE(all.all()) << all;
}

TEST(SimCoverageTest, CountsRowsGuardsAndPairs) {
  SimCoverage coverage;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const ChannelClusterReport report = RunChannelCluster(OptionsOfSeed(seed));
    ASSERT_TRUE(report.violations.empty()) << "seed " << seed;
    coverage.Add(report.tables, report.troubles);
    const auto at = [](auto value) { return static_cast<size_t>(value); };
    EXPECT_GT(report.tables.fetch[at(FetchState::kInSlot)][at(FetchEvent::kAsk)], 0u);
    EXPECT_GT(report.tables.serve[at(ServeState::kFree)][at(ServeEvent::kRequest)], 0u);
    // What the table has no row for has not happened.
    for (size_t s = 0; s < kFetchStateCount; ++s) {
      for (size_t e = 0; e < kFetchEventCount; ++e) {
        EXPECT_TRUE(kFetchRows[s][e].exists || report.tables.fetch[s][e] == 0) << s << ' ' << e;
      }
    }
  }
  const std::string text = coverage.ToText();
  EXPECT_TRUE(absl::StrContains(text, " 20 seeds ")) << text;
  EXPECT_TRUE(absl::StrContains(text, "break and fail")) << text;
  EXPECT_TRUE(absl::StrContains(text, "sim: ")) << text;
  EXPECT_FALSE(absl::StrContains(text, "hostile: ")) << text;
  EXPECT_FALSE(absl::StrContains(text, "guards: 0 of")) << text;
}

// Rows that no other seed reaches.
TEST(SimCoverageTest, WhoForgetsAndWhoCancelsWhatIsOverReachTheirRows) {
  SimWeights weights;
  weights.Set(Trouble::kForget, 100);
  weights.Set(Trouble::kStray, 100);
  constexpr std::pair<ServeState, ServeEvent> kRows[] = {
      {ServeState::kTaking, ServeEvent::kNotAccepted},
      {ServeState::kReady, ServeEvent::kRequestAnew},
      {ServeState::kTaking, ServeEvent::kLateCancel},
      {ServeState::kReady, ServeEvent::kLateCancel},
      {ServeState::kInParts, ServeEvent::kLateCancel},
      {ServeState::kPulled, ServeEvent::kLateCancel},
      {ServeState::kPulled, ServeEvent::kNotRead},
  };
  TableCounts all;
  const auto reached = [&all](const std::pair<ServeState, ServeEvent>& row) {
    return all.serve[static_cast<size_t>(row.first)][static_cast<size_t>(row.second)] > 0;
  };
  for (uint64_t seed = 1; seed <= 80 && !std::all_of(std::begin(kRows), std::end(kRows), reached);
       ++seed) {
    ChannelClusterOptions options = OptionsOfSeed(seed, weights);
    options.links = SimLinks::kShm;
    const ChannelClusterReport report = RunChannelCluster(options);
    ASSERT_TRUE(report.violations.empty()) << "seed " << seed << ": " << report.violations[0];
    all += report.tables;
  }
  for (const auto& row : kRows) {
    EXPECT_TRUE(reached(row)) << ServeStateName(row.first) << ": " << ServeEventName(row.second);
  }
}

// A row that one seed in a hundred reaches, always with lost works and never with delayed ones.
TEST(SimCoverageTest, LearnsWhatGoesWithTheLeastReached) {
  SimCoverage coverage;
  TableCounts rare;
  rare.fetch[static_cast<size_t>(FetchState::kFenced)][static_cast<size_t>(FetchEvent::kEndAsked)] =
      3;
  for (int seed = 0; seed < 1000; ++seed) {
    Troubles troubles = Of({Trouble::kKills});
    if (seed % 2 == 0) troubles |= Of({Trouble::kDelay});
    if (seed % 5 == 1) troubles |= Of({Trouble::kLose});
    const bool is_rare = seed % 100 == 1;
    coverage.Add(is_rare ? rare : TableCounts(), troubles);
  }
  const SimWeights now;
  const SimWeights learned = coverage.Learn(now);
  EXPECT_GT(learned.of(Trouble::kLose), now.of(Trouble::kLose));
  EXPECT_LT(learned.of(Trouble::kDelay), now.of(Trouble::kDelay));
  EXPECT_EQ(learned.of(Trouble::kKills), now.of(Trouble::kKills));
  EXPECT_EQ(learned.of(Trouble::kJump), now.of(Trouble::kJump)) << "nothing was seen of it";
  EXPECT_EQ(coverage.Learn(now).ToText(), learned.ToText());
}

TEST(SimCoverageTest, NoWeightEndsAtNothingOrAtAll) {
  SimCoverage coverage;
  TableCounts rare;
  rare.serve[static_cast<size_t>(ServeState::kSent)][static_cast<size_t>(ServeEvent::kRepeat)] = 1;
  for (int seed = 0; seed < 100; ++seed) {
    coverage.Add(seed == 0 ? rare : TableCounts(),
                 seed % 10 == 0 ? Of({Trouble::kLose}) : Of({Trouble::kDelay}));
  }
  SimWeights weights;
  for (int round = 0; round < 20; ++round) weights = coverage.Learn(weights);
  EXPECT_EQ(weights.of(Trouble::kLose), 95u);
  EXPECT_EQ(weights.of(Trouble::kDelay), 5u);
}

}  // namespace
}  // namespace tryst
