#ifndef TRYST_WEIGHTS_PERMIT_H_
#define TRYST_WEIGHTS_PERMIT_H_

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace tryst {

struct Serving {
  uint64_t number = 0;     // 0: nothing may be served.
  bool confirmed = false;  // Else the permit is over, and the member goes on knowingly.
};

// A member's right to serve one version until a moment of its own clock. One thread gives and ends
// it; any thread may ask, which costs three loads and the clock.
class Permit {
 public:
  // `keep_knowingly`: whose permit has run out still gets its version, as not confirmed.
  explicit Permit(bool keep_knowingly) : keep_knowingly_(keep_knowingly) {}

  // Extends the permit for version `number`, or begins it. REQUIRES: End() was called
  // after the last Give() for another version.
  void Give(uint64_t number, int64_t until_ns);
  // From here on Serve() gives nothing. What was given before it may still run.
  void End();
  // The clock is read after the permit: a thread that was stopped in between finds it over.
  Serving Serve(const Clock& clock) const;
  int64_t until_ns() const { return until_ns_.load(std::memory_order_relaxed); }

 private:
  const bool keep_knowingly_;
  // Changes with every Give(), also with one that follows an End(), so it tells whether `number_`
  // belongs to it.
  std::atomic<int64_t> until_ns_{0};  // 0: ended.
  std::atomic<uint64_t> number_{0};
};

}  // namespace tryst

#endif  // TRYST_WEIGHTS_PERMIT_H_
