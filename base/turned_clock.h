#ifndef TRYST_BASE_TURNED_CLOCK_H_
#define TRYST_BASE_TURNED_CLOCK_H_

#include <cstdint>

#include "base/clock.h"

namespace tryst {

// For tests: its time passes as the test says.
class TurnedClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns; }
  int64_t now_ns = 1'000'000'000;
};

}  // namespace tryst

#endif  // TRYST_BASE_TURNED_CLOCK_H_
