#include "rendezvous/held_bytes.h"

#include <gtest/gtest.h>

#include <vector>

namespace tryst {
namespace {

TEST(HeldBytes, TakesHereAndInTheProcessOrNothing) {
  auto process = std::make_shared<HeldBytes>(100);
  HeldBytes a(80, process);
  HeldBytes b(80, process);
  EXPECT_TRUE(a.TryTake(80));
  EXPECT_FALSE(a.TryTake(1)) << "over its own cap";
  EXPECT_FALSE(b.TryTake(21)) << "over the process's";
  EXPECT_EQ(b.held(), 0);
  HeldBytes uncapped(0, process);
  EXPECT_FALSE(uncapped.TryTake(21));
  EXPECT_EQ(uncapped.held(), 0);
  EXPECT_TRUE(uncapped.TryTake(1));
  uncapped.Give(1);
  EXPECT_EQ(uncapped.held(), 0) << "it counts nothing of its own";
  EXPECT_TRUE(b.TryTake(20));
  EXPECT_EQ(process->held(), 100);
  a.Give(80);
  b.Give(20);
  EXPECT_EQ(process->held(), 0);
}

TEST(HeldBytes, WithoutACapEverythingFits) {
  HeldBytes held(0);
  EXPECT_FALSE(held.capped());
  EXPECT_TRUE(held.TryTake(INT64_MAX));
  EXPECT_TRUE(held.TryTake(INT64_MAX));
}

TEST(HeldBytes, CallsWhoWaitsWhenThereIsRoom) {
  auto process = std::make_shared<HeldBytes>(100);
  HeldBytes a(0, process);
  HeldBytes b(50, process);
  std::vector<int> ready;
  ASSERT_TRUE(a.TryTake(90));
  b.WhenRoom(20, [&](absl::Status status) {
    EXPECT_TRUE(status.ok());
    ready.push_back(20);
  });
  b.WhenRoom(5, [&](absl::Status status) {
    EXPECT_TRUE(status.ok());
    ready.push_back(5);
  });
  EXPECT_EQ(ready, std::vector<int>{5}) << "there is room for that one at once";
  a.Give(5);
  EXPECT_EQ(ready.size(), 1u);
  a.Give(5);
  EXPECT_EQ(ready, (std::vector<int>{5, 20})) << "room that another step made";
  a.Give(80);
}

TEST(HeldBytes, FailsWhoWaitsHereAlone) {
  auto process = std::make_shared<HeldBytes>(10);
  HeldBytes a(0, process);
  HeldBytes b(0, process);
  ASSERT_TRUE(a.TryTake(10));
  absl::Status of_a, of_b;
  a.WhenRoom(1, [&](absl::Status status) { of_a = status; });
  b.WhenRoom(1, [&](absl::Status status) { of_b = status; });
  a.FailWaiting(absl::AbortedError("a"));
  EXPECT_EQ(of_a.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(of_b.ok());
  b.FailWaiting(absl::AbortedError("b"));
  EXPECT_EQ(of_b.message(), "b");
  a.Give(10);
}

TEST(HeldBytes, WhatNeverFitsIsRefusedAtOnce) {
  auto process = std::make_shared<HeldBytes>(10);
  HeldBytes a(0, process);
  absl::Status status;
  a.WhenRoom(11, [&](absl::Status s) { status = s; });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(HeldBytes, AReserveIsCollectedBeforeARefusal) {
  auto process = std::make_shared<HeldBytes>(100);
  int64_t reserve = 60;
  HeldBytes a(0, process, [&] { return std::exchange(reserve, 0); });
  HeldBytes b(0, process);
  ASSERT_TRUE(a.TryTake(60));
  EXPECT_FALSE(b.TryTake(50));
  b.OnRefused();
  EXPECT_TRUE(b.TryTake(50));
  EXPECT_EQ(reserve, 0);
  bool ready = false;
  ASSERT_TRUE(a.TryTake(50));
  reserve = 50;
  b.WhenRoom(50, [&](absl::Status) { ready = true; });
  EXPECT_TRUE(ready) << "idle reserves do not keep anybody waiting";
  b.Give(50);
}

TEST(HeldBytes, WhoStillWaitsWhenOthersHaveFailedIsCalled) {
  auto process = std::make_shared<HeldBytes>(10);
  HeldBytes a(0, process);
  HeldBytes b(0, process);
  ASSERT_TRUE(a.TryTake(10));
  int ready = 0;
  a.WhenRoom(1, [](const absl::Status&) {});
  b.WhenRoom(1, [&](const absl::Status& status) { ready += status.ok(); });
  a.FailWaiting(absl::AbortedError("a"));
  EXPECT_TRUE(b.anybody_waits());
  a.Give(10);
  EXPECT_EQ(ready, 1);
  EXPECT_FALSE(b.anybody_waits());
}

// Others look at it before they keep a reserve.
TEST(HeldBytes, SaysWhetherAnybodyWaits) {
  HeldBytes held(10);
  ASSERT_TRUE(held.TryTake(10));
  EXPECT_FALSE(held.anybody_waits());
  held.WhenRoom(1, [](const absl::Status&) {});
  EXPECT_TRUE(held.anybody_waits());
  held.FailWaiting(absl::AbortedError("over"));
  EXPECT_FALSE(held.anybody_waits());
  held.Give(10);
}

TEST(HeldBytes, ThoseForWhomThereIsNoRoomYetKeepTheirOrder) {
  HeldBytes held(10);
  ASSERT_TRUE(held.TryTake(10));
  std::vector<int> ready;
  for (const int bytes : {9, 1, 8, 2}) {
    held.WhenRoom(bytes, [&ready, bytes](const absl::Status& status) {
      EXPECT_TRUE(status.ok());
      ready.push_back(bytes);
    });
  }
  held.Give(1);
  EXPECT_EQ(ready, std::vector<int>{1});
  held.Give(1);
  EXPECT_EQ(ready, (std::vector<int>{1, 2}));
  held.Give(8);
  EXPECT_EQ(ready, (std::vector<int>{1, 2, 9, 8}));
}

TEST(HeldBytes, WithoutACapNoReserveIsAskedFor) {
  int asked = 0;
  HeldBytes held(0, nullptr, [&] {
    ++asked;
    return int64_t{0};
  });
  held.OnRefused();
  EXPECT_EQ(asked, 0);
}

TEST(HeldBytes, ExplainsEachCap) {
  auto process = std::make_shared<HeldBytes>(100);
  HeldBytes step(80, process);
  HeldBytes uncapped(0, process);
  ASSERT_TRUE(step.TryTake(30));
  EXPECT_EQ(step.Explain(), "the step holds 30 of at most 80, the process holds 30 of at most 100");
  EXPECT_EQ(uncapped.Explain(), "the process holds 30 of at most 100");
  step.Give(30);
}

}  // namespace
}  // namespace tryst
