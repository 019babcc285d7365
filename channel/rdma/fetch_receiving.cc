#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/crc32c.h"
#include "channel/rdma/fetch_channel.h"
#include "channel/string_codec.h"
#include "rendezvous/derived_status.h"

// What a FetchChannel hears from the producer: its words, and tensors that land.
namespace tryst {
namespace {

// The caller's memory, which we may write ourselves.
bool InHostDestination(const FetchOp& op) {
  return op.args.destination.valid() && op.args.destination.space().host_readable();
}

}  // namespace

absl::Status FetchChannel::OnRecord(const wire::Record& record) {
  OnHeard();
  if (record.type == wire::RecordType::kPong) return absl::OkStatus();
  if (record.type == wire::RecordType::kHere) return OnHere(record);
  if (record.type < wire::RecordType::kTensor) {
    return absl::DataLossError("the producer sent a consumer's record");
  }
  if (record.slot >= slots_.size()) return absl::DataLossError("record for a slot out of range");
  FetchOp* op = slots_[record.slot];
  if (op == nullptr || op->generation != record.generation) {
    ++counters_.ghosts;
    return absl::OkStatus();
  }
  if (record.type == wire::RecordType::kParked &&
      (op->state == FetchState::kAsked || op->state == FetchState::kLeaving)) {
    return OnParked(op);
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
      op->parts_since_ns = now_ns();
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
  if (op->moves) return MoveAway(op);
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
    status = FitsDestination(op->args, static_cast<DType>(meta->dtype), *shape);
    if (status.ok()) {
      if (InHostDestination(*op)) {
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
  if (!status.ok()) {
    EndEarly(op, status);  // It stays the producer's.
    return absl::OkStatus();
  }
  counters_.bytes += payload.size();
  Complete(op, absl::OkStatus(), std::move(tensor), is_dead);
  return absl::OkStatus();
}

absl::Status FetchChannel::OnLanded(FetchOp* op, const wire::Record& record) {
  auto meta = wire::DecodeMeta(record, nullptr);
  if (!meta.ok()) return meta.status();
  op->meta = *meta;
  op->meta_flags = record.flags;
  op->state = FetchState::kParts;
  op->parts_since_ns = now_ns();
  if (op->parts_seen >= op->meta.stripes) return TakeLanded(op);
  op->span.Enter(WaitsFor::kParts, now_ns());
  return absl::OkStatus();
}

absl::Status FetchChannel::OnTensorPart(size_t lane, uint16_t slot, uint16_t generation) {
  OnHeard();
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
    if (op->expects && op->landing) {
      op->meta = op->expected;
      op->meta_flags = 0;
      return TakeLanded(op);
    }
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
  const bool host_readable = op->landing || InHostDestination(*op);
  if (host_readable && (op->meta_flags & wire::kHasDigest) != 0 &&
      Crc32c(0, memory, meta.bytes) != meta.digest) {
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
    EndEarly(op, absl::DataLossError("the digest of the tensor was wrong twice"));
    return absl::OkStatus();
  }
  Intern(op->key)->bytes_last = std::max<uint64_t>(meta.bytes, 1);
  absl::Status status = FitsDestination(op->args, dtype, *shape);
  Tensor tensor;
  if (status.ok() && dtype == DType::kString) {
    auto decoded = DecodeStrings(absl::string_view(static_cast<char*>(memory), meta.bytes), *shape);
    if (!decoded.ok()) return decoded.status();
    tensor = *std::move(decoded);
  } else if (status.ok() && (!op->landing || InHostDestination(*op))) {
    tensor = op->args.destination;
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

absl::Status FetchChannel::OnNeedDestination(FetchOp* op, const wire::Record& record) {
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
  DropDestination(op);
  op->meta = *meta;
  const absl::Status fits = FitsDestination(op->args, static_cast<DType>(meta->dtype), *shape);
  if (!fits.ok()) {
    EndEarly(op, fits);
  } else {
    WaitForRoom(op);
  }
  return absl::OkStatus();
}

void FetchChannel::OnFailed(FetchOp* op, const wire::Record& record) {
  absl::Status status = FailureTold(record.number, record.body.substr(0, wire::kMaxErrorBytes),
                                    (record.flags & wire::kDerived) != 0);
  DropDestination(op);
  Complete(op, std::move(status), Tensor(), false);
}

}  // namespace tryst
