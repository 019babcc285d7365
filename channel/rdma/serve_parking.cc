#include <string>

#include "absl/types/span.h"
#include "channel/rdma/serve_channel.h"

// Parked takes of a ServeChannel: they wait for their Send in their places, and hold no slot. And
// what is said at the end of a turn.
namespace tryst {

// The request said that it is to be parked unless its outcome is here.
void ServeChannel::ParkIfWaiting(ServeOp* op) {
  if ((op->request.flags & wire::kMayPark) != 0) Park(op, op->request.body.ticket);
}

// Where its outcome is on its way, that is the answer.
void ServeChannel::Park(ServeOp* op, uint64_t ticket) {
  if (!takes_.Park(op, ticket, op->span.since_ns())) return;
  op->state = ServeState::kFree;
  Watch(*op, ServeStep::kParked);
  ++counters_.parked;
  words_.Parked(op->slot, op->request.generation);
  link_->FlushSoon();
}

void ServeChannel::OnHere() { link_->FlushSoon(); }

absl::Status ServeChannel::OnPark(const wire::Record& record) {
  auto tickets = wire::DecodeTickets(record);
  if (!tickets.ok()) return tickets.status();
  if (record.slot >= ops_.size())
    return absl::DataLossError(
        "the consumer broke the protocol: it lets go of a slot that does not exist");
  ServeOp* op = &ops_[record.slot];
  SlotWatch* const watch = options_.link.watch;
  if (watch != nullptr && !closed_) watch->OnServeEvent(op->state, ServeEvent::kPark);
  const bool waits =
      op->state == ServeState::kTaking && op->request.generation == record.generation;
  if (waits) Park(op, tickets->front());
  return absl::OkStatus();
}

absl::Status ServeChannel::OnWaits(const wire::Record& record) {
  auto body = wire::DecodeWaits(record);
  if (!body.ok()) return body.status();
  const ToldKey* known = keys_.Find(record.number);
  if (known == nullptr)
    return absl::DataLossError(
        "the consumer broke the protocol: it waits for a key that it never named");
  if (takes_.Waits(body->ticket, body->step, known->key)) return absl::OkStatus();
  return absl::DataLossError(
      "the consumer broke the protocol: more of its fetches wait without a slot than it may have");
}

absl::Status ServeChannel::OnUnwanted(const wire::Record& record) {
  auto tickets = wire::DecodeTickets(record);
  if (tickets.ok()) counters_.cancelled += takes_.DropTickets(*tickets);
  return tickets.status();
}

// Says which slots are parked or free, and which tickets have their outcome; false: no room for
// all.
bool ServeChannel::SendWords() {
  const bool all = words_.SayAll([this](bool is_parked, uint16_t slot, uint32_t generation) {
    wire::Record record;
    record.type = is_parked ? wire::RecordType::kParked : wire::RecordType::kGone;
    record.slot = slot;
    record.generation = static_cast<uint16_t>(generation);
    return link_->Send(record);
  });
  return all && takes_.TellHere(wire::kMaxTickets, [this](absl::Span<const uint64_t> tickets) {
    const std::string body = wire::EncodeTickets(tickets);
    wire::Record record;
    record.type = wire::RecordType::kHere;
    record.body = body;
    return link_->Send(record);
  });
}

void ServeChannel::OnFlush() {
  leftovers_.OnAnswersSent();
  if (!SendWords()) return;
  if (pong_due_) {
    wire::Record record;
    record.type = wire::RecordType::kPong;
    if (!link_->Send(record)) return;
    pong_due_ = false;
  }
  while (!ready_line_.empty()) {
    ServeOp* op = ready_line_.front();
    if (!answers_.Send(op)) return;
    const bool sent = op->state == ServeState::kSent;
    Watch(*op, sent ? ServeStep::kAnswered : ServeStep::kAskedRoom);
    op->span.Enter(sent ? WaitsFor::kAcceptance : WaitsFor::kDestination, hub_->poller()->now_ns());
    ready_line_.pop_front();
    op->in_ready_line = false;
  }
}

}  // namespace tryst
