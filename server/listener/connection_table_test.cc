#include "server/listener/connection_table.h"

#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

using Id = ConnectionTable::Id;
constexpr int64_t kSecondNs = 1'000'000'000;

ConnectionLimits Small() {
  ConnectionLimits limits;
  limits.connections = 6;
  limits.strangers = 4;
  limits.strangers_of_address = 2;
  limits.stranger_ns = kSecondNs;
  limits.stranger_bytes = 1000;
  limits.strangers_bytes = 1500;
  limits.member_bytes = 5000;
  return limits;
}

TEST(ConnectionTable, TheOldestStrangerOfAnAddressMakesWay) {
  ConnectionTable table(Small());
  std::vector<Id> end;
  const Id other = table.Add("[::1]:1", 0, &end);
  const Id first = table.Add("10.0.0.1:1", 1, &end);
  EXPECT_NE(table.Add("10.0.0.1:2", 2, &end), 0u);
  EXPECT_TRUE(end.empty());
  EXPECT_NE(table.Add("10.0.0.1:3", 3, &end), 0u);
  EXPECT_EQ(end, std::vector<Id>{first});
  EXPECT_NE(first, other);
  EXPECT_EQ(table.counts().strangers, 3u);
  EXPECT_EQ(table.counts().crowded_out, 1u);
}

TEST(ConnectionTable, OneOfTwoStrangersOfAnAddressLeavesOne) {
  ConnectionTable table(Small());
  std::vector<Id> end;
  ASSERT_NE(table.Add("10.0.0.1:1", 0, &end), 0u);
  const Id second = table.Add("10.0.0.1:2", 1, &end);
  table.Authenticated("10.0.0.1:1");
  ASSERT_NE(table.Add("10.0.0.1:3", 2, &end), 0u);
  EXPECT_TRUE(end.empty());
  ASSERT_NE(table.Add("10.0.0.1:4", 3, &end), 0u);
  EXPECT_EQ(end, std::vector<Id>{second});
}

// The kernel gives a port anew as soon as its connection is closed, which we may hear of later.
TEST(ConnectionTable, AnAddressIsTheNewConnectionsAlthoughTheOldOneLeavesLater) {
  ConnectionTable table(Small());
  std::vector<Id> end;
  const Id old = table.Add("10.0.0.1:1", 0, &end);
  const Id fresh = table.Add("10.0.0.1:1", 1, &end);
  table.Remove(old, 0, 2);
  EXPECT_TRUE(table.Saw(old, 2000, 0, 2)) << "it is not there";
  table.Authenticated("10.0.0.1:1");
  EXPECT_FALSE(table.is_stranger(fresh));
  EXPECT_EQ(table.counts().authenticated, 1u);
}

TEST(ConnectionTable, TheOldOneOfAnAddressMayAlsoLeaveLast) {
  ConnectionTable table(Small());
  std::vector<Id> end;
  const Id old = table.Add("10.0.0.1:1", 0, &end);
  const Id fresh = table.Add("10.0.0.1:1", 1, &end);
  table.Remove(fresh, 0, 2);
  table.Remove(old, 0, 2);
  EXPECT_EQ(table.counts().open, 0u);
  EXPECT_FALSE(table.Authenticated("10.0.0.1:1"));
}

TEST(ConnectionTable, MembersAreNeverCrowdedOut) {
  ConnectionTable table(Small());
  std::vector<Id> end;
  for (const char* address :
       {"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1", "10.0.0.5:1", "10.0.0.6:1"}) {
    ASSERT_NE(table.Add(address, 0, &end), 0u);
    table.Authenticated(address);
  }
  EXPECT_EQ(table.Add("10.0.0.7:1", 0, &end), 0u);
  EXPECT_TRUE(end.empty());
  EXPECT_EQ(table.counts().refused, 1u);
  EXPECT_EQ(table.counts().open, 6u);
  EXPECT_EQ(table.counts().strangers, 0u);
}

TEST(ConnectionTable, AStrangerMakesWayForAnotherWhenAllPlacesAreTaken) {
  ConnectionTable table(Small());
  std::vector<Id> end;
  for (int i = 0; i < 5; ++i) {
    const std::string address = "10.0.0." + std::to_string(i) + ":1";
    table.Add(address, 0, &end);
    table.Authenticated(address);
  }
  const Id stranger = table.Add("10.0.1.1:1", 0, &end);
  EXPECT_NE(table.Add("10.0.1.2:1", 1, &end), 0u);
  EXPECT_EQ(end, std::vector<Id>{stranger});
}

