#ifndef TRYST_SERVER_WEIGHTS_LEADING_H_
#define TRYST_SERVER_WEIGHTS_LEADING_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "weights/decider.h"
#include "weights/leader.h"
#include "weights/questions.h"

namespace tryst {

// The leader of a set, at the worker that keeps the set's log in its memory. Thread-safe.
class Leading final : private Decider {
 public:
  using TellFn = std::function<void(std::vector<Answer>)>;
  // `covers` is asked under the lock. `tell` gets what is to be told without a question, inside the
  // calls below and without the lock. `life` names the log.
  Leading(const WeightLeader::Options& options, uint64_t life, Covers* covers, TellFn tell);

  // Returns when to be called again, by BootClock.
  int64_t Advance();
  // kFailedPrecondition: it does not lead at this moment, or has heard a later question of whoever
  // asks.
  absl::StatusOr<Answer> OnQuestion(const Question& question);
  std::string Explain() const;

 private:
  void Append(uint64_t call, uint64_t length, uint64_t lease, const LogEntry& entry) override;
  void ReadFrom(uint64_t call, uint64_t index) override;
  void TakeLease(uint64_t call) override;
  void KeepLease(uint64_t call, uint64_t lease) override;
  void Say(const Answer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const BootClock clock_;
  const TellFn tell_;
  mutable Mutex mu_;
  LogStore store_ ABSL_GUARDED_BY(mu_);
  WeightLeader leader_ ABSL_GUARDED_BY(mu_);
  std::deque<DeciderAnswer> decided_ ABSL_GUARDED_BY(mu_);  // The store's answers to the leader.
  std::optional<Answer> reply_ ABSL_GUARDED_BY(mu_);
  std::vector<Answer> news_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_LEADING_H_
