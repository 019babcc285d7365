#include <algorithm>

#include "absl/strings/str_cat.h"
#include "channel/rdma/fetch_channel.h"

// What a FetchChannel says to the producer: keys, requests, cancels.
namespace tryst {

void FetchChannel::FlushSoon() {
  if (link_ != nullptr) link_->FlushSoon();
}

void FetchChannel::OnFlush() {
  if (state_ == State::kOpen) SayAll();
}

bool FetchChannel::SayOwn() {
  wire::Record record;
  if (tell_replayed_) {
    record.type = wire::RecordType::kReplayed;
    if (!link_->Send(record)) return false;
    tell_replayed_ = false;
  }
  if (ping_due_) {
    record.type = wire::RecordType::kPing;
    if (!link_->Send(record)) return false;
    link_->SignalMessage();
    ping_due_ = false;
  }
  return true;
}

bool FetchChannel::SendCancel(const FetchOp& op) {
  wire::Record record;
  record.type = wire::RecordType::kCancel;
  record.slot = op.slot;
  record.generation = static_cast<uint16_t>(op.generation);
  return link_->Send(record);
}

bool FetchChannel::SendPark(const FetchOp& op) {
  const std::string ticket = wire::EncodeTickets({op.ticket});
  wire::Record record;
  record.type = wire::RecordType::kPark;
  record.slot = op.slot;
  record.generation = static_cast<uint16_t>(op.generation);
  record.body = ticket;
  return link_->Send(record);
}

// After a reconnect. The peer may have let go of it, by a farewell whose answer was lost: so this
// says all that it needs to take it anew.
bool FetchChannel::SendWaits(FetchOp* op, FetchKey* key) {
  if (!TellKey(key)) return false;
  const std::string body = wire::EncodeWaits({op->step, op->ticket});
  wire::Record record;
  record.type = wire::RecordType::kWaits;
  record.number = key->id;
  record.body = body;
  return link_->Send(record);
}

bool FetchChannel::SendUnwanted(absl::Span<const uint64_t> tickets) {
  const std::string body = wire::EncodeTickets(tickets);
  wire::Record record;
  record.type = wire::RecordType::kUnwanted;
  record.body = body;
  return link_->Send(record);
}

bool FetchChannel::SendRequest(FetchOp* base, FetchKey* key, bool may_park) {
  RdmaFetchOp* op = Own(base);
  if (!TellKey(key) || link_->message() == nullptr) return false;
  ChooseDestination(op, HabitOf(*key)->bytes_last);

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
  // A landing beside the caller's memory may be as large as the tensor. It is to be told of by a
  // word: an immediate alone says nothing of what is to be copied.
  if (op->wants().destination.valid() && !op->landing) {
    record.flags |= wire::kHasShape;
    body.dtype = static_cast<uint8_t>(op->wants().destination.dtype());
    const TensorShape& shape = op->wants().destination.shape();
    body.rank = static_cast<uint8_t>(shape.rank());
    for (int i = 0; i < shape.rank(); ++i) body.dims[i] = shape.dim(i);
  } else if (op->expects) {
    record.flags |= wire::kHasShape;
    body.dtype = op->expected.dtype;
    body.rank = op->expected.rank;
    std::copy(op->expected.dims, op->expected.dims + body.rank, body.dims);
    // No more than that: then the immediate alone can say that it is there.
    body.destination_bytes = std::min(body.destination_bytes, op->expected.bytes);
  }
  if (op->ticket != 0) record.flags |= wire::kHasTicket;
  if (may_park) record.flags |= wire::kMayPark;
  body.ticket = op->ticket;
  const auto add = [&](wire::MessageWriter* writer) { return writer->AddRequest(record, body); };
  if (!link_->Put(add)) return false;
  op->span.id =
      TraceId(peer_session_, uint64_t{op->slot} << 16 | uint64_t{op->generation}, op->step);
  return true;
}

FetchChannel::Habit* FetchChannel::HabitOf(const FetchKey& key) {
  if (key.id >= habits_.size()) habits_.resize(key.id + 1);
  Habit* habit = &habits_[key.id];
  if (habit->key != key.key) {  // The number was another key's.
    *habit = Habit();
    habit->key = key.key;
  }
  return habit;
}

bool FetchChannel::TellKey(FetchKey* key) {
  if (key->told == epoch_) return true;
  wire::Record record;
  record.type = wire::RecordType::kKey;
  record.number = key->id;
  record.body = key->key.text();
  if (!link_->Send(record)) return false;
  key->told = epoch_;
  return true;
}

}  // namespace tryst
