#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/types/optional.h"
#include "base/reached.h"
#include "channel/crc32c.h"
#include "channel/rdma/fetch_channel.h"
#include "channel/string_codec.h"

// What a FetchChannel hears from the producer: its words, and tensors that land.
namespace tryst {
namespace {

// The caller's memory, which we may write ourselves.
bool InHostDestination(const FetchOp& op) {
  const Tensor& destination = op.wants().destination;
  return destination.valid() && destination.space().host_readable();
}

// Of what a peer says; never a string tensor.
bool IsAsSaid(const Tensor& tensor, const wire::TensorMeta& meta) {
  if (!tensor.valid() || tensor.dtype() == DType::kString) return false;
  const absl::Span<const int64_t> dims = tensor.shape().dims();
  return static_cast<uint8_t>(tensor.dtype()) == meta.dtype && dims.size() == meta.rank &&
         std::equal(dims.begin(), dims.end(), meta.dims) && tensor.bytes() == meta.bytes;
}

absl::optional<FetchEvent> EventOf(wire::RecordType type) {
  switch (type) {
    case wire::RecordType::kTensor:
      return FetchEvent::kTensor;
    case wire::RecordType::kLanded:
      return FetchEvent::kLanded;
    case wire::RecordType::kNeedDestination:
      return FetchEvent::kNeedDestination;
    case wire::RecordType::kFailed:
      return FetchEvent::kFailed;
    case wire::RecordType::kGone:
      return FetchEvent::kGone;
    case wire::RecordType::kParked:
      return FetchEvent::kParked;
    default:
      return absl::nullopt;
  }
}

}  // namespace

absl::Status FetchChannel::OnRecord(const wire::Record& record) {
  OnHeard();
  if (record.type == wire::RecordType::kPong) return absl::OkStatus();
  if (record.type == wire::RecordType::kHere) {
    auto tickets = wire::DecodeTickets(record);
    if (tickets.ok()) OnHere(*tickets);
    return tickets.status();
  }
  const absl::optional<FetchEvent> event = EventOf(record.type);
  if (!event) return absl::DataLossError("the producer sent a consumer's record");
  if (record.slot >= slots_.size()) return absl::DataLossError("record for a slot out of range");
  RdmaFetchOp* op = Own(slots_.at(record.slot));
  if (op == nullptr || static_cast<uint16_t>(op->generation) != record.generation) {
    TRYST_REACHED("rare: a record of another generation");
    ++counters_.ghosts;
    return absl::OkStatus();
  }
  if (*event == FetchEvent::kParked && !op->park_asked) {
    return absl::DataLossError("the producer parked what it was not asked to");
  }
  const FetchRow* row = Hear(op, *event);
  return row == nullptr ? OutOfPlace(op->state, *event) : Act(op, row->action, record);
}

absl::Status FetchChannel::Act(RdmaFetchOp* op, FetchAction action, const wire::Record& record) {
  switch (action) {
    case FetchAction::kTake:
      return op->state == FetchState::kParts ? OnLanded(op, record) : OnTensor(op, record);
    case FetchAction::kFindRoom:
      return OnNeedDestination(op, record);
    case FetchAction::kFail:
      Complete(op,
               FailureTold(record.number, record.body.substr(0, wire::kMaxErrorBytes),
                           (record.flags & wire::kDerived) != 0),
               Tensor(), false);
      break;
    case FetchAction::kKeepParts: {
      auto meta = wire::DecodeMeta(record, nullptr);
      if (!meta.ok()) return meta.status();
      op->meta.stripes = meta->stripes;
      break;
    }
    case FetchAction::kGiveSlot:
    case FetchAction::kUnwant:
      OnParked(op, action == FetchAction::kGiveSlot);
      break;
    case FetchAction::kLastWord:
      op->gone_seen = true;
      op->parts_since_ns = now_ns();
      LeaveIfOver(op);
      break;
    default:
      break;
  }
  return absl::OkStatus();
}

// Of a tensor that landed in parts, those still under way are known.
void FetchChannel::OnLeaves(FetchOp* base, FetchState from) {
  RdmaFetchOp* op = Own(base);
  if (from != FetchState::kParts) op->meta.stripes = 0;
  op->gone_seen = false;
  room_line_.Remove(op);
  op->result = Tensor();                                      // kAhead.
  if (!open_ && from == FetchState::kInSlot) DropMemory(op);  // Nobody can write it any more.
}

void FetchChannel::LeaveIfOver(RdmaFetchOp* op) {
  if (!op->gone_seen || op->parts_seen < op->meta.stripes) {
    if (op->gone_seen) TRYST_REACHED("sim: GONE comes before the last part");
    return;
  }
  DropMemory(op);
  if (op->moves) return MoveAway(op);
  LastWord(op);
  Report(op, op->end_status, Tensor(), false, When::kAtEndOfTurn);
}

// The peer's last word on the slot has come, and no write follows it.
void FetchChannel::Complete(RdmaFetchOp* op, absl::Status status, Tensor tensor, bool is_dead) {
  DropMemory(op);
  if (op->standing && status.ok()) {
    Advance(op, FetchEvent::kAheadDone);
    op->result = std::move(tensor);
    op->result_is_dead = is_dead;
    return;
  }
  Advance(op, FetchEvent::kComplete);
  link_->Accept(op->slot, static_cast<uint16_t>(op->generation + 1));
  const bool recurs = status.ok() && op->wants().recurring && !op->wants().destination.valid();
  if (recurs && tensor.valid()) NoteTensor(op->key, tensor);
  LastWord(op);
  Report(op, std::move(status), std::move(tensor), is_dead, When::kAtEndOfTurn);
  if (recurs) ArmNext(op->key);
}

// What its key's tensors take, for the next one.
void FetchChannel::NoteBytes(const RdmaFetchOp& op, uint64_t bytes) {
  const bool is_known = op.asked_of != nullptr && op.asked_of->id != FetchKey::kNoId;
  const FetchKey* key = is_known ? op.asked_of : keys_.Intern(op.key);
  HabitOf(*key)->bytes_last = std::max<uint64_t>(bytes, 1);
}

absl::Status FetchChannel::OnTensor(RdmaFetchOp* op, const wire::Record& record) {
  absl::string_view payload;
  auto meta = wire::DecodeMeta(record, &payload);
  if (!meta.ok()) return meta.status();
  const bool is_dead = (record.flags & wire::kIsDead) != 0;
  const Tensor& wanted = op->wants().destination;
  if (!is_dead && IsAsSaid(wanted, *meta) && InHostDestination(*op) &&
      payload.size() <= options_.max_tensor_bytes) {
    if (!payload.empty()) memcpy(wanted.mutable_data(), payload.data(), payload.size());
    NoteBytes(*op, payload.size());
    counters_.bytes += payload.size();
    Complete(op, absl::OkStatus(), wanted, false);
    return absl::OkStatus();
  }
  auto shape = TensorShape::Make(absl::MakeConstSpan(meta->dims, meta->rank));
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  const DType dtype = static_cast<DType>(meta->dtype);
  absl::Status status;
  Tensor tensor;
  if (is_dead) {
    // Nothing to take over.
  } else if (dtype == DType::kString) {
    status = FitsLimit(meta->bytes, options_.max_tensor_bytes);
    auto decoded = DecodeStrings(payload, *shape);
    if (!decoded.ok()) return decoded.status();
    if (status.ok()) tensor = *std::move(decoded);
  } else {
    auto bytes = TensorBytes(dtype, *shape);
    if (!bytes.ok() || *bytes != payload.size()) {
      return absl::DataLossError("the payload is not what its type and shape say");
    }
    status = MayTake(*op, dtype, *shape, meta->bytes);
    if (status.ok()) {
      if (InHostDestination(*op)) {
        tensor = op->wants().destination;
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
  if (!is_dead) NoteBytes(*op, meta->bytes);
  if (!status.ok()) {
    EndEarly(op, status);  // It stays the producer's.
    return absl::OkStatus();
  }
  counters_.bytes += payload.size();
  Complete(op, absl::OkStatus(), std::move(tensor), is_dead);
  return absl::OkStatus();
}

absl::Status FetchChannel::OnLanded(RdmaFetchOp* op, const wire::Record& record) {
  auto meta = wire::DecodeMeta(record, nullptr);
  if (!meta.ok()) return meta.status();
  op->meta = *meta;
  op->meta_flags = record.flags;
  op->parts_since_ns = now_ns();
  if (op->parts_seen >= op->meta.stripes) return TakeLanded(op);
  op->span.Enter(WaitsFor::kParts, now_ns());
  return absl::OkStatus();
}

absl::Status FetchChannel::OnTensorPart(size_t lane, uint16_t slot, uint16_t generation) {
  OnHeard();
  RdmaFetchOp* op = Own(slots_.at(slot));
  if (op == nullptr || static_cast<uint16_t>(op->generation) != generation) {
    TRYST_REACHED("rare: an immediate of another generation");
    ++counters_.ghosts;
    return absl::OkStatus();
  }
  if (Hear(op, FetchEvent::kPart) == nullptr) return OutOfPlace(op->state, FetchEvent::kPart);
  const uint32_t bit = 1u << lane;
  // Without order a queue pair may carry several, and they are counted alone.
  if (link_->ordered() && (op->lanes_seen & bit) != 0)
    return absl::DataLossError("a part of a tensor came twice");
  op->lanes_seen |= bit;
  ++op->parts_seen;
  if (op->state == FetchState::kLeaving) {
    LeaveIfOver(op);
  } else if (op->state == FetchState::kParts && op->parts_seen >= op->meta.stripes) {
    return TakeLanded(op);
  } else if (op->state == FetchState::kAsked && link_->queue_pairs() == 1 && link_->ordered()) {
    // The shape was known and there is no digest: the immediate says it all.
    if (op->expects && op->landing) {
      op->meta = op->expected;
      op->meta_flags = 0;
      return TakeLanded(op);
    }
    if (op->region == nullptr) return absl::DataLossError("a tensor landed where none was due");
    counters_.bytes += op->region->bytes();
    Tensor tensor = op->wants().destination;
    DropMemory(op);
    Complete(op, absl::OkStatus(), std::move(tensor), false);
  }
  return absl::OkStatus();
}

// The bytes are all in the destination.
absl::Status FetchChannel::TakeLanded(RdmaFetchOp* op) {
  const wire::TensorMeta& meta = op->meta;
  auto shape = TensorShape::Make(absl::MakeConstSpan(meta.dims, meta.rank));
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  void* memory = op->landing ? op->landing->data() : op->wants().destination.mutable_data();
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
  // What is looked at from here on nobody else writes.
  if (op->landing) {
    LandingPool::AsLanding(op->landing)->EndKey();
  } else {
    DropMemory(op);
  }
  const bool host_readable = op->landing || InHostDestination(*op);
  if (host_readable && (op->meta_flags & wire::kHasDigest) != 0 &&
      Crc32c(0, memory, meta.bytes) != meta.digest) {
    TRYST_REACHED("sim: a wrong digest");
    ++counters_.digests_wrong;
    if (!op->retried) {
      op->retried = true;
      op->parts_seen = 0;
      op->lanes_seen = 0;
      Advance(op, FetchEvent::kRetry);
      op->send_request = true;
      SendSoon(op);
      return absl::OkStatus();
    }
    TRYST_REACHED("rare: a wrong digest for the second time");
    EndEarly(op, absl::DataLossError("the digest of the tensor was wrong twice"));
    return absl::OkStatus();
  }
  NoteBytes(*op, meta.bytes);
  absl::Status status = MayTake(*op, dtype, *shape, meta.bytes);
  Tensor tensor;
  if (status.ok() && dtype == DType::kString) {
    auto decoded = DecodeStrings(absl::string_view(static_cast<char*>(memory), meta.bytes), *shape);
    if (!decoded.ok()) return decoded.status();
    tensor = *std::move(decoded);
  } else if (status.ok() && (!op->landing || InHostDestination(*op))) {
    tensor = op->wants().destination;
    if (op->landing) memcpy(tensor.mutable_data(), memory, meta.bytes);
  } else if (status.ok()) {
    auto taken = Tensor::FromStorage(std::move(op->landing), 0, dtype, *shape);
    status = taken.status();
    if (taken.ok()) tensor = *std::move(taken);
  }
  if (!status.ok()) {
    EndEarly(op, status);  // It stays the producer's.
    return absl::OkStatus();
  }
  counters_.bytes += meta.bytes;
  Complete(op, absl::OkStatus(), std::move(tensor), false);
  return absl::OkStatus();
}

absl::Status FetchChannel::OnNeedDestination(RdmaFetchOp* op, const wire::Record& record) {
  auto meta = wire::DecodeMeta(record, nullptr);
  if (!meta.ok()) return meta.status();
  auto shape = TensorShape::Make(absl::MakeConstSpan(meta->dims, meta->rank));
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  if (op->standing) {
    // Not what it used to be. Its fetch will ask in the ordinary way.
    EndEarly(op, absl::CancelledError("another shape than expected"));
    return absl::OkStatus();
  }
  op->expects = false;
  DropMemory(op);
  op->meta = *meta;
  const absl::Status fits = MayTake(*op, static_cast<DType>(meta->dtype), *shape, meta->bytes);
  if (!fits.ok()) {
    EndEarly(op, fits);
  } else {
    WaitForRoom(op);
  }
  return absl::OkStatus();
}

}  // namespace tryst
