#include <string>

#include "absl/types/span.h"
#include "channel/rdma/serve_channel.h"

// Parked takes of a ServeChannel: they wait for their Send in their places, and hold no slot.
namespace tryst {

// The request said that it is to be parked unless its outcome is here.
void ServeChannel::ParkIfWaiting(ServeOp* op) {
  if ((op->request.flags & wire::kMayPark) != 0) Park(op, op->request.body.ticket);
}

// Where its outcome is on its way, that is the answer.
void ServeChannel::Park(ServeOp* op, uint64_t ticket) {
  if (!takes_.Park(op, ticket, op->span.since_ns())) return;
  op->state = ServeState::kFree;
  ++counters_.parked;
  parked_line_.emplace_back(op->slot, op->request.generation);
  link_->FlushSoon();
}

void ServeChannel::OnHere() { link_->FlushSoon(); }

absl::Status ServeChannel::OnPark(const wire::Record& record) {
  auto tickets = wire::DecodeTickets(record);
  if (!tickets.ok()) return tickets.status();
  if (record.slot >= ops_.size()) return absl::DataLossError("park of a slot out of range");
  ServeOp* op = &ops_[record.slot];
  const bool waits =
      op->state == ServeState::kTaking && op->request.generation == record.generation;
  if (waits) Park(op, tickets->front());
  return absl::OkStatus();
}

absl::Status ServeChannel::OnWaits(const wire::Record& record) {
  auto body = wire::DecodeWaits(record);
  if (!body.ok()) return body.status();
  if (record.number >= keys_.size() || keys_[record.number].empty()) {
    return absl::DataLossError("an unknown key id waits");
  }
  if (takes_.Waits(body->ticket, body->step, keys_[record.number])) return absl::OkStatus();
  return absl::DataLossError("more waits without a slot than had been parked");
}

absl::Status ServeChannel::OnUnwanted(const wire::Record& record) {
  auto tickets = wire::DecodeTickets(record);
  if (tickets.ok()) counters_.cancelled += takes_.DropTickets(*tickets);
  return tickets.status();
}

// Says which slots are parked, and which tickets have their outcome; false: no room for all.
bool ServeChannel::SendParkedAndHere() {
  while (!parked_line_.empty()) {
    wire::Record record;
    record.type = wire::RecordType::kParked;
    record.slot = parked_line_.back().first;
    record.generation = parked_line_.back().second;
    if (!link_->Send(record)) return false;
    parked_line_.pop_back();
  }
  return takes_.TellHere(wire::kMaxTickets, [this](absl::Span<const uint64_t> tickets) {
    const std::string body = wire::EncodeTickets(tickets);
    wire::Record record;
    record.type = wire::RecordType::kHere;
    record.body = body;
    return link_->Send(record);
  });
}

}  // namespace tryst
