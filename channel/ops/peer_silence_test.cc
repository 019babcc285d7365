#include "channel/ops/peer_silence.h"

#include <algorithm>
#include <cstdint>

#include "base/turned_clock.h"
#include "channel/poller/poller.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kPatienceMs = 8000;

class PeerSilenceTest : public testing::Test {
 protected:
  // Runs for so long, turn after turn as the timers want it.
  void Run(int64_t ms) {
    const int64_t until_ns = clock_.now_ns + ms * kMs;
    while (clock_.now_ns < until_ns) {
      clock_.now_ns = std::min(until_ns, std::max(clock_.now_ns + 1, poller_.NextTimerNs()));
      poller_.Turn();
    }
  }
  // Is stopped for so long.
  void Pause(int64_t ms) {
    clock_.now_ns += ms * kMs;
    poller_.Turn();
  }
  ~PeerSilenceTest() override { silence_.Stop(); }

  TurnedClock clock_;
  Poller poller_{&clock_};
  int over_ = 0;
  PeerSilence silence_{&poller_, kPatienceMs, [this] { ++over_; }};
};

TEST_F(PeerSilenceTest, EndsThePatience) {
  silence_.NoteWaits();
  silence_.Watch();
  Run(kPatienceMs - 1);
  EXPECT_EQ(over_, 0);
  Run(2);
  EXPECT_EQ(over_, 1);
}

TEST_F(PeerSilenceTest, OfAProcessThatWasStoppedIsNotThePeers) {
  silence_.NoteWaits();
  silence_.Watch();
  Run(kPatienceMs / 2);
  Pause(10 * kPatienceMs);
  EXPECT_EQ(over_, 0);
  Run(kPatienceMs / 4);  // What it had left, less one look at most.
  EXPECT_EQ(over_, 0);
  Run(kPatienceMs / 4);
  EXPECT_EQ(over_, 1);
}

TEST_F(PeerSilenceTest, BeginsWithTheLastWordOfALinkThatBroke) {
  silence_.NoteWaits();
  Run(5 * kPatienceMs);  // It waited over the link.
  silence_.NoteWordAt(clock_.now_ns - 1000 * kMs);
  silence_.Watch();
  Run(kPatienceMs - 1001);
  EXPECT_EQ(over_, 0);
  Run(2);
  EXPECT_EQ(over_, 1);
}

// What is made soon after the peer was lost need not wait for the patience again.
TEST_F(PeerSilenceTest, OfALostPeerIsOverAfterOneMoreAttempt) {
  silence_.NoteWaits();
  silence_.OnAttemptFailed();
  EXPECT_EQ(over_, 0);
  silence_.Watch();
  Run(kPatienceMs + 1);
  ASSERT_EQ(over_, 1);
  for (int fetch = 0; fetch < 5; ++fetch) {
    Run(kPatienceMs / 2);  // All of them together are longer than the patience.
    silence_.NoteWaits();
    silence_.OnAttemptFailed();
    EXPECT_EQ(over_, 2 + fetch);
  }
  silence_.NoteWord();
  silence_.OnAttemptFailed();
  EXPECT_EQ(over_, 6) << "it has answered";
}

TEST_F(PeerSilenceTest, BeforeALongIdlenessSaysNothing) {
  silence_.NoteWaits();
  silence_.Watch();
  Run(kPatienceMs + 1);
  ASSERT_EQ(over_, 1);
  Run(kPatienceMs);
  silence_.NoteWaits();
  silence_.Watch();
  silence_.OnAttemptFailed();
  Run(kPatienceMs - 1);
  EXPECT_EQ(over_, 1) << "the first fetch after it has the whole patience";
  Run(2);
  EXPECT_EQ(over_, 2);
}

}  // namespace
}  // namespace tryst
