#include "base/clock.h"

#include <limits>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

class FixedClock final : public Clock {
 public:
  explicit FixedClock(int64_t now_ns) : now_ns_(now_ns) {}
  int64_t NowNs() const override { return now_ns_; }

 private:
  const int64_t now_ns_;
};

TEST(SteadyClockTest, NeverGoesBack) {
  const SteadyClock clock;
  int64_t last_ns = clock.NowNs();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now_ns = clock.NowNs();
    ASSERT_GE(now_ns, last_ns);
    last_ns = now_ns;
  }
}

TEST(SteadyClockTest, CountsNanoseconds) {
  const SteadyClock clock;
  // The wall clock may be set meanwhile, but not each time; it is not off by a factor of a
  // thousand.
  absl::Duration took;
  for (int i = 0; i < 10; ++i) {
    const int64_t start_ns = clock.NowNs();
    const absl::Time start = absl::Now();
    while (clock.NowNs() < start_ns + 2'000'000) {
    }
    took = absl::Now() - start;
    if (took > absl::Microseconds(100) && took < absl::Seconds(2)) return;
  }
  FAIL() << "2 ms took " << took;
}

TEST(DeadlineTest, DefaultIsNever) {
  EXPECT_TRUE(Deadline().is_never());
  EXPECT_TRUE(Deadline::Never().is_never());
  EXPECT_FALSE(Deadline::Never().Passed(std::numeric_limits<int64_t>::max()));
}

TEST(DeadlineTest, PassesAtItsMomentAndNotBefore) {
  const Deadline deadline = Deadline::After(FixedClock(1000), absl::Nanoseconds(500));
  EXPECT_EQ(deadline.at_ns(), 1500);
  EXPECT_FALSE(deadline.Passed(1499));
  EXPECT_TRUE(deadline.Passed(1500));
}

TEST(DeadlineTest, NothingOrLessIsNow) {
  const FixedClock clock(1000);
  EXPECT_EQ(Deadline::After(clock, absl::ZeroDuration()).at_ns(), 1000);
  EXPECT_EQ(Deadline::After(clock, absl::Seconds(-3)).at_ns(), 1000);
  EXPECT_EQ(Deadline::After(clock, -absl::InfiniteDuration()).at_ns(), 1000);
}

TEST(DeadlineTest, WhatNoClockReachesIsNever) {
  EXPECT_TRUE(Deadline::After(FixedClock(0), absl::InfiniteDuration()).is_never());
  EXPECT_TRUE(Deadline::After(FixedClock(1), absl::Nanoseconds(std::numeric_limits<int64_t>::max()))
                  .is_never());
  const int64_t almost_ns = std::numeric_limits<int64_t>::max() - 10;
  EXPECT_TRUE(Deadline::After(FixedClock(almost_ns), absl::Nanoseconds(10)).is_never());
  EXPECT_EQ(Deadline::After(FixedClock(almost_ns), absl::Nanoseconds(9)).at_ns(), almost_ns + 9);
}

}  // namespace
}  // namespace tryst
