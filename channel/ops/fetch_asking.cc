#include <algorithm>
#include <utility>

#include "absl/base/attributes.h"
#include "base/reached.h"
#include "channel/ops/fetch_ops.h"

// What FetchOps sends to the peer, in which line a fetch waits, and which fetches get a slot.
namespace tryst {

ABSL_ATTRIBUTE_ALWAYS_INLINE inline bool FetchOps::SendRequestOf(FetchAsk* ask) {
  const bool may_park = !ask->is_ahead() && !ask->of->is_run() && parking_.MayPark(*ask);
  if (may_park) tickets_.GiveTo(ask);
  keys_.Number(ask->of);
  if (!words_->SendRequest(ask, may_park)) return false;
  if (std::exchange(ask->said, false)) ++counters_.replays;
  if (ask->parks != Parks::kOver) ask->parks = may_park ? Parks::kAllowed : Parks::kNo;
  Advance(ask, FetchEvent::kAsk);
  if (ask->front != nullptr) {
    ask->front->span.id = ask->trace_id;
    ask->front->span.Enter(WaitsFor::kPeerSend, now_ns());
  }
  return true;
}

// True: the request was sent, or will be. REQUIRES: it is in no line.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline bool FetchOps::AskFor(FetchAsk* ask) {
  if (!slots_.any_free() || !words_->HasRoom(*ask)) return false;
  if (IsStale(*ask)) {
    EndStale(ask);
    return true;
  }
  if (ask->state == FetchState::kHere) tickets_.Unpark(*ask);
  TakeSlot(ask);
  if (!SendRequestOf(ask)) SendSoon(ask);
  return true;
}

// Finds its place: in the line of its key and step, which it begins if there is none. `now`: it may
// be asked for within this call, if nothing is to be said before.
void FetchOps::LineUp(FetchOp* op, bool now) {
  FetchKey* const key = op->run != nullptr ? op->run->name : keys_.Intern(op->key);
  if (key->out_in != nullptr) return key->out_in->held.Push(op);
  if (!key->asks.empty() && JoinLine(op, *key)) return;
  FetchAsk* const ask = TakeAsk(key, op->step);
  op->ask = ask;
  ask->front = op;
  if (now && open() && words_->AsksAtOnce() && !SomebodyWaits() && !HasWords() && AskFor(ask)) {
    asked_at_once_ = true;
    return;
  }
  lines_.queued.Push(ask);
}

// False: nothing is asked for of its step.
bool FetchOps::JoinLine(FetchOp* op, const FetchKey& key) {
  FetchAsk* ask = link_->Foreseen(key, op->step);
  if (ask != nullptr) {
    ask->front = op;
    op->span.Begin(WaitsFor::kPeerSend, op->begun_ns);
    op->span.id = ask->trace_id;  // What was asked for ahead has its name already.
  } else {
    ask = FetchKeys::AskOf(key, op->step);
    if (ask == nullptr) return false;
    ask->behind.Push(op);
  }
  op->ask = ask;
  return true;
}

void FetchOps::SendSoon(FetchAsk* ask) {
  if (!send_line_.Holds(ask)) send_line_.Push(ask);
  if (open()) words_->FlushSoon();
}

// Sends statements about slots first, because they must go before a new request on the same slot.
bool FetchOps::SayWhatIsDue() {
  if (SomebodyWaits() && !slots_.any_free()) link_->OnNoSlot();
  while (!send_line_.empty()) {
    // Taken out first: it may end, and begin anew for another key that is due in its turn.
    FetchAsk* ask = send_line_.PopFront();
    if (SayOf(ask)) continue;
    if (!send_line_.Holds(ask)) send_line_.PushFront(ask);
    return false;
  }
  const auto tell = [this](absl::Span<const uint64_t> tickets) {
    return words_->SendUnwanted(tickets);
  };
  if (tell_replayed_) {
    if (!words_->SendReplayed()) return false;
    tell_replayed_ = false;
  }
  if (!words_->SayOwn() || !tickets_.TellUnwanted(words_->most_tickets(), tell)) return false;
  for (LinkedLine<FetchAsk>* line = lines_.Next(); !line->empty(); line = lines_.Next()) {
    if (!slots_.any_free() || !words_->HasRoom(*line->front())) break;
    AskFor(line->PopFront());
  }
  parking_.Watch();
  return !SomebodyWaits();
}

