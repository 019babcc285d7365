#include <string>
#include <utility>

#include "base/reached.h"
#include "channel/rdma/serve_channel.h"

// How a ServeChannel answers: what waits for room, what is said at the end of a turn, and what the
// NIC still reads when a slot is free.
namespace tryst {

void ServeChannel::Answer(ServeOp* op) {
  answers_.Begin(*op);
  if (!op->in_ready_line) {
    op->in_ready_line = true;
    ready_line_.push_back(op);
  }
  link_->FlushSoon();
}

// The consumer no longer needs the tensor, but the NIC may.
void ServeChannel::Forget(ServeOp* op) {
  if (op->in_ready_line) {
    ready_line_.Remove(op);
    op->in_ready_line = false;
  }
  ServeSending* const sending = answers_.Of(*op);
  sending->has_digest = false;
  if (!sending->source.region) return;
  if (link_ != nullptr) {
    sending->source.tensor = std::move(op->tensor);
    sending->source.encoded = std::move(op->encoded);
    leftovers_.Linger(std::move(sending->source));
    if (!link_->broken()) link_->FlushSoon();  // Which sees whether the NIC is done with it.
  }
  sending->source.region.Reset();
  sending->source.tickets.fill(0);
}

// That may take long.
void ServeChannel::Retire(Tensor* tensor) {
  if (tensor->valid()) leftovers_.Retire(std::move(*tensor));
}

// On another queue pair, or a NIC that reorders, writes that no LANDED announces could arrive after
// GONE.
bool ServeChannel::SaysGoneLater(const ServeOp& op) {
  const bool may_overtake = link_->queue_pairs() > 1 || !link_->ordered();
  const ServeSource& source = answers_.Of(op)->source;
  if (op.state != ServeState::kReady || !may_overtake || !source.region) return false;
  TRYST_REACHED("storms: GONE waits for writes on other queue pairs");
  leftovers_.SayGoneAfter(op.slot, op.generation, source.tickets);
  return true;
}

void ServeChannel::OnWritesDone() {
  if (leftovers_.OnWritesDone(*link_, &slots_)) link_->FlushSoon();
}

bool ServeChannel::SayWord(bool is_parked, uint16_t slot, uint32_t generation) {
  wire::Record record;
  record.type = is_parked ? wire::RecordType::kParked : wire::RecordType::kGone;
  record.slot = slot;
  record.generation = static_cast<uint16_t>(generation);
  return link_->Send(record);
}

bool ServeChannel::SayHere(absl::Span<const uint64_t> tickets) {
  const std::string body = wire::EncodeTickets(tickets);
  wire::Record record;
  record.type = wire::RecordType::kHere;
  record.body = body;
  return link_->Send(record);
}

void ServeChannel::FlushSoon() {
  if (link_ != nullptr) link_->FlushSoon();
}

void ServeChannel::OnFlush() {
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
    ready_line_.pop_front();
    op->in_ready_line = false;
  }
}

}  // namespace tryst
