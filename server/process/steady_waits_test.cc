#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "gtest/gtest.h"

// The clock of the day, which is the test's.
static int64_t day_ahead_s = 0;
extern "C" int __real_clock_gettime(clockid_t clock, timespec* now);
extern "C" int __wrap_clock_gettime(clockid_t clock, timespec* now) {
  const int failed = __real_clock_gettime(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += day_ahead_s;
  return failed;
}

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;

int64_t NowNs(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1000 * kMs + now.tv_nsec;
}

class SteadyWaitsTest : public ::testing::Test {
 protected:
  // As Abseil does it. Returns 0 or the error.
  int WaitUntil(int64_t day_ns, int value = 0) {
    const timespec until = {day_ns / (1000 * kMs), day_ns % (1000 * kMs)};
    const int op = FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME;
    return syscall(SYS_futex, &word_, op, value, &until, nullptr, FUTEX_BITSET_MATCH_ANY) == 0
               ? 0
               : errno;
  }
  std::atomic<int> word_{0};
};

TEST_F(SteadyWaitsTest, AWaitUntilATimeOfDayTakesAsLongAsItIsUntilThen) {
  for (const int64_t ms : {1, 30, 1100}) {
    // What the kernel takes for the time of day says nothing of the length.
    day_ahead_s = ms == 30 ? -3600 : 0;
    const int64_t began_ns = NowNs(CLOCK_MONOTONIC);
    EXPECT_EQ(WaitUntil(NowNs(CLOCK_REALTIME) + ms * kMs), ETIMEDOUT);
    EXPECT_GE(NowNs(CLOCK_MONOTONIC) - began_ns, ms * kMs - kMs / 10);
  }
  day_ahead_s = 0;
}

TEST_F(SteadyWaitsTest, AWaitUntilAPastTimeIsOver) {
  EXPECT_EQ(WaitUntil(NowNs(CLOCK_REALTIME) - 1), ETIMEDOUT);
  EXPECT_EQ(WaitUntil(1), ETIMEDOUT) << "long before the machine began";
}

TEST_F(SteadyWaitsTest, AWaitWithoutAnEndIsWoken) {
  std::thread wakes([&] {
    while (syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1) != 1) usleep(1000);
  });
  EXPECT_EQ(WaitUntil(INT64_MAX), 0);
  wakes.join();
}

TEST_F(SteadyWaitsTest, OtherCallsAreAsTheyWere) {
  EXPECT_EQ(syscall(SYS_getpid), getpid());
  EXPECT_EQ(WaitUntil(NowNs(CLOCK_REALTIME) + 60'000 * kMs, 1), EAGAIN);
  const timespec brief = {0, kMs};
  EXPECT_EQ(syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, 0, &brief), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
}

}  // namespace
}  // namespace tryst
