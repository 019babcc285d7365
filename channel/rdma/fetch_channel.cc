#include "channel/rdma/fetch_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/crc32c.h"
#include "channel/string_codec.h"
#include "rendezvous/derived_status.h"

// Operations: sending, receiving, ending. fetch_connection.cc has the connection.
namespace tryst {
namespace {

// How many keys a connection remembers; the oldest give way.
constexpr uint32_t kMaxKeys = 1u << 16;

bool IsHostMemory(const Tensor& tensor) { return tensor.space().host_readable(); }

}  // namespace

// ---- Starting ----

void FetchChannel::Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) {
  FetchOp* op = TakeOp();
  op->step = step_id;
  op->key = key;
  op->args = args;
  op->done = std::move(done);
  op->state = FetchState::kQueued;
  ++counters_.fetches;
  if (live_ == 1) waiting_since_ns_ = now_ns();
  queued_.Push(op);

  if (state_ == State::kClosed) return EndEarly(op, close_status_);
  if (key.text().size() > wire::kMaxKeyBytes) {
    return EndEarly(op, absl::InvalidArgumentError("the key is too long to be sent"));
  }
  if (args.destination.valid() && !IsHostMemory(args.destination)) {
    return EndEarly(op, absl::UnimplementedError(
                            "this channel does not write device memory: fetch into host memory"));
  }
  if (args.cancellation != nullptr) {
    Poller* poller = hub_->poller();
    op->cancel_token = args.cancellation->Register([op, poller] { op->Cancel(poller); });
    if (op->cancel_token == Cancellation::kNoToken) {
      return EndEarly(op, MarkDerived(absl::CancelledError("the fetch is cancelled")));
    }
  }
  if (!args.deadline.is_never()) hub_->poller()->SetTimer(op, args.deadline.at_ns());
  if (state_ == State::kIdle) Connect();
  if (state_ == State::kOpen) {
    link_->FlushSoon();
    if (!heartbeat_timer_.is_set()) {
      hub_->poller()->SetTimer(&heartbeat_timer_, now_ns() + options_.heartbeat_ms * 1'000'000);
    }
  }
}

std::vector<WaitingFetch> FetchChannel::TakeWaiting() {
  std::vector<WaitingFetch> taken;
  while (!queued_.empty()) {
    FetchOp* op = queued_.front();
    queued_.PopFront();
    if (op->cancel_token != Cancellation::kNoToken &&
        !op->args.cancellation->TryDeregister(op->cancel_token)) {
      // Cancelled this moment: it ends here.
      Report(op, MarkDerived(absl::CancelledError("the fetch is cancelled")), Tensor(), false);
      LastWord(op);
      continue;
    }
    op->cancel_token = Cancellation::kNoToken;
    hub_->poller()->CancelTimer(op);
    taken.push_back({op->step, op->key, std::move(op->args), std::move(op->done)});
    op->args = Args();
    op->done = nullptr;
    op->reported = op->delivered = true;
    LastWord(op);
  }
  return taken;
}

FetchOp* FetchChannel::TakeOp() {
  if (free_.empty()) {
    ops_.emplace_back(this);
    free_.push_back(&ops_.back());
  }
  FetchOp* op = free_.back();
  free_.pop_back();
  ++live_;
  op->slot = 0;
  op->generation = 0;
  op->send_request = op->send_cancel = op->asked_before = false;
  op->reported = op->delivered = op->retried = op->ending = false;
  op->parts_seen = 0;
  op->lanes_seen = 0;
  op->meta_flags = 0;
  op->result_is_dead = false;
  return op;
}

bool FetchChannel::TakeSlot(FetchOp* op) {
  if (free_slots_.empty()) return false;
  op->slot = free_slots_.back();
  free_slots_.pop_back();
  op->generation = generations_[op->slot];
  op->has_slot = true;
  op->order = next_order_++;
  slots_[op->slot] = op;
  return true;
}

// ---- Sending ----

