#include "channel/rdma/fetch_sending.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tryst {

void RdmaSender::FlushSoon() {
  if (link != nullptr) link->FlushSoon();
}

bool RdmaSender::SendReplayed() {
  wire::Record record;
  record.type = wire::RecordType::kReplayed;
  return link->Send(record);
}

bool RdmaSender::SayOwn() {
  if (ping_due) {
    wire::Record record;
    record.type = wire::RecordType::kPing;
    if (!link->Send(record)) return false;
    link->SignalMessage();
    ping_due = false;
    if (!std::exchange(ping_out, true)) ping_message_ = link->message_number();
  }
  return true;
}

bool RdmaSender::TakePong() {
  if (!ping_out || !link->HasRead(ping_message_)) return false;
  ping_out = false;
  return true;
}

bool RdmaSender::SendCancel(const FetchAsk& ask) {
  wire::Record record;
  record.type = wire::RecordType::kCancel;
  record.slot = ask.slot;
  record.generation = static_cast<uint16_t>(ask.generation);
  return link->Send(record);
}

bool RdmaSender::SendPark(const FetchAsk& ask) {
  const std::string ticket = wire::EncodeTickets({ask.ticket});
  wire::Record record;
  record.type = wire::RecordType::kPark;
  record.slot = ask.slot;
  record.generation = static_cast<uint16_t>(ask.generation);
  record.body = ticket;
  return link->Send(record);
}

// For after a reconnect. It names the key and step again, because the peer may have dropped the
// take after a farewell whose answer was lost.
bool RdmaSender::SendWaits(FetchAsk* ask) {
  FetchKey* const key = ask->of;
  if (!TellKey(key)) return false;
  const std::string body = wire::EncodeWaits({ask->step, ask->ticket});
  wire::Record record;
  record.type = wire::RecordType::kWaits;
  record.number = key->id;
  record.body = body;
  return link->Send(record);
}

bool RdmaSender::SendUnwanted(absl::Span<const uint64_t> tickets) {
  const std::string body = wire::EncodeTickets(tickets);
  wire::Record record;
  record.type = wire::RecordType::kUnwanted;
  record.body = body;
  return link->Send(record);
}

bool RdmaSender::SendRequest(FetchAsk* base, bool may_park) {
  RdmaAsk* ask = RdmaAsk::Of(base);
  FetchKey* const key = ask->of;
  if (!TellKey(key) || link->message() == nullptr) return false;
  destinations_->Choose(ask, wire::EagerBytes(link->options().message_bytes),
                        habits_->Of(*key)->bytes_last);

  wire::Record record;
  record.slot = ask->slot;
  record.generation = static_cast<uint16_t>(ask->generation);
  record.number = key->id;
  if (ask->said) record.flags |= wire::kReplay;
  if (ask->attempt > 0) record.flags |= wire::kRetry;
  if (ask->is_ahead()) record.flags |= wire::kStanding;
  wire::RequestBody body;
  body.step = ask->step;
  if (ask->landing) {
    record.flags |= wire::kHasDestination;
    Landing* const landing = LandingPool::AsLanding(ask->landing);
    body.destination_address = landing->address();
    body.destination_bytes = landing->bytes();
    body.destination_key = landing->TellKey();
  } else if (ask->region != nullptr) {
    record.flags |= wire::kHasDestination;
    body.destination_address = ask->region->address();
    body.destination_bytes = ask->region->bytes();
    body.destination_key = ask->region->remote_key();
  }
  // A landing beside the caller's memory may be as large as the tensor. Its request names no shape,
  // so that LANDED announces the tensor: an immediate alone would not say what to copy.
  if (ask->destination().valid() && !ask->landing) {
    record.flags |= wire::kHasShape;
    body.dtype = static_cast<uint8_t>(ask->destination().dtype());
    const TensorShape& shape = ask->destination().shape();
    body.rank = static_cast<uint8_t>(shape.rank());
    for (int i = 0; i < shape.rank(); ++i) body.dims[i] = shape.dim(i);
  } else if (ask->expected.bytes > 0) {
    record.flags |= wire::kHasShape;
    body.dtype = ask->expected.dtype;
    body.rank = ask->expected.rank;
    std::copy(ask->expected.dims, ask->expected.dims + body.rank, body.dims);
    // Offers no more than the tensor needs, so that the immediate alone can complete it.
    body.destination_bytes = std::min(body.destination_bytes, ask->expected.bytes);
  }
  if (ask->ticket != 0) record.flags |= wire::kHasTicket;
  if (may_park) record.flags |= wire::kMayPark;
  body.ticket = ask->ticket;
  const auto add = [&](wire::MessageWriter* writer) { return writer->AddRequest(record, body); };
  if (!link->Put(add)) return false;
  // The last one may have ended by a GONE, which accepts nothing.
  link->NoteOver(record.slot, record.generation);
  // As much of the generation as the request has: the producer knows no more.
  ask->trace_id = TraceId(session_->session(),
                          uint64_t{ask->slot} << 16 | uint64_t{record.generation}, ask->step);
  return true;
}

bool RdmaSender::TellKey(FetchKey* key) {
  if (key->told == epoch) return true;
  wire::Record record;
  record.type = wire::RecordType::kKey;
  record.number = key->id;
  record.body = key->told_text();
  if (key->is_run()) record.flags |= wire::kRun;
  if (!link->Send(record)) return false;
  key->told = epoch;
  return true;
}

}  // namespace tryst
