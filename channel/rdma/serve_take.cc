#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/rdma/serve_channel.h"
#include "channel/string_codec.h"

// The tensors of a ServeChannel: taken from the local rendezvous, kept, released.
namespace tryst {

void ServeChannel::StartTake(ServeOp* op, ServeRequest request) {
  ++counters_.requests;
  op->request = std::move(request);
  counters_.standing += (op->request.flags & wire::kStanding) != 0;
  op->state = ServeState::kTaking;
  op->span.Begin(WaitsFor::kLocalSend, hub_->poller()->now_ns());
  op->span.id = TraceId(session_, uint64_t{op->slot} << 16 | uint64_t{op->request.generation},
                        op->request.body.step);
  op->has_digest = false;
  if (TakesParked(op)) return;
  op->take = NewTake(op->request.body.step, op->request.key);
  op->take->op = op;
  StartTake(op->take);
  ParkIfWaiting(op);
}

ServeTake* ServeChannel::NewTake(int64_t step, const TensorKey& key) {
  if (free_takes_.empty()) {
    takes_.emplace_back(static_cast<ServeTakeOwner*>(this), hub_->poller());
    free_takes_.push_back(&takes_.back());
  }
  ServeTake* take = free_takes_.back();
  free_takes_.pop_back();
  take->step = step;
  take->key = key;
  return take;
}

void ServeChannel::StartTake(ServeTake* take) {
  if (take->key.dst().worker != consumer_) {
    // The hello has authenticated the consumer: it gets what is meant for it.
    return take->End(absl::PermissionDeniedError(absl::StrCat(
                         "the tensor is for ", take->key.dst().worker, ", not for ", consumer_)),
                     Args(), Tensor(), false);
  }
  if (!dropping_.empty() && dropping_.contains(take->key)) return deferred_.push_back(take);
  // A cancellation that has not been used serves again: what it has allocated stays.
  if (!take->cancellation || take->cancellation->cancelled()) take->cancellation.emplace();
  Args args;
  args.cancellation = &*take->cancellation;
  args.turn = &take->taken.turn;
  source_->Take(
      take->step, take->key, 0, args,
      [take](absl::Status status, const Args& send_args, const Args&, Tensor tensor, bool is_dead) {
        take->End(std::move(status), send_args, std::move(tensor), is_dead);
      });
}

// Gives the slot free at once: a request behind it has its turn now, not when the poller
// hears of the end.
void ServeChannel::DropTake(ServeOp* op) {
  ServeTake* take = std::exchange(op->take, nullptr);
  take->op = nullptr;
  op->state = ServeState::kFree;
  LetGo(take);
}

// What the take has met already goes back now, so that the take behind it finds it. What it meets
// this moment goes back when the poller hears of it; until then no other take of the key starts,
// which could meet what was sent later.
void ServeChannel::LetGo(ServeTake* take) {
  auto waits = std::find(deferred_.begin(), deferred_.end(), take);
  if (waits != deferred_.end()) {
    deferred_.erase(waits);
    return FreeTake(take);
  }
  if (take->ended.load(std::memory_order_acquire)) return GiveBack(take);
  if (take->cancellation) take->cancellation->StartCancel();
  if (take->ended.load(std::memory_order_acquire)) return GiveBack(take);
  take->dropped = true;
  ++dropping_[take->key];
}

void ServeChannel::GiveBack(ServeTake* take) {
  if (!take->status.ok()) return;
  take->status = absl::CancelledError("given back");
  ++counters_.given_back;
  source_->GiveBack(take->step, take->key, std::exchange(take->taken, Taken()));
}

void ServeChannel::OnTaken(ServeTake* take) {
  take->ended.store(false, std::memory_order_relaxed);
  if (take->ticket != 0) return OnParkedTaken(take);
  if (take->op != nullptr) return TakeOver(take->op, take);
  GiveBack(take);
  if (std::exchange(take->dropped, false)) {
    auto dropping = dropping_.find(take->key);
    if (--dropping->second == 0) dropping_.erase(dropping);
    std::vector<ServeTake*> deferred;
    deferred.swap(deferred_);
    for (ServeTake* waiting : deferred) StartTake(waiting);
  }
  FreeTake(take);
  FinishFarewell();
}

void ServeChannel::FreeTake(ServeTake* take) {
  take->op = nullptr;
  take->ticket = 0;
  take->here = false;
  take->taken = Taken();
  free_takes_.push_back(take);
}

// The take has ended: its outcome is the op's.
void ServeChannel::TakeOver(ServeOp* op, ServeTake* take) {
  op->take = nullptr;
  op->status = std::move(take->status);
  op->source.tensor = std::move(take->taken.tensor);
  op->is_dead = take->taken.is_dead;
  op->send_args = std::move(take->taken.send_args);
  op->turn = take->taken.turn;
  FreeTake(take);
  if (op->source.tensor.dtype() == DType::kPacked && !takes_packed_) {
    op->status = absl::InvalidArgumentError(
        "the tensor has more than 8 dimensions, and the consumer's release takes no more");
  }
  if (op->status.ok() && !op->is_dead && op->source.tensor.dtype() == DType::kString) {
    op->source.encoded = EncodeStrings(op->source.tensor);
  }
  MakeReady(op);
}

void ServeChannel::MakeReady(ServeOp* op) {
  op->state = ServeState::kReady;
  op->span.Enter(WaitsFor::kWireRoom, hub_->poller()->now_ns());
  op->source.written.fill(0);
  // Not before the consumer has asked for it in this epoch: until then it may have given it
  // up, and an answer that crosses its replay would be asked for, and sent, twice.
  if (link_ == nullptr || link_->broken() || op->replayed_epoch != static_cast<uint32_t>(epoch_)) {
    return;
  }
  if (!op->in_ready_line) {
    op->in_ready_line = true;
    ready_line_.push_back(op);
  }
  link_->FlushSoon();
}

// Nobody gets it here: the next request of its key does. Before GONE, so that the consumer's
// next request finds it.
void ServeChannel::GiveBack(ServeOp* op) {
  if (op->state == ServeState::kTaking || !op->status.ok()) return;
  ++counters_.given_back;
  source_->GiveBack(op->request.body.step, op->request.key,
                    {op->source.tensor, op->is_dead, op->send_args, op->turn});
}

// The consumer does not want it, without a word of its own on it. What was never sent as
// a whole it cannot have accepted; the rest it may have.
void ServeChannel::GiveUp(ServeOp* op) {
  if (op->state != ServeState::kSent) GiveBack(op);
  Release(op);
}

// The consumer needs it no more. The NIC may: a write is acknowledged to the consumer's
// thread before it is to us.
void ServeChannel::Release(ServeOp* op) {
  if (track_ != nullptr) {
    const bool was_sent = op->state == ServeState::kSent;
    options_.trace->End(op->span, track_, op->request.body.step, op->request.key,
                        was_sent && op->source.tensor.valid() ? op->source.tensor.bytes() : 0,
                        was_sent ? op->status.code() : absl::StatusCode::kCancelled,
                        hub_->poller()->now_ns());
  }
  if (op->state == ServeState::kTaking) return DropTake(op);
  if (op->in_ready_line) {
    ready_line_.Remove(op);
    op->in_ready_line = false;
  }
  if (op->source.region != nullptr && link_ != nullptr) {
    lingering_.push_back(std::move(op->source));
    OnWritesDone();
  }
  op->source = ServeSource();
  op->send_args = Args();
  op->status = absl::OkStatus();
  op->state = ServeState::kFree;
}

void ServeChannel::Retire(ServeOp* op) {
  if (op->source.region == nullptr && op->source.tensor.valid()) {
    retired_.push_back(op->source.tensor);
  }
  Release(op);
}

void ServeChannel::Flush() {
  retiring_.swap(retired_);
  retiring_.clear();
}

}  // namespace tryst
