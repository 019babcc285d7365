#include "channel/rdma/early_messages.h"

#include "base/turned_clock.h"
#include "channel/poller/poller.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;

class EarlyMessagesTest : public ::testing::Test {
 protected:
  EarlyMessagesTest() {
    poller_.Turn();
    early_.Open(8);
    early_.Add(1);
    early_.Watch();
  }
  void Pass(int64_t ms) {
    clock_.now_ns += ms * kMs;
    poller_.Turn();
  }

  TurnedClock clock_;
  Poller poller_{&clock_};
  uint32_t next_ = 0;
  int lost_ = 0;
  EarlyMessages early_{&poller_, &next_, [this] { ++lost_; }};
};

TEST_F(EarlyMessagesTest, WaitForTheOneThatIsDueSoLongAndNoLonger) {
  Pass(499);
  EXPECT_EQ(lost_, 0);
  Pass(1);
  EXPECT_EQ(lost_, 1);
}

TEST_F(EarlyMessagesTest, AnotherOneThatIsDueIsWaitedForAnew) {
  Pass(400);
  next_ = 2;  // It has come, and the one behind it was early.
  early_.Take(1);
  early_.Add(3);
  Pass(100);
  EXPECT_EQ(lost_, 0);
  Pass(499);
  EXPECT_EQ(lost_, 0);
  Pass(1);
  EXPECT_EQ(lost_, 1);
}

// A process that was stopped reads what has come before it counts anything as lost.
TEST_F(EarlyMessagesTest, WhoStoodStillReadsFirst) {
  Pass(5000);
  Pass(0);
  EXPECT_EQ(lost_, 0);
  Pass(99);
  EXPECT_EQ(lost_, 0);
  Pass(1);
  EXPECT_EQ(lost_, 1);
}

}  // namespace
}  // namespace tryst
