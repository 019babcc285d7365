#ifndef TRYST_WEIGHTS_OWNER_H_
#define TRYST_WEIGHTS_OWNER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weights/log_lives.h"
#include "weights/questions.h"

namespace tryst {

// One owner of a set: it declares itself, says READY, and learns from the log what became of a
// version. Every `done` runs once, inside a call of this object: the one that it was given to where
// that is refused, else a later one, at the latest the destructor. None may destroy it. One thread.
class GroupOwner {
 public:
  using SealDone = absl::AnyInvocable<void(absl::StatusOr<LogEntry>)>;  // The SEALED entry.
  using Done = absl::AnyInvocable<void(absl::Status)>;
  using AskFn = std::function<void(const Question&)>;

  struct Self {
    uint64_t incarnation = 0;
    uint32_t rank = 0;
    uint32_t owners = 0;
    WeightRoot layout = {};
  };
  GroupOwner(const Self& self, const GroupTimes& times, AskFn ask)
      : self_(self), times_(times), ask_(std::move(ask)) {}
  ~GroupOwner();  // What is under way ends with kCancelled.

  // All boxes of the version are published. kAborted: another term began, or it was dropped;
  // kAlreadyExists names the highest number that is sealed, other than of these bytes, or dropped;
  // kResourceExhausted: kMaxReady are under way.
  void Seal(uint64_t number, const WeightRoot& digest, int64_t deadline_ns, SealDone done);
  // Done when all members serve it. kAborted: dropped. One at a time: kFailedPrecondition.
  // kInvalidArgument: 0.
  void Activate(uint64_t number, ActivateMode mode, int64_t deadline_ns, Done done);

  // Whoever waits for it no longer does; `done` gets kCancelled. An activation may still come
  // about.
  void Withdraw(uint64_t number);
  void WithdrawActivate();

  int64_t Advance(int64_t now_ns);  // As GroupMember's.
  void AskSoon() { next_ns_ = 0; }
  void OnAnswer(const Answer& answer, int64_t now_ns);

  const LogState& state() const { return state_; }
  // Whether it is an owner of the term that the log is in.
  bool in_term() const;
  bool superseded() const { return superseded_; }

 private:
  struct Sealing {
    uint64_t term = 0;  // 0: of the next one.
    WeightRoot digest = {};
    int64_t deadline_ns = 0;
    SealDone done;
  };
  void OnLog();
  const LogEntry* FindSealed(uint64_t number) const;  // Null: it is over, or was never sealed.
  bool IsMine(const LogEntry& sealed, const WeightRoot& digest) const;
  void EndSeals(const absl::Status& status);
  void CheckSeal(uint64_t number, Sealing* sealing);
  void EndSeal(uint64_t number, absl::StatusOr<LogEntry> result);
  void EndActivate(absl::Status status);
  // Unset: the leader has not said now whether all members have settled.
  void CheckActivate(std::optional<uint64_t> settled);
  void Expire(int64_t now_ns);
  void AskNow(int64_t now_ns);

  const Self self_;
  const GroupTimes times_;
  const AskFn ask_;
  LogLives lives_;
  LogState state_;
  bool superseded_ = false;
  bool leaves_ = false;
  uint64_t floor_ = 0;
  std::map<uint64_t, Sealing> seals_;  // By number; at most kMaxReady.
  Wish wish_;
  int64_t wish_deadline_ns_ = 0;
  Done activated_;
  uint64_t question_ = 0;
  int64_t next_ns_ = 0;
};

}  // namespace tryst

#endif  // TRYST_WEIGHTS_OWNER_H_