void FetchChannel::SendSoon(FetchOp* op) {
  if (!op->in_send_line) {
    op->in_send_line = true;
    send_line_.Push(op);
  }
  if (state_ == State::kOpen) link_->FlushSoon();
}

void FetchChannel::OnFlush() {
  if (state_ != State::kOpen) return;
  while (!send_line_.empty()) {
    FetchOp* op = send_line_.front();
    if (op->send_request && !SendRequest(op)) return;
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
  if (ping_due_) {
    wire::Record record;
    record.type = wire::RecordType::kPing;
    if (!link_->Send(record)) return;
    ping_due_ = false;
  }
  while (!queued_.empty() && link_->message() != nullptr && TakeSlot(queued_.front())) {
    FetchOp* op = queued_.front();
    queued_.PopFront();
    op->send_request = true;
    if (!SendRequest(op)) return SendSoon(op);
  }
}

bool FetchChannel::SendRequest(FetchOp* op) {
  KeyEntry* entry = Intern(op->key);
  if (entry->epoch != static_cast<uint32_t>(epoch_) && !SendKey(entry, op->key)) return false;
  wire::MessageWriter* writer = link_->message();
  if (writer == nullptr) return false;
  ChooseDestination(op);

  wire::Record record;
  record.slot = op->slot;
  record.generation = op->generation;
  record.number = entry->id;
  if (op->asked_before) record.flags |= wire::kReplay;
  if (op->retried) record.flags |= wire::kRetry;
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
  }
  if (!writer->AddRequest(record, body)) {
    writer = link_->NextMessage();
    if (writer == nullptr || !writer->AddRequest(record, body)) return false;
  }
  if (op->asked_before) ++counters_.replays;
  op->asked_before = false;
  op->send_request = false;
  op->state = FetchState::kAsked;
  return true;
}

