#ifndef TRYST_CHANNEL_SHM_COPY_GAUGE_H_
#define TRYST_CHANNEL_SHM_COPY_GAUGE_H_

#include <algorithm>
#include <cstdint>

namespace tryst {

// By which stores to write what another process reads next. Through the cache the reader gets it
// in half the time, if its processor is near; from a distant one each line must be fetched back
// before it is written, which takes up to ten times as long as stores that go around the caches.
// Which holds is the system's choice and changes as it moves threads, so it is measured: by what
// the copies themselves take, and now and then by some that are made the other way.
//
// Those are many in a row, and the first of them do not count: room that was written around the
// caches lies in memory, so that a single copy through them is slow wherever the reader is. Needs
// external synchronisation. A copy of less than kLeastBytes says nothing.
class CopyGauge {
 public:
  static constexpr uint64_t kLeastBytes = 4096;

  // `room_bytes`: of the room that the copies go around in.
  explicit CopyGauge(int64_t room_bytes) : room_bytes_(room_bytes), unmeasured_(room_bytes) {}

  // Whether the next copy is to go around the caches.
  bool Next() const { return streams_ != trying_; }
  // What it took.
  void Took(uint64_t copied_bytes, int64_t ns) {
    if (copied_bytes < kLeastBytes) return;
    const int64_t bytes = static_cast<int64_t>(copied_bytes);
    if (unmeasured_ > 0) {
      unmeasured_ -= bytes;
      return;
    }
    double& kept = ns_per_kib_[Next() ? 1 : 0];
    Keep(static_cast<double>(ns) * 1024 / static_cast<double>(bytes), &kept);
    left_ -= bytes;
    if (trying_) {
      if (left_ <= 0) EndTrial();
      return;
    }
    const bool is_news = kept > 2 * judged_ && try_every_ - left_ >= kTryOften;
    if (is_news) left_ = std::min(left_, kTrialBytes);  // Until it is known how slow.
    if (left_ <= 0) StartTrial();
  }
  bool streams() const { return streams_; }

 private:
  // The writer's half alone: what streams, the reader has to fetch from memory.
  static constexpr double kFarther = 4;
  static constexpr int64_t kTrialBytes = 1 << 20;
  // A trial of the slower way takes as long as ten times as many bytes at worst.
  static constexpr int64_t kTryOften = int64_t{64} << 20;
  static constexpr int64_t kTrySeldom = int64_t{4} << 30;

  // Leans to the quick ones: somebody else's turn on this processor only adds.
  static void Keep(double ns_per_kib, double* kept) {
    if (*kept <= 0) *kept = ns_per_kib;
    const double more = std::min(ns_per_kib, 2 * *kept) - *kept;
    *kept += more / (more > 0 ? 8 : 2);
  }
  void StartTrial() {
    trying_ = true;
    ns_per_kib_[Next() ? 1 : 0] = 0;
    unmeasured_ = room_bytes_;
    left_ = kTrialBytes;
  }
  void EndTrial() {
    trying_ = false;
    const bool better = ns_per_kib_[0] > kFarther * ns_per_kib_[1];
    if (better != streams_) {
      streams_ = better;
      try_every_ = kTryOften;
    } else {
      unmeasured_ = room_bytes_;
      try_every_ = std::min(2 * try_every_, kTrySeldom);
    }
    judged_ = ns_per_kib_[streams_ ? 1 : 0];
    left_ = try_every_;
  }

  const int64_t room_bytes_;
  double ns_per_kib_[2] = {0, 0};  // Through the cache, around it; 0: not known.
  double judged_ = 0;              // Of the way that was chosen, when it was; 0: not yet.
  bool streams_ = false;
  bool trying_ = false;
  int64_t unmeasured_;          // Bytes until copies count.
  int64_t left_ = kTrialBytes;  // Bytes until the next trial, or the end of this one.
  int64_t try_every_ = kTryOften;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_COPY_GAUGE_H_
