#include <algorithm>
#include <utility>

#include "base/reached.h"
#include "channel/ops/fetch_ops.h"

// What is said to the peer of fetches, and which of them get a slot.
namespace tryst {
namespace {

// So long all slots are held by fetches without an answer before those are parked. Of tensors
// that are there some come in that time, so that nothing is said of parking.
constexpr int64_t kParkAfterNs = 1'000'000;

}  // namespace

// The quick way: asked for in the call that fetches, before all that only a fetch that waits needs.
bool FetchOps::AskNow(FetchOp* op) {
  return open_ && op->plain && op->state == FetchState::kQueued && AsksAtOnce() &&
         !SomebodyWaits() && !HasWords() && MayFill(op->wants()).ok() &&
         op->key.text().size() <= ops_options_.max_key_bytes && Ask(op);
}

// True: it is asked for, or about to be, or follows another of its key. REQUIRES: in no line.
bool FetchOps::Ask(FetchOp* op) {
  if (slots_.free() == 0 || !HasRoom(*op)) return false;
  FetchKey* key = keys_.Intern(op->key);
  if (!op->here && !BeginTurn(op, key)) return true;
  if (op->here) tickets_.Unpark(*op);
  TakeSlot(op);
  if (!SendRequestOf(op, key)) SendSoon(op);
  return true;
}

// False: a fetch of its key is asked for already, and it follows that one. REQUIRES: in no line.
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
  if (SomebodyWaits() && open_) FlushSoon();
}

bool FetchOps::SendRequestOf(FetchOp* op, FetchKey* key) {
  const bool may_park = MayPark(*op);
  if (may_park) tickets_.GiveTo(op);
  if (!SendRequest(op, key, may_park)) return false;
  if (std::exchange(op->asked_before, false)) ++counts_->replays;
  op->send_request = false;
  op->park_asked = may_park;
  Advance(op, FetchEvent::kAsk);
  op->span.Enter(WaitsFor::kPeerSend, now_ns());
  return true;
}

void FetchOps::SendSoon(FetchOp* op) {
  if (!send_line_.Holds(op)) send_line_.Push(op);
  if (open_) FlushSoon();
}

// Words first: a slot is asked on again only behind what was said about it.
bool FetchOps::SayAll() {
  if (SomebodyWaits() && slots_.free() == 0) OnNoSlot();
  while (!send_line_.empty()) {
    FetchOp* op = send_line_.front();
    if (!SayOf(op)) return false;
    send_line_.Remove(op);
    FreeIfDone(op);
  }
  const auto tell = [this](absl::Span<const uint64_t> tickets) { return SendUnwanted(tickets); };
  if (!SayOwn() || !tickets_.TellUnwanted(most_tickets(), tell)) return false;
  for (LinkedLine<FetchOp>* line = NextLine(); !line->empty(); line = NextLine()) {
    if (slots_.free() == 0 || !HasRoom(*line->front())) break;
    Ask(line->PopFront());
  }
  WatchLine();
  return !SomebodyWaits();
}

bool FetchOps::SayOf(FetchOp* op) {
  if (op->send_request && !SendRequestOf(op, keys_.Intern(op->key))) return false;
  if (op->send_park) {
    // Else it has had its answer.
    if (op->state == FetchState::kAsked && !SendPark(*op)) return false;
    op->send_park = false;
  }
  if (op->send_waits) {
    if (!SendWaits(op, keys_.Intern(op->key))) return false;
    op->send_waits = false;
  }
  if (op->send_cancel) {
    if (!SendCancel(*op)) return false;
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
  pressed_ = false;
  poller_->CancelTimer(&park_timer_);
}

// ---- Parking ----

void FetchOps::WatchLine() {
  if (!parks_ || park_timer_.is_set() || !SomebodyWaits() || slots_.free() != 0) return;
  poller_->SetTimer(&park_timer_, now_ns() + kParkAfterNs);
}

void FetchOps::ParkWaiting() {
  if (!open_ || !SomebodyWaits() || slots_.free() != 0) return;
  pressed_ = true;
  for (FetchOp* op : slots_.all()) {
    if (op == nullptr || op->state != FetchState::kAsked || IsAhead(*op) || op->park_asked ||
        op->here || now_ns() - op->span.since_ns() < kParkAfterNs) {
      continue;
    }
    if (tickets_.parked() >= ops_options_.max_parked) break;
    tickets_.GiveTo(op);
    op->park_asked = op->send_park = true;
    SendSoon(op);
  }
  WatchLine();
}

// Whether a request is to be parked at once unless its tensor is there.
bool FetchOps::MayPark(const FetchOp& op) const {
  const bool crowded = !queued_.empty() || 2 * slots_.free() < slots_.size();
  return pressed_ && crowded && parks_ && !op.here && !IsAhead(op) &&
         tickets_.parked() < ops_options_.max_parked;
}

// The peer has parked it; `is_wanted`: it was not given up meanwhile.
void FetchOps::OnParked(FetchOp* op, bool is_wanted) {
  if (!is_wanted) {
    TRYST_REACHED("sim: PARKED crosses a CANCEL");
    op->park_asked = false;       // Said again, it is out of place.
    tickets_.Unwant(op->ticket);  // The answer to its cancel is still to come.
    return FlushSoon();
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
    if (op == nullptr) {  // Of what was given up meanwhile.
      TRYST_REACHED("sim: HERE of a ticket that was given up");
      continue;
    }
    if (Advance(op, FetchEvent::kOutcome) != FetchAction::kLineUp) continue;
    op->here = true;
    op->span.Enter(WaitsFor::kSlot, now_ns());
    here_line_.Push(op);
  }
  FlushSoon();
}

// The peer is to let go of what it holds under the op's ticket.
void FetchOps::DropTicket(FetchOp* op) {
  if (op->ticket == 0) return;
  here_line_.Remove(op);
  tickets_.Unpark(*op);
  op->send_waits = false;
  if (open_) {
    tickets_.Unwant(op->ticket);
    FlushSoon();
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
