#ifndef TRYST_VERBS_OFI_OFI_NAPS_H_
#define TRYST_VERBS_OFI_OFI_NAPS_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tryst {

// How long a worker naps between two looks at a provider that wakes nobody: a share of the time in
// which nothing has come. A longer nap right after a completion would let a peer wait that answers
// at once, and who then naps as long.
//
// A provider moves a peer's large write only while it is polled, and says nothing before the last
// byte. But the first poll after a nap takes longer then than one that finds nothing, so that such
// a nap was too long, and the next ones are an eighth as long. Used by one thread.
class OfiNaps {
 public:
  static constexpr int64_t kShortestNs = 20'000;
  static constexpr int64_t kLongestNs = 1'000'000;

  void OnCompletion() { came_ = true; }
  // Begins a nap, and returns when it ends.
  int64_t Begin(int64_t now_ns) {
    if (came_) quiet_since_ns_ = now_ns;
    came_ = false;
    ends_ns_ = now_ns + std::clamp((now_ns - quiet_since_ns_) / kShare, kShortestNs, kLongestNs);
    return ends_ns_;
  }
  // Notes a poll that lasted from `began_ns` to `now_ns`.
  void OnPolled(int64_t began_ns, int64_t now_ns) {
    if (began_ns < ends_ns_) return;  // It is not the first one after a nap.
    ends_ns_ = std::numeric_limits<int64_t>::max();
    const int64_t took_ns = now_ns - began_ns;
    if (took_ns > std::max(kLongPollNs, kLongPoll * empty_poll_ns_)) {
      quiet_since_ns_ += (now_ns - quiet_since_ns_) / 8 * 7;
    }
    // The least of late. It grows again, in case the machine has become slower, but by far less
    // than naps do, so that bytes which keep coming do not count as nothing.
    empty_poll_ns_ = std::min(took_ns, empty_poll_ns_ + empty_poll_ns_ / 1024 + 1);
  }

 private:
  static constexpr int64_t kShare = 64;
  // A poll moved bytes if it took longer than kLongPollNs, and longer than kLongPoll polls that
  // find nothing.
  static constexpr int64_t kLongPollNs = 20'000;
  static constexpr int64_t kLongPoll = 4;

  bool came_ = true;
  int64_t quiet_since_ns_ = 0;
  int64_t ends_ns_ =
      std::numeric_limits<int64_t>::max();  // The end of a nap after which nobody polled yet.
  int64_t empty_poll_ns_ = kLongPollNs;
};

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_NAPS_H_
