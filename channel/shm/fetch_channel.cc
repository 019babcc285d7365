#include "channel/shm/fetch_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "rendezvous/derived_status.h"

// Operations: asking and ending. fetch_connection.cc has the connection, fetch_receive.cc
// what the producer answers.
namespace tryst {

using shm_wire::CellType;
using shm_wire::RequestCell;

// ---- Starting ----

ShmFetchOp* ShmFetchChannel::TakeOp() {
  if (free_.empty()) {
    ops_.emplace_back(this);
    free_.push_back(&ops_.back());
  }
  ShmFetchOp* op = free_.back();
  free_.pop_back();
  ++live_;
  op->state = ShmFetchState::kQueued;
  op->reported = op->delivered = op->taken_over = op->asked_before = op->may_stay = false;
  op->misanswered = 0;
  op->many = nullptr;
  ++counters_.fetches;
  return op;
}

void ShmFetchChannel::Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) {
  ShmFetchOp* op = TakeOp();
  op->step = step_id;
  op->key = key;
  op->args = args;
  op->done = std::move(done);
  Start(op);
}

bool ShmFetchChannel::FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const Args& args,
                                ManyDoneFn* done) {
  if (free_many_.empty()) {
    many_.emplace_back();
    free_many_.push_back(&many_.back());
  }
  ShmManyFetch* many = free_many_.back();
  free_many_.pop_back();
  many->args = args;
  many->done = std::move(*done);
  many->results.resize(keys.size());
  many->left = keys.size();
  if (keys.empty()) {
    undelivered_many_.push_back(many);
    poller()->FlushThisTurn(this);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    ShmFetchOp* op = TakeOp();
    op->step = step_id;
    op->key = keys[i];
    op->many = many;
    op->index = i;
    Start(op);
  }
  return true;
}

void ShmFetchChannel::Start(ShmFetchOp* op) {
  const Args& args = ArgsOf(*op);
  op->begun_ns = now_ns();
  op->span.Begin(state_ == State::kOpen ? WaitsFor::kSlot : WaitsFor::kConnection, op->begun_ns);
  op->plain = args.cancellation == nullptr && args.deadline.is_never();
  watch_.Watch();
  const bool here = !args.destination.valid() || args.destination.on_host();
  if (state_ == State::kOpen && op->plain && here && queued_.empty() && words_.empty() &&
      unwants_.empty() && Ask(op)) {
    return poller()->FlushThisTurn(this);
  }
  queued_.push_back(op);
  if (state_ == State::kClosed) return EndEarly(op, close_status_);
  if (op->key.text().size() > shm_wire::kMaxKeyBytes) {
    return EndEarly(op, absl::InvalidArgumentError("the key is too long to be sent"));
  }
  if (!here) {
    return EndEarly(op, absl::UnimplementedError(
                            "this channel does not write device memory: fetch into host memory"));
  }
  if (args.cancellation != nullptr) {
    op->cancel_token = args.cancellation->Register([op, poller = poller()] { op->Cancel(poller); });
    if (op->cancel_token == Cancellation::kNoToken) {
      return EndEarly(op, MarkDerived(absl::CancelledError("the fetch is cancelled")));
    }
  }
  if (!args.deadline.is_never()) poller()->SetTimer(op, args.deadline.at_ns());
  if (state_ == State::kOpen) return SendWaiting();
  WaitPatiently(op->begun_ns);
  if (state_ == State::kIdle) Connect();
}

std::vector<WaitingFetch> ShmFetchChannel::TakeWaiting() {
  std::vector<WaitingFetch> taken;
  while (!queued_.empty()) {
    ShmFetchOp* op = queued_.front();
    queued_.pop_front();
    if (op->cancel_token != Cancellation::kNoToken &&
        !ArgsOf(*op).cancellation->TryDeregister(op->cancel_token)) {
      // Cancelled this moment: it ends here.
      Report(op, MarkDerived(absl::CancelledError("the fetch is cancelled")), Tensor(), false,
             When::kAtEndOfTurn);
      LastWord(op);
      continue;
    }
    op->cancel_token = Cancellation::kNoToken;
    poller()->CancelTimer(op);
    WaitingFetch waiting;
    waiting.step = op->step;
    waiting.key = op->key;
    waiting.args = ArgsOf(*op);
    if (op->many == nullptr) {
      waiting.done = std::move(op->done);
    } else {
      // Its callback comes back to the batch.
      waiting.args.executor = nullptr;
      waiting.done = [this, many = op->many, index = op->index](absl::Status status, const Args&,
                                                                const Args&, Tensor tensor,
                                                                bool is_dead) {
        Received received;
        received.status = std::move(status);
        received.tensor = std::move(tensor);
        received.is_dead = is_dead;
        poller()->PostFn([this, many, index, received = std::move(received)]() mutable {
          many->results[index] = std::move(received);
          if (--many->left > 0) return;
          undelivered_many_.push_back(many);
          poller()->FlushThisTurn(this);
        });
      };
    }
    op->args = Args();
    op->done = nullptr;
    op->reported = op->delivered = op->taken_over = true;
    LastWord(op);
    taken.push_back(std::move(waiting));
  }
  return taken;
}

