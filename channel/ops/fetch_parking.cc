#include "channel/ops/fetch_parking.h"

#include "channel/ops/fetch_ops.h"

namespace tryst {
namespace {

// Fetches are parked when all slots were held for this long by fetches without an answer. If
// tensors are there, some come in that time, and nothing is parked.
constexpr int64_t kParkAfterNs = 1'000'000;

}  // namespace

void FetchParking::Watch() {
  if (timer_.is_set() || !ops_->SomebodyWaits() || ops_->slots().free() != 0) return;
  ops_->poller()->SetTimer(&timer_, ops_->now_ns() + kParkAfterNs);
}

void FetchParking::ParkWaiting() {
  if (!ops_->open() || !ops_->SomebodyWaits() || ops_->slots().free() != 0) return;
  pressed_ = true;
  for (FetchOp* op : ops_->slots().all()) {
    if (op == nullptr || op->state != FetchState::kAsked || op->park_asked || op->here ||
        ops_->now_ns() - op->span.since_ns() < kParkAfterNs) {
      continue;
    }
    if (ops_->tickets_full()) break;
    ops_->AskToPark(op);
  }
  Watch();
}

bool FetchParking::MayPark(const FetchOp& op) const {
  const FetchSlots& slots = ops_->slots();
  const bool crowded = !ops_->lines().queued.empty() || 2 * slots.free() < slots.size();
  return pressed_ && crowded && !op.here && !ops_->tickets_full();
}

void FetchParking::Stop() {
  pressed_ = false;
  ops_->poller()->CancelTimer(&timer_);
}

}  // namespace tryst
