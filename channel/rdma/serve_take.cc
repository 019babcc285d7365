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
  op->state = ServeState::kTaking;
  op->span.Begin(WaitsFor::kLocalSend, hub_->poller()->now_ns());
  op->span.id = TraceId(session_, uint64_t{op->slot} << 16 | uint64_t{op->request.generation},
                        op->request.body.step);
  op->has_digest = false;
  if (op->request.key.dst().worker != consumer_) {
    // The hello has authenticated the consumer: it gets what is meant for it.
    return op->Taken(
        absl::PermissionDeniedError(absl::StrCat("the tensor is for ", op->request.key.dst().worker,
                                                 ", not for ", consumer_)),
        Tensor(), false);
  }
  op->cancellation.emplace();
  Args args;
  args.cancellation = &*op->cancellation;
  source_->Take(op->request.body.step, op->request.key, 0, args,
                [op](absl::Status status, const Args&, const Args&, Tensor tensor, bool is_dead) {
                  op->Taken(std::move(status), std::move(tensor), is_dead);
                });
}

void ServeChannel::CancelTake(ServeOp* op, bool answer_gone) {
  op->state = ServeState::kCancelling;
  op->answer_gone = answer_gone;
  // The take mostly ends in here. Then the slot is free at once, so that a request behind it
  // keeps its turn.
  op->cancel_runs = true;
  op->cancellation->StartCancel();
  op->cancel_runs = false;
  if (op->taken_in_cancel) {
    op->taken_in_cancel = false;
    OnTaken(op);
  }
}

void ServeChannel::OnTaken(ServeOp* op) {
  op->cancellation.reset();
  if (op->state == ServeState::kTaking) {
    op->state = ServeState::kReady;
    if (op->status.ok() && !op->is_dead && op->source.tensor.dtype() == DType::kString) {
      op->source.encoded = EncodeStrings(op->source.tensor);
    }
    return MakeReady(op);
  }
  const uint16_t generation = op->request.generation;
  absl::optional<ServeRequest> next = std::move(op->next_request);
  op->next_request.reset();
  Release(op);
  if (op->answer_gone && link_ != nullptr && !link_->broken()) {
    gone_line_.emplace_back(op->slot, generation);
    link_->FlushSoon();
  }
  if (next && !closed_) StartTake(op, *std::move(next));
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

// The consumer needs it no more. The NIC may: a write is acknowledged to the consumer's
// thread before it is to us.
void ServeChannel::Release(ServeOp* op) {
  if (op->in_ready_line) {
    ready_line_.erase(std::find(ready_line_.begin(), ready_line_.end(), op));
    op->in_ready_line = false;
  }
  if (track_ != nullptr) {
    const bool was_sent = op->state == ServeState::kSent;
    options_.trace->End(op->span, track_, op->request.body.step, op->request.key,
                        was_sent && op->source.tensor.valid() ? op->source.tensor.bytes() : 0,
                        was_sent ? op->status.code() : absl::StatusCode::kCancelled,
                        hub_->poller()->now_ns());
  }
  if (op->source.region != nullptr && link_ != nullptr) {
    lingering_.push_back(std::move(op->source));
    OnWritesDone();
  }
  op->source = ServeSource();
  op->status = absl::OkStatus();
  op->state = ServeState::kFree;
}

}  // namespace tryst
