#include "channel/shm/producer_watch.h"

namespace tryst {

void ProducerWatch::Begin() {
  if (patience_ns_ <= 0 || !owner_->Watched(&cells_)) return;
  heard_ns_ = poller_->now_ns();
  asked_ = false;
  LookAgain();
}

void ProducerWatch::OnTimer() {
  uint32_t cells = 0;
  if (!owner_->Watched(&cells)) return;  // Nothing is out; the next fetch calls Watch() again.
  const int64_t silent_ns = poller_->RunningSince(heard_ns_);
  if (cells != cells_) {
    cells_ = cells;
    heard_ns_ = poller_->now_ns();
    asked_ = false;
  } else if (silent_ns >= patience_ns_) {
    return owner_->OnSilent(silent_ns / 1'000'000);
  } else if (!asked_) {
    asked_ = true;
    owner_->AskForSign();
  }
  LookAgain();
}

}  // namespace tryst
