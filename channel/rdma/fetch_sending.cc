#include "channel/rdma/fetch_sending.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tryst {

void FetchSender::FlushSoon() {
  if (link != nullptr) link->FlushSoon();
}

bool FetchSender::SayOwn() {
  wire::Record record;
  if (tell_replayed) {
    record.type = wire::RecordType::kReplayed;
    if (!link->Send(record)) return false;
    tell_replayed = false;
  }
  if (ping_due) {
    record.type = wire::RecordType::kPing;
    if (!link->Send(record)) return false;
    link->SignalMessage();
    ping_due = false;
    if (!std::exchange(ping_out, true)) ping_message_ = link->message_number();
  }
  return true;
}

bool FetchSender::TakePong() {
  if (!ping_out || !link->HasRead(ping_message_)) return false;
  ping_out = false;
  return true;
}

bool FetchSender::SendCancel(const FetchOp& op) {
  wire::Record record;
  record.type = wire::RecordType::kCancel;
  record.slot = op.slot;
  record.generation = static_cast<uint16_t>(op.generation);
  return link->Send(record);
}

bool FetchSender::SendPark(const FetchOp& op) {
  const std::string ticket = wire::EncodeTickets({op.ticket});
  wire::Record record;
  record.type = wire::RecordType::kPark;
  record.slot = op.slot;
  record.generation = static_cast<uint16_t>(op.generation);
  record.body = ticket;
  return link->Send(record);
}

// For after a reconnect. It names the key and step again, because the peer may have dropped the
// take after a farewell whose answer was lost.
bool FetchSender::SendWaits(FetchOp* op, FetchKey* key) {
  if (!TellKey(key)) return false;
  const std::string body = wire::EncodeWaits({op->step, op->ticket});
  wire::Record record;
  record.type = wire::RecordType::kWaits;
  record.number = key->id;
  record.body = body;
  return link->Send(record);
}

bool FetchSender::SendUnwanted(absl::Span<const uint64_t> tickets) {
  const std::string body = wire::EncodeTickets(tickets);
  wire::Record record;
  record.type = wire::RecordType::kUnwanted;
  record.body = body;
  return link->Send(record);
}

bool FetchSender::SendRequest(FetchOp* base, FetchKey* key, bool may_park) {
  RdmaFetchOp* op = RdmaFetchOp::Of(base);
  if (!TellKey(key) || link->message() == nullptr) return false;
  destinations_->Choose(op, wire::EagerBytes(link->options().message_bytes),
                        habits_->Of(*key)->bytes_last);

  wire::Record record;
  record.slot = op->slot;
  record.generation = static_cast<uint16_t>(op->generation);
  record.number = key->id;
  if (op->asked_before) record.flags |= wire::kReplay;
  if (op->retried) record.flags |= wire::kRetry;
  if (op->standing) record.flags |= wire::kStanding;
  wire::RequestBody body;
  body.step = op->step;
  if (op->landing) {
    record.flags |= wire::kHasDestination;
    Landing* const landing = LandingPool::AsLanding(op->landing);
    body.destination_address = landing->address();
    body.destination_bytes = landing->bytes();
    body.destination_key = landing->TellKey();
  } else if (op->region != nullptr) {
    record.flags |= wire::kHasDestination;
    body.destination_address = op->region->address();
    body.destination_bytes = op->region->bytes();
    body.destination_key = op->region->remote_key();
  }
  // A landing beside the caller's memory may be as large as the tensor. Its request names no shape,
  // so that LANDED announces the tensor: an immediate alone would not say what to copy.
  if (op->destination().valid() && !op->landing) {
    record.flags |= wire::kHasShape;
    body.dtype = static_cast<uint8_t>(op->destination().dtype());
    const TensorShape& shape = op->destination().shape();
    body.rank = static_cast<uint8_t>(shape.rank());
    for (int i = 0; i < shape.rank(); ++i) body.dims[i] = shape.dim(i);
  } else if (op->expects) {
    record.flags |= wire::kHasShape;
    body.dtype = op->expected.dtype;
    body.rank = op->expected.rank;
    std::copy(op->expected.dims, op->expected.dims + body.rank, body.dims);
    // Offers no more than the tensor needs, so that the immediate alone can complete it.
    body.destination_bytes = std::min(body.destination_bytes, op->expected.bytes);
  }
  if (op->ticket != 0) record.flags |= wire::kHasTicket;
  if (may_park) record.flags |= wire::kMayPark;
  body.ticket = op->ticket;
  const auto add = [&](wire::MessageWriter* writer) { return writer->AddRequest(record, body); };
  if (!link->Put(add)) return false;
  op->span.id = TraceId(session, uint64_t{op->slot} << 16 | uint64_t{op->generation}, op->step);
  return true;
}

bool FetchSender::TellKey(FetchKey* key) {
  if (key->told == epoch) return true;
  wire::Record record;
  record.type = wire::RecordType::kKey;
  record.number = key->id;
  record.body = key->key.text();
  if (!link->Send(record)) return false;
  key->told = epoch;
  return true;
}

}  // namespace tryst
