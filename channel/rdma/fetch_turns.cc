#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "channel/rdma/fetch_channel.h"

// The order of a key. Of the fetches of one key and step one is asked for at a time; the others
// follow it here. So a fetch that is cancelled or late can hand what it asked for to the next
// one, and no tensor goes back behind another (docs/decisions/0026-order-with-cancels.md).
namespace tryst {

// Ops are used again, so a list may name one that is another fetch by now.
void FetchChannel::DropEnded(const TensorKey& key, AskedOps* asked) {
  const auto over = [&key](const FetchOp* op) {
    return (!op->has_slot && op->ticket == 0) || op->key != key;
  };
  asked->erase(std::remove_if(asked->begin(), asked->end(), over), asked->end());
}

// The id of the key is given to another one, or all are forgotten: what was asked for is not.
void FetchChannel::KeepAsked(const TensorKey& key, KeyEntry* entry) {
  DropEnded(key, &entry->asked);
  if (entry->asked.empty()) return;
  if (strays_.size() > 2 * live_) {
    for (auto at = strays_.begin(); at != strays_.end();) {
      DropEnded(at->first, &at->second);
      const auto here = at++;
      if (here->second.empty()) strays_.erase(here);
    }
  }
  strays_[key] = std::move(entry->asked);
}

// The fetch of that key and step, other than `but`, that has been asked for and not had its last
// word.
FetchOp* FetchChannel::AskedBefore(KeyEntry* entry, const TensorKey& key, int64_t step,
                                   const FetchOp* but) {
  DropEnded(key, &entry->asked);
  for (FetchOp* before : entry->asked) {
    // The producer hears of the end of one that was reported before it hears of this one.
    const bool leaves = before->reported && before->followers == nullptr;
    if (before->step == step && before != but && !leaves) return before;
  }
  return nullptr;
}

// Whether a fetch of its key is asked for already: then it follows that one. REQUIRES: in no line.
bool FetchChannel::WaitsItsTurn(FetchOp* op, KeyEntry* entry) {
  FetchOp* before = AskedBefore(entry, op->key, op->step, op);
  if (before == nullptr) {
    entry->asked.push_back(op);
    return false;
  }
  if (before->followers == nullptr) {
    if (free_key_lines_.empty()) {
      key_lines_.emplace_back();
      free_key_lines_.push_back(&key_lines_.back());
    }
    before->followers = free_key_lines_.back();
    free_key_lines_.pop_back();
    before->followers->first = before;
  }
  Follow(before->followers, op);
  while (op->followers != nullptr) {
    FetchOp* next = op->followers->line.front();
    LeaveKeyLine(next);
    Follow(before->followers, next);
  }
  return true;
}

void FetchChannel::Follow(KeyLine* line, FetchOp* op) {
  op->behind = line;
  line->line.Push(op);
}

// It no longer follows.
void FetchChannel::LeaveKeyLine(FetchOp* op) {
  KeyLine* line = std::exchange(op->behind, nullptr);
  if (line == nullptr) return;
  line->line.Remove(op);
  if (!line->line.empty()) return;
  line->first->followers = nullptr;
  free_key_lines_.push_back(line);
}

// The op has had its last word: the one behind it is next to be asked for, with those behind that.
void FetchChannel::AskFollower(FetchOp* op) {
  KeyLine* line = op->followers;
  if (line == nullptr) return;
  FetchOp* next = line->line.front();
  LeaveKeyLine(next);
  if (op->followers != nullptr) {
    next->followers = std::exchange(op->followers, nullptr);
    next->followers->first = next;
  }
  queued_.PushFront(next);
  if (state_ == State::kOpen) link_->FlushSoon();
}

// Gives what was asked for, as it stands, to the fetch behind. False: nobody is behind, or the peer
// may write memory that is the caller's.
bool FetchChannel::HandOver(FetchOp* op) {
  if (op->followers == nullptr || op->region != nullptr || op->moves || op->standing) {
    return false;
  }
  const bool asked = op->has_slot || op->ticket != 0;
  if (!asked || op->state == FetchState::kLeaving || op->ending) return false;
  FetchOp* next = op->followers->line.front();
  if (op->state == FetchState::kWaitingRoom) {
    // The peer has said what the tensor is: the next fetch may want another one.
    auto shape = TensorShape::Make(absl::MakeConstSpan(op->meta.dims, op->meta.rank));
    if (!shape.ok() || !FitsDestination(next->args, static_cast<DType>(op->meta.dtype), *shape).ok()) return false;
  }
  LeaveKeyLine(next);
  next->state = op->state;
  next->span.Enter(op->span.waits_for(), now_ns());
  next->order = op->order;
  next->ordered = true;
  next->slot = op->slot;
  next->generation = op->generation;
  next->has_slot = std::exchange(op->has_slot, false);
  next->send_request = std::exchange(op->send_request, false);
  next->send_park = std::exchange(op->send_park, false);
  next->send_waits = std::exchange(op->send_waits, false);
  next->in_send_line = std::exchange(op->in_send_line, false);
  next->asked_before = op->asked_before;
  next->ticket = std::exchange(op->ticket, 0);
  next->park_asked = op->park_asked;
  next->here = std::exchange(op->here, false);
  next->retried = op->retried;
  next->expects = op->expects;
  next->expected = op->expected;
  next->parts_since_ns = op->parts_since_ns;
  next->parts_seen = op->parts_seen;
  next->lanes_seen = op->lanes_seen;
  next->meta = op->meta;
  next->meta_flags = op->meta_flags;
  next->landing = std::move(op->landing);
  op->landing = StorageRef();
  next->waiting_bytes = std::exchange(op->waiting_bytes, 0);
  if (op->followers != nullptr) {
    next->followers = std::exchange(op->followers, nullptr);
    next->followers->first = next;
  }
  if (next->has_slot) slots_[next->slot] = next;
  auto parked = by_ticket_.find(next->ticket);
  if (parked != by_ticket_.end() && parked->second == op) parked->second = next;
  here_line_.Replace(op, next);
  room_line_.Replace(op, next);
  send_line_.Replace(op, next);
  Intern(next->key)->asked.push_back(next);
  return true;
}

// Cancelled, or late.
void FetchChannel::EndByCaller(FetchOp* op, const absl::Status& why) {
  if (!HandOver(op)) return EndEarly(op, why);
  Report(op, why, Tensor(), false);
  LastWord(op);
}

}  // namespace tryst
