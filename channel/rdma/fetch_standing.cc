#include "channel/rdma/fetch_standing.h"

#include <utility>
#include <vector>

#include "base/reached.h"

namespace tryst {
namespace {

// After the first stride, so many equal ones make a habit.
constexpr uint32_t kRegular = 1;

}  // namespace

FetchOp* StandingReceives::Foreseen(int64_t step_id, const TensorKey& key) {
  const FetchKey* known = count_ == 0 ? nullptr : ops_->keys()->Find(key);
  RdmaFetchOp* op = known == nullptr ? nullptr : Of(*known);
  if (op == nullptr) return nullptr;
  if (op->step != step_id) {
    TRYST_REACHED("sim: another step is fetched than was foreseen");
    ops_->EndEarly(op, absl::CancelledError("a standing receive ends: another step was asked for"));
    return nullptr;
  }
  End(op, true);
  return op;
}

RdmaFetchOp* StandingReceives::Of(const FetchKey& key) {
  for (FetchOp* op = key.asked.front(); op != nullptr; op = key.asked.Behind(op)) {
    if (RdmaFetchOp::Of(op)->standing) return RdmaFetchOp::Of(op);
  }
  return nullptr;
}

void StandingReceives::End(RdmaFetchOp* op, bool claimed) {
  op->standing = false;
  --count_;
  ++(claimed ? counters_.standing_claimed : counters_.standing_dropped);
  ops_->poller()->CancelTimer(op);
  if (!op->landing) destinations_->EndWaitingCharge(op);
  const bool known = op->asked_of != nullptr && op->asked_of->id != FetchKey::kNoId;
  if (known && !claimed) habits_->Of(*op->asked_of)->regular = 0;
}

void StandingReceives::DropOne() {
  if (count_ == 0) return;
  for (FetchOp* op : ops_->slots().all()) {
    if (op == nullptr || !RdmaFetchOp::Of(*op).standing) continue;
    TRYST_REACHED("sim: a standing receive gives up its room");
    return ops_->EndEarly(
        op, absl::CancelledError("a standing receive ends: another fetch needs its memory"));
  }
}

void StandingReceives::DropAll(const absl::Status& why) {
  if (count_ == 0) return;
  for (FetchOp* op : std::vector<FetchOp*>(ops_->slots().all())) {
    if (op != nullptr && RdmaFetchOp::Of(*op).standing) ops_->EndEarly(op, why);
  }
}

void StandingReceives::AskAhead(bool in_use) {
  asks_ahead_ = in_use;
  if (!in_use) DropAll(absl::CancelledError("a standing receive ends: another path is in use"));
}

void StandingReceives::ArmNext(const TensorKey& key) {
  FetchKey* known = ops_->keys()->Intern(key);
  const KeyHabits::Habit* entry = habits_->Of(*known);
  if (entry->regular < kRegular || (count_ > 0 && Of(*known) != nullptr)) return;
  if (!asks_ahead_ || !ops_->open() || !ops_->lines().queued.empty()) return;
  if (count_ >= options_.standing || 2 * ops_->slots().free() <= ops_->slots().size()) return;
  const int64_t step =
      static_cast<int64_t>(static_cast<uint64_t>(entry->step_last) + entry->stride);
  if (FetchTurns::AskedBefore(*known, step, nullptr) != nullptr)
    return;  // A fetch has claimed it already.
  StorageRef landing;
  if (entry->bytes_last > wire::EagerBytes(options_.link.message_bytes)) {
    landing = destinations_->TakeAhead(entry->bytes_last);
    if (!landing) return;
  }
  RdmaFetchOp* op = RdmaFetchOp::Of(ops_->TakeOp());
  op->step = step;
  op->key = key;
  op->span.Begin(WaitsFor::kPeerSend, ops_->now_ns());
  op->standing = true;
  op->expected = entry->like;
  op->expects = entry->like.bytes > 0 && entry->like.bytes == entry->bytes_last;
  if (landing) op->waiting_bytes = landing->bytes();
  op->landing = std::move(landing);
  ops_->keys()->Join(op, known);
  ops_->TakeSlot(op);
  ++count_;
  ++counters_.standing;
  ops_->poller()->SetTimer(op, ops_->now_ns() + options_.standing_ms * 1'000'000);
  ops_->SendSoon(op);
}

}  // namespace tryst
