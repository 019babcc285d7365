#include "weights/permit.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

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

// Version n ends at moment 10 * n + 5, so a number and a moment that do not belong together show.
TEST(PermitTest, NumberAndMomentBelongTogether) {
  Permit permit(false);
  TurnedClock clock;
  clock.now_ns = 1;
  std::atomic<bool> stop{false};
  std::thread asks([&] {
    uint64_t last = 0;
    while (!stop.load()) {
      const uint64_t number = permit.Serve(clock).number;
      if (number == 0) continue;
      EXPECT_GE(number, last);
      last = number;
    }
  });
  for (uint64_t number = 1; number <= 200000; ++number) {
    permit.Give(number, static_cast<int64_t>(10 * number + 5));
    permit.End();
  }
  stop.store(true);
  asks.join();
}

}  // namespace
}  // namespace tryst
