#ifndef TRYST_CHANNEL_SHM_PRODUCER_WATCH_H_
#define TRYST_CHANNEL_SHM_PRODUCER_WATCH_H_

#include <cstdint>

#include "channel/poller/poller.h"

namespace tryst {

// Finds a producer that lives and does nothing any more: one that was stopped, or hangs. Its
// socket stays open, so only its silence shows. While fetches are out it is asked for a sign a
// few times within the patience; any cell of its is one. Poller thread only.
class ProducerWatch final : public PollerTimer {
 public:
  class Owner {
   public:
    // How many cells the producer has answered, if it is to be watched now.
    virtual bool Watched(uint32_t* cells) const = 0;
    virtual void AskForSign() = 0;  // At most one of them is unanswered.
    virtual void OnSilent(int64_t silent_ms) = 0;

   protected:
    ~Owner() = default;
  };

  ProducerWatch(Poller* poller, Owner* owner, int64_t patience_ms)
      : poller_(poller), owner_(owner), patience_ns_(patience_ms * 1'000'000) {}

  // A fetch is out. Cheap while it watches already.
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
  uint32_t cells_ = 0;    // As seen at the last look.
  int64_t heard_ns_ = 0;  // When there were new ones last, or since when it is watched.
  bool asked_ = false;    // Since then.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_PRODUCER_WATCH_H_
