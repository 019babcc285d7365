#include "channel/rdma/serve_channel.h"

// What a ServeChannel does with messages of the consumer: keys, requests, cancels, acceptances.
namespace tryst {

absl::Status ServeChannel::OnRecord(const wire::Record& record) {
  const absl::Status may_hear = slots_.MayHearMore();
  if (!may_hear.ok()) return may_hear;
  switch (record.type) {
    case wire::RecordType::kKey:
      return slots_.OnKey(record.number, record.body);
    case wire::RecordType::kRequest:
      return OnRequest(record);
    case wire::RecordType::kCancel:
      return OnCancel(record);
    case wire::RecordType::kReplayed:
      // What it has accepted is not written down anywhere when the link breaks.
      slots_.OnReplayed(ServeEvent::kUnnamed);
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
  if (record.slot >= slots_.size()) {
    return absl::DataLossError(
        "the consumer broke the protocol: it sent a request on a slot that does not exist");
  }
  // In place, since every pull passes here. What is refused below ends the link, and a slot that
  // is held is not answered before it is requested again.
  ServeSending* const sending = answers_.Of(*slots_.at(record.slot));
  const wire::RequestBody& body = sending->body;
  const absl::Status decoded = wire::DecodeRequest(record, &sending->body);
  if (!decoded.ok()) return decoded;
  sending->flags = record.flags;
  ServeRequest request;
  request.slot = record.slot;
  request.generation = record.generation;
  request.key = record.number;
  request.again = (record.flags & (wire::kReplay | wire::kRetry)) != 0;
  request.has_destination = (record.flags & wire::kHasDestination) != 0;
  request.may_park = (record.flags & wire::kMayPark) != 0;
  request.step = body.step;
  request.ticket = body.ticket;
  counters_.standing += (record.flags & wire::kStanding) != 0 && !request.again;
  return slots_.OnRequest(request);
}

absl::Status ServeChannel::OnCancel(const wire::Record& record) {
  if (leftovers_.gone_due() >= 2 * slots_.size()) {
    return absl::DataLossError(
        "the consumer broke the protocol: it sends cancels faster than it reads their answers");
  }
  return slots_.OnCancel(record.slot, record.generation);
}

absl::Status ServeChannel::OnPark(const wire::Record& record) {
  auto tickets = wire::DecodeTickets(record);
  if (!tickets.ok()) return tickets.status();
  return slots_.OnPark(record.slot, record.generation, tickets->front());
}

absl::Status ServeChannel::OnWaits(const wire::Record& record) {
  auto body = wire::DecodeWaits(record);
  if (!body.ok()) return body.status();
  return slots_.OnWaits(body->ticket, body->step, record.number);
}

absl::Status ServeChannel::OnUnwanted(const wire::Record& record) {
  auto tickets = wire::DecodeTickets(record);
  if (tickets.ok()) slots_.OnUnwanted(*tickets);
  return tickets.status();
}

void ServeChannel::OnAccepted() {
  for (size_t slot = 0; slot < slots_.used(); ++slot) {
    ServeOp* op = slots_.at(slot);
    if (op->state != ServeState::kSent) continue;
    const uint16_t next = link_->accepted(op->slot);
    if (static_cast<int16_t>(next - static_cast<uint16_t>(op->generation)) > 0) {
      slots_.OnAccepted(op);
    }
  }
}

}  // namespace tryst
