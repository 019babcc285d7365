#ifndef TRYST_WEIGHTS_PACE_H_
#define TRYST_WEIGHTS_PACE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tryst {

// Keeps what comes to a rate. What has come is charged, and as long as more has come than the rate
// allows, nothing more is asked for. Up to a quarter of a second's bytes may come at once after a
// rest. The caller gives the time, of one clock, and a lock.
class Pace {
 public:
  static constexpr int64_t kBurstNs = 250'000'000;

  explicit Pace(uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}  // 0: no limit.

  void Charge(uint64_t bytes, int64_t now_ns) { paid_ns_ = PaidNs(bytes, now_ns); }
  // How long nothing may be asked for, if `out` bytes that were asked for come now. 0: it may.
  int64_t WaitNs(uint64_t out, int64_t now_ns) const {
    return bytes_per_second_ == 0 ? 0 : std::max<int64_t>(PaidNs(out, now_ns) - now_ns, 0);
  }

 private:
  // When the rate has made up for all that was charged, and for `bytes` more.
  int64_t PaidNs(uint64_t bytes, int64_t now_ns) const {
    if (bytes_per_second_ == 0) return paid_ns_;
    constexpr double kMostNs = 1e18;  // 30 years.
    const double takes_ns =
        std::ceil(static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_second_));
    const int64_t from_ns = std::max(paid_ns_, now_ns - kBurstNs);
    return std::min(from_ns, static_cast<int64_t>(kMostNs)) +
           static_cast<int64_t>(std::min(takes_ns, kMostNs));
  }

  const uint64_t bytes_per_second_;
  int64_t paid_ns_ = INT64_MIN;
};

}  // namespace tryst

#endif  // TRYST_WEIGHTS_PACE_H_
