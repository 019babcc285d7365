#include <utility>

#include "base/reached.h"
#include "channel/ops/fetch_ops.h"

// The order of a key: of the fetches of one key and step one is asked for at a time, and the others
// follow it (docs/decisions/0026-order-with-cancels.md).
namespace tryst {

// The fetch of that key and step, other than `but`, that has been asked for and not had its last
// word.
FetchOp* FetchOps::AskedBefore(const FetchKey& key, int64_t step, const FetchOp* but) const {
  for (FetchOp* before = key.asked.front(); before != nullptr; before = key.asked.Behind(before)) {
    // The peer hears of the end of one that was reported before it hears of this one.
    const bool leaves = before->reported && before->followers == nullptr;
    if (before->step == step && before != but && !leaves) return before;
  }
  return nullptr;
}

// Whether a fetch of its key is asked for already: then it follows that one. REQUIRES: in no line.
bool FetchOps::WaitsItsTurn(FetchOp* op, FetchKey* key) {
  FetchOp* before = key->asked.empty() ? nullptr : AskedBefore(*key, op->step, op);
  if (before == nullptr) {
    keys_.Join(op, key);
    return false;
  }
  if (before->followers == nullptr) {
    if (free_followers_.empty()) free_followers_.push_back(&all_followers_.emplace_back());
    before->followers = free_followers_.back();
    free_followers_.pop_back();
    before->followers->first = before;
  }
  keys_.Leave(op);
  Follow(before->followers, op);
  while (op->followers != nullptr) {
    FetchOp* next = op->followers->line.front();
    StopFollowing(next);
    Follow(before->followers, next);
  }
  return true;
}

void FetchOps::Follow(FetchFollowers* line, FetchOp* op) {
  op->behind = line;
  line->line.Push(op);
}

void FetchOps::StopFollowing(FetchOp* op) {
  FetchFollowers* line = std::exchange(op->behind, nullptr);
  if (line == nullptr) return;
  line->line.Remove(op);
  if (!line->line.empty()) return;
  line->first->followers = nullptr;
  free_followers_.push_back(line);
}

// The op has had its last word: the one behind it is next to be asked for, with those behind that.
void FetchOps::AskFollower(FetchOp* op) {
  FetchFollowers* line = op->followers;
  if (line == nullptr) return;
  FetchOp* next = line->line.front();
  StopFollowing(next);
  if (op->followers != nullptr) {
    next->followers = std::exchange(op->followers, nullptr);
    next->followers->first = next;
  }
  queued_.PushFront(next);
  if (open_) FlushSoon();
}

// Gives what was asked for, as it stands, to the fetch behind. False: nobody is behind, or it
// cannot be given.
bool FetchOps::HandOver(FetchOp* op) {
  if (op->followers == nullptr || op->ending || IsAhead(*op)) return false;
  if (FindFetchRow(op->state, FetchEvent::kHandOver) == nullptr) return false;
  FetchOp* next = op->followers->line.front();
  if (!PassMemory(op, next)) return false;
  TRYST_REACHED("sim: a fetch hands over what it has asked for");
  StopFollowing(next);
  next->state = op->state;
  Advance(op, FetchEvent::kHandOver);
  next->span.Enter(op->span.waits_for(), now_ns());
  next->order = op->order;
  slots_.Pass(op, next);
  next->send_request = std::exchange(op->send_request, false);
  next->send_park = std::exchange(op->send_park, false);
  next->send_waits = std::exchange(op->send_waits, false);
  next->asked_before = op->asked_before;
  next->ticket = std::exchange(op->ticket, 0);
  next->park_asked = op->park_asked;
  next->here = std::exchange(op->here, false);
  if (op->followers != nullptr) {
    next->followers = std::exchange(op->followers, nullptr);
    next->followers->first = next;
  }
  const auto parked = by_ticket_.find(next->ticket);
  if (parked != by_ticket_.end()) parked->second = next;
  // For a slot, or for room.
  if (op->wait_link.line != nullptr) op->wait_link.line->Replace(op, next);
  send_line_.Replace(op, next);
  keys_.Join(next, op->asked_of);
  keys_.Leave(op);
  return true;
}

// Cancelled, or late.
void FetchOps::EndByCaller(FetchOp* op, const absl::Status& why) {
  if (!HandOver(op)) return EndEarly(op, why);
  LastWord(op);
  Report(op, why, Tensor(), false, When::kAtEndOfTurn);
}

}  // namespace tryst
