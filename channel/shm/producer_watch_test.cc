#include "channel/shm/producer_watch.h"

#include "base/turned_clock.h"
#include "channel/poller/poller.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

struct FakeOwner final : ProducerWatch::Owner {
  bool Watched(uint32_t* cells_now) const override {
    *cells_now = cells;
    return watched;
  }
  void AskForSign() override { ++signs; }
  void AskIfUp() override { ++asked_if_up; }
  bool WatchParts(bool* awaited) override {
    ++looks;
    *awaited = awaits;
    return true;
  }
  void OnSilent(int64_t ms) override { silent_ms = ms; }
  void OnOwes(int64_t ms) override { owes_ms = ms; }

  uint32_t cells = 0;
  bool watched = true;
  bool awaits = false;
  int looks = 0;
  int signs = 0;
  int asked_if_up = 0;
  int64_t silent_ms = -1;
  int64_t owes_ms = -1;
};

class ProducerWatchTest : public ::testing::Test {
 protected:
  static constexpr int64_t kPatienceMs = 60'000;
  static constexpr int64_t kGiveUpMs = 2000;

  ~ProducerWatchTest() override {
    watch_.Stop();
    alone_.Stop();
  }
  void PassMs(int64_t ms) {
    for (int64_t i = 0; i < ms; i += 10) {
      clock_.now_ns += 10'000'000;
      poller_.Turn();
    }
  }

  TurnedClock clock_;
  Poller poller_{&clock_};
  FakeOwner owner_;
  ProducerWatch watch_{&poller_, &owner_, kPatienceMs, kGiveUpMs};
  ProducerWatch alone_{&poller_, &owner_, kPatienceMs, 0};  // There is no other path.
};

TEST_F(ProducerWatchTest, WhoGivesNoSignIsAskedForOneSoonWhereThereIsAnotherPath) {
  watch_.Watch();
  PassMs(kGiveUpMs);
  EXPECT_EQ(owner_.signs, 1);
  alone_.Watch();
  PassMs(kGiveUpMs);
  EXPECT_EQ(owner_.signs, 1);
  PassMs(kPatienceMs / 4);
  EXPECT_EQ(owner_.signs, 2);
}

// What came may have been sent before something was asked.
TEST_F(ProducerWatchTest, WhatIsAskedIsLookedAtSoonTwice) {
  watch_.Watch();
  ++owner_.cells;
  PassMs(kGiveUpMs);
  EXPECT_GE(owner_.looks, 2);
  EXPECT_EQ(owner_.signs, 1);
  ++owner_.cells;
  PassMs(kPatienceMs / 4);
  const int looks = owner_.looks;
  ++owner_.cells;
  watch_.Watch();
  PassMs(kGiveUpMs);
  EXPECT_GE(owner_.looks, looks + 2);
}

TEST_F(ProducerWatchTest, WhoIsUpAndGivesNoSignOwesIt) {
  watch_.Watch();
  PassMs(2 * kGiveUpMs);
  EXPECT_EQ(owner_.asked_if_up, 1) << "once, until it is answered";
  PassMs(2 * kGiveUpMs);
  EXPECT_EQ(owner_.asked_if_up, 1);
  EXPECT_EQ(owner_.owes_ms, -1) << "it may be stopped";
  watch_.NoteUp(true);
  PassMs(kGiveUpMs - 500);
  EXPECT_EQ(owner_.owes_ms, -1);
  PassMs(1000);
  EXPECT_GE(owner_.owes_ms, 5 * kGiveUpMs - 500);
  EXPECT_EQ(owner_.silent_ms, -1);
}

TEST_F(ProducerWatchTest, WhoIsNotUpIsAskedAgainAndWaitedForWithPatience) {
  watch_.Watch();
  for (int64_t ms = 0; ms < kPatienceMs - 1000; ms += 1000) {
    PassMs(1000);
    watch_.NoteUp(false);
  }
  EXPECT_GT(owner_.asked_if_up, 2);
  EXPECT_EQ(owner_.owes_ms, -1);
  EXPECT_EQ(owner_.silent_ms, -1);
  PassMs(2000);
  EXPECT_GE(owner_.silent_ms, kPatienceMs);
  EXPECT_LE(owner_.silent_ms, kPatienceMs + 1000);
}

TEST_F(ProducerWatchTest, ASignIsGoodForThePatience) {
  watch_.Watch();
  PassMs(kPatienceMs - 1000);
  ++owner_.cells;
  PassMs(kPatienceMs - 1000);
  EXPECT_EQ(owner_.silent_ms, -1);
  PassMs(kPatienceMs / 2);
  EXPECT_GE(owner_.silent_ms, kPatienceMs);
}

TEST_F(ProducerWatchTest, PartsThatAreAwaitedAreLookedForOften) {
  owner_.awaits = true;
  watch_.Watch();
  PassMs(kGiveUpMs);
  const int looks = owner_.looks;
  for (int64_t ms = 0; ms < 10'000; ms += 100) {
    ++owner_.cells;
    PassMs(100);
  }
  EXPECT_GE(owner_.looks, looks + 10);
}

TEST_F(ProducerWatchTest, WhereNothingIsOutNobodyIsWatched) {
  owner_.watched = false;
  watch_.Watch();
  PassMs(2 * kPatienceMs);
  EXPECT_EQ(owner_.looks, 0);
  owner_.watched = true;
  watch_.Watch();
  PassMs(kGiveUpMs);
  EXPECT_GT(owner_.looks, 0);
  owner_.watched = false;
  PassMs(2 * kPatienceMs);
  EXPECT_EQ(owner_.silent_ms, -1);
}

}  // namespace
}  // namespace tryst
