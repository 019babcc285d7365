#include "channel/shm/producer_watch.h"

#include <algorithm>
#include <utility>

namespace tryst {

void ProducerWatch::Begin() {
  uint32_t cells = 0;
  if (patience_ns_ <= 0 || !owner_->Watched(&cells)) return;
  is_close_ = true;
  if (is_set()) {
    if (give_up_ns_ > 0) LookAgain(/*close=*/true);
    return;
  }
  cells_ = cells;
  heard_ns_ = poller_->now_ns();
  asked_ns_ = up_ns_ = -1;
  LookAgain(/*close=*/true);
}

void ProducerWatch::LookAgain(bool close) {
  int64_t pause_ns = patience_ns_ / kLooks;
  if (close && give_up_ns_ > 0) pause_ns = std::min(pause_ns, give_up_ns_ / kCloseChecks);
  poller_->SetTimer(this, poller_->now_ns() + pause_ns);
}

void ProducerWatch::OnTimer() {
  uint32_t cells = 0;
  const bool was_close = std::exchange(is_close_, false);
  if (!owner_->Watched(&cells)) return;  // Nothing is out; the next fetch calls Watch() again.
  bool awaits_parts = false;
  if (!owner_->WatchParts(&awaits_parts)) return;
  const int64_t silent_ns = poller_->RunningSince(heard_ns_);
  if (cells != cells_) {
    cells_ = cells;
    heard_ns_ = poller_->now_ns();
    asked_ns_ = up_ns_ = -1;
  } else if (silent_ns >= patience_ns_) {
    return owner_->OnSilent(silent_ns / 1'000'000);
  } else if (asked_ns_ < 0) {
    asked_ns_ = poller_->now_ns();
    owner_->AskForSign();
  } else if (give_up_ns_ > 0 && poller_->RunningSince(asked_ns_) >= give_up_ns_) {
    if (up_ns_ >= 0 && poller_->RunningSince(up_ns_) >= give_up_ns_) {
      return owner_->OnOwes(silent_ns / 1'000'000);
    }
    if (up_ns_ < 0 && !std::exchange(is_asking_, true)) owner_->AskIfUp();
  }
  // Cells that came after something was asked may have been sent before: it looks once more.
  LookAgain(was_close || awaits_parts || asked_ns_ >= 0);
}

}  // namespace tryst
