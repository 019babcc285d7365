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
  for (FetchAsk* ask : ops_->slots().all()) {
    if (ask->state != FetchState::kAsked || ask->front == nullptr || ask->parks != Parks::kNo ||
        ops_->now_ns() - ask->front->span.since_ns() < kParkAfterNs) {
      continue;
    }
    if (ops_->tickets_full()) break;
    ops_->AskToPark(ask);
  }
  Watch();
}

bool FetchParking::MayPark(const FetchAsk& ask) const {
  const FetchSlots& slots = ops_->slots();
  const bool crowded = !ops_->lines().queued.empty() || 2 * slots.free() < slots.size();
  return pressed_ && crowded && ask.parks != Parks::kOver && !ops_->tickets_full();
}

void FetchParking::Stop() {
  pressed_ = false;
  ops_->poller()->CancelTimer(&timer_);
}

}  // namespace tryst
