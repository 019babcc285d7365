#ifndef TRYST_CHANNEL_SHM_PRODUCER_WATCH_H_
#define TRYST_CHANNEL_SHM_PRODUCER_WATCH_H_

#include <cstdint>

#include "channel/poller/poller.h"

namespace tryst {

// Finds a producer whose process lives but no longer works: it was stopped, or hangs. Its socket
// stays open, so only its silence shows. While fetches are out, the watch asks for a sign a few
// times within the patience, and soon after something was asked; any cell from the producer counts.
//
// If the path may be left, a producer that gives no sign is asked by another way whether it is up.
// One that answers there, and after that is silent here for as long as before, is not stopped: it
// owes the sign. Poller thread only.
class ProducerWatch final : public PollerTimer {
 public:
  class Owner {
   public:
    // How many cells the producer has sent. False: it need not be watched now.
    virtual bool Watched(uint32_t* cells) const = 0;
    virtual void AskForSign() = 0;  // Only one request for a sign is unanswered at a time.
    // Asks by another way. The answer goes to NoteUp(), sooner or later.
    virtual void AskIfUp() = 0;
    // A tensor of which parts are to come is watched closely. False: the link has ended.
    virtual bool WatchParts(bool* awaited) = 0;
    virtual void OnSilent(int64_t silent_ms) = 0;
    virtual void OnOwes(int64_t silent_ms) = 0;

   protected:
    ~Owner() = default;
  };

  // `give_up_ms`: how long a sign may be owed; 0: the path is never left.
  ProducerWatch(Poller* poller, Owner* owner, int64_t patience_ms, int64_t give_up_ms)
      : poller_(poller),
        owner_(owner),
        patience_ns_(patience_ms * 1'000'000),
        give_up_ns_(give_up_ms * 1'000'000) {}

  // Something is asked. It is cheap while it already watches closely.
  void Watch() {
    if (!is_close_) Begin();
  }
  void Stop() {
    poller_->CancelTimer(this);
    is_close_ = is_asking_ = false;
  }
  // The producer has answered, or not, whether it is up.
  void NoteUp(bool is_up) {
    is_asking_ = false;
    if (is_up && up_ns_ < 0) up_ns_ = poller_->now_ns();
  }

 private:
  static constexpr int64_t kLooks = 4;        // Within the patience.
  static constexpr int64_t kCloseChecks = 2;  // Within give_up_ms.

  void Begin();
  void OnTimer() override;
  void LookAgain(bool close);

  Poller* const poller_;
  Owner* const owner_;
  const int64_t patience_ns_;
  const int64_t give_up_ns_;
  uint32_t cells_ = 0;      // At the last look.
  int64_t heard_ns_ = 0;    // When new cells were last seen, or when watching began.
  int64_t asked_ns_ = -1;   // When it was asked for a sign since then; -1: it was not.
  int64_t up_ns_ = -1;      // When it first said since then that it is up; -1: it did not.
  bool is_close_ = false;   // The next look is soon, if the path may be left.
  bool is_asking_ = false;  // Whether it is up.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_PRODUCER_WATCH_H_
