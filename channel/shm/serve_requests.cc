#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/shm/serve_channel.h"

// What the consumer of a ShmServeChannel says, the takes that it asks for, and what becomes of a
// tensor when its answer was accepted or refused.
namespace tryst {

using shm_wire::CellType;

absl::Status ShmServeChannel::ForAnother(const TensorKey& key) const {
  return absl::PermissionDeniedError(
      absl::StrCat("the tensor is for ", key.dst().worker, ", not for ", consumer_));
}

// ---- What the consumer says ----

absl::Status ShmServeChannel::OnCell(const shm_wire::RequestCell& cell) {
  if (key_bytes_ != 0) {
    if (cell.head.type != CellType::kMore) return absl::DataLossError("a key that breaks off");
    return OnKeyText(cell.body, sizeof(cell.body));
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
    case CellType::kWant:
      return OnWant(cell);
    case CellType::kUnwant:
      return OnUnwant(cell);
    case CellType::kClaim:
      return OnClaim(cell);
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
  // A consumer uses a slot again after the last word on it, not before.
  if (op->state != ShmServeState::kFree && op->state != ShmServeState::kSent) {
    return absl::DataLossError(
        absl::StrCat("request on slot ", op->slot, ", which ", ShmServeStateName(op->state)));
  }
  // That the slot is used again says that its former tensor was accepted. It is let go of,
  // and written down, behind the answer.
  if (op->state == ShmServeState::kSent) TakeFormer(op, former);
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
  op->key_id = cell.head.number;
  op->order = known.newest = ++order_;
  op->span.Begin(WaitsFor::kLocalSend, hub_->poller()->now_ns());
  if (!TakeHere(op, &known)) {
    op->request.key = known.key;
    op->state = ShmServeState::kTaking;
    if (known.for_consumer) {
      JoinLine(&op->waiter, op->request.step, op->request.key);
    } else {
      OnMet(&op->waiter, ForAnother(op->request.key), nullptr);
    }
  }
  if (former.was) EndTrace(former);
  return absl::OkStatus();
}

absl::Status ShmServeChannel::OnCancel(const shm_wire::RequestCell& cell) {
  if (cell.head.slot >= ops_.size()) return absl::DataLossError("cancel of a slot out of range");
  ShmServeOp* op = &ops_[cell.head.slot];
  ++counters_.cancelled;
  // A failure that is on its way is the last word.
  if (op->state == ShmServeState::kFree || op->request.generation != cell.head.generation) {
    return absl::OkStatus();
  }
  const bool answered = op->state == ShmServeState::kSent || op->state == ShmServeState::kPulled;
  if (link_version_ >= shm_wire::kLinkKeepsTurns) {
    // So is the answer, on its way or to come: the consumer takes it or refuses it. What this one
    // has met cannot go back once a later request may have been given what was sent after it.
    if (answered || (op->state != ShmServeState::kTaking &&
                     !IsNewest(op->key_id, op->order, op->request.key))) {
      return absl::OkStatus();
    }
  }
  // An answer that it crosses is the last word, too; before version 3 nobody takes it there.
  // Given back first, so that the next request finds it.
  GiveUp(op);
  if (!answered && state_ == State::kOpen && !SendGone(cell.head.slot, cell.head.generation)) {
    // An honest consumer waits for this word before it uses the slot again.
    if (gone_line_.size() >= 2 * ops_.size()) {
      return absl::DataLossError("more cancels than slots, and no answer is read");
    }
    gone_line_.emplace_back(cell.head.slot, cell.head.generation);
  }
  return absl::OkStatus();
}

absl::Status ShmServeChannel::OnRefused(const shm_wire::RequestCell& cell) {
  if (cell.head.slot >= ops_.size()) return absl::DataLossError("a slot out of range was refused");
  ShmServeOp* op = &ops_[cell.head.slot];
  const bool answered = op->state == ShmServeState::kSent || op->state == ShmServeState::kPulled;
  if (!answered || op->request.generation != cell.head.generation) {
    return absl::DataLossError("the consumer refuses what it was not sent");
  }
  GiveUp(op);
  return absl::OkStatus();
}

absl::Status ShmServeChannel::OnPulled(const shm_wire::RequestCell& cell) {
  if (cell.head.slot >= ops_.size()) return absl::DataLossError("a slot out of range was read");
  ShmServeOp* op = &ops_[cell.head.slot];
  if (op->state != ShmServeState::kPulled || op->request.generation != cell.head.generation) {
    return absl::DataLossError("the consumer has read what it was not offered");
  }
  if ((cell.head.flags & shm_wire::kPullFailed) == 0) {
    ++counters_.pulled;
    Release(op);
    return absl::OkStatus();
  }
  can_pull_ = false;
  op->state = ShmServeState::kReady;
  AnswerSoon(op);
  return absl::OkStatus();
}

// ---- Taking ----

// The way of nearly all: the tensor is here. Not past those who wait for the key: what they have
// met may be on its way.
bool ShmServeChannel::TakeHere(ShmServeOp* op, KnownKey* known) {
  if (!known->may_take) {
    known->may_take = known->for_consumer && source_->MayTake(known->key);
    if (!known->may_take) return false;
  }
  if (!lines_.empty() && lines_.contains({known->key, op->request.step})) return false;
  if (!source_->TakeHere(op->request.step, &known->key, &place_, &taken_)) return false;
  op->request.key = known->key;
  op->taken.MoveFrom(&taken_);
  SetReady(op);
  AnswerSoon(op);
  return true;
}

void ShmServeChannel::JoinLine(ShmWaiter* waiter, int64_t step, const TensorKey& key) {
  ShmKeyLine* line = LineOf(step, key);
  waiter->line = line;
  line->waiting.push_back(waiter);
  StartTake(line);
}

void ShmServeChannel::LeaveLine(ShmWaiter* waiter) {
  ShmKeyLine* line = std::exchange(waiter->line, nullptr);
  line->waiting.Remove(waiter);
  SettleLine(line);
}

ShmKeyLine* ShmServeChannel::LineOf(int64_t step, const TensorKey& key) {
  const auto [at, is_new] = lines_.try_emplace({key, step}, nullptr);
  if (!is_new) return at->second;
  if (free_lines_.empty()) {
    all_lines_.emplace_back();
    free_lines_.push_back(&all_lines_.back());
  }
  ShmKeyLine* line = at->second = free_lines_.back();
  free_lines_.pop_back();
  line->key = key;
  line->step = step;
  return line;
}

void ShmServeChannel::StartTake(ShmKeyLine* line) {
  if (free_takes_.empty()) {
    takes_.emplace_back(static_cast<ShmServeTakeOwner*>(this), hub_->poller());
    free_takes_.push_back(&takes_.back());
  }
  ShmServeTake* take = free_takes_.back();
  free_takes_.pop_back();
  take->line = line;
  take->dropped = take->over = false;
  line->takes.push_back(take);
  ++line->live;
  take->in_call = true;
  source_->Take(
      line->step, line->key, 0, take->args,
      [take](absl::Status status, const Args& send_args, const Args&, Tensor tensor, bool is_dead) {
        take->End(std::move(status), send_args, std::move(tensor), is_dead);
      });
  EndCall(take);
}

void ShmServeChannel::DropNewestTake(ShmKeyLine* line) {
  ShmServeTake* take = line->takes.back();
  while (take->dropped) take = take->prev;
  take->dropped = true;
  --line->live;
  if (take->over || take->ended.load(std::memory_order_acquire)) return;
  take->in_call = true;
  take->cancellation->StartCancel();
  EndCall(take);
}

// Whether the take has ended in the call, on this thread, or soon does on another.
void ShmServeChannel::EndCall(ShmServeTake* take) {
  take->in_call = false;
  if (take->ended_here) OnTaken(take);
}

void ShmServeChannel::OnTaken(ShmServeTake* take) {
  ShmKeyLine* line = take->line;
  take->over = true;
  take->ended.store(false, std::memory_order_relaxed);
  take->ended_here = false;
  if (!take->status.ok()) FailTake(take);
  SettleLine(line);
}

// The others of the line go on: one fails as well as the other.
void ShmServeChannel::FailTake(ShmServeTake* take) {
  ShmKeyLine* line = take->line;
  const bool is_first = line->takes.front() == take;
  line->takes.Remove(take);
  absl::Status status = std::move(take->status);
  const bool dropped = take->dropped;
  FreeTake(take);
  if (dropped) return;
  --line->live;
  ShmWaiter* waiter = is_first ? line->waiting.front() : line->waiting.back();
  if (waiter == nullptr) return;
  line->waiting.Remove(waiter);
  waiter->line = nullptr;
  const bool settling = std::exchange(line->settling, true);  // It must outlive the call.
  OnMet(waiter, std::move(status), nullptr);
  line->settling = settling;
}

// Hands out what the takes have brought, drops those that nobody waits for, and the line with the
// last of them. What is given back may be met by a take in that very call.
void ShmServeChannel::SettleLine(ShmKeyLine* line) {
  if (line->settling) return;
  line->settling = true;
  for (;;) {
    ShmServeTake* take = line->takes.front();
    if (take != nullptr && take->over) {
      line->takes.Remove(take);
      if (!take->dropped) --line->live;
      ShmTaken taken = std::move(take->taken);
      FreeTake(take);
      if (ShmWaiter* waiter = line->waiting.front()) {
        line->waiting.Remove(waiter);
        waiter->line = nullptr;
        OnMet(waiter, absl::OkStatus(), &taken);
      } else {
        ++counters_.given_back;
        source_->GiveBack(line->step, line->key, taken.ToGiveBack());
      }
    } else if (line->live > line->waiting.size()) {
      DropNewestTake(line);
    } else {
      break;
    }
  }
  line->settling = false;
  if (!line->takes.empty()) return;
  lines_.erase({line->key, line->step});
  free_lines_.push_back(line);
  if (Drained() && options_.on_drained) options_.on_drained();
}

void ShmServeChannel::FreeTake(ShmServeTake* take) {
  take->line = nullptr;
  take->taken = ShmTaken();
  if (take->cancellation->cancelled()) take->Renew();
  free_takes_.push_back(take);
}

void ShmServeChannel::OnMet(ShmWaiter* waiter, absl::Status status, ShmTaken* taken) {
  if (waiter->want != nullptr) return OnWantMet(waiter->want, std::move(status), taken);
  ShmServeOp* op = waiter->op;
  op->status = std::move(status);
  if (taken != nullptr) op->taken = std::move(*taken);
  SetReady(op);
  // While the link ends it may meet what another request gave back, whose turn it was: the
  // consumer, who still reads, must not have it here.
  if (state_ == State::kOpen) AnswerSoon(op);
}

void ShmServeChannel::SetReady(ShmServeOp* op) {
  op->state = ShmServeState::kReady;
  op->span.Enter(WaitsFor::kWireRoom, hub_->poller()->now_ns());
}

bool ShmServeChannel::IsNewest(uint32_t key_id, uint64_t order, const TensorKey& key) const {
  return keys_[key_id].newest == order && keys_[key_id].key == key;
}

void ShmServeChannel::GiveUp(ShmServeOp* op) {
  if (op->state == ShmServeState::kTaking) {
    Release(op);
    return LeaveLine(&op->waiter);
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
  op->state = ShmServeState::kSent;
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
        sent.op->state != ShmServeState::kSent || sent.op->request.generation != sent.generation;
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
  const bool was_sent = op->state == ShmServeState::kSent || op->state == ShmServeState::kPulled;
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
  if (op->state == ShmServeState::kStaging) {
    stage_line_.Remove(op);
    staging_bytes_ -= op->stage->bytes();
  }
  op->state = ShmServeState::kFree;
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
    if (op.state == ShmServeState::kTaking) GiveUp(&op);
  }
  GiveUpWants();
  for (ShmServeOp& op : ops_) {
    const bool answered = op.state == ShmServeState::kSent || op.state == ShmServeState::kPulled;
    if (op.state != ShmServeState::kFree && !answered) GiveUp(&op);
  }
  gone_line_.clear();
}

void ShmServeChannel::ReleaseAnswered() {
  for (ShmServeOp& op : ops_) {
    if (op.state != ShmServeState::kFree) Release(&op);
  }
  sent_line_.clear();
}

bool ShmServeChannel::AnyAnswered() const {
  return std::any_of(ops_.begin(), ops_.end(),
                     [](const ShmServeOp& op) { return op.state != ShmServeState::kFree; });
}

}  // namespace tryst