bool FetchOps::SayOf(FetchAsk* ask) {
  switch (ask->state) {
    case FetchState::kInSlot:
    case FetchState::kAgain:
      if (IsStale(*ask)) {
        EndStale(ask);
        return true;
      }
      return SendRequestOf(ask);
    case FetchState::kAsked:
      return words_->SendPark(*ask);
    case FetchState::kParked:
    case FetchState::kHere:
      keys_.Number(ask->of);
      return words_->SendWaits(ask);
    case FetchState::kLeaving:
      if (!words_->SendCancel(*ask)) return false;
      ++counters_.cancels_sent;
      return true;
    default:
      return true;  // What was due is not any more.
  }
}

void FetchOps::ForgetWords() {
  while (!send_line_.empty()) send_line_.PopFront();
  tickets_.ForgetUnwanted();
  parking_.Stop();
}

// ---- Parking ----

void FetchOps::AskToPark(FetchAsk* ask) {
  tickets_.GiveTo(ask);
  ask->parks = Parks::kAllowed;
  SendSoon(ask);
}

absl::Status FetchOps::OnParked(FetchAsk* ask) {
  if (ask->parks != Parks::kAllowed) {
    return absl::DataLossError(
        "the producer broke the protocol: it made a fetch wait without a slot, which the fetch did "
        "not allow");
  }
  const FetchRow* row = Hear(ask, FetchEvent::kParked);
  if (row == nullptr) return OutOfPlace(ask->state, FetchEvent::kParked);
  ask->parks = Parks::kNo;  // Said again, it is out of place.
  if (row->action == FetchAction::kUnwant) {
    TRYST_REACHED("sim: PARKED crosses a CANCEL");
    tickets_.Unwant(ask->ticket);  // The answer to its CANCEL will still come.
    words_->FlushSoon();
    return absl::OkStatus();
  }
  link_->DropMemory(ask);
  send_line_.Remove(ask);
  tickets_.Park(ask);
  ++counters_.parked;
  FreeSlot(ask);
  return absl::OkStatus();
}

void FetchOps::OnHere(absl::Span<const uint64_t> tickets) {
  for (uint64_t ticket : tickets) {
    FetchAsk* ask = tickets_.Find(ticket);
    if (ask == nullptr) {  // The fetch was given up meanwhile.
      TRYST_REACHED("sim: HERE of a ticket that was given up");
      continue;
    }
    if (Advance(ask, FetchEvent::kOutcome) != FetchAction::kLineUp) continue;
    ask->parks = Parks::kOver;
    ask->Enter(WaitsFor::kSlot, now_ns());
    lines_.here.Push(ask);
  }
  words_->FlushSoon();
}

// Tells the peer to drop what it holds under the ticket.
void FetchOps::DropTicket(FetchAsk* ask) {
  if (ask->ticket == 0) return;
  lines_.here.Remove(ask);
  tickets_.Unpark(*ask);
  if (open()) {
    tickets_.Unwant(ask->ticket);
    words_->FlushSoon();
  }
  ask->ticket = 0;
  ask->parks = Parks::kNo;
}

// In the order in which they were asked for, which is the order of their turns at a key.
std::vector<FetchAsk*> FetchOps::Asked() const {
  std::vector<FetchAsk*> asks;
  for (FetchAsk* ask : slots_.all()) {
    if (ask != nullptr) asks.push_back(ask);
  }
  tickets_.AddParked(&asks);
  std::sort(asks.begin(), asks.end(),
            [](const FetchAsk* a, const FetchAsk* b) { return a->order < b->order; });
  return asks;
}

}  // namespace tryst