TEST(ConnectionTable, StrangersHaveSoMuchTime) {
  ConnectionTable table(Small());
  EXPECT_EQ(table.next_expiry_ns(), INT64_MAX);
  std::vector<Id> end;
  const Id silent = table.Add("10.0.0.1:1", 0, &end);
  table.Add("10.0.0.1:2", 0, &end);
  table.Authenticated("10.0.0.1:2");
  EXPECT_EQ(table.next_expiry_ns(), kSecondNs);
  table.Expire(kSecondNs - 1, &end);
  EXPECT_TRUE(end.empty());
  table.Expire(kSecondNs, &end);
  EXPECT_EQ(end, std::vector<Id>{silent});
  EXPECT_EQ(table.counts().timed_out, 1u);
  EXPECT_EQ(table.next_expiry_ns(), INT64_MAX);
}

TEST(ConnectionTable, StrangersSayNoMoreThanSoMuchEachAndTogether) {
  ConnectionTable table(Small());
  std::vector<Id> end;
  const Id one = table.Add("10.0.0.1:1", 0, &end);
  EXPECT_TRUE(table.Saw(one, 1000, 0, 0));
  EXPECT_FALSE(table.Saw(one, 1001, 0, 0));
  const Id two = table.Add("10.0.0.2:1", 0, &end);
  const Id three = table.Add("10.0.0.3:1", 0, &end);
  EXPECT_TRUE(table.Saw(two, 900, 0, 0)) << "what a stranger said that was ended is forgotten";
  EXPECT_FALSE(table.Saw(three, 700, 0, 0));
  EXPECT_EQ(table.counts().flooded, 2u);
  table.Authenticated("10.0.0.2:1");
  EXPECT_TRUE(table.Saw(two, 4000, 0, 0));
}