// ---- Asking ----

// Who takes a view instead is sent one.
uint8_t ShmFetchChannel::DestinationFlag(const ShmFetchOp& op) {
  const bool fills = op.many == nullptr && op.args.destination.valid() && !op.args.by_reference;
  return fills ? shm_wire::kHasDestination : 0;
}

uint16_t ShmFetchChannel::GiveSlot(ShmFetchOp* op) {
  op->slot = free_slots_.back();
  free_slots_.pop_back();
  op->has_slot = true;
  slots_[op->slot] = op;
  return op->slot;
}

bool ShmFetchChannel::Ask(ShmFetchOp* op) {
  // With the key, if it has to be told. Room first: a number that goes to another key means the
  // same to both sides from the next cell on.
  if (free_slots_.size() <= reserved_slots_ || !requests_.HasRoom(KeyCells(op->key) + 1)) {
    return false;
  }
  if (op->key.text().size() > shm_wire::kMaxKeyBytes) return false;
  const uint32_t id = Intern(op->key);
  if (keys_[id].link != epoch_) TellKey(id);
  GiveSlot(op);
  RequestCell* cell = reinterpret_cast<RequestCell*>(requests_.cell());
  cell->head.type = CellType::kRequest;
  cell->head.flags = DestinationFlag(*op);
  cell->head.slot = op->slot;
  cell->head.generation = generations_[op->slot];
  cell->head.number = id;
  memcpy(cell->body, &op->step, sizeof(op->step));
  op->key_id = id;
  op->order = keys_[id].newest = ++order_;
  requests_.Publish();
  op->state = ShmFetchState::kAsked;
  op->span.id = TraceId(link_number_, uint64_t{op->slot} << 32 | generations_[op->slot], op->step);
  op->span.Enter(WaitsFor::kPeerSend, now_ns());
  return true;
}

// The number that the producer knows `key` by, or is to be told.
uint32_t ShmFetchChannel::Intern(const TensorKey& key) {
  const uint32_t noted = key.note();
  if (noted < keys_.size() && keys_[noted].key.SharesTextWith(key)) return noted;
  auto found = key_ids_.find(key);
  if (found != key_ids_.end()) {
    key.set_note(found->second);
    // The key as its owner has it now, who may ask with it again.
    keys_[found->second].key = key;
    return found->second;
  }
  keys_lap_bytes_ += key.text().size();
  if (keys_lap_bytes_ > shm_wire::kKeysLapBytes || next_key_id_ == shm_wire::kMaxKeys) {
    next_key_id_ = 0;
    keys_lap_bytes_ = key.text().size();
  }
  const uint32_t id = next_key_id_++;
  if (id < keys_.size()) {
    key_ids_.erase(keys_[id].key);  // The oldest gives way.
    keys_[id] = KeyEntry{key, 0};
  } else {
    keys_.push_back(KeyEntry{key, 0});
  }
  key_ids_[key] = id;
  key.set_note(id);
  return id;
}

uint32_t ShmFetchChannel::KeyCells(const TensorKey& key) {
  constexpr size_t kRoom = sizeof(RequestCell::body);
  return static_cast<uint32_t>((key.text().size() + kRoom - 1) / kRoom);
}

// REQUIRES: there is room for its cells.
void ShmFetchChannel::TellKey(uint32_t id) {
  const absl::string_view text = keys_[id].key.text();
  constexpr size_t kRoom = sizeof(RequestCell::body);
  const size_t cells = KeyCells(keys_[id].key);
  for (size_t i = 0; i < cells; ++i) {
    RequestCell* cell = reinterpret_cast<RequestCell*>(requests_.cell());
    cell->head.type = i == 0 ? CellType::kKey : CellType::kMore;
    cell->head.flags = 0;
    cell->head.slot = static_cast<uint16_t>(text.size());
    cell->head.generation = 0;
    cell->head.number = id;
    memcpy(cell->body, text.data() + i * kRoom, std::min(kRoom, text.size() - i * kRoom));
    requests_.Publish();
  }
  keys_[id].link = epoch_;
}

