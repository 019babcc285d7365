#ifndef TRYST_CHANNEL_GRPC_FORMER_LIVES_H_
#define TRYST_CHANNEL_GRPC_FORMER_LIVES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace tryst {

// The lives of one worker that ended a moment ago, each by its incarnation. What such a process has
// said may come after the first word of the process that took its place, and must not end that one.
//
// A process that still speaks kForgetNs later lives: it was taken for dead because two messages
// came in another order than they were sent, or because two processes have one name.
class FormerLives {
 public:
  void End(uint64_t incarnation, int64_t now_ns) {
    if (ended_.size() == kMost) ended_.pop_front();
    ended_.push_back({incarnation, now_ns});
  }
  bool Ended(uint64_t incarnation, int64_t now_ns) const {
    return std::any_of(ended_.begin(), ended_.end(), [&](const Life& life) {
      return life.incarnation == incarnation && now_ns - life.ended_ns < kForgetNs;
    });
  }

  static constexpr int64_t kForgetNs = 10'000'000'000;

 private:
  struct Life {
    uint64_t incarnation;
    int64_t ended_ns;
  };
  static constexpr size_t kMost = 8;
  std::deque<Life> ended_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_FORMER_LIVES_H_
