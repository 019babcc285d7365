#include <algorithm>
#include <utility>

#include "base/reached.h"
#include "channel/ops/fetch_ops.h"

// What FetchOps sends to the peer, and which fetches get a slot.
namespace tryst {

// The fast way: sends the request within the call of Fetch(), and skips what only a waiting fetch
// needs.
bool FetchOps::AskNow(FetchOp* op) {
  return open() && op->plain && op->state == FetchState::kQueued && words_->AsksAtOnce() &&
         !SomebodyWaits() && !HasWords() && MayFill(op->destination()).ok() &&
         op->key.text().size() <= ops_options_.max_key_bytes && Ask(op);
}

// True: `op` was requested, will be, or follows another fetch of its key. REQUIRES: `op` is in no
// line.
bool FetchOps::Ask(FetchOp* op) {
  if (slots_.free() == 0 || !words_->HasRoom(*op)) return false;
  FetchKey* key = keys_.Intern(op->key);
  if (!op->here && !BeginTurn(op, key)) return true;
  if (op->here) tickets_.Unpark(*op);
  TakeSlot(op);
  if (!SendRequestOf(op, key)) SendSoon(op);
  return true;
}

// False: a fetch of its key is requested already, and `op` follows that one. REQUIRES: `op` is in
// no line.
bool FetchOps::BeginTurn(FetchOp* op, FetchKey* key) {
  FetchOp* before = key->asked.empty() ? nullptr : FetchTurns::AskedBefore(*key, op->step, op);
  if (before == nullptr) {
    keys_.Join(op, key);
    return true;
  }
  keys_.Leave(op);
  turns_.Follow(before, op);
  return false;
}

void FetchOps::TakeSlot(FetchOp* op) {
  Advance(op, FetchEvent::kSlot);
  slots_.Take(op);
  if (op->order == 0) op->order = next_order_++;
  op->send_request = true;
}

void FetchOps::FreeSlot(FetchOp* op) {
  slots_.Free(op);
  if (ops_options_.watch != nullptr && closed_.ok()) {
    ops_options_.watch->OnSlotFreed(this, op->slot);
  }
  if (SomebodyWaits() && open()) words_->FlushSoon();
}

bool FetchOps::SendRequestOf(FetchOp* op, FetchKey* key) {
  const bool may_park = !IsAhead(*op) && parking_.MayPark(*op);
  if (may_park) tickets_.GiveTo(op);
  if (!words_->SendRequest(op, key, may_park)) return false;
  if (std::exchange(op->asked_before, false)) ++counts_->replays;
  op->send_request = false;
  op->park_asked = may_park;
  Advance(op, FetchEvent::kAsk);
  op->span.Enter(WaitsFor::kPeerSend, now_ns());
  return true;
}

void FetchOps::SendSoon(FetchOp* op) {
  if (!send_line_.Holds(op)) send_line_.Push(op);
  if (open()) words_->FlushSoon();
}

// Sends statements about slots first, because they must go before a new request on the same slot.
bool FetchOps::SayAll() {
  if (SomebodyWaits() && slots_.free() == 0) OnNoSlot();
  while (!send_line_.empty()) {
    FetchOp* op = send_line_.front();
    if (!SayOf(op)) return false;
    send_line_.Remove(op);
    FreeIfDone(op);
  }
  const auto tell = [this](absl::Span<const uint64_t> tickets) {
    return words_->SendUnwanted(tickets);
  };
  if (!words_->SayOwn() || !tickets_.TellUnwanted(words_->most_tickets(), tell)) return false;
  for (LinkedLine<FetchOp>* line = lines_.Next(); !line->empty(); line = lines_.Next()) {
    if (slots_.free() == 0 || !words_->HasRoom(*line->front())) break;
    Ask(line->PopFront());
  }
  parking_.Watch();
  return !SomebodyWaits();
}

bool FetchOps::SayOf(FetchOp* op) {
  if (op->send_request && !SendRequestOf(op, keys_.Intern(op->key))) return false;
  if (op->send_park) {
    // Else it has had its answer.
    if (op->state == FetchState::kAsked && !words_->SendPark(*op)) return false;
    op->send_park = false;
  }
  if (op->send_waits) {
    if (!words_->SendWaits(op, keys_.Intern(op->key))) return false;
    op->send_waits = false;
  }
  if (op->send_cancel) {
    if (!words_->SendCancel(*op)) return false;
    op->send_cancel = false;
    ++counts_->cancels_sent;
  }
  return true;
}

void FetchOps::ForgetWords() {
  while (!send_line_.empty()) {
    FetchOp* op = send_line_.PopFront();
    op->send_request = op->send_cancel = op->send_park = op->send_waits = false;
    FreeIfDone(op);
  }
  tickets_.ForgetUnwanted();
  parking_.Stop();
}

// ---- Parking ----

void FetchOps::AskToPark(FetchOp* op) {
  if (IsAhead(*op)) return;
  tickets_.GiveTo(op);
  op->park_asked = op->send_park = true;
  SendSoon(op);
}

// The peer has parked the fetch. `is_wanted`: it was not given up meanwhile.
void FetchOps::OnParked(FetchOp* op, bool is_wanted) {
  if (!is_wanted) {
    TRYST_REACHED("sim: PARKED crosses a CANCEL");
    op->park_asked = false;       // Said again, it is out of place.
    tickets_.Unwant(op->ticket);  // The answer to its CANCEL will still come.
    return words_->FlushSoon();
  }
  DropMemory(op);
  op->park_asked = op->send_park = false;
  send_line_.Remove(op);
  tickets_.Park(op);
  ++counts_->parked;
  FreeSlot(op);
}

void FetchOps::OnHere(absl::Span<const uint64_t> tickets) {
  for (uint64_t ticket : tickets) {
    FetchOp* op = tickets_.Find(ticket);
    if (op == nullptr) {  // The fetch was given up meanwhile.
      TRYST_REACHED("sim: HERE of a ticket that was given up");
      continue;
    }
    if (Advance(op, FetchEvent::kOutcome) != FetchAction::kLineUp) continue;
    op->here = true;
    op->span.Enter(WaitsFor::kSlot, now_ns());
    lines_.here.Push(op);
  }
  words_->FlushSoon();
}

// Tells the peer to drop what it holds under the op's ticket.
void FetchOps::DropTicket(FetchOp* op) {
  if (op->ticket == 0) return;
  lines_.here.Remove(op);
  tickets_.Unpark(*op);
  op->send_waits = false;
  if (open()) {
    tickets_.Unwant(op->ticket);
    words_->FlushSoon();
  }
  op->ticket = 0;
  op->here = false;
}

std::vector<FetchOp*> FetchOps::Asked() const {
  std::vector<FetchOp*> ops;
  for (FetchOp* op : slots_.all()) {
    if (op != nullptr) ops.push_back(op);
  }
  tickets_.AddParked(&ops);
  std::sort(ops.begin(), ops.end(),
            [](const FetchOp* a, const FetchOp* b) { return a->order < b->order; });
  return ops;
}

}  // namespace tryst
