#include "verbs/soft/soft_progress.h"

#include <algorithm>
#include <utility>

namespace tryst {
namespace {

// A lone acknowledgement costs both sides a system call. So it waits this many turns for our next
// request to carry it: a caller that pulls one tensor after the other makes the next request by
// then. A peer that sends much does not wait, nor does one whose acknowledgement is due: when the
// poller goes to sleep, or where a message costs more than that, after SoftNicOptions::ack_delay.
constexpr uint64_t kTurnsForCompany = 32;
constexpr uint32_t kManyUnsaid = 4;
constexpr uint64_t kMuchUnsaidBytes = 16 << 10;
// Replaces kManyUnsaid where the peer's sends complete without them.
constexpr uint32_t kManyUnsaidWhenLeft = 16;

}  // namespace

bool SoftProgress::Take(const FrameHeader& frame) {
  if (frame.executed - acked_ > next_sequence_ - acked_) return false;
  acked_ = frame.executed;
  // Wraps; and an older header never takes back what a newer one gave.
  if (static_cast<int32_t>(frame.receives - peer_receives_) > 0) peer_receives_ = frame.receives;
  return true;
}

FrameHeader SoftProgress::NewHeader(FrameType type, bool first_lane) {
  FrameHeader header;
  header.type = type;
  if (first_lane) {
    header.executed = executed_announced_ = executed_;
    header.receives = AnnounceReceives();
  }
  return header;
}

bool SoftProgress::CreditDue() const {
  const uint32_t unannounced = receives_->posted() - receives_announced_;
  if (unannounced == 0) return false;
  return receives_announced_ == receives_->used() ||
         unannounced >= std::max<uint32_t>(receive_depth_ / 4, 1);
}

bool SoftProgress::BeginDebt() { return !std::exchange(in_debt_, true); }

bool SoftProgress::DebtMayWait(uint64_t turn, bool due, uint64_t bytes) const {
  const uint32_t unsaid = executed_ - executed_announced_;
  if (ends_when_left_ && unsaid < kManyUnsaidWhenLeft && !CreditDue()) return true;
  if (due) return false;
  if (delivered_turn_ == turn) return true;
  return unsaid > 0 && unsaid < kManyUnsaid && bytes < kMuchUnsaidBytes && !CreditDue() &&
         (acks_late_ || turn - delivered_turn_ < kTurnsForCompany);
}

}  // namespace tryst