TEST(ConnectionTable, AMembersBudgetIsItsAnewWithEachCall) {
  ConnectionTable table(Small());
  std::vector<Id> end;
  const Id id = table.Add("10.0.0.1:1", 0, &end);
  table.Authenticated("10.0.0.1:1");
  EXPECT_TRUE(table.Saw(id, 900, 0, 0));
  EXPECT_TRUE(table.Saw(id, 5900, 0, 0));
  table.Authenticated("10.0.0.1:1");
  EXPECT_TRUE(table.Saw(id, 10'000, 0, 0));
  EXPECT_TRUE(table.Saw(id, 15'000, 0, 0));
  // The receiver of a large tensor sends one byte for every 64 that it gets.
  EXPECT_TRUE(table.Saw(id, 15'900, 64'000, 0));
  EXPECT_FALSE(table.Saw(id, 16'100, 64'000, 0));
}

TEST(ConnectionTable, WhoComesFromWhereOthersFloodedWaitsAndSaysLess) {
  ConnectionLimits limits;
  ConnectionTable table(limits);
  std::vector<Id> end;
  EXPECT_EQ(table.DelayNs("10.0.0.1:1", 0), 0);
  int64_t last = 0;
  for (int i = 1; i <= 20; ++i) {
    const Id id = table.Add("10.0.0.1:1", 0, &end);
    EXPECT_FALSE(table.Saw(id, limits.stranger_bytes + 1, 0, 0));
    table.Remove(id, 0, 0);
    EXPECT_GE(table.DelayNs("10.0.0.1:2", 0), last);
    last = table.DelayNs("10.0.0.1:2", 0);
  }
  EXPECT_EQ(last, kSecondNs / 2);
  EXPECT_EQ(table.DelayNs("10.0.0.2:1", 0), 0);
  const Id next = table.Add("10.0.0.1:2", 0, &end);
  EXPECT_TRUE(table.Saw(next, 8 << 10, 0, 0));
  EXPECT_FALSE(table.Saw(next, 9 << 10, 0, 0));
  const Id other = table.Add("10.0.0.2:2", 0, &end);
  EXPECT_TRUE(table.Saw(other, 100 << 10, 0, 0));
  EXPECT_EQ(table.DelayNs("10.0.0.1:2", 61 * kSecondNs), 0);
}

// Each leaves before anybody has looked at what it sent.
TEST(ConnectionTable, ShortConnectionsCountTogether) {
  ConnectionTable table((ConnectionLimits()));
  std::vector<Id> end;
  for (int i = 0; i < 100; ++i) {
    const int64_t now_ns = i * kSecondNs / 100;
    table.Remove(table.Add("10.0.0.1:1", now_ns, &end), 60 << 10, now_ns);
    table.Remove(table.Add("10.0.0.2:1", now_ns, &end), 10 << 10, now_ns);
    const Id member = table.Add("10.0.0.3:1", now_ns, &end);
    table.Authenticated("10.0.0.3:1");
    table.Remove(member, 60 << 10, now_ns);
  }
  EXPECT_GT(table.DelayNs("10.0.0.1:2", kSecondNs), 0);
  EXPECT_GT(table.counts().flooded, 0u);
  EXPECT_EQ(table.DelayNs("10.0.0.2:2", kSecondNs), 0);
  EXPECT_EQ(table.DelayNs("10.0.0.3:2", kSecondNs), 0);
  for (int64_t second = 1; second <= 100; ++second) {
    const int64_t now_ns = second * kSecondNs;
    table.Remove(table.Add("10.0.0.4:1", now_ns, &end), 60 << 10, now_ns);
    EXPECT_EQ(table.DelayNs("10.0.0.4:2", now_ns), 0);
  }
}

TEST(ConnectionTable, StrangersWhoSayMuchAtOnceWaitUntilTheyAreKnownOrTimeHasPassed) {
  ConnectionLimits limits;
  ConnectionTable table(limits);
  std::vector<Id> end;
  std::vector<Id> go_on;
  const Id first = table.Add("10.0.0.1:1", 0, &end);
  const Id second = table.Add("10.0.0.2:1", 0, &end);
  const Id modest = table.Add("10.0.0.3:1", 0, &end);
  EXPECT_TRUE(table.Saw(first, limits.burst_bytes, 0, 0));
  EXPECT_FALSE(table.MustWait(first, 0)) << "so much may come";
  EXPECT_EQ(table.next_resume_ns(), INT64_MAX);
  EXPECT_TRUE(table.Saw(first, limits.burst_bytes + 1, 0, 1));
  EXPECT_TRUE(table.MustWait(first, 1));
  EXPECT_TRUE(table.Saw(second, 20 << 10, 0, 2));
  EXPECT_TRUE(table.MustWait(second, 2));
  EXPECT_TRUE(table.Saw(modest, 2 << 10, 0, 3));
  EXPECT_FALSE(table.MustWait(modest, 3)) << "who says little keeps nobody busy";
  table.Resume(4, &go_on);
  EXPECT_TRUE(go_on.empty());

  EXPECT_TRUE(table.Authenticated("10.0.0.2:1"));
  EXPECT_EQ(table.next_resume_ns(), 0);
  table.Resume(5, &go_on);
  EXPECT_EQ(go_on, std::vector<Id>{second});
  EXPECT_FALSE(table.Authenticated("10.0.0.2:1"));

  go_on.clear();
  table.Resume(table.next_resume_ns(), &go_on);
  EXPECT_EQ(go_on, std::vector<Id>{first});
  EXPECT_EQ(table.next_resume_ns(), INT64_MAX);
  EXPECT_EQ(table.counts().held_back, 2u);
}

TEST(ConnectionTable, WhatIsGoneIsForgotten) {
  ConnectionTable table(Small());
  std::vector<Id> end;
  for (int round = 0; round < 100; ++round) {
    const Id id = table.Add("10.0.0.1:1", round, &end);
    ASSERT_NE(id, 0u);
    EXPECT_TRUE(table.Saw(id, 900, 0, 0));
    if (round % 2 == 0) table.Authenticated("10.0.0.1:1");
    table.Remove(id, 900, round);
  }
  EXPECT_TRUE(end.empty());
  EXPECT_EQ(table.counts().open, 0u);
  EXPECT_EQ(table.counts().strangers, 0u);
  EXPECT_EQ(table.counts().accepted, 100u);
}

}  // namespace
}  // namespace tryst
