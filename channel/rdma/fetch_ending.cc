#include <utility>

#include "channel/rdma/fetch_channel.h"

// The end of a fetch, early or by the producer's last word, and its report.
namespace tryst {

// The peer's last word on the slot has come, and no write follows it.
void FetchChannel::Complete(FetchOp* op, absl::Status status, Tensor tensor, bool is_dead) {
  DropDestination(op);
  if (op->standing && status.ok()) {
    op->result = std::move(tensor);
    op->result_is_dead = is_dead;
    op->state = FetchState::kAhead;
    return;
  }
  link_->Accept(op->slot, static_cast<uint16_t>(op->generation + 1));
  const bool recurs = status.ok() && op->args.recurring && !op->args.destination.valid();
  if (recurs && tensor.valid()) NoteTensor(op->key, tensor);
  Report(op, std::move(status), std::move(tensor), is_dead);
  LastWord(op);
  if (recurs) ArmNext(op->key);
}

void FetchChannel::EndEarly(FetchOp* op, const absl::Status& why) {
  const bool in_parts = op->state == FetchState::kParts;
  switch (op->state) {
    case FetchState::kFree:
    case FetchState::kEnding:
      return;
    case FetchState::kLeaving:
      if (!std::exchange(op->moves, false)) return;
      op->end_status = why;
      return Report(op, why, Tensor(), false);
    case FetchState::kParked:
      DropTicket(op);
      Report(op, why, Tensor(), false);
      return LastWord(op);
    case FetchState::kQueued:
      if (!op->has_slot) {
        queued_.Remove(op);
        LeaveKeyLine(op);
        DropTicket(op);
      } else if (op->asked_before) {
        if (state_ != State::kOpen) DropDestination(op);  // Nobody can write it any more.
        break;  // The peer may still serve the earlier request: it has to be told.
      } else {
        op->send_request = false;
        DropTicket(op);
      }
      DropDestination(op);
      Report(op, why, Tensor(), false);
      return LastWord(op);
    case FetchState::kFenced:
      if (op->ending) return;
      op->ending = true;
      op->end_status = why;
      if (op->region == nullptr) Report(op, why, Tensor(), false);
      return;
    case FetchState::kWaitingRoom:
      room_line_.Remove(op);
      break;
    case FetchState::kAhead:
      op->result = Tensor();
      break;
    case FetchState::kAsked:
    case FetchState::kParts:
      break;
  }
  // Of a tensor that landed in parts, those still under way are known.
  if (!in_parts) op->meta.stripes = 0;
  StartLeaving(op, why);
  // Our own landing stays aside until the last word; the caller's memory is the caller's
  // only when nobody writes it any more.
  if (op->region == nullptr) Report(op, why, Tensor(), false);
}

// Tells the peer, now or in the next epoch, and waits for its answer.
void FetchChannel::StartLeaving(FetchOp* op, const absl::Status& why) {
  op->state = FetchState::kLeaving;
  op->span.Enter(WaitsFor::kLastWord, now_ns());
  op->ending = true;
  op->end_status = why;
  op->gone_seen = false;
  // A request not sent yet (a replay, a second one) need not go out any more.
  op->send_request = op->send_park = false;
  if (state_ != State::kOpen) return;
  op->send_cancel = true;
  SendSoon(op);
}

void FetchChannel::Report(FetchOp* op, absl::Status status, Tensor tensor, bool is_dead) {
  if (op->reported) return;
  op->reported = true;
  if (op->standing) {  // Nobody to tell.
    EndStanding(op, false);
    op->delivered = true;
    return;
  }
  ++(status.ok() ? counters_.ended_ok : counters_.ended_failed);
  hub_->poller()->CancelTimer(op);
  if (op->cancel_token != Cancellation::kNoToken) {
    // A callback that is running has only a task to post: waiting for it is brief.
    op->args.cancellation->Deregister(op->cancel_token);
    op->cancel_token = Cancellation::kNoToken;
  }
  op->traced_code = status.code();
  op->traced_bytes = tensor.valid() ? tensor.bytes() : 0;
  op->span.Enter(WaitsFor::kExecutor, now_ns());
  op->result_status = std::move(status);
  op->result = std::move(tensor);
  op->result_is_dead = is_dead;
  // At the end of the turn: never inside Fetch(), nor in the middle of a record.
  undelivered_.Push(op);
  hub_->poller()->FlushThisTurn(this);
}

void FetchChannel::Flush() {
  for (size_t count = undelivered_.size(); count > 0; --count) {
    FetchOp* op = undelivered_.front();
    undelivered_.PopFront();
    Executor* executor = op->args.executor;
    if (executor == nullptr) {
      op->Deliver();
      OnOpDelivered(op);
      continue;
    }
    Poller* poller = hub_->poller();
    Executor::Work work([op, poller] { op->DeliverFrom(poller); });
    if (!executor->TryRun(&work)) {
      undelivered_.Push(op);  // Again in the next turn.
      hub_->poller()->FlushThisTurn(this);
    }
  }
}

void FetchChannel::OnOpDelivered(FetchOp* op) {
  op->delivered = true;
  if (track_ != nullptr) {
    options_.trace->End(op->span, track_, op->step, op->key, op->traced_bytes, op->traced_code,
                        now_ns());
  }
  FreeIfDone(op);
}

void FetchChannel::LastWord(FetchOp* op) {
  op->state = FetchState::kEnding;
  if (op->has_slot) FreeSlot(op);
  op->ticket = 0;
  AskFollower(op);
  if (by_ticket_.empty() && queued_.empty()) pressed_ = false;
  if (op->in_send_line && !op->send_cancel) {
    send_line_.Remove(op);
    op->in_send_line = false;
  }
  FreeIfDone(op);
}

}  // namespace tryst
