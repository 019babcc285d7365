#ifndef TRYST_CHANNEL_SHM_COPY_GAUGE_H_
#define TRYST_CHANNEL_SHM_COPY_GAUGE_H_

#include <algorithm>
#include <cstdint>

namespace tryst {

// Decides by which kind of store to write what another process reads next. Ordinary stores leave
// the bytes in the cache; a reader on a near processor then gets them in half the time. A reader on
// a distant one makes each line be fetched back before it is written again, which takes up to ten
// times as long as streaming stores, which bypass the caches. The scheduler decides which case
// holds, and it changes as threads move. So it is measured: by the time that copies take, and by
// occasional trials of the other kind.
//
// A trial is many copies in a row, the first of which do not count: room that was written with
// streaming stores is not in the cache, so one ordinary copy into it is slow wherever the reader
// is. Needs external synchronisation. Copies of less than kLeastBytes are not measured.
class CopyGauge {
 public:
  static constexpr uint64_t kLeastBytes = 4096;

  // `room_bytes` is the size of the room that copies use in turn.
  explicit CopyGauge(int64_t room_bytes) : room_bytes_(room_bytes), unmeasured_(room_bytes) {}

  // Whether the next copy must use streaming stores.
  bool Next() const { return streams_ != trying_; }
  // Reports how long the copy took.
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
    // A shorter trial, because the other kind may be very slow.
    if (is_news) left_ = std::min(left_, kTrialBytes);
    if (left_ <= 0) StartTrial();
  }
  bool streams() const { return streams_; }

 private:
  // How much slower ordinary stores must be: the gauge sees only the writer's half of the cost, and
  // streamed bytes cost the reader a fetch from memory.
  static constexpr double kFarther = 4;
  static constexpr int64_t kTrialBytes = 1 << 20;
  // How many bytes pass between two trials of the slower kind. At worst a trial costs as much as
  // ten times its bytes.
  static constexpr int64_t kTryOften = int64_t{64} << 20;
  static constexpr int64_t kTrySeldom = int64_t{4} << 30;

  // Weighs fast copies more, because other threads on this processor only add time.
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
  double ns_per_kib_[2] = {0, 0};  // Ordinary, streaming; 0: unknown.
  double judged_ = 0;              // The time of the chosen kind when it was chosen; 0: not yet.
  bool streams_ = false;
  bool trying_ = false;
  int64_t unmeasured_;          // Bytes until copies count.
  int64_t left_ = kTrialBytes;  // Bytes until the next trial, or until the end of this one.
  int64_t try_every_ = kTryOften;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_COPY_GAUGE_H_
