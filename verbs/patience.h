#ifndef TRYST_VERBS_PATIENCE_H_
#define TRYST_VERBS_PATIENCE_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tryst {

// Measures how long something was waited for, counting only time in which we could look. A thread
// that did not get its processor for a second must not conclude that its peer was silent for a
// second.
class Patience {
 public:
  static constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();

  explicit Patience(int64_t budget_ns) : budget_ns_(budget_ns) {}

  // What was waited for has come, or is no longer waited for.
  void Restart() {
    looked_ns_ = kNotYet;
    spent_ns_ = 0;
  }
  // It has not come yet. True: that is too late.
  bool Exhausted(int64_t now_ns) {
    if (looked_ns_ != kNotYet) spent_ns_ += std::min(now_ns - looked_ns_, StepNs());
    looked_ns_ = now_ns;
    return budget_ns_ != kForEver && spent_ns_ >= budget_ns_;
  }
  // When to look next.
  int64_t next_ns(int64_t now_ns) const {
    return budget_ns_ == kForEver ? kForEver : now_ns + std::min(budget_ns_ - spent_ns_, StepNs());
  }

 private:
  static constexpr int64_t kNotYet = std::numeric_limits<int64_t>::min();
  static constexpr int64_t kLooks = 4;

  int64_t StepNs() const { return budget_ns_ / kLooks + 1; }

  const int64_t budget_ns_;
  int64_t looked_ns_ = kNotYet;
  int64_t spent_ns_ = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_PATIENCE_H_
