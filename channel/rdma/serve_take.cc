#include <utility>

#include "base/reached.h"
#include "channel/rdma/serve_channel.h"
#include "channel/string_codec.h"

// The tensors of a ServeChannel: taken from the local rendezvous, kept, released.
namespace tryst {

void ServeChannel::StartTake(ServeOp* op, ServeRequest&& request) {
  ++counters_.requests;
  op->request = std::move(request);
  counters_.standing += (op->request.flags & wire::kStanding) != 0;
  op->state = ServeState::kTaking;
  op->span.Begin(WaitsFor::kLocalSend, hub_->poller()->now_ns());
  op->span.id = TraceId(session_, uint64_t{op->slot} << 16 | uint64_t{op->request.generation},
                        op->request.body.step);
  op->has_digest = false;
  const wire::RequestBody& body = op->request.body;
  if (!takes_.Unpark(body.ticket, body.step, op->request.key, op)) {
    takes_.Start(body.step, op->request.key, op);
  }
  ParkIfWaiting(op);
}

void ServeChannel::OnTakeEnded(TakingOp* base, ServeTake* take) {
  ServeOp* op = static_cast<ServeOp*>(base);
  op->status = std::move(take->status);
  op->source.tensor = std::move(take->taken.tensor);
  op->is_dead = take->taken.is_dead;
  op->send_args = std::move(take->taken.send_args);
  op->turn = take->taken.turn;
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
    TRYST_REACHED("sim: a tensor waits to be asked for in this epoch");
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
  TRYST_REACHED("sim: a tensor goes back to its rendezvous");
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

// The consumer needs it no more. The NIC may.
void ServeChannel::Release(ServeOp* op) {
  if (track_ != nullptr) {
    const bool was_sent = op->state == ServeState::kSent;
    options_.trace->End(op->span, track_, op->request.body.step, op->request.key,
                        was_sent && op->source.tensor.valid() ? op->source.tensor.bytes() : 0,
                        was_sent ? op->status.code() : absl::StatusCode::kCancelled,
                        hub_->poller()->now_ns());
  }
  if (op->state == ServeState::kTaking) {
    // Its slot is free at once: a request behind it has its turn now, not when the take ends.
    op->state = ServeState::kFree;
    return takes_.Drop(op);
  }
  if (op->in_ready_line) {
    ready_line_.Remove(op);
    op->in_ready_line = false;
  }
  if (op->source.region && link_ != nullptr) {
    leftovers_.Linger(std::move(op->source));
    OnWritesDone();
  }
  op->source = ServeSource();
  op->send_args = Args();
  op->status = absl::OkStatus();
  op->state = ServeState::kFree;
}

void ServeChannel::Retire(ServeOp* op) {
  if (!op->source.region && op->source.tensor.valid()) {
    leftovers_.Retire(op->source.tensor);
  }
  Release(op);
}

}  // namespace tryst
