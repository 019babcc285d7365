#ifndef TRYST_VERBS_SOFT_SOFT_WAITS_H_
#define TRYST_VERBS_SOFT_SOFT_WAITS_H_

#include <cstdint>

#include "verbs/nic.h"
#include "verbs/patience.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {

// How long a queue pair has waited for its peer, and when that is too long.
class SoftWaits {
 public:
  // What it waits for now, besides a receive of the peer.
  struct For {
    bool answers = false;
    bool connection = false;
  };
  enum class TooLong : uint8_t { kNothing, kPeer, kReceive };

  SoftWaits(const SoftNicOptions& nic, const QueuePairOptions& options);

  // How long a peer may say nothing. INT64_MAX: for ever.
  static int64_t PeerBudgetNs(const QueuePairOptions& options);

  void NoteMoved() { moved_ = true; }  // Bytes have come or gone.
  bool starved() const { return starved_; }
  void Starve() { starved_ = true; }  // A work waits for a receive of the peer.
  // It has one. The next work that waits for a receive gets the full timeout.
  void Feed();
  void Restart();  // Forgets how long it has waited.

  TooLong OnTimer(int64_t now_ns, For what);
  int64_t next_ns(int64_t now_ns, For what) const;  // INT64_MAX: never.

 private:
  bool moved_ = false;  // Since the last OnTimer().
  bool starved_ = false;
  Patience for_answers_;
  Patience for_receives_;
  Patience for_connections_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_WAITS_H_
