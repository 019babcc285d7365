#ifndef TRYST_VERBS_SOFT_SOFT_PACE_H_
#define TRYST_VERBS_SOFT_SOFT_PACE_H_

#include <algorithm>
#include <cstdint>

#include "verbs/soft/frame.h"

namespace tryst {

// How fast one of a queue pair's flows takes bytes, and so how much of a message its socket is
// given at a time. A message is there when the slowest has brought its part, so each has at most
// what it moves in six milliseconds: a frame of two, and what its socket holds.
class SoftPace {
 public:
  // Whether it is time for another Set().
  bool Due(int64_t now_ns) const { return now_ns - set_ns_ >= kEveryNs; }
  // `rate`: bytes a second; 0: not known, and then frames grow. True: unsent_bytes() is another.
  bool Set(int64_t now_ns, uint64_t rate) {
    set_ns_ = now_ns;
    if (rate == 0) rate = kMostBytes * kFramesASecond;
    // After a pause many a network takes a burst, which says nothing of what follows.
    const uint64_t most = std::min(frame_bytes_ + frame_bytes_ / 4, kMostBytes);
    frame_bytes_ = std::clamp(rate / kFramesASecond, kLeastBytes, most);
    if (unsent_bytes_ / 3 < frame_bytes_ && frame_bytes_ < unsent_bytes_) return false;
    unsent_bytes_ = 2 * frame_bytes_;
    return true;
  }
  uint64_t frame_bytes() const { return frame_bytes_; }
  uint32_t unsent_bytes() const { return static_cast<uint32_t>(unsent_bytes_); }
  // Whether flows, of which the fastest has frames of `most` bytes and all have `sum`, bring so
  // much before this one, which is slower, has brought what it holds and one frame more.
  bool IsLate(uint64_t bytes, uint64_t most, uint64_t sum) const {
    return frame_bytes_ < most / 2 && bytes < 3 * sum;
  }
  // Who was late for so long may be fast by now, which one frame tells.
  bool ForgetsRate(int64_t now_ns) const { return now_ns - set_ns_ >= kForgetNs; }

 private:
  static constexpr uint64_t kFramesASecond = 500;
  static constexpr int64_t kEveryNs = 10'000'000;
  static constexpr int64_t kForgetNs = 3'000'000'000;
  static constexpr uint64_t kLeastBytes = 16 << 10;
  static constexpr uint64_t kMostBytes = 512 << 10;
  static_assert(kMostBytes <= kMaxFrameBytes, "it is the size of a frame");

  uint64_t frame_bytes_ = 64 << 10;
  uint64_t unsent_bytes_ = 128 << 10;
  int64_t set_ns_ = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_PACE_H_
