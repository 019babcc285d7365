#ifndef TRYST_SERVER_WEIGHTS_LEADING_H_
#define TRYST_SERVER_WEIGHTS_LEADING_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/status/weight_views.h"
#include "weights/decider.h"
#include "weights/leader.h"
#include "weights/questions.h"

namespace tryst {

// The leader of a set, at the first owner's worker, which keeps the set's log in its memory; or one
// of those that another Decider lets lead in turn. Thread-safe.
class Leading final : private Decider {
 public:
  using TellFn = std::function<void(std::vector<Answer>)>;
  using HearFn = std::function<void(const DeciderAnswer&)>;
  using MakeDeciderFn = std::function<std::unique_ptr<Decider>(HearFn)>;
  struct Parts {
    WeightLeader::Options leads;
    uint64_t life;   // Names the log, if it is in memory.
    Covers* covers;  // Asked under the lock.
    // Gets what is to be told without a question, inside the calls below, or on the thread of the
    // decider, and without the lock.
    TellFn tell;
    MakeDeciderFn make_decider;  // Null: the log is in memory.
    std::function<void()> wake;  // Advance() has something to do now. Called as `tell` is.
  };
  explicit Leading(Parts parts);
  ~Leading() override;
  void Open();   // Once, when `wake` and `tell` may be called on another thread.
  void Close();  // It decides nothing more, and no other thread calls anything.

  // Returns when to be called again, by BootClock.
  int64_t Advance();
  // kUnavailable: it does not lead at this moment. kFailedPrecondition: it has heard a later
  // question of whoever asks.
  absl::StatusOr<Answer> OnQuestion(const Question& question, absl::string_view worker = {});
  // As the leader's. kUnavailable: it does not lead at this moment.
  absl::StatusOr<std::vector<Holder>> HoldersOf(const WeightVersion& version, uint64_t asker) const;
  std::string Explain() const;                // Also what the decider complains of.
  std::optional<uint32_t> LostOwner() const;  // Its rank.
  void View(WeightView* view) const;          // Its members, and whom it waits for.

 private:
  void Append(uint64_t call, uint64_t length, uint64_t lease, const LogEntry& entry) override;
  void ReadFrom(uint64_t call, uint64_t index) override;
  void TakeLease(uint64_t call) override;
  void KeepLease(uint64_t call, uint64_t lease) override;
  void Decided(uint64_t call, DeciderAnswer answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Say(const Answer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Hear(const DeciderAnswer& answer);

  const BootClock clock_;
  const Parts parts_;
  mutable Mutex mu_;
  std::optional<LogStore> store_ ABSL_GUARDED_BY(mu_);  // Or:
  std::unique_ptr<Decider> decider_ ABSL_GUARDED_BY(mu_);
  WeightLeader leader_ ABSL_GUARDED_BY(mu_);
  std::deque<DeciderAnswer> decided_ ABSL_GUARDED_BY(mu_);  // The store's answers to the leader.
  std::optional<Answer> reply_ ABSL_GUARDED_BY(mu_);
  std::vector<Answer> news_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_LEADING_H_
