#include "channel/ops/link_watch.h"

#include "base/turned_clock.h"
#include "channel/poller/poller.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr int64_t kCheckMs = 1000;
constexpr int64_t kMostSilentMs = 60'000;
constexpr int64_t kAskUpMs = 2000;

struct FakeOwner final : LinkWatch::Owner {
  int64_t HeardNs() override {
    ++checks;
    return heard_ns;
  }
  int64_t MostSilentMs() const override { return most_silent_ms; }
  bool CheckDue(bool* due) override {
    *due = owes;
    return !ends;
  }
  void AskForSign(bool again) override { ++(again ? asked_again : asked); }
  void AskIfUp() override { ++asked_if_up; }
  void OnSilent(int64_t since_ns) override { silent_since_ns = since_ns; }

  int64_t heard_ns = 0;
  int64_t most_silent_ms = kMostSilentMs;
  bool owes = false;
  bool ends = false;
  int checks = 0;
  int asked = 0;
  int asked_again = 0;
  int asked_if_up = 0;
  int64_t silent_since_ns = -1;
};

class LinkWatchTest : public ::testing::Test {
 protected:
  LinkWatchTest() {
    owner_.heard_ns = clock_.now_ns;
    watch_.UseTimes(kCheckMs, kAskUpMs);
    lossy_.UseTimes(kCheckMs, 0);
  }
  ~LinkWatchTest() override {
    watch_.Stop();
    lossy_.Stop();
  }
  void PassMs(int64_t ms) {
    for (int64_t i = 0; i < ms; i += 10) {
      clock_.now_ns += 10'000'000;
      poller_.Turn();
    }
  }
  void Hear() { owner_.heard_ns = clock_.now_ns; }

  TurnedClock clock_;
  Poller poller_{&clock_};
  FakeOwner owner_;
  LinkWatch watch_{&poller_, &owner_};
  LinkWatch lossy_{&poller_, &owner_};  // Its link may lose a word.
};

TEST_F(LinkWatchTest, ACheckThatFindsNoWordAsksForASign) {
  watch_.Watch();
  PassMs(kCheckMs - 100);
  Hear();
  PassMs(200);
  EXPECT_EQ(owner_.asked, 0) << "it was heard just now";
  PassMs(kCheckMs);
  EXPECT_EQ(owner_.asked, 1);
  PassMs(2 * kCheckMs);
  EXPECT_EQ(owner_.asked, 1);
  EXPECT_EQ(owner_.asked_again, 2) << "and says so to who asks";
  Hear();
  PassMs(2 * kCheckMs);
  EXPECT_EQ(owner_.asked, 2);
}

TEST_F(LinkWatchTest, WhoOwesSomethingIsAskedWhateverItSays) {
  owner_.owes = true;
  watch_.Watch();
  for (int check = 1; check <= 5; ++check) {
    PassMs(kCheckMs - 10);
    Hear();
    PassMs(10);
    EXPECT_EQ(owner_.asked, check);
  }
}

TEST_F(LinkWatchTest, WhereTheLinkEndsInACheckThereIsNoFurtherOne) {
  owner_.ends = true;
  watch_.Watch();
  PassMs(5 * kCheckMs);
  EXPECT_EQ(owner_.checks, 1);
  EXPECT_EQ(owner_.asked, 0);
}

TEST_F(LinkWatchTest, WhoIsUpAndGivesNoSignIsSilentLongBefore) {
  watch_.Watch();
  PassMs(kCheckMs + kAskUpMs);
  EXPECT_EQ(owner_.asked_if_up, 1) << "once, until it is answered";
  PassMs(2 * kAskUpMs);
  EXPECT_EQ(owner_.asked_if_up, 1);
  EXPECT_EQ(owner_.silent_since_ns, -1) << "it may be stopped";
  watch_.NoteUp(true);
  PassMs(kAskUpMs - 500);
  EXPECT_EQ(owner_.silent_since_ns, -1);
  PassMs(1000);
  EXPECT_EQ(owner_.silent_since_ns, owner_.heard_ns);
}

TEST_F(LinkWatchTest, AWordAfterItSaidThatItIsUpIsGoodForAll) {
  watch_.Watch();
  PassMs(kCheckMs + kAskUpMs);
  watch_.NoteUp(true);
  PassMs(kAskUpMs - 500);
  Hear();
  PassMs(kAskUpMs);
  EXPECT_EQ(owner_.silent_since_ns, -1);
}

TEST_F(LinkWatchTest, WhoIsNotUpIsAskedAgainAndHasTheWholeTime) {
  watch_.Watch();
  for (int64_t ms = 0; ms < kMostSilentMs - 1000; ms += 1000) {
    PassMs(1000);
    watch_.NoteUp(false);
  }
  EXPECT_GT(owner_.asked_if_up, 2);
  EXPECT_EQ(owner_.silent_since_ns, -1);
  PassMs(2000);
  EXPECT_EQ(owner_.silent_since_ns, owner_.heard_ns);
}

// Only a new link shows whether words were lost.
TEST_F(LinkWatchTest, WhereWordsAreLostNobodyIsAskedOtherwise) {
  owner_.most_silent_ms = 3 * kAskUpMs;
  lossy_.Watch();
  PassMs(3 * kAskUpMs - 100);
  EXPECT_EQ(owner_.silent_since_ns, -1);
  PassMs(200);
  EXPECT_EQ(owner_.silent_since_ns, owner_.heard_ns);
  EXPECT_EQ(owner_.asked_if_up, 0);
}

TEST_F(LinkWatchTest, TheTimeForWhichWeDidNotRunIsNotThePeers) {
  watch_.Watch();
  PassMs(kMostSilentMs / 2);
  clock_.now_ns += 10 * kMostSilentMs * 1'000'000;
  PassMs(kMostSilentMs / 4);
  EXPECT_EQ(owner_.silent_since_ns, -1);
  PassMs(kMostSilentMs / 4 + kCheckMs);
  EXPECT_EQ(owner_.silent_since_ns, owner_.heard_ns);
}

TEST_F(LinkWatchTest, WhereNothingIsOutNobodyIsWatched) {
  owner_.heard_ns = -1;
  watch_.Watch();
  PassMs(2 * kMostSilentMs);
  EXPECT_EQ(owner_.checks, 1);
  Hear();
  watch_.Watch();
  PassMs(3 * kCheckMs);
  EXPECT_EQ(owner_.checks, 4);
  watch_.Stop();
  PassMs(2 * kMostSilentMs);
  EXPECT_EQ(owner_.checks, 4);
  EXPECT_EQ(owner_.silent_since_ns, -1);
}

}  // namespace
}  // namespace tryst
