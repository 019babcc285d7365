#include "channel/rdma/fetch_destination.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reached.h"
#include "channel/ops/peer_words.h"

namespace tryst {

absl::Status FetchDestinations::MayFill(const Tensor& destination) const {
  if (!destination.valid() || destination.on_host()) return absl::OkStatus();
  return landings_->nic()->ReachesDevice(destination.space().device_ordinal);
}

void FetchDestinations::Choose(RdmaFetchOp* op, uint64_t inside, uint64_t bytes_last) {
  if (op->landing || op->region != nullptr) return;
  const Tensor& wanted = op->destination();
  if (wanted.valid()) {
    // A tensor over the limit gets no memory: the peer will say how large it is, and is refused.
    if (wanted.bytes() > options_.max_tensor_bytes) return;
    const bool may_be_inside = wanted.on_host() && wanted.bytes() <= inside;
    if (wanted.dtype() == DType::kString || may_be_inside) return;
    Give(op, wanted.bytes(), LandingPool::For::kWaiting);
    return;
  }
  const uint64_t guess = bytes_last != 0 ? bytes_last : options_.landing_bytes;
  if (guess > inside) Give(op, guess, LandingPool::For::kWaiting);
}

bool FetchDestinations::Give(RdmaFetchOp* op, uint64_t bytes, LandingPool::For what) {
  const Tensor& wanted = op->destination();
  if (wanted.valid() && wanted.dtype() != DType::kString) {
    bytes = wanted.bytes();  // Whatever the peer says: bytes behind it do not belong to the caller.
    // A destination above the cap takes the whole cap, so no other is beside it.
    const uint64_t charge =
        what == LandingPool::For::kReady ? std::min(bytes, landings_->cap_bytes()) : bytes;
    if (!landings_->TakeBudget(charge, what)) return false;
    const MemorySpace space = wanted.space();
    constexpr uint32_t kAccess = kLocalWrite | kRemoteWrite;
    auto region = space.host_readable()
                      ? landings_->nic()->RegisterRegion(wanted.mutable_data(), bytes, kAccess)
                      : landings_->nic()->RegisterDevice(space.device_ordinal,
                                                         wanted.mutable_data(), bytes, kAccess);
    if (region.ok()) {
      op->region = *std::move(region);
      op->budget_bytes = charge;
      if (what == LandingPool::For::kWaiting) op->waiting_bytes = charge;
      return true;
    }
    // The NIC cannot reach the caller's memory. The tensor lands beside it, and is copied; for
    // device memory the caller gets the landing and copies.
    TRYST_REACHED("sim: memory of a caller is refused registration");
    landings_->GiveBudget(charge, what);
    if (bytes > landings_->cap_bytes()) {
      ops_->EndEarly(op, region.status());
      return false;
    }
  }
  op->landing = landings_->Take(bytes, what, writer_);
  if (!op->landing) return false;
  if (what == LandingPool::For::kWaiting) op->waiting_bytes = op->landing->bytes();
  return true;
}

void FetchDestinations::EndWaitingCharge(RdmaFetchOp* op) {
  // A standing receive may wait long for its fetch, so it stays within the bound for waiting ones.
  if (op->standing) return;
  if (op->waiting_bytes > 0) landings_->EndWaiting(std::exchange(op->waiting_bytes, 0));
}

void FetchDestinations::Drop(RdmaFetchOp* op) {
  EndWaitingCharge(op);
  op->region.reset();
  if (op->budget_bytes > 0) {
    landings_->GiveBudget(std::exchange(op->budget_bytes, 0), LandingPool::For::kReady);
  }
  op->landing = StorageRef();
}

bool FetchDestinations::WaitForRoom(RdmaFetchOp* op) {
  const bool needs_landing =
      !op->destination().valid() || op->destination().dtype() == DType::kString;
  if (needs_landing && op->meta.bytes > landings_->cap_bytes()) {
    const absl::Status too_large = absl::ResourceExhaustedError(absl::StrCat(
        "the tensor has ", op->meta.bytes, " bytes, and landing_bytes is ", landings_->cap_bytes(),
        ": raise landing_bytes, or receive it into a destination of your own"));
    if (options_.on_too_large == nullptr) {
      ops_->EndEarly(op, too_large);
      return true;
    }
    ops_->Advance(op, FetchEvent::kEnd);
    op->gone_seen = false;
    op->meta.stripes = 0;
    op->moves = true;
    ops_->StartLeaving(op, too_large);
    return true;
  }
  TRYST_REACHED("sim: a tensor waits for room");
  ops_->Advance(op, FetchEvent::kNoRoom);
  op->span.Enter(WaitsFor::kLandingRoom, ops_->now_ns());
  room_line_.Push(op);
  if (landings_->BeginWaitForRoom()) {
    landings_->TellRoom();  // What room there is, all take in turn.
    return true;
  }
  return TakeRoom();
}

void FetchDestinations::StopWaiting(RdmaFetchOp* op) {
  if (!room_line_.Holds(op)) return;
  room_line_.Remove(op);
  landings_->EndWaitForRoom();
}

bool FetchDestinations::TakeRoom() {
  if (room_line_.empty()) return false;
  RdmaFetchOp* op = RdmaFetchOp::Of(room_line_.front());
  if (!Give(op, op->meta.bytes, LandingPool::For::kReady)) return room_line_.front() != op;
  StopWaiting(op);
  ops_->Advance(op, FetchEvent::kRetry);
  op->send_request = true;
  ops_->SendSoon(op);
  return true;
}

bool FetchDestinations::Pass(RdmaFetchOp* from, RdmaFetchOp* to) {
  if (from->region != nullptr) {
    TRYST_REACHED("sim: memory of a caller is not passed on");
    return false;
  }
  if (from->state == FetchState::kWaitingRoom) {
    // The peer has said what the tensor is, and the next fetch may want another type or shape.
    auto shape = TensorShape::Make(absl::MakeConstSpan(from->meta.dims, from->meta.rank));
    const DType dtype = static_cast<DType>(from->meta.dtype);
    if (!shape.ok() || !FitsDestination(to->destination(), dtype, *shape).ok()) return false;
  }
  to->retried = from->retried;
  to->expects = from->expects;
  to->announced = from->announced;
  to->expected = from->expected;
  to->parts_since_ns = from->parts_since_ns;
  to->parts_seen = from->parts_seen;
  to->lanes_seen = from->lanes_seen;
  to->meta = from->meta;
  to->meta_flags = from->meta_flags;
  to->landing = std::exchange(from->landing, StorageRef());
  to->waiting_bytes = std::exchange(from->waiting_bytes, 0);
  return true;
}

}  // namespace tryst
