#include "channel/rdma/fetch_destination.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reached.h"
#include "channel/ops/peer_words.h"

namespace tryst {

void FetchDestinations::Choose(RdmaAsk* ask, uint64_t inside, uint64_t bytes_last) {
  if (ask->landing || ask->region != nullptr) return;
  const Tensor& wanted = ask->destination();
  if (wanted.valid()) {
    // A tensor over the limit gets no memory: the peer will say how large it is, and is refused.
    if (wanted.bytes() > ops_->options().max_tensor_bytes) return;
    const bool may_be_inside = wanted.on_host() && wanted.bytes() <= inside;
    if (wanted.dtype() == DType::kString || may_be_inside) return;
    Give(ask, wanted.bytes(), LandingPool::For::kWaiting);
    return;
  }
  const uint64_t guess = bytes_last != 0 ? bytes_last : options_.offered_bytes;
  if (guess > inside) Give(ask, guess, LandingPool::For::kWaiting);
}

bool FetchDestinations::Give(RdmaAsk* ask, uint64_t bytes, LandingPool::For what) {
  const Tensor& wanted = ask->destination();
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
      ask->region = *std::move(region);
      ask->budget_bytes = charge;
      if (what == LandingPool::For::kWaiting) ask->waiting_bytes = charge;
      return true;
    }
    // The NIC cannot reach the caller's memory. The tensor lands beside it, and is copied; for
    // device memory the caller gets the landing and copies.
    TRYST_REACHED("sim: memory of a caller is refused registration");
    landings_->GiveBudget(charge, what);
    if (bytes > landings_->cap_bytes()) {
      ops_->EndAsk(ask, region.status());
      return false;
    }
  }
  ask->landing = landings_->Take(bytes, what, writer_);
  if (!ask->landing) {
    // Others that are as large come and go; memory that the NIC cannot register does not.
    if (what == LandingPool::For::kReady && bytes > landings_->cap_bytes() &&
        !landings_->large_is_lent()) {
      ops_->EndAsk(ask, absl::ResourceExhaustedError(absl::StrCat(
                            "the NIC cannot register the ", bytes,
                            " bytes of the tensor: raise the limit of locked memory, or receive "
                            "the tensor into a destination of your own")));
    }
    return false;
  }
  if (what == LandingPool::For::kWaiting) ask->waiting_bytes = ask->landing->bytes();
  return true;
}

void FetchDestinations::Drop(RdmaAsk* ask) {
  EndWaitingCharge(ask);
  ask->region.reset();
  if (ask->budget_bytes > 0) {
    landings_->GiveBudget(std::exchange(ask->budget_bytes, 0), LandingPool::For::kReady);
  }
  ask->landing = StorageRef();
}

bool FetchDestinations::WaitForRoom(RdmaAsk* ask) {
  TRYST_REACHED("sim: a tensor waits for room");
  ops_->Advance(ask, FetchEvent::kNoRoom);
  ask->Enter(WaitsFor::kLandingRoom, ops_->now_ns());
  room_line_.Push(ask);
  if (landings_->BeginWaitForRoom()) {
    landings_->TellRoom();  // What room there is, all take in turn.
    return true;
  }
  return TakeRoom();
}

void FetchDestinations::StopWaiting(RdmaAsk* ask) {
  if (!room_line_.Holds(ask)) return;
  room_line_.Remove(ask);
  landings_->EndWaitForRoom();
}

bool FetchDestinations::TakeRoom() {
  if (room_line_.empty()) return false;
  RdmaAsk* ask = RdmaAsk::Of(room_line_.front());
  if (!Give(ask, ask->meta.bytes, LandingPool::For::kReady)) return room_line_.front() != ask;
  StopWaiting(ask);
  ops_->Advance(ask, FetchEvent::kRetry);
  ops_->SendSoon(ask);
  return true;
}

bool FetchDestinations::MayPass(const RdmaAsk& ask, const FetchOp& next) const {
  if (ask.region != nullptr) {
    TRYST_REACHED("sim: memory of a caller is not passed on");
    return false;
  }
  if (ask.state != FetchState::kWaitingRoom) return true;
  // The peer has said what the tensor is, and the next fetch may want another type or shape, or may
  // need a landing for it.
  auto shape = TensorShape::Make(absl::MakeConstSpan(ask.meta.dims, ask.meta.rank));
  const DType dtype = static_cast<DType>(ask.meta.dtype);
  return shape.ok() && FitsDestination(next.destination(), dtype, *shape).ok();
}

}  // namespace tryst
