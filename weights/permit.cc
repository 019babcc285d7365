#include "weights/permit.h"

#include "base/log.h"

namespace tryst {

void Permit::Give(uint64_t number, int64_t until_ns) {
  if (number_.load(std::memory_order_relaxed) != number) {
    TRYST_CHECK(until_ns_.load(std::memory_order_relaxed) == 0);
    number_.store(number);
  }
  if (until_ns > until_ns_.load(std::memory_order_relaxed)) until_ns_.store(until_ns);
}

void Permit::End() { until_ns_.store(0); }

Serving Permit::Serve(const Clock& clock) const {
  for (;;) {
    const int64_t until_ns = until_ns_.load();
    if (until_ns == 0) return {};
    const uint64_t number = number_.load();
    const int64_t now_ns = clock.NowNs();
    if (until_ns_.load() != until_ns) continue;
    if (now_ns < until_ns) return {number, true};
    return keep_knowingly_ ? Serving{number, false} : Serving{};
  }
}

}  // namespace tryst
