#include "verbs/soft/soft_waits.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

using For = SoftWaits::For;
using TooLong = SoftWaits::TooLong;

constexpr int64_t kMs = 1'000'000;
constexpr For kNothing = {false, false};
constexpr For kAnswers = {true, false};
constexpr For kConnection = {false, true};

class SoftWaitsTest : public ::testing::Test {
 protected:
  // 2.1 ms four times, and 10 ms three times.
  static constexpr int64_t kPeerNs = (int64_t{4096} << 9) * 4;
  static constexpr int64_t kReceiveNs = 30 * kMs;

  static QueuePairOptions Options() {
    QueuePairOptions options;
    options.ack_timeout = 9;
    options.retry_count = 3;
    options.rnr_retry_count = 2;
    return options;
  }
  static SoftNicOptions Nic() {
    SoftNicOptions nic;
    nic.rnr_timer = absl::Milliseconds(10);
    return nic;
  }
  // Looks every tenth of a millisecond, until something takes too long or `ns` have passed.
  TooLong Wait(SoftWaits* waits, For what, int64_t ns) {
    const int64_t until_ns = now_ns_ + ns;
    for (;;) {
      const TooLong found = waits->OnTimer(now_ns_, what);
      if (found != TooLong::kNothing || now_ns_ >= until_ns) return found;
      now_ns_ += kMs / 10;
    }
  }

  int64_t now_ns_ = 5 * kMs;
  SoftWaits waits_{Nic(), Options()};
};

TEST_F(SoftWaitsTest, AnAnswerAndAConnectionAreWaitedForAsLong) {
  for (const For what : {kAnswers, kConnection}) {
    waits_.Restart();
    EXPECT_EQ(Wait(&waits_, what, kPeerNs - kMs), TooLong::kNothing);
    EXPECT_EQ(Wait(&waits_, what, 2 * kMs), TooLong::kPeer);
  }
}

TEST_F(SoftWaitsTest, WhatMovesProlongsTheWaitForAnswersAlone) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Wait(&waits_, kAnswers, kPeerNs - kMs), TooLong::kNothing) << i;
    waits_.NoteMoved();
  }
  EXPECT_EQ(Wait(&waits_, kAnswers, kPeerNs + kMs), TooLong::kPeer) << "it has moved once";
  EXPECT_EQ(Wait(&waits_, kConnection, kPeerNs - kMs), TooLong::kNothing);
  waits_.NoteMoved();
  EXPECT_EQ(Wait(&waits_, kConnection, 2 * kMs), TooLong::kPeer);
}

TEST_F(SoftWaitsTest, WhatWasNotWaitedForBeginsAnew) {
  for (const For what : {kAnswers, kConnection}) {
    EXPECT_EQ(Wait(&waits_, what, kPeerNs - kMs), TooLong::kNothing);
    EXPECT_EQ(Wait(&waits_, kNothing, 100 * kMs), TooLong::kNothing);
    EXPECT_EQ(Wait(&waits_, what, kPeerNs - kMs), TooLong::kNothing);
  }
}

TEST_F(SoftWaitsTest, AReceiveOfThePeersIsWaitedForFromTheFirstWork) {
  EXPECT_FALSE(waits_.starved());
  EXPECT_EQ(Wait(&waits_, kNothing, 2 * kReceiveNs), TooLong::kNothing);
  waits_.Starve();
  EXPECT_TRUE(waits_.starved());
  EXPECT_EQ(Wait(&waits_, kNothing, kReceiveNs - kMs), TooLong::kNothing);
  waits_.Feed();
  EXPECT_FALSE(waits_.starved());
  waits_.Starve();
  EXPECT_EQ(Wait(&waits_, kNothing, kReceiveNs - kMs), TooLong::kNothing);
  waits_.Restart();
  EXPECT_EQ(Wait(&waits_, kNothing, kReceiveNs - kMs), TooLong::kNothing);
  EXPECT_EQ(Wait(&waits_, kNothing, 2 * kMs), TooLong::kReceive);
}

TEST_F(SoftWaitsTest, WhereItMayTakeForEverItDoes) {
  QueuePairOptions options = Options();
  options.ack_timeout = 0;
  options.rnr_retry_count = 7;
  SoftWaits patient(Nic(), options);
  patient.Starve();
  EXPECT_EQ(Wait(&patient, {true, true}, 10 * kReceiveNs), TooLong::kNothing);
  EXPECT_EQ(patient.next_ns(now_ns_, {true, true}), Patience::kForEver);
}

TEST_F(SoftWaitsTest, ItTellsWhenWhatIsWaitedForIsLate) {
  EXPECT_EQ(waits_.next_ns(now_ns_, kNothing), Patience::kForEver);
  for (const For what : {kAnswers, kConnection}) {
    EXPECT_GT(waits_.next_ns(now_ns_, what), now_ns_);
    EXPECT_LE(waits_.next_ns(now_ns_, what), now_ns_ + kPeerNs);
  }
  waits_.Starve();
  EXPECT_LE(waits_.next_ns(now_ns_, kNothing), now_ns_ + kReceiveNs);
  EXPECT_LT(waits_.next_ns(now_ns_, kAnswers), waits_.next_ns(now_ns_, kNothing));
}

}  // namespace
}  // namespace tryst
