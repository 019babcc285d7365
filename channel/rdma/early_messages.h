#ifndef TRYST_CHANNEL_RDMA_EARLY_MESSAGES_H_
#define TRYST_CHANNEL_RDMA_EARLY_MESSAGES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"

namespace tryst {

// On a NIC that may reorder: the messages that arrived before the one that is due, by ring slot,
// and how long they have waited for it. Poller thread only.
class EarlyMessages {
 public:
  // How long early messages wait before the one that is due counts as lost. A NIC reorders within
  // milliseconds, and breaking the link needlessly costs a new connection.
  static constexpr int64_t kPatienceNs = 500'000'000;

  // `next` is the number of the message that is due. `on_lost` runs when messages have waited for
  // it for too long.
  EarlyMessages(Poller* poller, const uint32_t* next, std::function<void()> on_lost)
      : poller_(poller), next_(next), on_lost_(std::move(on_lost)) {}
  ~EarlyMessages() { poller_->CancelTimer(&timer_); }

  void Open(uint32_t ring_slots) { arrived_.resize(ring_slots); }
  bool has(size_t slot) const { return arrived_[slot]; }
  void Add(size_t slot) { arrived_[slot] = true; }
  void Take(size_t slot) { arrived_[slot] = false; }
  // On an ordered NIC the message behind a lost one reveals the loss; here only time does.
  void Watch() {
    if (timer_.is_set()) return;
    if (std::find(arrived_.begin(), arrived_.end(), true) == arrived_.end()) return;
    hole_ = *next_;
    WaitFor(kPatienceNs);
  }

 private:
  // Who rings late may not have read yet what has come, because it stood still itself.
  static constexpr int64_t kLateNs = 100'000'000;

  void WaitFor(int64_t ns) {
    due_ns_ = poller_->now_ns() + ns;
    poller_->SetTimer(&timer_, due_ns_);
  }
  void OnTimer() {
    if (hole_ != *next_) return Watch();
    if (poller_->now_ns() - due_ns_ >= kLateNs) return WaitFor(kLateNs);
    on_lost_();
  }

  Poller* const poller_;
  const uint32_t* const next_;
  const std::function<void()> on_lost_;
  std::vector<bool> arrived_;
  uint32_t hole_ = 0;  // The number that was due when the timer was set.
  int64_t due_ns_ = 0;
  MemberTimer<EarlyMessages> timer_{this, &EarlyMessages::OnTimer};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_EARLY_MESSAGES_H_
