#include "weights/permit.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "base/turned_clock.h"

namespace tryst {
namespace {

TEST(PermitTest, RunsUntilItsMoment) {
  TurnedClock clock;
  Permit permit(false);
  EXPECT_EQ(permit.Serve(clock).number, 0);
  permit.Give(7, clock.now_ns + 10);
  EXPECT_EQ(permit.Serve(clock).number, 7);
  EXPECT_TRUE(permit.Serve(clock).confirmed);
  permit.Give(7, clock.now_ns + 5);  // An older question's answer shortens nothing.
  clock.now_ns += 9;
  EXPECT_EQ(permit.Serve(clock).number, 7);
  clock.now_ns += 1;
  EXPECT_EQ(permit.Serve(clock).number, 0);
  permit.Give(7, clock.now_ns + 10);
  permit.End();
  EXPECT_EQ(permit.Serve(clock).number, 0);
  permit.Give(8, clock.now_ns + 10);
  EXPECT_EQ(permit.Serve(clock).number, 8);
}

TEST(PermitTest, WhoKeepsKnowinglyIsTold) {
  TurnedClock clock;
  Permit permit(true);
  EXPECT_EQ(permit.Serve(clock).number, 0);
  permit.Give(7, clock.now_ns + 10);
  clock.now_ns += 10;
  EXPECT_EQ(permit.Serve(clock).number, 7);
  EXPECT_FALSE(permit.Serve(clock).confirmed);
  permit.End();
  EXPECT_EQ(permit.Serve(clock).number, 0) << "what is switched is not served, knowingly or not";
}

// The clock that every Serve() reads stands still for a while, in which the permit is ended and
// given for another version.
class StoppingClock final : public Clock {
 public:
  int64_t NowNs() const override {
    if (stop != nullptr) {
      Permit* permit = stop;
      stop = nullptr;
      permit->End();
      permit->Give(8, 2000);
      now_ns = 1500;
    }
    return now_ns;
  }
  mutable Permit* stop = nullptr;
  mutable int64_t now_ns = 100;
};

TEST(PermitTest, AThreadThatStoodStillServesNothingOld) {
  Permit permit(false);
  permit.Give(7, 1000);
  StoppingClock clock;
  clock.stop = &permit;
  EXPECT_EQ(permit.Serve(clock).number, 8);
}

// Something happens to the permit while it is being asked for, when the clock is read.
class BusyClock : public Clock {
 public:
  int64_t NowNs() const override {
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    return 1;
  }
  mutable std::function<void()> meanwhile;
};

TEST(PermitTest, AnAnswerIsOfOnePermit) {
  Permit permit(false);
  BusyClock clock;
  permit.Give(1, 100);
  clock.meanwhile = [&] {
    permit.End();
    permit.Give(2, 200);
  };
  EXPECT_EQ(permit.Serve(clock).number, 2) << "the permit for 1 is over";
  clock.meanwhile = [&] { permit.End(); };
  EXPECT_EQ(permit.Serve(clock).number, 0);
  permit.Give(2, 300);
  clock.meanwhile = [&] { permit.Give(2, 400); };
  EXPECT_EQ(permit.Serve(clock).number, 2);
}

}  // namespace
}  // namespace tryst