bool ShmFetchChannel::Say(const Word& word) {
  if (!requests_.HasRoom(1)) return false;
  RequestCell* cell = reinterpret_cast<RequestCell*>(requests_.cell());
  cell->head.type = word.type;
  cell->head.flags = word.flags;
  cell->head.slot = word.slot;
  cell->head.generation = word.generation;
  cell->head.number = 0;
  requests_.Publish();
  return true;
}

void ShmFetchChannel::SaySoon(ShmFetchOp* op, CellType type, uint8_t flags) {
  words_.push_back({type, flags, op->slot, generations_[op->slot]});
  SendWaiting();
}

void ShmFetchChannel::SendWaiting() {
  if (state_ != State::kOpen) return;
  poller()->FlushThisTurn(this);
  // Words first: a slot is asked on again only behind what was said about it.
  for (; !words_.empty(); words_.pop_front()) {
    if (!Say(words_.front())) return;
  }
  if (!unwants_.empty() && !SayUnwants()) return;
  for (; !here_.empty(); here_.pop_front()) {
    if (!Claim(here_.front())) break;
  }
  for (; !queued_.empty(); queued_.pop_front()) {
    if (!Ask(queued_.front())) return WantWaiting();
  }
}

// ---- Ending ----

// The producer's last word on the slot has come.
void ShmFetchChannel::Complete(ShmFetchOp* op, absl::Status status, Tensor tensor, bool is_dead) {
  if (!status.ok()) NoteRefused(op);
  // The slot first: the callback may fetch again.
  LastWord(op);
  Report(op, std::move(status), std::move(tensor), is_dead, When::kNow);
}

// It was answered, and nobody can have it here: the producer gets it back.
void ShmFetchChannel::Refuse(ShmFetchOp* op, absl::Status status) {
  SaySoon(op, CellType::kRefused, 0);
  Complete(op, std::move(status), Tensor(), false);
}

// Once a later fetch of its key was asked for, which may have got what was sent after its own
// tensor, that one cannot go back without changing the order: as in a rendezvous, who has met its
// tensor before it is cancelled receives it.
bool ShmFetchChannel::MustStay(const ShmFetchOp& op) const {
  if (!op.may_stay || op.reported || link_version_ < shm_wire::kLinkKeepsTurns) return false;
  return WasPassed(op);
}

// Whether a later fetch of its key was asked for; or its key's number has gone to another key.
bool ShmFetchChannel::WasPassed(const ShmFetchOp& op) const {
  const KeyEntry& entry = keys_[op.key_id];
  return entry.newest != op.order || !(entry.key == op.key);
}

// It has said CANCEL and is answered: whether it takes that.
bool ShmFetchChannel::Stays(ShmFetchOp* op) {
  if (!MustStay(*op)) return false;
  poller()->CancelTimer(op);
  op->state = ShmFetchState::kAsked;
  op->may_stay = false;
  op->end_status = absl::OkStatus();
  op->span.Enter(WaitsFor::kPeerSend, now_ns());
  return true;
}

// It has said CANCEL, was answered, and does not stay. Before version 3 the CANCEL takes it back.
void ShmFetchChannel::TurnDown(ShmFetchOp* op) {
  op->into = Tensor();
  if (link_version_ >= shm_wire::kLinkKeepsTurns) return Refuse(op, op->end_status);
  Complete(op, op->end_status, Tensor(), false);
}

void ShmFetchChannel::EndEarly(ShmFetchOp* op, const absl::Status& why) {
  switch (op->state) {
    case ShmFetchState::kFree:
    case ShmFetchState::kEnding:
    case ShmFetchState::kLeaving:
      return;
    case ShmFetchState::kQueued:
      queued_.Remove(op);
      break;
    case ShmFetchState::kHere:
      if (MustStay(*op)) return;
      here_.Remove(op);
      [[fallthrough]];
    case ShmFetchState::kWanted:
      op->state = ShmFetchState::kLeaving;
      op->end_status = why;
      op->span.Enter(WaitsFor::kLastWord, now_ns());
      ++counters_.cancels_sent;
      UnwantSoon(op, !op->may_stay);
      poller()->SetTimer(op, now_ns() + options_.leave_ms * 1'000'000);
      return;
    case ShmFetchState::kCopying:
      if (MustStay(*op)) return;
      copies_.Remove(op);
      SaySoon(op, CellType::kRefused, 0);
      NoteRefused(op);
      break;
    case ShmFetchState::kAsked:
      op->state = ShmFetchState::kLeaving;
      op->end_status = why;
      op->span.Enter(WaitsFor::kLastWord, now_ns());
      ++counters_.cancels_sent;
      SaySoon(op, CellType::kCancel, 0);
      poller()->SetTimer(op, now_ns() + options_.leave_ms * 1'000'000);
      return;
  }
  op->from = Tensor();
  op->into = Tensor();
  LastWord(op);
  Report(op, why, Tensor(), false, When::kAtEndOfTurn);
}

