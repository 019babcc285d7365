#ifndef TRYST_CHANNEL_POLLER_POLLER_SPIN_H_
#define TRYST_CHANNEL_POLLER_POLLER_SPIN_H_

#include <algorithm>
#include <cstdint>

namespace tryst {

// How long a poller spins without work before it sleeps. A spin that finds work saves a sleep and a
// wake-up. One that does not kept a processor from others, perhaps from the very peer that it waits
// for. So each spin that ends in a sleep halves the next, down to none. Now and then a whole spin
// tries whether it pays again, less and less often while none does.
class PollerSpin {
 public:
  explicit PollerSpin(int64_t most_ns) : most_ns_(most_ns), ns_(most_ns) {}

  int64_t ns() const { return ns_; }  // For the next spin.
  void Paid() {
    ns_ = most_ns_;
    failed_ = 0;
    try_every_ = kTryEvery;
  }
  void Failed() {
    if (++failed_ < try_every_) {
      ns_ = ns_ / 2 < kLeastNs ? 0 : ns_ / 2;
      return;
    }
    failed_ = 0;
    ns_ = most_ns_;
    try_every_ = std::min(try_every_ * 2, kTrySeldom);  // Until one succeeds.
  }

 private:
  static constexpr uint32_t kTryEvery = 16;
  static constexpr uint32_t kTrySeldom = 128;
  static constexpr int64_t kLeastNs = 1000;

  const int64_t most_ns_;
  int64_t ns_;
  uint32_t failed_ = 0;  // Since the last trial.
  uint32_t try_every_ = kTryEvery;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_POLLER_POLLER_SPIN_H_