FetchChannel::KeyEntry* FetchChannel::Intern(const TensorKey& key) {
  auto found = keys_.find(key);
  if (found != keys_.end()) return &found->second;
  const uint32_t id = next_key_id_++ % kMaxKeys;
  if (id < key_of_id_.size()) {
    keys_.erase(key_of_id_[id]);
    key_of_id_[id] = key;
  } else {
    key_of_id_.push_back(key);
  }
  KeyEntry& entry = keys_[key];
  entry.id = id;
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

// ---- Destinations ----

// Before the peer has said what the tensor is: what is known to be right, else what was
// right last time, else a guess. Without room now there is none, and the peer will ask.
void FetchChannel::ChooseDestination(FetchOp* op) {
  if (op->landing || op->region != nullptr) return;
  const uint64_t inside = wire::EagerBytes(options_.link.message_bytes);
  const Tensor& wanted = op->args.destination;
  if (wanted.valid()) {
    if (wanted.dtype() == DType::kString || wanted.bytes() <= inside) return;
    GiveDestination(op, wanted.bytes(), LandingPool::For::kWaiting);
    return;
  }
  const uint64_t last = Intern(op->key)->bytes_last;
  const uint64_t guess = last != 0 ? last : options_.landing_bytes;
  if (guess > inside) GiveDestination(op, guess, LandingPool::For::kWaiting);
}

bool FetchChannel::GiveDestination(FetchOp* op, uint64_t bytes, LandingPool::For what) {
  const Tensor& wanted = op->args.destination;
  if (wanted.valid() && wanted.dtype() != DType::kString) {
    if (!landings_->TakeBudget(bytes, what)) return false;
    auto region =
        landings_->nic()->RegisterRegion(wanted.mutable_data(), bytes, kLocalWrite | kRemoteWrite);
    if (region.ok()) {
      op->region = *std::move(region);
      op->budget_bytes = bytes;
      if (what == LandingPool::For::kWaiting) op->waiting_bytes = bytes;
      return true;
    }
    // The NIC cannot reach the caller's memory: land beside it and copy.
    landings_->GiveBudget(bytes, what);
  }
  op->landing = landings_->Take(bytes, what);
  if (!op->landing) return false;
  if (what == LandingPool::For::kWaiting) op->waiting_bytes = op->landing->bytes();
  return true;
}

void FetchChannel::EndWaitingCharge(FetchOp* op) {
  if (op->waiting_bytes > 0) landings_->EndWaiting(std::exchange(op->waiting_bytes, 0));
}

void FetchChannel::DropDestination(FetchOp* op) {
  EndWaitingCharge(op);
  op->region.reset();
  if (op->budget_bytes > 0) {
    landings_->GiveBudget(std::exchange(op->budget_bytes, 0), LandingPool::For::kReady);
  }
  op->landing = StorageRef();
}

// The peer has the tensor: when it is its turn and there is room, ask again.
void FetchChannel::WaitForRoom(FetchOp* op) {
  if (op->meta.bytes > landings_->cap_bytes()) {
    return EndEarly(op, absl::ResourceExhaustedError(absl::StrCat(
                            "the tensor has ", op->meta.bytes, " bytes, the landing cap is ",
                            landings_->cap_bytes(), ": raise landing_cap_bytes")));
  }
  op->state = FetchState::kWaitingRoom;
  room_line_.Push(op);
  if (room_line_.front() == op) OnRoom();
}

void FetchChannel::OnRoom() {
  while (!room_line_.empty()) {
    FetchOp* op = room_line_.front();
    if (!GiveDestination(op, op->meta.bytes, LandingPool::For::kReady)) return;
    room_line_.PopFront();
    op->state = FetchState::kAsked;
    op->send_request = true;
    SendSoon(op);
  }
}

// ---- Receiving ----

absl::Status FetchChannel::OnRecord(const wire::Record& record) {
  backoff_ms_ = 0;  // The connection works.
  if (record.type == wire::RecordType::kPong) return absl::OkStatus();
  if (record.type < wire::RecordType::kTensor) {
    return absl::DataLossError("the producer sent a consumer's record");
  }
  if (record.slot >= slots_.size()) return absl::DataLossError("record for a slot out of range");
  FetchOp* op = slots_[record.slot];
  if (op == nullptr || op->generation != record.generation) {
    ++counters_.ghosts;
    return absl::OkStatus();
  }
  if (op->state == FetchState::kLeaving) {
    // Only the answer to the cancel ends it; of what comes before, remember for how many
    // parts the destination must be kept.
    if (record.type == wire::RecordType::kLanded) {
      auto meta = wire::DecodeMeta(record, nullptr);
      if (!meta.ok()) return meta.status();
      op->meta.stripes = meta->stripes;
    } else if (record.type == wire::RecordType::kGone) {
      op->gone_seen = true;
      LeaveIfOver(op);
    }
    return absl::OkStatus();
  }
  if (op->state != FetchState::kAsked) {
    return absl::DataLossError("the producer answered a slot that had its answer");
  }
  switch (record.type) {
    case wire::RecordType::kTensor:
      return OnTensor(op, record);
    case wire::RecordType::kLanded:
      return OnLanded(op, record);
    case wire::RecordType::kNeedDestination:
      return OnNeedDestination(op, record);
    case wire::RecordType::kFailed:
      OnFailed(op, record);
      return absl::OkStatus();
    default:
      return absl::DataLossError("the producer ended a slot that was not cancelled");
  }
}

void FetchChannel::LeaveIfOver(FetchOp* op) {
  if (!op->gone_seen || op->parts_seen < op->meta.stripes) return;
  DropDestination(op);
  Report(op, op->end_status, Tensor(), false);
  LastWord(op);
}

absl::Status FetchChannel::OnTensor(FetchOp* op, const wire::Record& record) {
  absl::string_view payload;
  auto meta = wire::DecodeMeta(record, &payload);
  if (!meta.ok()) return meta.status();
  auto shape = TensorShape::Make(absl::MakeConstSpan(meta->dims, meta->rank));
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  const DType dtype = static_cast<DType>(meta->dtype);
  const bool is_dead = (record.flags & wire::kIsDead) != 0;
  absl::Status status;
  Tensor tensor;
  if (is_dead) {
    // Nothing to take over.
  } else if (dtype == DType::kString) {
    auto decoded = DecodeStrings(payload, *shape);
    if (!decoded.ok()) return decoded.status();
    tensor = *std::move(decoded);
  } else {
    auto bytes = TensorBytes(dtype, *shape);
    if (!bytes.ok() || *bytes != payload.size()) {
      return absl::DataLossError("the payload is not what its type and shape say");
    }
    status = CheckAgainstDestination(*op, *meta, *shape);
    if (status.ok()) {
      if (op->args.destination.valid()) {
        tensor = op->args.destination;
      } else {
        auto made = Tensor::Allocate(dtype, *shape);
        status = made.status();
        if (made.ok()) tensor = *std::move(made);
      }
      if (status.ok() && !payload.empty()) {
        memcpy(tensor.mutable_data(), payload.data(), payload.size());
      }
    }
  }
  if (!is_dead) Intern(op->key)->bytes_last = std::max<uint64_t>(meta->bytes, 1);
  counters_.bytes += payload.size();
  Complete(op, std::move(status), std::move(tensor), is_dead);
  return absl::OkStatus();
}

absl::Status FetchChannel::CheckAgainstDestination(const FetchOp& op, const wire::TensorMeta& meta,
                                                   const TensorShape& shape) const {
  const Tensor& wanted = op.args.destination;
  if (!wanted.valid()) return absl::OkStatus();
  if (static_cast<uint8_t>(wanted.dtype()) == meta.dtype && wanted.shape() == shape) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the destination is ", DTypeName(wanted.dtype()), wanted.shape().ToString(),
                   ", the tensor ", DTypeName(static_cast<DType>(meta.dtype)), shape.ToString()));
}

