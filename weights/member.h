#ifndef TRYST_WEIGHTS_MEMBER_H_
#define TRYST_WEIGHTS_MEMBER_H_

#include <array>
#include <cstdint>

#include "weights/log_lives.h"
#include "weights/permit.h"
#include "weights/questions.h"
#include "weights/stage_table.h"

namespace tryst {

// One member of a set: it applies the log, stages, holds and switches as the leader asks and the
// log says, and keeps its permit. One thread calls it; `permit` may be asked by any. It never
// waits.
class GroupMember {
 public:
  // What it has others do. None calls back into the member.
  class Port {
   public:
    virtual ~Port() = default;
    virtual void Ask(const Question& question) = 0;  // Send it to the leader, whoever that is.
    // Fetch and check it beside what is served; then Staged().
    virtual void Stage(const LogEntry& version) = 0;
    virtual void Hold(const WeightVersion& version) = 0;    // Start nothing new; then Quiet().
    virtual void Switch(const WeightVersion& version) = 0;  // Serve the stage; then Switched().
    virtual void Drop(const WeightVersion& version) = 0;    // The stage is wanted no more.
  };
  GroupMember(uint64_t incarnation, const GroupTimes& times, Port* port, Permit* permit)
      : incarnation_(incarnation), times_(times), port_(port), permit_(permit) {}

  // Asks the leader when a question is due: three in the time of a permit. Returns when to call it
  // again.
  int64_t Advance(int64_t now_ns);
  void AskSoon() { next_ns_ = 0; }  // By the next Advance().
  void OnAnswer(const Answer& answer, int64_t now_ns);
  // The engine reports what Port asked it for. A report of another version came late, and is
  // ignored.
  void Staged(const WeightVersion& version, bool whole, int64_t now_ns);
  void Quiet(const WeightVersion& version, int64_t now_ns);
  void Switched(const WeightVersion& version, int64_t now_ns);

  const LogState& state() const { return state_; }
  uint64_t log() const { return lives_.current(); }
  const WeightVersion& serving() const { return serving_; }
  const WeightVersion& stage() const { return stage_; }
  StageState stage_state() const { return stage_state_; }

 private:
  static constexpr size_t kQuestions = 8;  // Whose moments are kept.

  void OnLog(int64_t now_ns);
  void On(StageEvent event, const WeightVersion& version, int64_t now_ns);
  void Do(StageAction action, int64_t now_ns);
  void AskNow(int64_t now_ns);
  void TakePermit(const Answer& answer);
  const LogEntry* Find(const WeightVersion& version) const;
  bool Undecided(const WeightVersion& version) const;
  void Prepare(const Answer& answer, int64_t now_ns);

  const uint64_t incarnation_;
  const GroupTimes times_;
  Port* const port_;
  Permit* const permit_;

  LogLives lives_;
  LogState state_;
  uint64_t floor_ = 0;
  WeightVersion serving_;  // What the engine has; the permit says whether it may serve it.
  WeightVersion stage_;
  StageState stage_state_ = StageState::kNone;
  uint64_t question_ = 0;
  std::array<int64_t, kQuestions> asked_ns_{};  // By question.
  int64_t next_ns_ = 0;
};

}  // namespace tryst

#endif  // TRYST_WEIGHTS_MEMBER_H_
