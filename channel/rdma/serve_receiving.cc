#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reached.h"
#include "channel/rdma/serve_channel.h"

// What a ServeChannel hears from the consumer: keys, requests, cancels, acceptance.
namespace tryst {
namespace {

// A generation is newer if it is less than half the circle ahead.
bool IsNewer(uint16_t a, uint16_t b) { return static_cast<int16_t>(a - b) > 0; }

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
      return absl::DataLossError("the consumer sent a producer's record");
  }
}

absl::Status ServeChannel::OnTensorPart(size_t, uint16_t, uint16_t) {
  return absl::DataLossError("the consumer sent a tensor immediate");
}

absl::Status ServeChannel::OnRequest(const wire::Record& record) {
  auto body = wire::DecodeRequest(record);
  if (!body.ok()) return body.status();
  if (record.slot >= ops_.size()) return absl::DataLossError("request on a slot out of range");
  const ToldKey* known = keys_.Find(record.number);
  if (known == nullptr) return absl::DataLossError("request for an unknown key id");
  ServeRequest request;
  request.generation = record.generation;
  request.flags = record.flags;
  request.key = known->key;
  request.body = *body;
  ServeOp* op = &ops_[record.slot];
  const ServeEvent event = EventOf(*op, record);
  op->replayed_epoch = static_cast<uint32_t>(epoch_);
  const ServeAction* action = FindServeAction(op->state, event);
  if (action == nullptr) return OutOfPlace(op->state, event, op->slot);
  switch (*action) {
    case ServeAction::kAcceptFirst:
      Retire(op);  // That the slot is used again says that it was accepted.
      StartTake(op, std::move(request));
      break;
    case ServeAction::kGiveUpFirst:
      TRYST_REACHED("rare: a slot is used anew whose request was given up before a break");
      GiveUp(op);
      StartTake(op, std::move(request));
      break;
    case ServeAction::kTake:
      StartTake(op, std::move(request));
      break;
    case ServeAction::kRenew:
      op->request = std::move(request);
      ParkIfWaiting(op);
      break;
    default:
      if (op->state == ServeState::kSent) TRYST_REACHED("sim: a tensor is sent again");
      counters_.resent += op->state == ServeState::kSent;
      op->request = std::move(request);
      MakeReady(op);
      break;
  }
  return absl::OkStatus();
}

ServeEvent ServeChannel::EventOf(const ServeOp& op, const wire::Record& record) const {
  if (op.request.generation == record.generation) {
    const bool again = (record.flags & (wire::kReplay | wire::kRetry)) != 0;
    return again ? ServeEvent::kRepeat : ServeEvent::kWithRoom;
  }
  if (!IsNewer(record.generation, op.request.generation)) {
    TRYST_REACHED("rare: a request of a generation that is over");
    return ServeEvent::kStale;
  }
  // What was asked for in an earlier epoch, and not again in this one before the slot is used
  // anew, the consumer has given up: the word of that was lost with the earlier connection.
  const bool asked = op.replayed_epoch == static_cast<uint32_t>(epoch_);
  return asked ? ServeEvent::kRequest : ServeEvent::kRequestAnew;
}

absl::Status ServeChannel::OnCancel(const wire::Record& record) {
  if (record.slot >= ops_.size()) return absl::DataLossError("cancel of a slot out of range");
  ServeOp* op = &ops_[record.slot];
  ++counters_.cancelled;
  const bool ours = op->state != ServeState::kFree && op->request.generation == record.generation;
  // Every cancel is answered, also one that came too late. But not before the NIC is done
  // with writes that no LANDED tells of: on another queue pair, or without order, they could
  // come after it.
  if (leftovers_.gone_due() >= 2 * ops_.size()) {
    return absl::DataLossError("more cancels than slots");
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

// The consumer has asked again for all that it still wants: the rest it has, or gave up.
void ServeChannel::OnReplayed() {
  for (ServeOp& op : ops_) {
    if (op.replayed_epoch == static_cast<uint32_t>(epoch_)) continue;
    if (op.state == ServeState::kFree) continue;
    TRYST_REACHED("sim: what the consumer does not ask for again is given up");
    GiveUp(&op);
  }
  takes_.DropUnspoken();
}

void ServeChannel::OnAccepted() {
  for (ServeOp& op : ops_) {
    if (op.state == ServeState::kSent && IsNewer(link_->accepted(op.slot), op.request.generation)) {
      Release(&op);
    }
  }
}

}  // namespace tryst
