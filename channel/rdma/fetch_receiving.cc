#include "channel/rdma/fetch_receiving.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/types/optional.h"
#include "base/reached.h"
#include "channel/crc32c.h"
#include "channel/ops/peer_words.h"
#include "channel/string_codec.h"

namespace tryst {
namespace {

// Whether the destination is the caller's host memory, which this process can write itself.
bool InHostDestination(const FetchOp& op) {
  const Tensor& destination = op.destination();
  return destination.valid() && destination.on_host();
}

// Whether the tensor has the type and shape that the peer named. Never a string tensor.
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

absl::Status FetchReceiver::OnRecord(const wire::Record& record) {
  if (record.type == wire::RecordType::kPong) {
    if (sender_->TakePong()) user_->OnPong();
    return absl::OkStatus();
  }
  user_->OnHeard();
  if (record.type == wire::RecordType::kHere) {
    auto tickets = wire::DecodeTickets(record);
    if (tickets.ok()) ops_->OnHere(*tickets);
    return tickets.status();
  }
  const absl::optional<FetchEvent> event = EventOf(record.type);
  if (!event)
    return absl::DataLossError(
        "the producer broke the protocol: it sent a record that only consumers send");
  if (record.slot >= ops_->slots().size())
    return absl::DataLossError(
        "the producer broke the protocol: it sent a record for a slot that does not exist");
  RdmaFetchOp* op = RdmaFetchOp::Of(ops_->slots().at(record.slot));
  if (op == nullptr || static_cast<uint16_t>(op->generation) != record.generation) {
    TRYST_REACHED("rare: a record of another generation");
    ++counters_.ghosts;
    return absl::OkStatus();
  }
  if (*event == FetchEvent::kParked && !op->park_asked) {
    return absl::DataLossError(
        "the producer broke the protocol: it let a fetch wait without a slot that did not allow "
        "it");
  }
  const FetchRow* row = ops_->Hear(op, *event);
  return row == nullptr ? OutOfPlace(op->state, *event) : Act(op, row->action, record);
}

absl::Status FetchReceiver::Act(RdmaFetchOp* op, FetchAction action, const wire::Record& record) {
  switch (action) {
    case FetchAction::kTake:
      user_->OnBrought();
      return op->state == FetchState::kParts ? OnLanded(op, record) : OnTensor(op, record);
    case FetchAction::kFindRoom:
      return OnNeedDestination(op, record);
    case FetchAction::kFail:
      user_->OnBrought();
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
      ops_->OnParked(op, action == FetchAction::kGiveSlot);
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

// Leaves the slot. If the tensor comes in parts, those still under way are known.
void FetchReceiver::OnLeaves(RdmaFetchOp* op, FetchState from) {
  if (from != FetchState::kParts) op->meta.stripes = 0;
  op->gone_seen = false;
  destinations_->StopWaiting(op);
  op->result = Tensor();  // It is set in kAhead only.
  if (!ops_->open() && from == FetchState::kInSlot)
    destinations_->Drop(op);  // No peer can write it any more.
}

void FetchReceiver::LeaveIfOver(RdmaFetchOp* op) {
  if (!op->gone_seen || op->parts_seen < op->meta.stripes) {
    if (op->gone_seen) TRYST_REACHED("sim: GONE comes before the last part");
    return;
  }
  destinations_->Drop(op);
  if (op->moves) return user_->MoveAway(op);
  ops_->LastWord(op);
  ops_->Report(op, op->end_status, Tensor(), false, FetchOps::When::kAtEndOfTurn);
}

// Ends the fetch. The peer's last message about the slot has come, and no write follows it.
void FetchReceiver::Complete(RdmaFetchOp* op, absl::Status status, Tensor&& tensor, bool is_dead,
                             FetchOps::When when) {
  destinations_->Drop(op);
  if (op->standing && status.ok()) {
    ops_->Advance(op, FetchEvent::kAheadDone);
    op->result = std::move(tensor);
    op->result_is_dead = is_dead;
    return;
  }
  ops_->Advance(op, FetchEvent::kComplete);
  sender_->link->Accept(op->slot, static_cast<uint16_t>(op->generation + 1));
  const bool recurs = status.ok() && op->wants().recurring && !op->destination().valid();
  if (!recurs) {
    ops_->LastWord(op);
    return ops_->Report(op, std::move(status), std::move(tensor), is_dead, when);
  }
  if (tensor.valid()) habits_->NoteTensor(*ops_->keys()->Intern(op->key), tensor);
  ops_->LastWord(op);
  ops_->Report(op, std::move(status), std::move(tensor), is_dead, FetchOps::When::kAtEndOfTurn);
  standing_->ArmNext(op->key);
}

// Remembers the size for the next fetch of the key.
void FetchReceiver::NoteBytes(const RdmaFetchOp& op, uint64_t bytes) {
  const bool is_known = op.asked_of != nullptr && op.asked_of->id != FetchKey::kNoId;
  const FetchKey* key = is_known ? op.asked_of : ops_->keys()->Intern(op.key);
  habits_->NoteBytes(*key, bytes);
}

// The fast way for a small tensor of numbers, if the caller gave no memory: copies it into a reused
// block.
bool FetchReceiver::TakeSmall(RdmaFetchOp* op, const wire::TensorMeta& meta,
                              absl::string_view payload) {
  if (op->destination().valid() || payload.size() > SmallStorage::kBytes ||
      payload.size() > options_.max_tensor_bytes) {
    return false;
  }
  StorageRef memory = small_->Take();
  Tensor tensor;
  if (!tensor.TakeView(&memory, static_cast<DType>(meta.dtype),
                       absl::MakeConstSpan(meta.dims, meta.rank)) ||
      tensor.bytes() != payload.size()) {
    return false;
  }
  if (!payload.empty()) memcpy(tensor.mutable_data(), payload.data(), payload.size());
  NoteBytes(*op, payload.size());
  counters_.bytes += payload.size();
  Complete(op, absl::OkStatus(), std::move(tensor), false, FetchOps::When::kNow);
  return true;
}

absl::Status FetchReceiver::OnTensor(RdmaFetchOp* op, const wire::Record& record) {
  absl::string_view payload;
  auto meta = wire::DecodeMeta(record, &payload);
  if (!meta.ok()) return meta.status();
  const bool is_dead = (record.flags & wire::kIsDead) != 0;
  const Tensor& wanted = op->destination();
  if (!is_dead && IsAsSaid(wanted, *meta) && InHostDestination(*op) &&
      payload.size() <= options_.max_tensor_bytes) {
    if (!payload.empty()) memcpy(wanted.mutable_data(), payload.data(), payload.size());
    NoteBytes(*op, payload.size());
    counters_.bytes += payload.size();
    Complete(op, absl::OkStatus(), Tensor(wanted), false, FetchOps::When::kNow);
    return absl::OkStatus();
  }
  if (!is_dead && TakeSmall(op, *meta, payload)) return absl::OkStatus();
  auto shape = TensorShape::Make(absl::MakeConstSpan(meta->dims, meta->rank));
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  const DType dtype = static_cast<DType>(meta->dtype);
  absl::Status status;
  Tensor tensor;
  if (is_dead) {
    // There are no bytes to take.
  } else if (dtype == DType::kString) {
    status = FitsLimit(meta->bytes, options_.max_tensor_bytes);
    auto decoded = DecodeStrings(payload, *shape);
    if (!decoded.ok()) return decoded.status();
    if (status.ok()) tensor = *std::move(decoded);
  } else {
    auto bytes = TensorBytes(dtype, *shape);
    if (!bytes.ok() || *bytes != payload.size()) {
      return absl::DataLossError(
          "the producer broke the protocol: a tensor's length does not match its type and shape");
    }
    status = ops_->MayTake(*op, dtype, *shape, meta->bytes);
    if (status.ok()) {
      if (InHostDestination(*op)) {
        tensor = op->destination();
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
    ops_->EndEarly(op, status);  // The tensor stays with the producer.
    return absl::OkStatus();
  }
  counters_.bytes += payload.size();
  Complete(op, absl::OkStatus(), std::move(tensor), is_dead);
  return absl::OkStatus();
}

absl::Status FetchReceiver::OnLanded(RdmaFetchOp* op, const wire::Record& record) {
  auto meta = wire::DecodeMeta(record, nullptr);
  if (!meta.ok()) return meta.status();
  op->meta = *meta;
  op->meta_flags = record.flags;
  op->parts_since_ns = now_ns();
  if (op->parts_seen >= op->meta.stripes) return TakeLanded(op);
  op->span.Enter(WaitsFor::kParts, now_ns());
  return absl::OkStatus();
}

absl::Status FetchReceiver::OnTensorPart(size_t lane, uint16_t slot, uint16_t generation) {
  user_->OnHeard();
  RdmaFetchOp* op = RdmaFetchOp::Of(ops_->slots().at(slot));
  if (op == nullptr || static_cast<uint16_t>(op->generation) != generation) {
    TRYST_REACHED("rare: an immediate of another generation");
    ++counters_.ghosts;
    return absl::OkStatus();
  }
  if (ops_->Hear(op, FetchEvent::kPart) == nullptr) return OutOfPlace(op->state, FetchEvent::kPart);
  user_->OnBrought();
  const uint32_t bit = 1u << lane;
  // On a NIC that reorders, a queue pair may carry several parts, which are only counted.
  if (sender_->link->ordered() && (op->lanes_seen & bit) != 0)
    return absl::DataLossError("the producer broke the protocol: it sent a part of a tensor twice");
  op->lanes_seen |= bit;
  ++op->parts_seen;
  if (op->state == FetchState::kLeaving) {
    LeaveIfOver(op);
  } else if (op->state == FetchState::kParts && op->parts_seen >= op->meta.stripes) {
    return TakeLanded(op);
  } else if (op->state == FetchState::kAsked && sender_->link->queue_pairs() == 1 &&
             sender_->link->ordered()) {
    // The shape was known and there is no digest, so the immediate alone completes the tensor.
    if (op->expects && op->landing) {
      op->meta = op->expected;
      op->meta_flags = 0;
      return TakeLanded(op);
    }
    if (op->region == nullptr)
      return absl::DataLossError(
          "the producer broke the protocol: it says that it wrote a tensor for which it had no "
          "destination");
    counters_.bytes += op->region->bytes();
    Tensor tensor = op->destination();
    destinations_->Drop(op);
    Complete(op, absl::OkStatus(), std::move(tensor), false);
  }
  return absl::OkStatus();
}

// All bytes are in the destination.
absl::Status FetchReceiver::TakeLanded(RdmaFetchOp* op) {
  const wire::TensorMeta& meta = op->meta;
  auto shape = TensorShape::Make(absl::MakeConstSpan(meta.dims, meta.rank));
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  void* memory = op->landing ? op->landing->data() : op->destination().mutable_data();
  const uint64_t room = op->landing             ? op->landing->bytes()
                        : op->region != nullptr ? op->region->bytes()
                                                : 0;
  if (meta.bytes > room)
    return absl::DataLossError(
        "the producer broke the protocol: it says that it wrote more bytes than the destination "
        "holds");
  const DType dtype = static_cast<DType>(meta.dtype);
  if (dtype != DType::kString) {
    auto bytes = TensorBytes(dtype, *shape);
    if (!bytes.ok() || *bytes != meta.bytes) {
      return absl::DataLossError(
          "the producer broke the protocol: a tensor's length does not match its type and shape");
    }
  }
  destinations_->EndWaitingCharge(op);
  // Ends the peer's write access first, so that nobody changes the bytes while they are checked.
  if (op->landing) {
    LandingPool::AsLanding(op->landing)->EndKey();
  } else {
    destinations_->Drop(op);
  }
  const bool host_readable = op->landing || InHostDestination(*op);
  if (host_readable && (op->meta_flags & wire::kHasDigest) != 0 &&
      Crc32c(0, memory, meta.bytes) != meta.digest) {
    TRYST_REACHED("sim: a wrong digest");
    ++counters_.digests_wrong;
    if (!op->retried) {
      op->retried = true;
      op->announced = false;  // There may be no room for it now.
      op->parts_seen = 0;
      op->lanes_seen = 0;
      ops_->Advance(op, FetchEvent::kRetry);
      op->send_request = true;
      ops_->SendSoon(op);
      return absl::OkStatus();
    }
    TRYST_REACHED("rare: a wrong digest for the second time");
    ops_->EndEarly(
        op,
        absl::DataLossError(
            "the bytes of the tensor were changed on their way, twice: its digest is wrong; look "
            "for a faulty NIC, cable or memory, or a producer that writes into what it has sent"));
    return absl::OkStatus();
  }
  NoteBytes(*op, meta.bytes);
  absl::Status status = ops_->MayTake(*op, dtype, *shape, meta.bytes);
  Tensor tensor;
  if (status.ok() && dtype == DType::kString) {
    auto decoded = DecodeStrings(absl::string_view(static_cast<char*>(memory), meta.bytes), *shape);
    if (!decoded.ok()) return decoded.status();
    tensor = *std::move(decoded);
  } else if (status.ok() && (!op->landing || InHostDestination(*op))) {
    tensor = op->destination();
    if (op->landing) memcpy(tensor.mutable_data(), memory, meta.bytes);
  } else if (status.ok()) {
    auto taken = Tensor::FromStorage(std::move(op->landing), 0, dtype, *shape);
    status = taken.status();
    if (taken.ok()) tensor = *std::move(taken);
  }
  if (!status.ok()) {
    ops_->EndEarly(op, status);  // The tensor stays with the producer.
    return absl::OkStatus();
  }
  counters_.bytes += meta.bytes;
  Complete(op, absl::OkStatus(), std::move(tensor), false);
  return absl::OkStatus();
}

absl::Status FetchReceiver::OnNeedDestination(RdmaFetchOp* op, const wire::Record& record) {
  auto meta = wire::DecodeMeta(record, nullptr);
  if (!meta.ok()) return meta.status();
  auto shape = TensorShape::Make(absl::MakeConstSpan(meta->dims, meta->rank));
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  if (op->standing) {
    // Its shape is new, so it is dropped; the fetch will make an ordinary request.
    ops_->EndEarly(
        op, absl::CancelledError(
                "a standing receive ends: the tensor has another shape than the one before"));
    return absl::OkStatus();
  }
  if (std::exchange(op->announced, true)) {
    TRYST_REACHED("rare: a tensor is announced twice");
    return absl::DataLossError("the producer has room for the tensor, and asks for room again");
  }
  op->expects = false;
  destinations_->Drop(op);
  op->meta = *meta;
  const absl::Status fits =
      ops_->MayTake(*op, static_cast<DType>(meta->dtype), *shape, meta->bytes);
  if (!fits.ok()) {
    ops_->EndEarly(op, fits);
  } else if (!destinations_->WaitForRoom(op)) {
    standing_->DropOne();
  }
  return absl::OkStatus();
}

// A fetch has claimed the standing receive.
void FetchReceiver::TakeAhead(RdmaFetchOp* op) {
  Tensor tensor = std::move(op->result);
  op->result = Tensor();
  const Tensor& wanted = op->destination();
  if (wanted.valid() && tensor.valid()) {
    const absl::Status fits = FitsDestination(op->destination(), tensor.dtype(), tensor.shape());
    if (!fits.ok()) return ops_->EndEarly(op, fits);
    if (tensor.dtype() != DType::kString) {
      if (tensor.bytes() > 0) memcpy(wanted.mutable_data(), tensor.data(), tensor.bytes());
      tensor = wanted;
    }
  }
  Complete(op, absl::OkStatus(), std::move(tensor), op->result_is_dead);
}

}  // namespace tryst
