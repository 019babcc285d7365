#include "channel/ops/fetch_owed.h"

#include "base/clock.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

class MovedClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns; }
  int64_t now_ns = 7'000'000'000;
};

class FetchOwedTest : public testing::Test {
 protected:
  static constexpr int64_t kLimitMs = 2000;

  FetchOwedTest() {
    poller_.Turn();
    owed_.Begin();
  }
  // In steps, as those who watch a peer take them.
  void Pass(int64_t ms) {
    for (; ms > 0; ms -= 100) {
      clock_.now_ns += 100'000'000;
      poller_.Turn();
    }
  }

  MovedClock clock_;
  Poller poller_{&clock_};
  FetchOwed owed_{&poller_, kLimitMs};
};

TEST_F(FetchOwedTest, NothingIsOwedOfATensorThatWasNotAnnounced) {
  Pass(10 * kLimitMs);
  owed_.NoteAwaited(false);
  EXPECT_FALSE(owed_.IsLate());
  EXPECT_EQ(owed_.owes_since_ns(), -1);
}

TEST_F(FetchOwedTest, WhatWasAnnouncedIsLateAfterTheLimitUnlessSomeOfItComes) {
  owed_.NoteAwaited(true);
  owed_.NoteAnswer();
  Pass(kLimitMs - 100);
  owed_.NoteAwaited(true);  // Which does not begin anew.
  EXPECT_FALSE(owed_.IsLate());
  Pass(100);
  EXPECT_TRUE(owed_.IsLate());
  EXPECT_EQ(owed_.answers(), 1u);
  owed_.NoteBrought();
  EXPECT_FALSE(owed_.IsLate());
  owed_.NoteAwaited(true);
  EXPECT_EQ(owed_.answers(), 0u);
  Pass(kLimitMs);
  EXPECT_TRUE(owed_.IsLate());
  owed_.NoteAwaited(false);
  EXPECT_FALSE(owed_.IsLate());
}

TEST_F(FetchOwedTest, WithoutALimitNothingIsLate) {
  FetchOwed patient(&poller_, 0);
  patient.Begin();
  patient.NoteAwaited(true);
  Pass(100 * kLimitMs);
  EXPECT_FALSE(patient.IsLate());
}

TEST_F(FetchOwedTest, AConnectionWorksWithItsFirstWord) {
  EXPECT_FALSE(owed_.works());
  owed_.NoteWord();
  EXPECT_TRUE(owed_.works());
  owed_.Begin();
  EXPECT_FALSE(owed_.works()) << "another one";
}

TEST_F(FetchOwedTest, WhoWasLateHasToBringSomething) {
  owed_.NoteAwaited(true);
  Pass(kLimitMs);
  owed_.NoteDefault();
  owed_.Begin();
  owed_.NoteWord();
  EXPECT_FALSE(owed_.works());
  owed_.NoteBrought();
  EXPECT_TRUE(owed_.works());
}

TEST_F(FetchOwedTest, WhoWasLateIsAsGoodAsAnyAfterAWhileInWhichNothingWasDue) {
  owed_.NoteDefault();
  owed_.Begin();
  Pass(2 * kLimitMs - 100);
  owed_.NoteWord();
  EXPECT_FALSE(owed_.works());
  owed_.NoteAwaited(true);
  Pass(100);
  owed_.NoteWord();
  EXPECT_FALSE(owed_.works()) << "something is due";
  owed_.NoteAwaited(false);
  owed_.NoteWord();
  EXPECT_TRUE(owed_.works());
}

TEST_F(FetchOwedTest, AnotherPathIsInNobodysDebt) {
  owed_.NoteDefault();
  owed_.UsePath();
  owed_.Begin();
  EXPECT_FALSE(owed_.works());
  owed_.NoteWord();
  EXPECT_TRUE(owed_.works());
}

TEST_F(FetchOwedTest, ItSaysWhatThePeerDidAndWhatNot) {
  EXPECT_EQ(owed_.Silent("p", "shm", 12).message(),
            "p has been silent over shm for 12 ms, and has confirmed none of the requests since it "
            "connected");
  owed_.NoteWord();
  EXPECT_EQ(owed_.Silent("p", "shm", 12).message(), "p has been silent over shm for 12 ms");
  owed_.NoteAwaited(true);
  Pass(300);
  EXPECT_EQ(owed_.Late("p", "shm").message(),
            "p answers over shm, has announced a tensor there and has brought nothing for 300 ms");
}

}  // namespace
}  // namespace tryst
