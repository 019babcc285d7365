#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reached.h"
#include "channel/rdma/fetch_channel.h"

// Where a FetchChannel lets tensors land, and the wait for room.
namespace tryst {

absl::Status FetchChannel::MayFill(const Args& args) const {
  if (!args.destination.valid() || args.destination.space().host_readable()) {
    return absl::OkStatus();
  }
  return landings_->nic()->ReachesDevice(args.destination.space().device_ordinal);
}

// Before the peer has said what the tensor is: what is known to be right, else what was
// right last time, else a guess. Without room now there is none, and the peer will ask.
void FetchChannel::ChooseDestination(RdmaFetchOp* op, uint64_t bytes_last) {
  if (op->landing || op->region != nullptr) return;
  const uint64_t inside = wire::EagerBytes(link_->options().message_bytes);
  const Tensor& wanted = op->wants().destination;
  if (wanted.valid()) {
    // What is larger than may be comes to a word, and is refused.
    if (wanted.bytes() > options_.max_tensor_bytes) return;
    const bool may_be_inside = wanted.space().host_readable() && wanted.bytes() <= inside;
    if (wanted.dtype() == DType::kString || may_be_inside) return;
    GiveDestination(op, wanted.bytes(), LandingPool::For::kWaiting);
    return;
  }
  const uint64_t guess = bytes_last != 0 ? bytes_last : options_.landing_bytes;
  if (guess > inside) GiveDestination(op, guess, LandingPool::For::kWaiting);
}

bool FetchChannel::GiveDestination(RdmaFetchOp* op, uint64_t bytes, LandingPool::For what) {
  const Tensor& wanted = op->wants().destination;
  if (wanted.valid() && wanted.dtype() != DType::kString) {
    bytes = wanted.bytes();  // Whatever the peer says: no byte behind it is the caller's to give.
    // What is larger than the cap takes all of it, and has no other beside it.
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
    // The NIC cannot reach the caller's memory: land beside it and copy. A device's is left to
    // the caller, who gets the landing.
    TRYST_REACHED("sim: memory of a caller is refused registration");
    landings_->GiveBudget(charge, what);
    if (bytes > landings_->cap_bytes()) {
      EndEarly(op, region.status());
      return false;
    }
  }
  op->landing = landings_->Take(bytes, what, writer_);
  if (!op->landing) return false;
  if (what == LandingPool::For::kWaiting) op->waiting_bytes = op->landing->bytes();
  return true;
}

void FetchChannel::EndWaitingCharge(RdmaFetchOp* op) {
  if (op->standing) return;  // However long it waits for its fetch, it leaves room to others.
  if (op->waiting_bytes > 0) landings_->EndWaiting(std::exchange(op->waiting_bytes, 0));
}

void FetchChannel::AddLent(uint64_t* lent_bytes, uint64_t* waiting_bytes) const {
  for (const RdmaFetchOp& op : ops_) {
    *lent_bytes += op.budget_bytes + (op.landing ? op.landing->bytes() : 0);
    *waiting_bytes += op.waiting_bytes;
  }
}

void FetchChannel::DropMemory(FetchOp* base) {
  RdmaFetchOp* op = Own(base);
  EndWaitingCharge(op);
  op->region.reset();
  if (op->budget_bytes > 0) {
    landings_->GiveBudget(std::exchange(op->budget_bytes, 0), LandingPool::For::kReady);
  }
  op->landing = StorageRef();
}

// The peer has the tensor: when it is its turn and there is room, ask again.
void FetchChannel::WaitForRoom(RdmaFetchOp* op) {
  const bool needs_landing =
      !op->wants().destination.valid() || op->wants().destination.dtype() == DType::kString;
  if (needs_landing && op->meta.bytes > landings_->cap_bytes()) {
    const absl::Status too_large = absl::ResourceExhaustedError(absl::StrCat(
        "the tensor has ", op->meta.bytes, " bytes, the landing cap is ", landings_->cap_bytes(),
        ": raise landing_bytes, or receive it into memory of your own"));
    if (options_.on_too_large == nullptr) return EndEarly(op, too_large);
    Advance(op, FetchEvent::kEnd);
    op->gone_seen = false;
    op->meta.stripes = 0;
    op->moves = true;
    return StartLeaving(op, too_large);
  }
  TRYST_REACHED("sim: a tensor waits for room");
  Advance(op, FetchEvent::kNoRoom);
  op->span.Enter(WaitsFor::kLandingRoom, now_ns());
  room_line_.Push(op);
  if (room_line_.front() == op && !TakeRoom()) DropOneStanding();
}

bool FetchChannel::TakeRoom() {
  if (room_line_.empty()) return false;
  RdmaFetchOp* op = Own(room_line_.front());
  if (!GiveDestination(op, op->meta.bytes, LandingPool::For::kReady)) return false;
  room_line_.PopFront();
  Advance(op, FetchEvent::kRetry);
  op->send_request = true;
  SendSoon(op);
  return true;
}

// A landing that the peer may write goes to the next fetch of the key; memory of the caller's does
// not.
bool FetchChannel::PassMemory(FetchOp* from_base, FetchOp* to_base) {
  RdmaFetchOp* from = Own(from_base);
  RdmaFetchOp* to = Own(to_base);
  if (from->region != nullptr) {
    TRYST_REACHED("sim: memory of a caller is not passed on");
    return false;
  }
  if (from->state == FetchState::kWaitingRoom) {
    // The peer has said what the tensor is: the next fetch may want another one.
    auto shape = TensorShape::Make(absl::MakeConstSpan(from->meta.dims, from->meta.rank));
    const DType dtype = static_cast<DType>(from->meta.dtype);
    if (!shape.ok() || !FitsDestination(to->wants(), dtype, *shape).ok()) return false;
  }
  to->retried = from->retried;
  to->expects = from->expects;
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
