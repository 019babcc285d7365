#ifndef TRYST_CHANNEL_OPS_PEER_SILENCE_H_
#define TRYST_CHANNEL_OPS_PEER_SILENCE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"

namespace tryst {

// How long a peer has been silent while fetches wait for it and there is no connection. Time for
// which this process did not run does not count. Poller thread only.
class PeerSilence {
 public:
  // `on_over` runs when the silence has lasted for `patience_ms` (0: it never runs).
  PeerSilence(Poller* poller, int64_t patience_ms, std::function<void()> on_over)
      : poller_(poller), patience_ms_(patience_ms), on_over_(std::move(on_over)) {}

  // The peer has said something, by this path or in answer to a hello.
  void NoteWord() { NoteWordAt(poller_->now_ns()); }
  void NoteWordAt(int64_t at_ns) {
    last_word_ns_ = std::max(last_word_ns_, at_ns);
    lost_ns_ = -1;
  }
  // The first fetch waits. A peer that was lost long before may be back.
  void NoteWaits() {
    waiting_since_ns_ = poller_->now_ns();
    if (poller_->now_ns() - lost_ns_ >= patience_ms_ * 1'000'000) lost_ns_ = -1;
  }
  int64_t waiting_since_ns() const { return waiting_since_ns_; }
  // REQUIRES: a fetch waits, and there is no connection.
  void Watch() {
    if (patience_ms_ <= 0 || timer_.is_set()) return;
    const int64_t left_ns = patience_ms_ * 1'000'000 - SilentNs();
    poller_->SetTimer(&timer_,
                      poller_->now_ns() + std::min(left_ns, patience_ms_ * 1'000'000 / kLooks));
  }
  void Stop() { poller_->CancelTimer(&timer_); }
  // An attempt has failed. Fetches made since the peer was lost wait for that one attempt only.
  void OnAttemptFailed() {
    if (is_lost()) Lose();
  }

 private:
  static constexpr int64_t kLooks = 8;  // Within the patience (Poller::RunningSince).

  int64_t SilentNs() const {
    return poller_->RunningSince(std::max(last_word_ns_, waiting_since_ns_));
  }
  bool is_lost() const { return lost_ns_ >= 0; }
  void Lose() {
    lost_ns_ = poller_->now_ns();
    on_over_();
  }
  void OnTimer() {
    if (!is_lost() && SilentNs() < patience_ms_ * 1'000'000) return Watch();
    Lose();
  }

  Poller* const poller_;
  const int64_t patience_ms_;
  const std::function<void()> on_over_;
  int64_t last_word_ns_ = 0;
  int64_t waiting_since_ns_ = 0;
  int64_t lost_ns_ = -1;  // When the silence was last found to be over; -1: the peer is not lost.
  MemberTimer<PeerSilence> timer_{this, &PeerSilence::OnTimer};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_PEER_SILENCE_H_
