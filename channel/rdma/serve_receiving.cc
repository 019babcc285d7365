#include <string>
#include <utility>

#include "base/reached.h"
#include "channel/rdma/serve_link.h"

// What goes over the link of a RdmaServeLink: what the consumer says, and how it is answered.
namespace tryst {

absl::Status RdmaServeLink::OnRecord(const wire::Record& record) {
  const absl::Status may_hear = slots_.MayHearMore();
  if (!may_hear.ok()) return may_hear;
  switch (record.type) {
    case wire::RecordType::kKey:
      return slots_.OnKey(record.number, record.body, (record.flags & wire::kRun) != 0);
    case wire::RecordType::kRequest:
      return OnRequest(record);
    case wire::RecordType::kCancel:
      return OnCancel(record);
    case wire::RecordType::kReplayed:
      // What it has accepted is not written down anywhere when the link breaks.
      slots_.OnReplayed(ServeEvent::kUnnamed);
      return absl::OkStatus();
    case wire::RecordType::kPark: {
      auto tickets = wire::DecodeTickets(record);
      if (!tickets.ok()) return tickets.status();
      return slots_.OnPark(record.slot, record.generation, tickets->front());
    }
    case wire::RecordType::kWaits: {
      auto body = wire::DecodeWaits(record);
      if (!body.ok()) return body.status();
      return slots_.OnWaits(body->ticket, body->step, record.number);
    }
    case wire::RecordType::kUnwanted: {
      auto tickets = wire::DecodeTickets(record);
      if (tickets.ok()) slots_.OnUnwanted(*tickets);
      return tickets.status();
    }
    case wire::RecordType::kPing:
      pong_due_ = true;
      return absl::OkStatus();
    default:
      return absl::DataLossError(
          "the consumer broke the protocol: it sent a record that only producers send");
  }
}

absl::Status RdmaServeLink::OnTensorPart(size_t, uint16_t, uint16_t) {
  return absl::DataLossError(
      "the consumer broke the protocol: it says that a tensor is complete, which only producers "
      "do");
}

absl::Status RdmaServeLink::OnRequest(const wire::Record& record) {
  // In place, since every pull passes here. What is refused below ends the link, and a slot that
  // is held is not answered before it is requested again.
  ServeSending* const sending = answers_.PlaceOf(record.slot);
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
  session_->counters()->standing += (record.flags & wire::kStanding) != 0 && !request.again;
  return slots_.OnRequest(request);
}

absl::Status RdmaServeLink::OnCancel(const wire::Record& record) {
  if (leftovers_.gone_due() >= 2 * slots_.size()) {
    return absl::DataLossError(
        "the consumer broke the protocol: it sends cancels faster than it reads their answers");
  }
  return slots_.OnCancel(record.slot, record.generation);
}

void RdmaServeLink::OnAccepted() {
  for (size_t slot = 0; slot < slots_.used(); ++slot) {
    ServeOp* op = slots_.at(slot);
    if (op->state != ServeState::kSent) continue;
    const uint16_t next = link_->accepted(op->slot);
    if (static_cast<int16_t>(next - static_cast<uint16_t>(op->generation)) > 0) {
      slots_.OnAccepted(op);
    }
  }
}

// ---- What it is told ----

void RdmaServeLink::Answer(ServeOp* op) {
  answers_.Begin(*op);
  if (!op->in_ready_line) {
    op->in_ready_line = true;
    ready_line_.push_back(op);
  }
  link_->FlushSoon();
}

// It lies inside a message.
uint64_t RdmaServeLink::most_run_bytes() const {
  return std::min(options_.eager_bytes, wire::EagerBytes(link_->options().message_bytes));
}

// The consumer no longer needs the tensor, but the NIC may.
void RdmaServeLink::Forget(ServeOp* op) {
  if (op->in_ready_line) {
    ready_line_.Remove(op);
    op->in_ready_line = false;
  }
  ServeSending* const sending = answers_.Of(*op);
  sending->has_digest = false;
  if (!sending->source.region) return;
  if (link_ != nullptr && !AllDone(*link_, sending->source.tickets)) {
    sending->source.tensor = std::move(op->tensor);
    sending->source.encoded = std::move(op->encoded);
    leftovers_.Linger(std::move(sending->source));
    if (!link_->broken()) link_->FlushSoon();  // Which sees whether the NIC is done with it.
  }
  sending->source.region.Reset();
  sending->source.tickets.fill(0);
  op->encoded = std::string();  // It is too large for a message, and the slot lives for long.
}

// That may take long.
void RdmaServeLink::Retire(StorageRef* storage) { leftovers_.Retire(std::move(*storage)); }

// GONE must wait over several queue pairs, or a NIC that reorders: a write that no LANDED announced
// could arrive after it.
bool RdmaServeLink::SaysGoneLater(const ServeOp& op) {
  const bool may_overtake = link_->queue_pairs() > 1 || !link_->ordered();
  const ServeSource& source = answers_.Of(op)->source;
  if (op.state != ServeState::kReady || !may_overtake || !source.region) return false;
  TRYST_REACHED("storms: GONE waits for writes on other queue pairs");
  leftovers_.SayGoneAfter(op.slot, op.generation, source.tickets);
  return true;
}

// One that a NIC has not brought to the other side is lost with its queue pair.
bool RdmaServeLink::Arrives(const ServeOp&) {
  if (std::exchange(answered_, false)) {
    for (size_t lane = 0; lane < link_->queue_pairs(); ++lane) {
      arrives_at_[lane] = link_->last_ticket(lane);
    }
    link_->ReportWorks();
  }
  return AllDone(*link_, arrives_at_);
}

void RdmaServeLink::OnWritesDone() {
  if (leftovers_.OnWritesDone(*link_, &slots_)) link_->FlushSoon();
}

bool RdmaServeLink::SayWord(bool is_parked, uint16_t slot, uint32_t generation) {
  wire::Record record;
  record.type = is_parked ? wire::RecordType::kParked : wire::RecordType::kGone;
  record.slot = slot;
  record.generation = static_cast<uint16_t>(generation);
  return link_->Send(record);
}

bool RdmaServeLink::SayHere(absl::Span<const uint64_t> tickets) {
  const std::string body = wire::EncodeTickets(tickets);
  wire::Record record;
  record.type = wire::RecordType::kHere;
  record.body = body;
  return link_->Send(record);
}

void RdmaServeLink::FlushSoon() {
  if (link_ != nullptr) link_->FlushSoon();
}

void RdmaServeLink::OnFlush() {
  (void)leftovers_.OnWritesDone(*link_, &slots_);
  leftovers_.OnAnswersSent();
  if (!slots_.SayWords()) return;
  if (pong_due_) {
    wire::Record record;
    record.type = wire::RecordType::kPong;
    if (!link_->Send(record)) return;
    pong_due_ = false;
  }
  while (!ready_line_.empty()) {
    ServeOp* op = ready_line_.front();
    if (!answers_.Send(op)) return;
    answered_ = true;
    ready_line_.pop_front();
    op->in_ready_line = false;
  }
}

}  // namespace tryst
