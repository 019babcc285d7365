#ifndef TRYST_BASE_CLOCK_H_
#define TRYST_BASE_CLOCK_H_

#include <cstdint>
#include <limits>

#include "absl/time/time.h"

namespace tryst {

// A monotonic clock. It comes in through constructors, so that the simulator can
// run the code that ships on virtual time.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowNs() const = 0;
  // Like NowNs(), but up to a few milliseconds old and much cheaper to read. For showing how long
  // something has waited.
  virtual int64_t CoarseNowNs() const { return NowNs(); }
};

// CLOCK_MONOTONIC.
class SteadyClock final : public Clock {
 public:
  int64_t NowNs() const override;
  int64_t CoarseNowNs() const override;
};

// CLOCK_BOOTTIME: goes on while the machine is suspended. For what must be over after a time, such
// as a right that others believe has ended.
class BootClock final : public Clock {
 public:
  int64_t NowNs() const override;
};

// A moment on a Clock after which nobody waits any more. The default is never.
class Deadline {
 public:
  constexpr Deadline() = default;
  static constexpr Deadline Never() { return Deadline(); }
  static constexpr Deadline AtNs(int64_t at_ns) { return Deadline(at_ns); }
  // Saturates: an infinite or unrepresentable timeout is Never().
  static Deadline After(const Clock& clock, absl::Duration timeout);

  constexpr bool is_never() const { return at_ns_ == kNeverNs; }
  constexpr int64_t at_ns() const { return at_ns_; }
  constexpr bool Passed(int64_t now_ns) const { return now_ns >= at_ns_ && !is_never(); }

 private:
  static constexpr int64_t kNeverNs = std::numeric_limits<int64_t>::max();
  constexpr explicit Deadline(int64_t at_ns) : at_ns_(at_ns) {}
  int64_t at_ns_ = kNeverNs;
};

}  // namespace tryst

#endif  // TRYST_BASE_CLOCK_H_
