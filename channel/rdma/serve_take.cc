#include <utility>

#include "base/reached.h"
#include "channel/rdma/serve_channel.h"
#include "channel/string_codec.h"

// How a ServeChannel takes tensors from the local rendezvous, keeps and releases them.
namespace tryst {

void ServeChannel::StartTake(ServeOp* op, ToldKey* known) {
  ++counters_.requests;
  counters_.standing += (op->request.flags & wire::kStanding) != 0;
  op->state = ServeState::kTaking;
  op->span.Begin(WaitsFor::kLocalSend, hub_->poller()->now_ns());
  op->span.id = TraceId(session_, uint64_t{op->slot} << 16 | uint64_t{op->request.generation},
                        op->request.body.step);
  op->has_digest = false;
  const wire::RequestBody& body = op->request.body;
  if (body.ticket == 0 && takes_.Here(body.step, known, &taken_)) {
    op->request.key = known->key;
    op->status = absl::OkStatus();
    return SetOutcome(op, &taken_);
  }
  if (!takes_.Unpark(body.ticket, body.step, op->request.key, op)) {
    takes_.Start(body.step, op->request.key, op);
  }
  ParkIfWaiting(op);
}

void ServeChannel::OnTakeEnded(TakingOp* base, ServeTake* take) {
  ServeOp* op = static_cast<ServeOp*>(base);
  op->status = std::move(take->status);
  SetOutcome(op, &take->taken);
}

void ServeChannel::SetOutcome(ServeOp* op, Taken* taken) {
  Watch(*op, ServeStep::kMet);
  op->source.tensor = std::move(taken->tensor);
  op->is_dead = taken->is_dead;
  // Everything that the sender passed along.
  op->send_args.device_context = std::move(taken->send_args.device_context);
  op->send_args.alloc_attrs = taken->send_args.alloc_attrs;
  op->turn = taken->turn;
  if (op->source.tensor.dtype() == DType::kPacked && !takes_packed_) {
    op->status = absl::InvalidArgumentError(
        "the tensor has more than 8 dimensions, which the consumer's release of Tryst does not "
        "take: upgrade it");
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
  // Waits until the consumer has repeated the request in this epoch. The consumer may have given it
  // up, and an answer that crossed the replay would be requested, and sent, twice.
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

// Gives the tensor back to the rendezvous, for the next request of its key. Call it before GONE is
// sent, so that the consumer's next request finds the tensor.
void ServeChannel::GiveBack(ServeOp* op) {
  if (op->state == ServeState::kTaking || !op->status.ok()) return;
  TRYST_REACHED("sim: a tensor goes back to its rendezvous");
  ++counters_.given_back;
  source_->GiveBack(op->request.body.step, op->request.key,
                    {op->source.tensor, op->is_dead, op->send_args, op->turn});
  op->status = absl::CancelledError();  // So that its trace does not count it as accepted.
}

// The consumer no longer wants the tensor, and has not said whether it accepted it. If the tensor
// was never sent whole, it was not accepted and goes back; otherwise it may have been accepted.
void ServeChannel::GiveUp(ServeOp* op) {
  if (op->state != ServeState::kSent) GiveBack(op);
  Release(op);
}

// The consumer no longer needs the tensor, but the NIC may.
void ServeChannel::Release(ServeOp* op) {
  if (track_ != nullptr) EndTrace(*op);
  if (op->state == ServeState::kTaking) {
    // Frees the slot at once: a request behind it starts now, not when the take ends.
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
  op->source.Clear();
  op->send_args.DropReferences();
  if (!op->status.ok()) op->status = absl::OkStatus();
  op->state = ServeState::kFree;
}

// REQUIRES: there is a trace.
void ServeChannel::EndTrace(const ServeOp& op) {
  const bool was_sent = op.state == ServeState::kSent;
  const absl::StatusCode sent = op.status.ok() ? absl::StatusCode::kOk : op.status.code();
  options_.trace->End(op.span, track_, op.request.body.step, op.request.key,
                      was_sent ? op.source.tensor.bytes() : 0,
                      was_sent ? sent : absl::StatusCode::kCancelled, hub_->poller()->now_ns());
}

}  // namespace tryst
