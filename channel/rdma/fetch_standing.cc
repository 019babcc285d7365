#include "channel/rdma/fetch_standing.h"

#include <utility>

#include "base/reached.h"

namespace tryst {
namespace {

// After the first stride, so many equal ones make a habit.
constexpr uint32_t kRegular = 1;

}  // namespace

FetchAsk* StandingReceives::Foreseen(const FetchKey& key, int64_t step_id) {
  RdmaAsk* ask = waiting_.empty() ? nullptr : Of(key);
  if (ask == nullptr) return nullptr;
  if (ask->step != step_id) {
    TRYST_REACHED("sim: another step is fetched than was foreseen");
    ops_->EndAsk(ask, absl::CancelledError("this worker cancels a fetch that it had begun ahead of "
                                           "its program: the program asked for another step"));
    return nullptr;
  }
  End(ask, true);
  return ask;
}

RdmaAsk* StandingReceives::Of(const FetchKey& key) {
  for (FetchAsk* ask = key.asks.front(); ask != nullptr; ask = key.asks.Behind(ask)) {
    if (ask->is_ahead()) return RdmaAsk::Of(ask);
  }
  return nullptr;
}

void StandingReceives::End(RdmaAsk* ask, bool claimed) {
  waiting_.Remove(ask);
  ++(claimed ? counters_.standing_claimed : counters_.standing_dropped);
  if (waiting_.empty()) ops_->poller()->CancelTimer(&timer_);
  if (!ask->landing) destinations_->EndStandingCharge(ask);
  if (!claimed && ask->of->id != FetchKey::kNoId) habits_->Of(*ask->of)->regular = 0;
}

void StandingReceives::DropOne() {
  if (waiting_.empty()) return;
  TRYST_REACHED("sim: a standing receive gives up its room");
  ops_->EndAsk(waiting_.front(),
               absl::CancelledError("a standing receive ends: another fetch needs its memory"));
}

void StandingReceives::DropAll(const absl::Status& why) {
  while (!waiting_.empty()) ops_->EndAsk(waiting_.front(), why);
}

// No fetch has come for the oldest ones.
void StandingReceives::OnTimer() {
  const int64_t for_ns = options_.standing_ms * 1'000'000;
  while (!waiting_.empty()) {
    const int64_t at_ns = waiting_.front()->since_ns + for_ns;
    if (ops_->now_ns() < at_ns) return ops_->poller()->SetTimer(&timer_, at_ns);
    ops_->EndAsk(waiting_.front(),
                 absl::CancelledError("a standing receive ends: no fetch has come for it"));
  }
}

void StandingReceives::ArmNext(FetchKey* known) {
  const KeyHabits::Habit* entry = habits_->Of(*known);
  if (entry->regular < kRegular || (!waiting_.empty() && Of(*known) != nullptr)) return;
  if (!ops_->open() || !ops_->lines().queued.empty()) return;
  if (count() >= options_.standing || 2 * ops_->slots().free() <= ops_->slots().size()) return;
  const int64_t step =
      static_cast<int64_t>(static_cast<uint64_t>(entry->step_last) + entry->stride);
  if (FetchKeys::AskOf(*known, step) != nullptr) return;  // A fetch of it has come already.
  StorageRef landing;
  if (entry->bytes_last > wire::EagerBytes(options_.link.message_bytes)) {
    landing = destinations_->TakeAhead(entry->bytes_last);
    if (!landing) return;
  }
  RdmaAsk* ask = RdmaAsk::Of(ops_->TakeAsk(known, step));
  ask->since_ns = ask->began_ns = ops_->now_ns();
  const bool is_known = entry->like.bytes > 0 && entry->like.bytes == entry->bytes_last;
  if (is_known) ask->expected = entry->like;
  if (landing) ask->waiting_bytes = landing->bytes();
  ask->landing = std::move(landing);
  ops_->TakeSlot(ask);
  if (waiting_.empty()) {
    ops_->poller()->SetTimer(&timer_, ask->since_ns + options_.standing_ms * 1'000'000);
  }
  waiting_.Push(ask);
  ++counters_.standing;
  ops_->SendSoon(ask);
}

}  // namespace tryst
