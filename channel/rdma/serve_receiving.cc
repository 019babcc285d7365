#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reached.h"
#include "channel/rdma/serve_channel.h"

// What a ServeChannel does with messages of the consumer: keys, requests, cancels, acceptances.
namespace tryst {
namespace {

// A generation is newer if it is less than half of the number range ahead.
bool IsNewer(uint16_t a, uint16_t b) { return static_cast<int16_t>(a - b) > 0; }

ServeEvent EventOf(const ServeOp& op, const wire::Record& record, uint32_t epoch) {
  if (op.request.generation == record.generation) {
    const bool again = (record.flags & (wire::kReplay | wire::kRetry)) != 0;
    return again ? ServeEvent::kRepeat : ServeEvent::kWithRoom;
  }
  if (!IsNewer(record.generation, op.request.generation)) {
    TRYST_REACHED("rare: a request of a generation that is over");
    return ServeEvent::kStale;
  }
  // If this epoch did not repeat the request that the slot holds, the consumer had given it up: its
  // CANCEL, or the answer to that, was lost with the earlier connection.
  const bool asked = op.replayed_epoch == epoch;
  return asked ? ServeEvent::kRequest : ServeEvent::kRequestAnew;
}

}  // namespace

absl::Status ServeChannel::OnRecord(const wire::Record& record) {
  const absl::Status may_hear = words_.MayHearMore(ops_.size());
  if (!may_hear.ok()) return may_hear;
  switch (record.type) {
    case wire::RecordType::kKey:
      return keys_.Tell(record.number, record.body);
    case wire::RecordType::kRequest:
      return OnRequest(record);
    case wire::RecordType::kCancel:
      return OnCancel(record);
    case wire::RecordType::kReplayed:
      OnReplayed();
      return absl::OkStatus();
    case wire::RecordType::kPark:
      return OnPark(record);
    case wire::RecordType::kWaits:
      return OnWaits(record);
    case wire::RecordType::kUnwanted:
      return OnUnwanted(record);
    case wire::RecordType::kPing:
      pong_due_ = true;
      return absl::OkStatus();
    default:
      return absl::DataLossError(
          "the consumer broke the protocol: it sent a record that only producers send");
  }
}

absl::Status ServeChannel::OnTensorPart(size_t, uint16_t, uint16_t) {
  return absl::DataLossError(
      "the consumer broke the protocol: it says that a tensor is complete, which only producers "
      "do");
}

absl::Status ServeChannel::OnRequest(const wire::Record& record) {
  wire::RequestBody body;
  absl::Status decoded = wire::DecodeRequest(record, &body);
  if (!decoded.ok()) return decoded;
  if (record.slot >= ops_.size())
    return absl::DataLossError(
        "the consumer broke the protocol: it sent a request on a slot that does not exist");
  ToldKey* known = keys_.Find(record.number);
  if (known == nullptr)
    return absl::DataLossError(
        "the consumer broke the protocol: it asks for a key that it never named");
  slots_used_ = std::max<size_t>(slots_used_, record.slot + size_t{1});
  ServeOp* op = &ops_[record.slot];
  const ServeEvent event = EventOf(*op, record, static_cast<uint32_t>(epoch_));
  op->replayed_epoch = static_cast<uint32_t>(epoch_);
  const ServeAction* action = FindServeAction(op->state, event);
  if (action == nullptr) return OutOfPlace(op->state, event, op->slot);
  const bool again = event == ServeEvent::kRepeat || event == ServeEvent::kWithRoom;
  Watch(*op, again ? ServeStep::kRepeat : ServeStep::kRequest, event);
  switch (*action) {
    case ServeAction::kAcceptFirst:
      // The slot is used again, so its tensor was accepted. The tensor is dropped after the
      // answers, because that may take long.
      if (!op->source.region && op->source.tensor.valid()) leftovers_.Retire(op->source.tensor);
      Release(op);
      break;
    case ServeAction::kGiveUpFirst:
      TRYST_REACHED("rare: a slot is used anew whose request was given up before a break");
      GiveUp(op);
      break;
    default:
      break;
  }
  op->request.generation = record.generation;
  op->request.flags = record.flags;
  op->request.key = known->key;
  op->request.body = body;
  switch (*action) {
    case ServeAction::kAcceptFirst:
    case ServeAction::kGiveUpFirst:
    case ServeAction::kTake:
      StartTake(op, known);
      break;
    case ServeAction::kRenew:
      ParkIfWaiting(op);
      break;
    default:
      if (op->state == ServeState::kSent) TRYST_REACHED("sim: a tensor is sent again");
      counters_.resent += op->state == ServeState::kSent;
      MakeReady(op);
      break;
  }
  return absl::OkStatus();
}

absl::Status ServeChannel::OnCancel(const wire::Record& record) {
  if (record.slot >= ops_.size())
    return absl::DataLossError(
        "the consumer broke the protocol: it cancels a slot that does not exist");
  ServeOp* op = &ops_[record.slot];
  ++counters_.cancelled;
  const bool ours = op->state != ServeState::kFree && op->request.generation == record.generation;
  // Every cancel is answered, even one that came too late. But the answer waits for writes that no
  // LANDED announces: on another queue pair, or a NIC that reorders, they could arrive after it.
  Watch(*op, ours ? ServeStep::kCancel : ServeStep::kLateCancel, ServeEvent::kCancel);
  if (leftovers_.gone_due() >= 2 * ops_.size()) {
    return absl::DataLossError(
        "the consumer broke the protocol: it sends cancels faster than it reads their answers");
  }
  const bool may_overtake = link_->queue_pairs() > 1 || !link_->ordered();
  if (ours && op->state == ServeState::kReady && may_overtake && op->source.region) {
    TRYST_REACHED("storms: GONE waits for writes on other queue pairs");
    leftovers_.SayGoneAfter(record.slot, record.generation, op->source.tickets);
  } else {
    words_.Gone(record.slot, record.generation);
  }
  if (ours) {
    GiveBack(op);
    Release(op);
  } else {
    TRYST_REACHED("sim: a cancel of what is over");
  }
  OnWritesDone();
  return absl::OkStatus();
}

// The consumer has repeated all requests that it still wants; the others it has received or given
// up.
void ServeChannel::OnReplayed() {
  for (ServeOp& op : ops_) {
    if (op.replayed_epoch == static_cast<uint32_t>(epoch_)) continue;
    if (op.state == ServeState::kFree) continue;
    TRYST_REACHED("sim: what the consumer does not ask for again is given up");
    Watch(op, ServeStep::kGivenUp);
    GiveUp(&op);
  }
  takes_.DropUnspoken();
}

void ServeChannel::OnAccepted() {
  for (size_t slot = 0; slot < slots_used_; ++slot) {
    ServeOp& op = ops_[slot];
    if (op.state == ServeState::kSent && IsNewer(link_->accepted(op.slot), op.request.generation)) {
      Watch(op, ServeStep::kAccepted);
      Release(&op);
    }
  }
}

}  // namespace tryst
