#ifndef TRYST_WEIGHTS_LOG_LIVES_H_
#define TRYST_WEIGHTS_LOG_LIVES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace tryst {

// Which log a member or an owner follows. After a log was lost another one begins, and the lost one
// is not gone back to, though a leader that does not know of the loss may still name it.
class LogLives {
 public:
  uint64_t current() const { return current_; }  // 0: none yet.
  // Whether a leader's word about the log `life` counts. `newest`: it answers the newest question;
  // only then it may name another log than before, which is current from then on.
  bool Take(uint64_t life, bool newest) {
    if (life == current_) return life != 0;
    if (!newest || life == 0) return false;
    if (std::find(former_.begin(), former_.end(), life) != former_.end()) return false;
    former_[next_++ % former_.size()] = current_;
    current_ = life;
    return true;
  }

 private:
  uint64_t current_ = 0;
  std::array<uint64_t, 8> former_ = {};  // The latest ones.
  size_t next_ = 0;
};

}  // namespace tryst

#endif  // TRYST_WEIGHTS_LOG_LIVES_H_