void ShmFetchChannel::Report(ShmFetchOp* op, absl::Status status, Tensor tensor, bool is_dead,
                             When when) {
  if (op->reported) return;
  op->reported = true;
  const bool alone = op->many == nullptr && op->args.executor == nullptr;
  if (alone && op->plain && when == When::kNow && undelivered_.empty() && !op->is_set()) {
    return DeliverHere(op, std::move(status), std::move(tensor), is_dead);
  }
  ++(status.ok() ? counters_.ended_ok : counters_.ended_failed);
  op->traced_code = status.code();
  op->traced_bytes = tensor.valid() ? tensor.bytes() : 0;
  op->span.Enter(WaitsFor::kExecutor, now_ns());
  if (!op->plain) {
    poller()->CancelTimer(op);
    if (op->cancel_token != Cancellation::kNoToken) {
      // A callback that is running has only a task to post: waiting for it is brief.
      ArgsOf(*op).cancellation->Deregister(op->cancel_token);
      op->cancel_token = Cancellation::kNoToken;
    }
  } else if (op->is_set()) {
    poller()->CancelTimer(op);  // It was leaving.
  }
  if (op->many != nullptr) {
    ShmManyFetch* many = op->many;
    Received& received = many->results[op->index];
    received.status = std::move(status);
    received.tensor = std::move(tensor);
    received.is_dead = is_dead;
    op->delivered = true;
    FreeIfDone(op);
    if (--many->left > 0) return;
    if (when == When::kNow && TryDeliverMany(many)) return;
    undelivered_many_.push_back(many);
    return poller()->FlushThisTurn(this);
  }
  op->result_status = std::move(status);
  op->result = std::move(tensor);
  op->result_is_dead = is_dead;
  if (when == When::kNow && undelivered_.empty() && TryDeliver(op)) return;
  // Never inside Fetch(), nor while a list is walked through.
  undelivered_.push_back(op);
  poller()->FlushThisTurn(this);
}

// The way of nearly all: nothing to undo, the callback in place.
void ShmFetchChannel::DeliverHere(ShmFetchOp* op, absl::Status status, Tensor tensor,
                                  bool is_dead) {
  ++(status.ok() ? counters_.ended_ok : counters_.ended_failed);
  if (track_ != nullptr) {
    op->traced_code = status.code();
    op->traced_bytes = tensor.valid() ? tensor.bytes() : 0;
    op->span.Enter(WaitsFor::kExecutor, now_ns());
  }
  DoneFn done = std::move(op->done);
  std::move(done)(std::move(status), no_args_, op->args, std::move(tensor), is_dead);
  op->DropArgs();
  OnOpDelivered(op);
}

bool ShmFetchChannel::TryDeliver(ShmFetchOp* op) {
  Executor* executor = op->args.executor;
  if (executor == nullptr) {
    op->Deliver();
    OnOpDelivered(op);
    return true;
  }
  Executor::Work work([op, poller = poller()] { op->DeliverFrom(poller); });
  return executor->TryRun(&work);
}

bool ShmFetchChannel::TryDeliverMany(ShmManyFetch* many) {
  const auto deliver = [this, many] {
    absl::Status first;
    for (const Received& received : many->results) {
      if (first.ok() && !received.status.ok()) first = received.status;
    }
    ManyDoneFn done = std::move(many->done);
    many->done = nullptr;
    std::move(done)(std::move(first), absl::MakeSpan(many->results));
    for (Received& received : many->results) {
      received.tensor = Tensor();
      received.status = absl::OkStatus();
    }
    many->args = Args();
    if (poller()->OnThread()) {
      free_many_.push_back(many);
    } else {
      poller()->PostFn([this, many] { free_many_.push_back(many); });
    }
  };
  Executor* executor = many->args.executor;
  if (executor == nullptr) {
    deliver();
    return true;
  }
  Executor::Work work(deliver);
  return executor->TryRun(&work);
}