absl::Status FetchChannel::OnLanded(FetchOp* op, const wire::Record& record) {
  auto meta = wire::DecodeMeta(record, nullptr);
  if (!meta.ok()) return meta.status();
  op->meta = *meta;
  op->meta_flags = record.flags;
  op->state = FetchState::kParts;
  op->parts_since_ns = now_ns();
  return op->parts_seen >= op->meta.stripes ? TakeLanded(op) : absl::OkStatus();
}

absl::Status FetchChannel::OnTensorPart(size_t lane, uint16_t slot, uint16_t generation) {
  FetchOp* op = slots_[slot];
  if (op == nullptr || op->generation != generation) {
    ++counters_.ghosts;
    return absl::OkStatus();
  }
  const uint32_t bit = 1u << lane;
  if ((op->lanes_seen & bit) != 0) return absl::DataLossError("a part of a tensor came twice");
  op->lanes_seen |= bit;
  ++op->parts_seen;
  if (op->state == FetchState::kLeaving) {
    LeaveIfOver(op);
  } else if (op->state == FetchState::kParts && op->parts_seen >= op->meta.stripes) {
    return TakeLanded(op);
  } else if (op->state == FetchState::kAsked && link_->queue_pairs() == 1) {
    // The shape was known and there is no digest: the immediate says it all.
    if (op->region == nullptr) return absl::DataLossError("a tensor landed where none was due");
    counters_.bytes += op->region->bytes();
    Tensor tensor = op->args.destination;
    DropDestination(op);
    Complete(op, absl::OkStatus(), std::move(tensor), false);
  }
  return absl::OkStatus();
}

