#ifndef TRYST_CHANNEL_SHM_PRODUCER_WATCH_H_
#define TRYST_CHANNEL_SHM_PRODUCER_WATCH_H_

#include <cstdint>

#include "channel/poller/poller.h"

namespace tryst {

// Finds a producer whose process lives but no longer works: it was stopped, or hangs. Its socket
// stays open, so only its silence shows. While fetches are out, the watch asks for a sign a few
// times within the patience; any cell from the producer counts. Poller thread only.
class ProducerWatch final : public PollerTimer {
 public:
  class Owner {
   public:
    // How many cells the producer has sent. False: it need not be watched now.
    virtual bool Watched(uint32_t* cells) const = 0;
    virtual void AskForSign() = 0;  // Only one request for a sign is unanswered at a time.
    virtual void OnSilent(int64_t silent_ms) = 0;

   protected:
    ~Owner() = default;
  };

  ProducerWatch(Poller* poller, Owner* owner, int64_t patience_ms)
      : poller_(poller), owner_(owner), patience_ns_(patience_ms * 1'000'000) {}

  // A fetch is out. It is cheap while it already watches.
  void Watch() {
    if (!is_set()) Begin();
  }
  void Stop() { poller_->CancelTimer(this); }

 private:
  static constexpr int64_t kLooks = 4;  // Within the patience.

  void Begin();
  void OnTimer() override;
  void LookAgain() { poller_->SetTimer(this, poller_->now_ns() + patience_ns_ / kLooks); }

  Poller* const poller_;
  Owner* const owner_;
  const int64_t patience_ns_;
  uint32_t cells_ = 0;    // At the last look.
  int64_t heard_ns_ = 0;  // When new cells were last seen, or when watching began.
  bool asked_ = false;    // Since then.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_PRODUCER_WATCH_H_
