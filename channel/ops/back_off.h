#ifndef TRYST_CHANNEL_OPS_BACK_OFF_H_
#define TRYST_CHANNEL_OPS_BACK_OFF_H_

#include <algorithm>
#include <cstdint>
#include <random>

namespace tryst {

// The pauses between attempts to connect. Each is twice the one before, up to a bound. The result
// is drawn between half of that and all of it, so that many consumers of one producer do not come
// back at the same time.
class BackOff {
 public:
  BackOff(int64_t first_ms, int64_t most_ms, uint64_t seed)
      : first_ms_(first_ms), most_ms_(most_ms), random_(seed) {}

  // The next pause.
  int64_t NextNs() {
    pause_ms_ = pause_ms_ == 0 ? first_ms_ : std::min(pause_ms_ * 2, most_ms_);
    const int64_t half_ns = pause_ms_ * 500'000;
    return half_ns + static_cast<int64_t>(random_() % static_cast<uint64_t>(half_ns + 1));
  }
  // An attempt succeeded, so the next failure counts as the first.
  void Reset() { pause_ms_ = 0; }
  // True, once, if nothing has failed since Reset(): the next attempt may be made at once.
  bool TakeFree() {
    if (pause_ms_ != 0) return false;
    pause_ms_ = first_ms_;
    return true;
  }

 private:
  const int64_t first_ms_;
  const int64_t most_ms_;
  std::mt19937_64 random_;
  int64_t pause_ms_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_BACK_OFF_H_