// The bytes are all in the destination.
absl::Status FetchChannel::TakeLanded(FetchOp* op) {
  const wire::TensorMeta& meta = op->meta;
  auto shape = TensorShape::Make(absl::MakeConstSpan(meta.dims, meta.rank));
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  void* memory = op->landing ? op->landing->data() : op->args.destination.mutable_data();
  const uint64_t room = op->landing             ? op->landing->bytes()
                        : op->region != nullptr ? op->region->bytes()
                                                : 0;
  if (meta.bytes > room) return absl::DataLossError("more landed than there was room for");
  const DType dtype = static_cast<DType>(meta.dtype);
  if (dtype != DType::kString) {
    auto bytes = TensorBytes(dtype, *shape);
    if (!bytes.ok() || *bytes != meta.bytes) {
      return absl::DataLossError("what landed is not what its type and shape say");
    }
  }
  EndWaitingCharge(op);
  if ((op->meta_flags & wire::kHasDigest) != 0 && Crc32c(0, memory, meta.bytes) != meta.digest) {
    ++counters_.digests_wrong;
    if (!op->retried) {
      op->retried = true;
      op->parts_seen = 0;
      op->lanes_seen = 0;
      op->state = FetchState::kAsked;
      op->send_request = true;
      SendSoon(op);
      return absl::OkStatus();
    }
    DropDestination(op);
    Complete(op, absl::DataLossError("the digest of the tensor was wrong twice"), Tensor(), false);
    return absl::OkStatus();
  }
  Intern(op->key)->bytes_last = std::max<uint64_t>(meta.bytes, 1);
  counters_.bytes += meta.bytes;
  absl::Status status = CheckAgainstDestination(*op, meta, *shape);
  Tensor tensor;
  if (status.ok() && dtype == DType::kString) {
    auto decoded = DecodeStrings(absl::string_view(static_cast<char*>(memory), meta.bytes), *shape);
    if (!decoded.ok()) return decoded.status();
    tensor = *std::move(decoded);
  } else if (status.ok() && op->args.destination.valid()) {
    tensor = op->args.destination;
    if (op->landing) memcpy(tensor.mutable_data(), memory, meta.bytes);
  } else if (status.ok()) {
    auto taken = Tensor::FromStorage(std::move(op->landing), 0, dtype, *shape);
    status = taken.status();
    if (taken.ok()) tensor = *std::move(taken);
  }
  DropDestination(op);
  Complete(op, std::move(status), std::move(tensor), false);
  return absl::OkStatus();
}

absl::Status FetchChannel::OnNeedDestination(FetchOp* op, const wire::Record& record) {
  auto meta = wire::DecodeMeta(record, nullptr);
  if (!meta.ok()) return meta.status();
  auto shape = TensorShape::Make(absl::MakeConstSpan(meta->dims, meta->rank));
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  DropDestination(op);
  op->meta = *meta;
  const absl::Status fits = CheckAgainstDestination(*op, *meta, *shape);
  if (!fits.ok()) {
    EndEarly(op, fits);
  } else {
    WaitForRoom(op);
  }
  return absl::OkStatus();
}

void FetchChannel::OnFailed(FetchOp* op, const wire::Record& record) {
  absl::Status status(static_cast<absl::StatusCode>(record.number),
                      record.body.substr(0, wire::kMaxErrorBytes));
  if (status.ok() || record.number > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)) {
    status = absl::UnknownError(record.body.substr(0, wire::kMaxErrorBytes));
  }
  if ((record.flags & wire::kDerived) != 0) status = MarkDerived(std::move(status));
  DropDestination(op);
  Complete(op, std::move(status), Tensor(), false);
}

// ---- Ending ----

// The peer's last word on the slot has come, and no write follows it.
void FetchChannel::Complete(FetchOp* op, absl::Status status, Tensor tensor, bool is_dead) {
  DropDestination(op);
  link_->Accept(op->slot, static_cast<uint16_t>(op->generation + 1));
  Report(op, std::move(status), std::move(tensor), is_dead);
  LastWord(op);
}

