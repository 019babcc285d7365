#include "channel/poller/poller_timers.h"

#include <limits>

#include "absl/base/attributes.h"

namespace tryst {

int64_t PollerTimers::NextNs() const {
  return heap_.empty() ? std::numeric_limits<int64_t>::max() : heap_.front()->at_ns_;
}

// Not inline, because it would make the turns pay that find no timer due, which most are.
ABSL_ATTRIBUTE_NOINLINE void PollerTimers::RunUntil(int64_t now_ns) {
  while (!heap_.empty() && heap_.front()->at_ns_ <= now_ns) {
    PollerTimer* timer = heap_.front();
    Cancel(timer);
    timer->OnTimer();
  }
}

void PollerTimers::Set(PollerTimer* timer, int64_t at_ns) {
  Cancel(timer);
  timer->at_ns_ = at_ns;
  heap_.push_back(timer);
  SiftUp(heap_.size() - 1);
}

void PollerTimers::Cancel(PollerTimer* timer) {
  if (timer->heap_index_ < 0) return;
  const size_t index = static_cast<size_t>(timer->heap_index_);
  timer->heap_index_ = -1;
  PollerTimer* last = heap_.back();
  heap_.pop_back();
  if (last == timer) return;
  Place(index, last);
  SiftUp(index);
  SiftDown(static_cast<size_t>(last->heap_index_));
}

void PollerTimers::Place(size_t index, PollerTimer* timer) {
  heap_[index] = timer;
  timer->heap_index_ = static_cast<int>(index);
}

void PollerTimers::SiftUp(size_t index) {
  PollerTimer* timer = heap_[index];
  while (index > 0) {
    const size_t parent = (index - 1) / 2;
    if (heap_[parent]->at_ns_ <= timer->at_ns_) break;
    Place(index, heap_[parent]);
    index = parent;
  }
  Place(index, timer);
}

void PollerTimers::SiftDown(size_t index) {
  PollerTimer* timer = heap_[index];
  for (;;) {
    size_t child = 2 * index + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1]->at_ns_ < heap_[child]->at_ns_) ++child;
    if (timer->at_ns_ <= heap_[child]->at_ns_) break;
    Place(index, heap_[child]);
    index = child;
  }
  Place(index, timer);
}

}  // namespace tryst
