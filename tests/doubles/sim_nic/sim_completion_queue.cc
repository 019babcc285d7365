#include "tests/doubles/sim_nic/sim_completion_queue.h"

#include <algorithm>

#include "base/log.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_queue_pair.h"

namespace tryst {

SimCompletionQueue::~SimCompletionQueue() {
  TRYST_CHECK(reserved_ == 0) << "queue pairs outlive their completion queue";
  nic_->OnGone(this);
}

absl::StatusOr<size_t> SimCompletionQueue::Poll(absl::Span<Completion> out) {
  if (nic_->lost()) return absl::UnavailableError(nic_->name() + " is lost");
  if (overrun_) return absl::UnavailableError("a completion queue of " + nic_->name() + " overran");
  size_t taken = 0;
  while (taken < out.size() && !ready_.empty()) {
    const Ready next = ready_.front();
    ready_.pop_front();
    out[taken++] = next.completion;
    next.queue_pair->OnPolled(next.receive, next.released);
  }
  return taken;
}

absl::Status SimCompletionQueue::Arm() {
  if (nic_->lost()) return absl::UnavailableError(nic_->name() + " is lost");
  armed_ = true;
  woken_ = false;
  return absl::OkStatus();
}

bool SimCompletionQueue::Reserve(uint32_t works) {
  if (works > depth_ - reserved_) return false;
  reserved_ += works;
  return true;
}

void SimCompletionQueue::Push(SimQueuePair* queue_pair, bool receive, const Completion& completion,
                              uint32_t released) {
  if (overrun_) return;
  ready_.push_back({queue_pair, completion, released, receive});
  if (armed_) woken_ = true;
  armed_ = false;
  nic_->NoteWork();
}

void SimCompletionQueue::Forget(const SimQueuePair* queue_pair) {
  ready_.erase(std::remove_if(ready_.begin(), ready_.end(),
                              [queue_pair](const Ready& r) { return r.queue_pair == queue_pair; }),
               ready_.end());
}

void SimCompletionQueue::Overrun() {
  overrun_ = true;
  ready_.clear();
  woken_ = true;
  nic_->NoteWork();
}

}  // namespace tryst
