#include "tests/weights/chain_sim.h"

#include <gtest/gtest.h>

#include "absl/strings/str_join.h"

namespace tryst {
namespace {

void ExpectKept(const ChainReport& report, uint64_t seed) {
  EXPECT_TRUE(report.violations.empty())
      << "seed " << seed << ": " << absl::StrJoin(report.violations, "; ");
}

TEST(ChainSim, EachPartLeavesItsOwnerOnceAndEachMemberOnce) {
  ChainOptions options;
  const ChainReport report = RunChain(options);
  ExpectKept(report, options.seed);
  const uint64_t parts = uint64_t{16} * 2 * 3;
  EXPECT_EQ(report.sent_by_owners, parts);
  EXPECT_EQ(report.sent_on, 7 * parts);
  EXPECT_EQ(report.returns, 0u);
  EXPECT_EQ(report.most_by_member, 1u);
}

TEST(ChainSim, ADeathCostsASecondSending) {
  for (int member = 0; member < 8; ++member) {
    ChainOptions options;
    options.seed = 7'000'000'001 + member;
    options.dying = {member};
    const ChainReport report = RunChain(options);
    ExpectKept(report, options.seed);
    EXPECT_EQ(report.kills, 1u);
    EXPECT_LE(report.most_by_owners, 2u);
  }
}

// Those that have nothing for others are sent on all the same, and spread over those that do.
TEST(ChainSim, MembersThatHaveNothingForOthersAreSpread) {
  ChainOptions options;
  options.members = 9;
  options.all_hold = false;
  const ChainReport report = RunChain(options);
  ExpectKept(report, options.seed);
  EXPECT_EQ(report.returns, 0u);
  EXPECT_LE(report.most_by_owners, 3u);
  EXPECT_LE(report.most_by_member, 2u);
}

// Members that have it all, and one that comes when the owner is gone.
TEST(ChainSim, WhoComesAfterAnOwnersDeathGetsItOfMembers) {
  ChainReport sum;
  for (uint64_t seed = 7'000'000'001; seed <= 7'000'000'100; ++seed) {
    ChainOptions options;
    options.seed = seed;
    options.owner_dies = true;
    options.versions = 1;
    const ChainReport report = RunChain(options);
    ExpectKept(report, seed);
    sum.rescued += report.rescued;
    sum.out_of_reach += report.out_of_reach;
  }
  EXPECT_GT(sum.rescued, 2000u);
  printf("%zu parts came of members, %zu members lack what nobody has\n", sum.rescued,
         sum.out_of_reach);
}

// What nobody has whole is had in parts, each by its owner's digest.
TEST(ChainSim, OfBoxesThatNobodyHasWholeMembersGetWhatOthersHave) {
  ChainReport sum;
  for (uint64_t seed = 7'000'000'001; seed <= 7'000'000'100; ++seed) {
    ChainOptions options;
    options.seed = seed;
    options.members = 3 + static_cast<int>(seed % 6);
    options.owner_dies = true;
    options.cuts = true;
    options.versions = 1;
    const ChainReport report = RunChain(options);
    ExpectKept(report, seed);
    sum.rescued += report.rescued;
    sum.by_parts += report.by_parts;
    sum.out_of_reach += report.out_of_reach;
  }
  EXPECT_GT(sum.by_parts, 500u);
  printf(
      "%zu parts came of members, for %zu of boxes that nobody has, %zu members lack what "
      "nobody has any more\n",
      sum.rescued, sum.by_parts, sum.out_of_reach);
}

// The only owner dies, and with it the log; or the first of two.
TEST(ChainSim, WhereNobodyLeadsMembersGetItOfThoseOfWhomTheyHaveHeard) {
  ChainReport sum;
  for (uint64_t seed = 7'000'000'001; seed <= 7'000'000'200; ++seed) {
    ChainOptions options;
    options.seed = seed;
    options.members = 3 + static_cast<int>(seed % 6);
    options.owners = 1 + static_cast<int>(seed % 2);
    options.parts = 100;
    options.owner_dies = true;
    options.first_dies = true;
    options.cuts = seed % 3 == 0;
    options.versions = 1;
    const ChainReport report = RunChain(options);
    ExpectKept(report, seed);
    sum.unled += report.unled;
    sum.kept += report.kept;
    sum.out_of_reach += report.out_of_reach;
  }
  EXPECT_GT(sum.unled, 1000u);
  EXPECT_GT(sum.kept, 10'000u);
  printf("%zu parts came of members where nobody led, %zu members are out of reach\n", sum.unled,
         sum.out_of_reach);
}

// 64 owners, 58 replicas of 16 hosts each.
ChainOptions AThousandHosts() {
  ChainOptions options;
  options.owners = 64;
  options.members = 58 * 16;
  options.slices = 16;
  options.parts = 64;
  options.versions = 1;
  options.part_ns = 1'250'000'000 / (64 * 4);
  return options;
}

TEST(ChainSim, AThousandHosts) {
  const ChainOptions options = AThousandHosts();
  const ChainReport report = RunChain(options);
  ExpectKept(report, options.seed);
  EXPECT_EQ(report.sent_by_owners, 64u * 64);
  EXPECT_NEAR(report.bound_ns, 1'250'000'000, 1000);
  EXPECT_LE(report.sync_ns, report.bound_ns * 13 / 10);
}

TEST(ChainSim, AThousandHostsOfWhichOneInAHundredDies) {
  ChainOptions options = AThousandHosts();
  options.come_back = false;
  for (int member = 50; member < options.members; member += 97) options.dying.push_back(member);
  const ChainReport report = RunChain(options);
  ExpectKept(report, options.seed);
  EXPECT_EQ(report.kills, 10u);
  EXPECT_LE(report.sent_by_owners, 2u * 64 * 64);
  EXPECT_LE(report.sync_ns, report.bound_ns * 15 / 10);
}

TEST(ChainSim, WhateverGoesWrongEveryMemberHasTheLastVersion) {
  ChainReport sum;
  for (uint64_t seed = 7'000'000'001; seed <= 7'000'001'000; ++seed) {
    const ChainReport report = RunChain(ChainOfSeed(seed));
    ExpectKept(report, seed);
    if (!report.violations.empty()) return;
    sum.sent_by_owners += report.sent_by_owners;
    sum.sent_on += report.sent_on;
    sum.returns += report.returns;
    sum.lies += report.lies;
    sum.kills += report.kills;
    sum.retired_asks += report.retired_asks;
    sum.timeouts += report.timeouts;
    sum.dropped += report.dropped;
    sum.rescued += report.rescued;
    sum.by_parts += report.by_parts;
    sum.unled += report.unled;
    sum.out_of_reach += report.out_of_reach;
  }
  // The runs reach what could break.
  EXPECT_GT(sum.sent_on, 100'000u);
  EXPECT_GT(sum.returns, 10'000u);
  EXPECT_GT(sum.lies, 5000u);
  EXPECT_GT(sum.kills, 5000u);
  EXPECT_GT(sum.retired_asks, 1000u);
  EXPECT_GT(sum.timeouts, 1000u);
  EXPECT_GT(sum.dropped, 500u);
  EXPECT_GT(sum.rescued, 1000u);
  EXPECT_GT(sum.by_parts, 200u);
  EXPECT_GT(sum.unled, 150u);
  EXPECT_GT(sum.out_of_reach, 100u);
  printf(
      "%zu sent by owners, %zu sent on, %zu returns, %zu lies, %zu kills, %zu retired asks, %zu "
      "timeouts, %zu dropped, %zu rescued, %zu by parts, %zu unled, %zu out of reach\n",
      sum.sent_by_owners, sum.sent_on, sum.returns, sum.lies, sum.kills, sum.retired_asks,
      sum.timeouts, sum.dropped, sum.rescued, sum.by_parts, sum.unled, sum.out_of_reach);
}

// The log is new and nothing is active, so nobody keeps for others what an owner sends, and what
// the dead owner had is out of reach: members ask the living one again and again.
TEST(ChainSim, WhereNobodyHasAnythingForOthersAnOwnerSendsItToEach) {
  for (const uint64_t seed : {uint64_t{7'404'003'549}, uint64_t{9'452'003'770}}) {
    const ChainReport report = RunChain(ChainOfSeed(seed));
    ExpectKept(report, seed);
    EXPECT_GT(report.out_of_reach, 1u);
    EXPECT_GT(report.most_by_owners, 80u);
  }
}

// The one member that has it has sent wrong bytes before.
TEST(ChainSim, WhoHasLiedIsNotAskedAgainForAVersion) {
  const uint64_t seed = 9'472'004'035;
  const ChainReport report = RunChain(ChainOfSeed(seed));
  ExpectKept(report, seed);
  EXPECT_EQ(report.out_of_reach, 3u);
}

TEST(ChainSim, EqualSeedsAreEqualRuns) {
  for (uint64_t seed = 7'000'000'001; seed <= 7'000'000'020; ++seed) {
    EXPECT_EQ(RunChain(ChainOfSeed(seed)).trace_hash, RunChain(ChainOfSeed(seed)).trace_hash);
  }
}

}  // namespace
}  // namespace tryst
