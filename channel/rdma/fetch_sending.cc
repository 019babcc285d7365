#include <algorithm>

#include "absl/strings/str_cat.h"
#include "channel/rdma/fetch_channel.h"

// What a FetchChannel says to the producer: keys, requests, cancels.
namespace tryst {

bool FetchChannel::TakeSlot(FetchOp* op) {
  if (free_slots_.empty()) return false;
  op->slot = free_slots_.back();
  free_slots_.pop_back();
  op->generation = generations_[op->slot];
  op->has_slot = true;
  if (!op->ordered) op->order = next_order_++;
  op->ordered = true;
  slots_[op->slot] = op;
  return true;
}

void FetchChannel::FreeSlot(FetchOp* op) {
  op->has_slot = false;
  slots_[op->slot] = nullptr;
  ++generations_[op->slot];
  free_slots_.push_back(op->slot);
  if (!NextLine()->empty() && state_ == State::kOpen) link_->FlushSoon();
}

// Whose front gets the next free slot: a tensor that is there goes before one that may not be.
LinkedLine<FetchOp>* FetchChannel::NextLine() { return here_line_.empty() ? &queued_ : &here_line_; }

void FetchChannel::SendSoon(FetchOp* op) {
  if (!op->in_send_line) {
    op->in_send_line = true;
    send_line_.Push(op);
  }
  if (state_ == State::kOpen) link_->FlushSoon();
}

void FetchChannel::OnFlush() {
  if (state_ != State::kOpen) return;
  if (!NextLine()->empty() && free_slots_.empty()) DropOneStanding();
  while (!send_line_.empty()) {
    FetchOp* op = send_line_.front();
    if (op->send_request && !SendRequest(op, Intern(op->key))) return;
    if (op->send_park && !SendPark(op)) return;
    if (op->send_waits && !SendWaits(op)) return;
    if (op->send_cancel) {
      wire::Record record;
      record.type = wire::RecordType::kCancel;
      record.slot = op->slot;
      record.generation = op->generation;
      if (!link_->Send(record)) return;
      op->send_cancel = false;
      ++counters_.cancels_sent;
    }
    send_line_.PopFront();
    op->in_send_line = false;
    FreeIfDone(op);
  }
  if (tell_replayed_) {
    wire::Record record;
    record.type = wire::RecordType::kReplayed;
    if (!link_->Send(record)) return;
    tell_replayed_ = false;
  }
  if (!SendTickets(wire::RecordType::kUnwanted, &unwanted_)) return;
  if (ping_due_) {
    wire::Record record;
    record.type = wire::RecordType::kPing;
    if (!link_->Send(record)) return;
    link_->SignalMessage();
    ping_due_ = false;
  }
  for (LinkedLine<FetchOp>* line = NextLine(); !line->empty() && link_->message() != nullptr;
       line = NextLine()) {
    FetchOp* op = line->front();
    if (free_slots_.empty()) break;
    line->PopFront();
    KeyEntry* entry = Intern(op->key);
    if (!op->here && WaitsItsTurn(op, entry)) continue;
    TakeSlot(op);
    if (op->here) by_ticket_.erase(op->ticket);
    op->send_request = true;
    if (!SendRequest(op, entry)) return SendSoon(op);
  }
  WatchLine();
}

bool FetchChannel::SendRequest(FetchOp* op, KeyEntry* entry) {
  if (entry->epoch != static_cast<uint32_t>(epoch_) && !SendKey(entry, op->key)) return false;
  if (link_->message() == nullptr) return false;
  ChooseDestination(op, entry->bytes_last);

  wire::Record record;
  record.slot = op->slot;
  record.generation = op->generation;
  record.number = entry->id;
  if (op->asked_before) record.flags |= wire::kReplay;
  if (op->retried) record.flags |= wire::kRetry;
  if (op->standing) record.flags |= wire::kStanding;
  const bool may_park = MayPark(*op);
  if (may_park && op->ticket == 0) op->ticket = next_ticket_++;
  wire::RequestBody body;
  body.step = op->step;
  if (op->landing) {
    record.flags |= wire::kHasDestination;
    const Landing* landing = LandingPool::AsLanding(op->landing);
    body.destination_address = landing->address();
    body.destination_bytes = landing->bytes();
    body.destination_key = landing->remote_key();
  } else if (op->region != nullptr) {
    record.flags |= wire::kHasDestination;
    body.destination_address = op->region->address();
    body.destination_bytes = op->region->bytes();
    body.destination_key = op->region->remote_key();
  }
  if (op->args.destination.valid()) {
    record.flags |= wire::kHasShape;
    body.dtype = static_cast<uint8_t>(op->args.destination.dtype());
    const TensorShape& shape = op->args.destination.shape();
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
  if (op->asked_before) ++counters_.replays;
  op->asked_before = false;
  op->send_request = false;
  op->park_asked = may_park;
  op->state = FetchState::kAsked;
  op->span.id =
      TraceId(peer_session_, uint64_t{op->slot} << 16 | uint64_t{op->generation}, op->step);
  op->span.Enter(WaitsFor::kPeerSend, now_ns());
  return true;
}

FetchChannel::KeyEntry* FetchChannel::Intern(const TensorKey& key) {
  auto found = keys_.find(key);
  if (found != keys_.end()) return &found->second;
  const uint32_t id = next_key_id_++ % wire::kMaxKeys;
  if (id < key_of_id_.size()) {
    auto oldest = keys_.find(key_of_id_[id]);
    FetchOp* standing = oldest->second.standing;
    KeepAsked(oldest->first, &oldest->second);
    keys_.erase(oldest);
    // Its fetch would no longer find it.
    if (standing != nullptr) EndEarly(standing, absl::CancelledError("its key was forgotten"));
    key_of_id_[id] = key;
  } else {
    key_of_id_.push_back(key);
  }
  KeyEntry& entry = keys_[key];
  entry.id = id;
  auto stray = strays_.empty() ? strays_.end() : strays_.find(key);
  if (stray != strays_.end()) {
    entry.asked = std::move(stray->second);
    strays_.erase(stray);
  }
  return &entry;
}

bool FetchChannel::SendKey(KeyEntry* entry, const TensorKey& key) {
  wire::Record record;
  record.type = wire::RecordType::kKey;
  record.number = entry->id;
  record.body = key.text();
  if (!link_->Send(record)) return false;
  entry->epoch = static_cast<uint32_t>(epoch_);
  return true;
}

}  // namespace tryst
