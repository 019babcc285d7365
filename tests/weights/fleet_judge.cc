#include "tests/weights/fleet_judge.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

// Whether a member that told `from` may tell `to` next: it tells at once where a stage is whole or
// fails, holds, or is dropped. `anew`: another version is staged, since the former one is gone.
bool MayTellNext(StageState from, StageState to, bool anew) {
  if (from == to && !anew) return true;
  for (size_t i = 0; i < kStageEventCount; ++i) {
    const StageRow& row = FindStageRow(from, static_cast<StageEvent>(i));
    if (!row.exists) continue;
    const bool still_anew = anew && from != StageState::kNone;
    if (row.action == StageAction::kTell || row.action == StageAction::kDrop) {
      if (row.next == to && !still_anew) return true;
    } else if (MayTellNext(row.next, to, still_anew)) {
      return true;
    }
  }
  return false;
}

}  // namespace

void FleetJudge::Break(const std::string& promise, const std::string& how) {
  report_->violations.push_back(absl::StrCat(promise, ": ", how));
}

void FleetJudge::OnLife(uint64_t life) {
  life_ = life;
  life_since_ns_ = now_ns_;
  lives_[life].states.emplace_back();
  ++report_->lives;
}

void FleetJudge::OnTold(const Question& question, const std::string& who, int64_t now_ns) {
  Told& last = told_[question.incarnation];
  const bool none = question.stage_state == StageState::kNone;
  const bool anew = !none && question.stage != last.version;
  if (none != (question.stage.number == 0) ||
      !MayTellNext(last.state, question.stage_state, anew)) {
    Break("ByTheTable", absl::StrCat(who, " tells that ", question.stage.number, " ",
                                     StageStateName(question.stage_state), ", and told that ",
                                     last.version.number, " ", StageStateName(last.state)));
  }
  last.version = question.stage;
  last.state = question.stage_state;
  last.question = question.question;
  last.asked_ns[question.question % last.asked_ns.size()] = now_ns;
}

void FleetJudge::OnPermit(uint64_t incarnation, uint64_t question) {
  Told& told = told_[incarnation];
  if (question + told.asked_ns.size() <= told.question) return;
  const int64_t asked_ns = told.asked_ns[question % told.asked_ns.size()];
  told.permit_over_ns = std::max(told.permit_over_ns, asked_ns + SurelyOver(times_.permit_ns));
}

void FleetJudge::OnReady(uint64_t incarnation, uint64_t term, uint64_t number,
                         const WeightRoot& digest) {
  ready_[{incarnation, term, number}] = digest;
}

void FleetJudge::OnSealed(Life* life, const LogEntry& entry) {
  const uint64_t number = entry.version.number;
  if (life->sealed.count(number) != 0 || life->dropped.count(number) != 0) {
    Break("OneFate", absl::StrCat(number, " is sealed, and was sealed or dropped"));
  }
  if (!roots_.insert({{number, entry.version.birth}, entry.root}).second) {
    Break("OneBirth", absl::StrCat(number, " has one birth twice"));
  }
  const std::vector<uint64_t>& owners = life->owners[entry.term];
  if (life->states.back().term != entry.term) {
    Break("StaleOwnerFenced", absl::StrCat(number, " is sealed by term ", entry.term));
  }
  if (owners.empty() || owners.size() != entry.digests.size()) {
    Break("WholeSeal", absl::StrCat(number, " is sealed by ", entry.digests.size(), " owners"));
    return;
  }
  for (size_t rank = 0; rank < owners.size(); ++rank) {
    const auto ready = ready_.find({owners[rank], entry.term, number});
    if (ready == ready_.end() || ready->second != entry.digests[rank]) {
      Break("WholeSeal", absl::StrCat("owner ", rank, " was not ready for ", number));
    }
  }
  life->sealed[number] = entry;
}