void FetchChannel::EndEarly(FetchOp* op, const absl::Status& why) {
  const bool in_parts = op->state == FetchState::kParts;
  switch (op->state) {
    case FetchState::kFree:
    case FetchState::kEnding:
    case FetchState::kLeaving:
      return;
    case FetchState::kQueued:
      if (!op->has_slot) {
        queued_.Remove(op);
      } else if (state_ == State::kOpen && op->asked_before) {
        break;  // The peer may still serve the earlier request: it has to be told.
      } else {
        op->send_request = false;
      }
      DropDestination(op);
      Report(op, why, Tensor(), false);
      return LastWord(op);
    case FetchState::kFenced:
      if (op->ending) return;
      op->ending = true;
      op->end_status = why;
      if (op->region == nullptr) Report(op, why, Tensor(), false);
      return;
    case FetchState::kWaitingRoom:
      room_line_.Remove(op);
      break;
    case FetchState::kAsked:
    case FetchState::kParts:
      break;
  }
  op->state = FetchState::kLeaving;
  op->ending = true;
  op->end_status = why;
  op->gone_seen = false;
  // Of a tensor that landed in parts, those still under way are known.
  if (!in_parts) op->meta.stripes = 0;
  // A request not sent yet (a replay, a second one) need not go out any more.
  op->send_request = false;
  op->send_cancel = true;
  SendSoon(op);
  // Our own landing stays aside until the last word; the caller's memory is the caller's
  // only when nobody writes it any more.
  if (op->region == nullptr) Report(op, why, Tensor(), false);
}

void FetchChannel::Report(FetchOp* op, absl::Status status, Tensor tensor, bool is_dead) {
  if (op->reported) return;
  op->reported = true;
  ++(status.ok() ? counters_.ended_ok : counters_.ended_failed);
  hub_->poller()->CancelTimer(op);
  if (op->cancel_token != Cancellation::kNoToken) {
    // A callback that is running has only a task to post: waiting for it is brief.
    op->args.cancellation->Deregister(op->cancel_token);
    op->cancel_token = Cancellation::kNoToken;
  }
  op->result_status = std::move(status);
  op->result = std::move(tensor);
  op->result_is_dead = is_dead;
  // At the end of the turn: never inside Fetch(), nor in the middle of a record.
  undelivered_.Push(op);
  hub_->poller()->FlushThisTurn(this);
}

void FetchChannel::Flush() {
  for (size_t count = undelivered_.size(); count > 0; --count) {
    FetchOp* op = undelivered_.front();
    undelivered_.PopFront();
    Executor* executor = op->args.executor;
    if (executor == nullptr) {
      op->Deliver();
      OnOpDelivered(op);
      continue;
    }
    Poller* poller = hub_->poller();
    Executor::Work work([op, poller] { op->DeliverFrom(poller); });
    if (!executor->TryRun(&work)) {
      undelivered_.Push(op);  // Again in the next turn.
      hub_->poller()->FlushThisTurn(this);
    }
  }
}

void FetchChannel::OnOpDelivered(FetchOp* op) {
  op->delivered = true;
  FreeIfDone(op);
}

void FetchChannel::LastWord(FetchOp* op) {
  op->state = FetchState::kEnding;
  if (op->has_slot) {
    op->has_slot = false;
    slots_[op->slot] = nullptr;
    ++generations_[op->slot];
    free_slots_.push_back(op->slot);
    if (!queued_.empty() && state_ == State::kOpen) link_->FlushSoon();
  }
  if (op->in_send_line && !op->send_cancel) {
    send_line_.Remove(op);
    op->in_send_line = false;
  }
  FreeIfDone(op);
}

void FetchChannel::FreeIfDone(FetchOp* op) {
  if (op->state != FetchState::kEnding || !op->delivered || op->in_send_line ||
      op->cancel_posted.load()) {
    return;
  }
  op->state = FetchState::kFree;
  op->key = TensorKey();
  free_.push_back(op);
  --live_;
}

void FetchChannel::OnOpCancelled(FetchOp* op) {
  EndEarly(op, MarkDerived(absl::CancelledError("the fetch is cancelled")));
  FreeIfDone(op);
}

void FetchChannel::OnOpDeadline(FetchOp* op) {
  EndEarly(op,
           absl::DeadlineExceededError(absl::StrCat(
               "not received in time: ", FetchStateName(op->state), " of ", options_.peer,
               connect_status_.ok() ? "" : absl::StrCat(" (", connect_status_.message(), ")"))));
}

void FetchChannel::AbortStep(int64_t step_id, const absl::Status& why) {
  for (FetchOp& op : ops_) {
    if (op.step == step_id) EndEarly(&op, MarkDerived(why));
  }
}

}  // namespace tryst
