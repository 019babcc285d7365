#ifndef TRYST_CHANNEL_SHM_COPY_GAUGE_H_
#define TRYST_CHANNEL_SHM_COPY_GAUGE_H_

#include <algorithm>
#include <cstdint>

namespace tryst {

// By which stores to write what another process reads next. Through the cache the reader gets it
// in half the time, if its processor is near; from a distant one each line must be fetched back
// before it is written, which takes up to ten times as long as stores that go around the caches.
// Which holds is the system's choice and changes as it moves threads, so it is measured: by what
// the copies themselves take, and now and then by one that is made the other way. Needs external
// synchronisation. A copy of less than kLeastBytes says nothing.
class CopyGauge {
 public:
  static constexpr uint64_t kLeastBytes = 4096;

  // Whether the next copy is to go around the caches.
  bool Next() {
    if (--until_trial_ > 0) return streams_;
    until_trial_ = trial_every_;
    return !streams_;
  }
  // What it took.
  void Took(bool streamed, uint64_t bytes, int64_t ns) {
    if (bytes < kLeastBytes) return;
    double& kept = ns_per_kib_[streamed ? 1 : 0];
    const double ns_per_kib = static_cast<double>(ns) * 1024 / static_cast<double>(bytes);
    const bool is_trial = streamed != streams_;
    const bool is_news = 2 * ns_per_kib < kept;
    // A turn of somebody else on this processor is not to count for more than it says.
    kept = kept <= 0 ? ns_per_kib
                     : kept + (std::min(ns_per_kib, 2 * kept) - kept) / (is_trial ? 2 : 4);
    if (ns_per_kib_[0] <= 0 || ns_per_kib_[1] <= 0) return;
    const bool better = ns_per_kib_[0] > kFarther * ns_per_kib_[1];
    if (better != streams_ || (is_trial && is_news)) {
      streams_ = better;
      until_trial_ = trial_every_ = kTryEvery;
    } else if (is_trial) {
      until_trial_ = trial_every_ = std::min(2 * trial_every_, kTrySeldom);
    }
  }
  bool streams() const { return streams_; }

 private:
  // The writer's half alone: what streams, the reader has to fetch from memory.
  static constexpr double kFarther = 2.5;
  static constexpr int kTryEvery = 32;
  static constexpr int kTrySeldom = 1024;

  double ns_per_kib_[2] = {0, 0};  // Through the cache, around it; 0: not known.
  bool streams_ = false;
  int trial_every_ = kTryEvery;
  int until_trial_ = 3;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_COPY_GAUGE_H_
