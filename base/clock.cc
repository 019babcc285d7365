#include "base/clock.h"

#include <ctime>

namespace tryst {

int64_t SteadyClock::NowNs() const {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

Deadline Deadline::After(const Clock& clock, absl::Duration timeout) {
  const int64_t timeout_ns = absl::ToInt64Nanoseconds(timeout);  // Saturates both ways.
  const int64_t now_ns = clock.NowNs();
  if (timeout_ns >= kNeverNs - now_ns) return Never();
  return AtNs(timeout_ns <= 0 ? now_ns : now_ns + timeout_ns);
}

}  // namespace tryst
