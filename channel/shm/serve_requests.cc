#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/shm/serve_channel.h"

// What the consumer of a ShmServeChannel says, the takes that it asks for, and what becomes of a
// tensor when its answer was accepted or refused.
namespace tryst {

using shm_wire::CellType;

// ---- What the consumer says ----

absl::Status ShmServeChannel::OnCell(const shm_wire::RequestCell& cell) {
  if (key_bytes_ != 0) {
    if (cell.head.type != CellType::kMore) return absl::DataLossError("a key that breaks off");
    return OnKeyText(cell.body, sizeof(cell.body));
  }
  // Of a slot at most PARKED and GONE can be due: it is used again when they have been read.
  if (gone_line_.size() + parked_line_.size() > 2 * ops_.size()) {
    return absl::DataLossError("the consumer uses slots whose last word it has not read");
  }
  switch (cell.head.type) {
    case CellType::kKey:
      if (cell.head.number >= shm_wire::kMaxKeys || cell.head.slot == 0 ||
          cell.head.slot > shm_wire::kMaxKeyBytes) {
        return absl::DataLossError("key id out of range, or a key too long or empty");
      }
      key_id_ = cell.head.number;
      key_bytes_ = cell.head.slot;
      key_text_.clear();
      return OnKeyText(cell.body, sizeof(cell.body));
    case CellType::kRequest:
      return OnRequest(cell);
    case CellType::kCancel:
      return OnCancel(cell);
    case CellType::kPulled:
      return OnPulled(cell);
    case CellType::kRefused:
      return OnRefused(cell);
    case CellType::kPark:
      return OnPark(cell);
    case CellType::kUnwanted:
      return OnUnwanted(cell);
    case CellType::kPing:
      SayPong();
      return absl::OkStatus();
    default:
      return absl::DataLossError("an unknown cell in the request ring");
  }
}

absl::Status ShmServeChannel::OnKeyText(const uint8_t* text, size_t bytes) {
  const size_t taken = std::min(bytes, key_bytes_ - key_text_.size());
  key_text_.append(reinterpret_cast<const char*>(text), taken);
  if (key_text_.size() < key_bytes_) return absl::OkStatus();
  key_bytes_ = 0;
  auto key = TensorKey::Parse(key_text_);
  if (!key.ok()) return absl::DataLossError(key.status().message());
  if (key_id_ >= keys_.size()) keys_.resize(key_id_ + 1);
  keys_bytes_ += key->text().size() - keys_[key_id_].key.text().size();
  if (keys_bytes_ > shm_wire::kMaxKeysBytes) {
    return absl::DataLossError("more keys than are remembered");
  }
  const bool for_consumer = key->dst().worker == consumer_;
  keys_[key_id_] = {*std::move(key), for_consumer, /*may_take=*/false};
  return absl::OkStatus();
}

absl::StatusOr<ShmServeOp*> ShmServeChannel::SlotFor(const shm_wire::RequestCell& cell,
                                                     Former* former) {
  if (cell.head.slot >= ops_.size()) return absl::DataLossError("request on a slot out of range");
  ShmServeOp* op = &ops_[cell.head.slot];
  const ServeAction* action = FindServeAction(op->state, ServeEvent::kRequest);
  if (action == nullptr) return OutOfPlace(op->state, ServeEvent::kRequest, op->slot);
  // That the slot is used again says that its former tensor was accepted. It is let go of,
  // and written down, behind the answer.
  if (*action == ServeAction::kAcceptFirst) TakeFormer(op, former);
  op->request.generation = cell.head.generation;
  op->request.flags = cell.head.flags;
  ++counters_.requests;
  return op;
}

absl::Status ShmServeChannel::OnRequest(const shm_wire::RequestCell& cell) {
  if (cell.head.number >= keys_.size() || keys_[cell.head.number].key.empty()) {
    return absl::DataLossError("request for an unknown key id");
  }
  Former former;
  const auto slot = SlotFor(cell, &former);
  if (!slot.ok()) return slot.status();
  ShmServeOp* op = *slot;
  KnownKey& known = keys_[cell.head.number];
  memcpy(&op->request.step, cell.body, sizeof(op->request.step));
  op->request.ticket = 0;
  if (link_version_ >= shm_wire::kLinkParks) {
    memcpy(&op->request.ticket, cell.body + 8, sizeof(op->request.ticket));
  }
  op->span.Begin(WaitsFor::kLocalSend, hub_->poller()->now_ns());
  if (op->request.ticket != 0 || !TakeHere(op, &known)) {
    const ShmRequest& request = op->request;
    op->request.key = known.key;
    op->state = ServeState::kTaking;
    if (!takes_.Unpark(request.ticket, request.step, request.key, op)) {
      takes_.Start(request.step, request.key, op);
    }
    if ((request.flags & shm_wire::kMayPark) != 0) Park(op, request.ticket);
  }
  if (former.was) EndTrace(former);
  return absl::OkStatus();
}

absl::Status ShmServeChannel::OnCancel(const shm_wire::RequestCell& cell) {
  if (cell.head.slot >= ops_.size()) return absl::DataLossError("cancel of a slot out of range");
  ShmServeOp* op = &ops_[cell.head.slot];
  ++counters_.cancelled;
  const bool always = link_version_ >= shm_wire::kLinkParks;
  const bool ours =
      op->state != ServeState::kFree && op->request.generation == cell.head.generation;
  const bool answered = op->state == ServeState::kSent || op->state == ServeState::kPulled;
  // Given back first, so that the next request finds it.
  if (ours) GiveUp(op);
  // Before version 3 an answer that crosses the CANCEL is the last word.
  const bool says = always || (ours && !answered);
  if (says && state_ == State::kOpen) {
    gone_line_.emplace_back(cell.head.slot, cell.head.generation);
    hub_->poller()->FlushThisTurn(this);
  }
  return absl::OkStatus();
}

absl::Status ShmServeChannel::OnRefused(const shm_wire::RequestCell& cell) {
  if (cell.head.slot >= ops_.size()) return absl::DataLossError("a slot out of range was refused");
  ShmServeOp* op = &ops_[cell.head.slot];
  if (FindServeAction(op->state, ServeEvent::kRefuse) == nullptr ||
      op->request.generation != cell.head.generation) {
    return OutOfPlace(op->state, ServeEvent::kRefuse, op->slot);
  }
  GiveUp(op);
  return absl::OkStatus();
}

absl::Status ShmServeChannel::OnPulled(const shm_wire::RequestCell& cell) {
  if (cell.head.slot >= ops_.size()) return absl::DataLossError("a slot out of range was read");
  ShmServeOp* op = &ops_[cell.head.slot];
  const bool failed = (cell.head.flags & shm_wire::kPullFailed) != 0;
  const ServeEvent event = failed ? ServeEvent::kNotRead : ServeEvent::kRead;
  const ServeAction* action = FindServeAction(op->state, event);
  if (action == nullptr || op->request.generation != cell.head.generation) {
    return OutOfPlace(op->state, event, op->slot);
  }
  if (*action == ServeAction::kAccept) {
    ++counters_.pulled;
    Release(op);
    return absl::OkStatus();
  }
  can_pull_ = false;
  op->state = ServeState::kReady;
  AnswerSoon(op);
  return absl::OkStatus();
}

// ---- Taking ----

// The way of nearly all: the tensor is here.
bool ShmServeChannel::TakeHere(ShmServeOp* op, KnownKey* known) {
  if (!known->may_take) {
    known->may_take = known->for_consumer && source_->MayTake(known->key);
    if (!known->may_take) return false;
  }
  if (takes_.MustWait(known->key)) return false;
  if (!source_->TakeHere(op->request.step, &known->key, &place_, &taken_)) return false;
  op->request.key = known->key;
  op->taken.MoveFrom(&taken_);
  SetReady(op);
  AnswerSoon(op);
  return true;
}

void ShmServeChannel::OnTakeEnded(TakingOp* base, ServeTake* take) {
  ShmServeOp* op = static_cast<ShmServeOp*>(base);
  op->status = std::move(take->status);
  op->taken.MoveFrom(&take->taken);
  SetReady(op);
  // While the link ends it may meet what another request gave back, whose turn it was: the
  // consumer, who still reads, must not have it here.
  if (state_ == State::kOpen) AnswerSoon(op);
}

void ShmServeChannel::OnTakesIdle() {
  if (Drained() && options_.on_drained) options_.on_drained();
}

// Where its outcome is on its way, that is the answer.
void ShmServeChannel::Park(ShmServeOp* op, uint64_t ticket) {
  if (!takes_.Park(op, ticket, op->span.since_ns())) return;
  op->state = ServeState::kFree;
  parked_line_.emplace_back(op->slot, op->request.generation);
  hub_->poller()->FlushThisTurn(this);
}

absl::Status ShmServeChannel::OnPark(const shm_wire::RequestCell& cell) {
  if (cell.head.slot >= ops_.size()) return absl::DataLossError("park of a slot out of range");
  uint64_t ticket;
  memcpy(&ticket, cell.body, sizeof(ticket));
  ShmServeOp* op = &ops_[cell.head.slot];
  const bool waits = op->state == ServeState::kTaking &&
                     op->request.generation == cell.head.generation &&
                     link_version_ >= shm_wire::kLinkParks;
  if (waits) Park(op, ticket);
  return absl::OkStatus();
}

absl::Status ShmServeChannel::OnUnwanted(const shm_wire::RequestCell& cell) {
  uint64_t tickets[shm_wire::kRequestTickets];
  const auto count = ReadTickets(cell, tickets);
  if (count.ok()) counters_.cancelled += takes_.DropTickets(absl::MakeConstSpan(tickets, *count));
  return count.status();
}

void ShmServeChannel::SetReady(ShmServeOp* op) {
  op->state = ServeState::kReady;
  op->span.Enter(WaitsFor::kWireRoom, hub_->poller()->now_ns());
}

void ShmServeChannel::GiveUp(ShmServeOp* op) {
  if (op->state == ServeState::kTaking) {
    Release(op);
    return takes_.Drop(op);
  }
  const bool has_tensor = op->status.ok();
  const int64_t step = op->request.step;
  const TensorKey key = op->request.key;
  Taken taken = op->taken.ToGiveBack();
  Release(op);
  if (!has_tensor) return;
  ++counters_.given_back;
  source_->GiveBack(step, key, std::move(taken));
}

// The answer is in the ring. The tensor is kept until it cannot come back.
void ShmServeChannel::Sent(ShmServeOp* op) {
  op->state = ServeState::kSent;
  op->span.Enter(WaitsFor::kAcceptance, hub_->poller()->now_ns());
  sent_line_.push_back({op, op->request.generation, replies_.written()});
}

bool ShmServeChannel::ReleaseAccepted() {
  accepted_checked_ns_ = hub_->poller()->now_ns();
  const uint32_t accepted = given_->view().header->replies_accepted.load(std::memory_order_acquire);
  if (static_cast<int32_t>(replies_.written() - accepted) < 0) {
    End(absl::DataLossError("the consumer accepted what it was not sent"), Ending::kOnPurpose);
    return true;
  }
  // A refusal written before `accepted` may have come behind the last look at the ring.
  if (requests_.Ready()) return false;
  bool any = false;
  while (!sent_line_.empty()) {
    const SentCell& sent = sent_line_.front();
    const bool moved_on =
        sent.op->state != ServeState::kSent || sent.op->request.generation != sent.generation;
    if (!moved_on && static_cast<int32_t>(accepted - sent.cell) < 0) break;
    ShmServeOp* op = sent.op;
    sent_line_.pop_front();
    any = true;
    if (!moved_on) Release(op);
  }
  if (any) accepted_pause_ns_ = 0;
  return any;
}

void ShmServeChannel::TakeFormer(ShmServeOp* op, Former* former) {
  former->was = true;
  const bool was_sent = op->state == ServeState::kSent || op->state == ServeState::kPulled;
  former->code = was_sent || !op->status.ok() ? op->status.code() : absl::StatusCode::kCancelled;
  former->bytes = op->sent_bytes;
  former->tensor = std::move(op->taken.tensor);
  if (track_ != nullptr) {
    former->span = op->span;
    former->span.id = IdOf(*op);
    former->step = op->request.step;
    former->key = std::move(op->request.key);
  }
  Free(op);
}

void ShmServeChannel::EndTrace(const Former& former) {
  if (track_ == nullptr) return;
  options_.trace->End(former.span, track_, former.step, former.key, former.bytes, former.code,
                      hub_->poller()->now_ns());
}

// The slot is free; what it held is let go of.
void ShmServeChannel::Release(ShmServeOp* op) {
  Former former;  // Dropped last: the deleter of somebody's bytes may call us.
  TakeFormer(op, &former);
  EndTrace(former);
}

void ShmServeChannel::Free(ShmServeOp* op) {
  if (op->in_ready_line) {
    ready_line_.Remove(op);
    op->in_ready_line = false;
  }
  if (op->state == ServeState::kStaging) {
    stage_line_.Remove(op);
    staging_bytes_ -= op->stage->bytes();
  }
  op->state = ServeState::kFree;
  op->stage = StorageRef();
  op->position = 0;
  op->digest = 0;
  op->sent_bytes = 0;
  op->encoded.clear();
  op->status = absl::OkStatus();
  op->taken.device_context = nullptr;
}

// Takes first: what is given back must not be met by another of them.
void ShmServeChannel::GiveUpUnanswered() {
  for (ShmServeOp& op : ops_) {
    if (op.state == ServeState::kTaking) GiveUp(&op);
  }
  takes_.DropUnspoken();
  for (ShmServeOp& op : ops_) {
    const bool answered = op.state == ServeState::kSent || op.state == ServeState::kPulled;
    if (op.state != ServeState::kFree && !answered) GiveUp(&op);
  }
  gone_line_.clear();
  parked_line_.clear();
}

void ShmServeChannel::ReleaseAnswered() {
  for (ShmServeOp& op : ops_) {
    if (op.state != ServeState::kFree) Release(&op);
  }
  sent_line_.clear();
}

bool ShmServeChannel::AnyAnswered() const {
  return std::any_of(ops_.begin(), ops_.end(),
                     [](const ShmServeOp& op) { return op.state != ServeState::kFree; });
}

}  // namespace tryst