// At the end of a turn: delivers what waits for it, and wakes a producer that sleeps.
void ShmFetchChannel::Flush() {
  for (size_t count = undelivered_.size(); count > 0; --count) {
    ShmFetchOp* op = undelivered_.front();
    undelivered_.pop_front();
    if (TryDeliver(op)) continue;
    undelivered_.push_back(op);  // Again in the next turn.
    poller()->FlushThisTurn(this);
  }
  for (size_t count = undelivered_many_.size(); count > 0; --count) {
    ShmManyFetch* many = undelivered_many_.front();
    undelivered_many_.pop_front();
    if (TryDeliverMany(many)) continue;
    undelivered_many_.push_back(many);
    poller()->FlushThisTurn(this);
  }
  if (state_ != State::kOpen) return;
  TellAccepted();
  std::atomic<uint32_t>& asleep = held_->view().header->producer_asleep;
  // Pairs with its SetAsleep(): both change the flag, and of two changes the later sees
  // what came before the earlier one. Either it sees our cell or we see its flag.
  if (asleep.fetch_add(0, std::memory_order_acq_rel) == shm_wire::kAwake) return;
  if (asleep.exchange(shm_wire::kAwake) != shm_wire::kAwake) socket_->Send(shm_wire::Packet());
}

// Up to which cell nothing can be refused any more. Behind the refusals themselves.
void ShmFetchChannel::TellAccepted() {
  if (!words_.empty()) return;
  const uint32_t accepted = copies_.empty() ? replies_.taken() : copies_.front()->cell;
  if (accepted == accepted_told_) return;
  accepted_told_ = accepted;
  held_->view().header->replies_accepted.store(accepted, std::memory_order_release);
}

void ShmFetchChannel::FallAsleep() {
  const bool waits = !words_.empty() || !queued_.empty() || !unwants_.empty() || !here_.empty();
  held_->view().header->consumer_asleep.exchange(
      waits ? shm_wire::kForRoomToo : shm_wire::kForMessages, std::memory_order_acq_rel);
}

bool ShmFetchChannel::WakeUp() {
  const bool woken = held_->view().header->consumer_asleep.exchange(
                         shm_wire::kAwake, std::memory_order_acq_rel) == shm_wire::kAwake;
  if (woken) HearPacket();
  return woken;
}

void ShmFetchChannel::OnOpDelivered(ShmFetchOp* op) {
  op->delivered = true;
  FreeIfDone(op);
}

// For Settle(): the producer is not to take the end of this generation for an acceptance.
void ShmFetchChannel::NoteRefused(const ShmFetchOp* op) {
  if (op->has_slot) refused_[op->slot] = generations_[op->slot] + 1;
}

void ShmFetchChannel::LastWord(ShmFetchOp* op) {
  op->state = ShmFetchState::kEnding;
  if (op->has_slot) {
    op->has_slot = false;
    slots_[op->slot] = nullptr;
    ++generations_[op->slot];
    free_slots_.push_back(op->slot);
    freed_ns_ = now_ns();
  }
  if (op->serial != 0) wants_.erase(std::exchange(op->serial, 0));
  FreeIfDone(op);
}

void ShmFetchChannel::FreeIfDone(ShmFetchOp* op) {
  if (op->state != ShmFetchState::kEnding || !op->delivered || op->cancel_posted.load()) return;
  op->state = ShmFetchState::kFree;
  // A fetch that another channel has taken over goes on there.
  if (track_ != nullptr && !op->taken_over) {
    options_.trace->End(op->span, track_, op->step, op->key, op->traced_bytes, op->traced_code,
                        now_ns());
  }
  free_.push_back(op);
  --live_;
}

void ShmFetchChannel::OnOpCancelled(ShmFetchOp* op) {
  if (op->state == ShmFetchState::kEnding) return FreeIfDone(op);
  if (op->state != ShmFetchState::kLeaving) op->may_stay = true;
  EndEarly(op, MarkDerived(absl::CancelledError("the fetch is cancelled")));
  FreeIfDone(op);
}

void ShmFetchChannel::OnOpTimer(ShmFetchOp* op) {
  if (op->state == ShmFetchState::kLeaving) {
    // The producer is slow to answer. Its slot stays with it; the caller need not.
    return Report(op, op->end_status, Tensor(), false, When::kAtEndOfTurn);
  }
  op->may_stay = true;
  EndEarly(op,
           absl::DeadlineExceededError(absl::StrCat(
               "not received in time: ", ShmFetchStateName(op->state), " of ", options_.peer,
               connect_status_.ok() ? "" : absl::StrCat(" (", connect_status_.message(), ")"))));
}

void ShmFetchChannel::AbortStep(int64_t step_id, const absl::Status& why) {
  for (ShmFetchOp& op : ops_) {
    if (op.step != step_id) continue;
    op.may_stay = false;
    EndEarly(&op, MarkDerived(why));
  }
}

}  // namespace tryst
