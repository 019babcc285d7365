#include "weights/member.h"

#include <algorithm>

#include "base/log.h"

namespace tryst {

int64_t GroupMember::Advance(int64_t now_ns) {
  if (now_ns >= next_ns_) {
    // The others serve it. It is tried again as often as the leader is asked.
    if (stage_state_ == StageState::kFailed && stage_ == state_.active.version) {
      On(StageEvent::kChosen, stage_, now_ns);
    }
    AskNow(now_ns);
  }
  return next_ns_;
}

void GroupMember::AskNow(int64_t now_ns) {
  Question question;
  question.incarnation = incarnation_;
  question.question = ++question_;
  question.log = lives_.current();
  question.length = state_.length;
  question.floor = floor_;
  question.member = true;
  question.serving = serving_;
  question.stage = stage_;
  question.stage_state = stage_state_;
  asked_ns_[question_ % kQuestions] = now_ns;
  next_ns_ = now_ns + times_.permit_ns / 3;
  port_->Ask(question);
}

void GroupMember::OnAnswer(const Answer& answer, int64_t now_ns) {
  const uint64_t former = lives_.current();
  // Only who answers the newest question tells who leads now.
  if (answer.incarnation != incarnation_ ||
      !lives_.Take(answer.log, answer.question == question_)) {
    return;
  }
  if (lives_.current() != former) {
    state_ = LogState();
    permit_->End();
  }
  const absl::StatusOr<bool> moved = ApplySlice(answer.slice, &state_);
  if (!moved.ok()) {
    // The log says two things at once: this member is out of it for good.
    TRYST_LOG(Error) << moved.status().ToString();
    permit_->End();
    return;
  }
  floor_ = std::max(floor_, state_.floor);
  if (*moved || lives_.current() != former) OnLog(now_ns);
  if (answer.prepare.number != 0 && Undecided(answer.prepare)) Prepare(answer, now_ns);
  TakePermit(answer);
  if (answer.length > state_.length) AskNow(now_ns);
}

void GroupMember::Prepare(const Answer& answer, int64_t now_ns) {
  // A leader that is gone wanted the other one. An answer to an older question may be its own.
  const bool holds = stage_state_ == StageState::kHolding || stage_state_ == StageState::kHeld;
  if (stage_ != answer.prepare && answer.question == question_ && !holds && Undecided(stage_)) {
    On(StageEvent::kOver, stage_, now_ns);
  }
  if (stage_state_ == StageState::kNone) On(StageEvent::kWanted, answer.prepare, now_ns);
  if (answer.hold) On(StageEvent::kHold, answer.prepare, now_ns);
}

// What the log says of what is served and of what is staged.
void GroupMember::OnLog(int64_t now_ns) {
  const WeightVersion& active = state_.active.version;
  if (serving_ != active || !state_.HasMember(incarnation_)) permit_->End();
  if (stage_.number != 0 && stage_ == active) On(StageEvent::kChosen, stage_, now_ns);
  if (stage_.number != 0 && stage_ != active && !Undecided(stage_)) {
    On(StageEvent::kOver, stage_, now_ns);
  }
  if (active.number != 0 && serving_ != active && stage_state_ == StageState::kNone) {
    On(StageEvent::kWanted, active, now_ns);
  }
}

bool GroupMember::Undecided(const WeightVersion& version) const {
  const LogEntry* open = state_.FindOpen(version.number);
  return open != nullptr && open->version == version;
}

const LogEntry* GroupMember::Find(const WeightVersion& version) const {
  if (state_.active.version == version) return &state_.active;
  return state_.FindOpen(version.number);
}

void GroupMember::TakePermit(const Answer& answer) {
  if (!answer.permit || answer.question + kQuestions <= question_ || answer.question > question_ ||
      answer.question == 0) {
    return;
  }
  if (answer.length != state_.length || serving_ != state_.active.version || serving_.number == 0 ||
      !state_.HasMember(incarnation_)) {
    return;
  }
  if (stage_state_ == StageState::kHolding || stage_state_ == StageState::kHeld ||
      stage_state_ == StageState::kSwitching) {
    return;
  }
  permit_->Give(serving_.number, asked_ns_[answer.question % kQuestions] + times_.permit_ns);
}

void GroupMember::On(StageEvent event, const WeightVersion& version, int64_t now_ns) {
  if (event != StageEvent::kWanted && version != stage_) return;
  const StageRow& row = FindStageRow(stage_state_, event);
  if (!row.exists) return;
  if (event == StageEvent::kWanted) stage_ = version;
  stage_state_ = row.next;
  Do(row.action, now_ns);
}

void GroupMember::Do(StageAction action, int64_t now_ns) {
  const WeightVersion stage = stage_;
  switch (action) {
    case StageAction::kNothing:
      return;
    case StageAction::kStage: {
      const LogEntry* entry = Find(stage);
      TRYST_CHECK(entry != nullptr);
      port_->Stage(*entry);
      return;
    }
    case StageAction::kTell:
      AskNow(now_ns);
      return;
    case StageAction::kHold:
      permit_->End();
      port_->Hold(stage);
      return;
    case StageAction::kSwitch:
      permit_->End();
      port_->Switch(stage);
      return;
    case StageAction::kDrop:
      stage_ = {};
      port_->Drop(stage);
      AskNow(now_ns);
      return;
    case StageAction::kServe:
      serving_ = stage;
      stage_ = {};
      OnLog(now_ns);
      AskNow(now_ns);
      return;
  }
}

void GroupMember::Staged(const WeightVersion& version, bool whole, int64_t now_ns) {
  if (version != stage_) return;
  On(whole ? StageEvent::kStaged : StageEvent::kNotStaged, version, now_ns);
  // It may have been chosen meanwhile, without this member.
  if (whole && version == stage_ && version == state_.active.version) {
    On(StageEvent::kChosen, version, now_ns);
  }
}

void GroupMember::Quiet(const WeightVersion& version, int64_t now_ns) {
  On(StageEvent::kQuiet, version, now_ns);
}

void GroupMember::Switched(const WeightVersion& version, int64_t now_ns) {
  On(StageEvent::kSwitched, version, now_ns);
}

}  // namespace tryst
