#include "base/clock.h"

#include <ctime>

namespace tryst {

namespace {

int64_t ReadNs(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

}  // namespace

int64_t SteadyClock::NowNs() const { return ReadNs(CLOCK_MONOTONIC); }

int64_t BootClock::NowNs() const { return ReadNs(CLOCK_BOOTTIME); }

int64_t SteadyClock::CoarseNowNs() const { return ReadNs(CLOCK_MONOTONIC_COARSE); }

Deadline Deadline::After(const Clock& clock, absl::Duration timeout) {
  const int64_t timeout_ns = absl::ToInt64Nanoseconds(timeout);  // Saturates both ways.
  const int64_t now_ns = clock.NowNs();
  if (timeout_ns >= kNeverNs - now_ns) return Never();
  return AtNs(timeout_ns <= 0 ? now_ns : now_ns + timeout_ns);
}

}  // namespace tryst