void FleetJudge::OnChosen(uint64_t id, const LogEntry& entry, const std::vector<OpenMember>& open,
                          int64_t now_ns) {
  Life& life = lives_[id];
  const uint64_t number = entry.version.number;
  switch (entry.kind) {
    case EntryKind::kOwners:
      for (const uint64_t owner : life.states.back().owners) life.replaced.insert(owner);
      for (const uint64_t owner : entry.incarnations) {
        // Who is an owner still was in the term before.
        const std::vector<uint64_t>& last = life.states.back().owners;
        if (life.replaced.count(owner) != 0 &&
            std::find(last.begin(), last.end(), owner) == last.end()) {
          Break("StaleOwnerFenced",
                absl::StrCat("term ", entry.term, " has an owner that was replaced"));
        }
      }
      life.owners[entry.term] = entry.incarnations;
      ++report_->terms;
      break;
    case EntryKind::kMembers:
      break;
    case EntryKind::kSealed:
      OnSealed(&life, entry);
      ++report_->sealed;
      break;
    case EntryKind::kActive:
      if (life.sealed.count(number) == 0 || life.dropped.count(number) != 0 ||
          (!life.active.empty() && life.active.rbegin()->first >= number)) {
        Break("OneFate", absl::StrCat(number, " is active, and was not sealed, or is over"));
      }
      life.active[number] = now_ns;
      ++report_->active;
      report_->barriers += entry.mode == ActivateMode::kBarrier;
      for (const OpenMember& member : open) {
        if (entry.mode == ActivateMode::kBarrier) {
          Break("NoMixUnderBarrier", absl::StrCat(member.name, " serves ", member.number, " while ",
                                                  number, " is chosen"));
        }
      }
      break;
    case EntryKind::kDropped:
      if (life.active.count(number) != 0 || !life.dropped.insert(number).second) {
        Break("OneFate", absl::StrCat(number, " is dropped, and was active or dropped"));
      }
      ++report_->dropped;
      break;
  }
  LogState next = life.states.back();
  next.Apply(entry);
  if (next.open.size() > kMaxOpenVersions) Break("BoundedMemory", "too many open versions");
  life.states.push_back(std::move(next));
}

void FleetJudge::OnApplied(uint64_t id, const LogState& state, const std::string& who) {
  const auto life = lives_.find(id);
  if (life == lives_.end() || state.length >= life->second.states.size()) {
    if (id != 0) Break("OneOrder", absl::StrCat(who, " has applied more than there is"));
    return;
  }
  const LogState& chosen = life->second.states[state.length];
  if (state.active.version != chosen.active.version || state.members != chosen.members ||
      state.term != chosen.term || state.owners != chosen.owners || state.floor != chosen.floor ||
      state.open.size() != chosen.open.size()) {
    Break("OneOrder", absl::StrCat(who, " has applied another log, of length ", state.length));
  }
}

void FleetJudge::OnStage(uint64_t id, const LogEntry& version, const std::string& who) {
  const Life& life = lives_[id];
  const auto sealed = life.sealed.find(version.version.number);
  if (sealed == life.sealed.end() || sealed->second.version != version.version ||
      sealed->second.root != version.root) {
    Break("OneBirth", absl::StrCat(who, " stages a version that was not sealed so"));
  }
}

void FleetJudge::OnPeers(size_t peers) {
  report_->most_peers = std::max<uint64_t>(report_->most_peers, peers);
  if (peers > most_peers_) Break("BoundedMemory", absl::StrCat("a leader knows ", peers));
}

void FleetJudge::Look(const std::vector<OpenMember>& open, int64_t now_ns) {
  now_ns_ = now_ns;
  for (const OpenMember& member : open) {
    const std::string serves = absl::StrCat(member.name, " serves ", member.number);
    if (member.memory.number != member.number || !member.state->HasMember(member.incarnation)) {
      Break("ComesBackEmpty", absl::StrCat(serves, ", and has ", member.memory.number));
    }
    if (now_ns > told_[member.incarnation].permit_over_ns) {
      Break("PermitEnds", absl::StrCat(serves, " when its permit is over"));
    }
    if (member.touched) Break("StagedBeforeTouched", absl::StrCat(serves, " while it changes"));
    const Life& life = lives_[member.log];
    if (life.active.count(member.number) == 0) {
      Break("OneOrder", absl::StrCat(serves, ", which is not active"));
      continue;
    }
    const auto next = life.active.upper_bound(member.number);
    if (next != life.active.end()) {
      if (now_ns - next->second > SurelyOver(times_.permit_ns)) {
        Break("BoundedMix", absl::StrCat(serves, " long after ", next->first, " was chosen"));
      }
    }
    const LogState& last = life.states.back();
    if (last.active_mode == ActivateMode::kBarrier && last.active.version.number != member.number) {
      Break("NoMixUnderBarrier", absl::StrCat(serves, " beside ", last.active.version.number));
    }
    // A log that is lost leaves permits behind for one permit.
    if (member.log != life_ && now_ns - life_since_ns_ > SurelyOver(times_.permit_ns)) {
      Break("BoundedMix", absl::StrCat(serves, " by a log that is gone"));
    }
  }
}

}  // namespace tryst
