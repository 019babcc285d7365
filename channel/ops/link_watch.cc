#include "channel/ops/link_watch.h"

#include <utility>

namespace tryst {

void LinkWatch::Check() {
  const int64_t heard_ns = owner_->HeardNs();
  if (heard_ns < 0) return;  // The next fetch calls Watch() again.
  if (std::exchange(heard_ns_, heard_ns) != heard_ns) asked_ns_ = up_ns_ = -1;
  const int64_t silent_ms = poller_->RunningSince(heard_ns) / 1'000'000;
  if (silent_ms >= owner_->MostSilentMs() || IsLong(up_ns_)) return owner_->OnSilent(heard_ns);
  bool owes = false;
  if (!owner_->CheckDue(&owes)) return;
  if (owes || silent_ms >= check_ms_ / 2) {
    const bool again = asked_ns_ >= 0;
    if (!again) asked_ns_ = poller_->now_ns();
    owner_->AskForSign(again);
  }
  if (IsLong(asked_ns_) && up_ns_ < 0 && !std::exchange(is_asking_, true)) owner_->AskIfUp();
  CheckAfter(check_ms_);
}

}  // namespace tryst
