#ifndef TRYST_VERBS_SOFT_SOFT_PROGRESS_H_
#define TRYST_VERBS_SOFT_SOFT_PROGRESS_H_

#include <cstdint>

#include "verbs/nic.h"
#include "verbs/soft/frame.h"
#include "verbs/soft/soft_receive_ring.h"

namespace tryst {

// What a queue pair and its peer tell each other in the headers of frames: how many requests each
// has executed, and how many receives it has posted. All counts wrap.
class SoftProgress {
 public:
  // The ring outlives it.
  SoftProgress(const QueuePairOptions& options, bool acks_late, const SoftReceiveRing* receives)
      : ends_when_left_(options.ends_when_left),
        acks_late_(acks_late),
        receive_depth_(options.receive_depth),
        receives_(receives) {}

  // Our requests. A peer that acknowledges what was never sent has Take() return false.
  uint32_t NewSequence() { return next_sequence_++; }
  bool WasSent(uint32_t sequence) const { return next_sequence_ - sequence - 1 < (1u << 31); }
  bool IsAcked(uint32_t sequence) const { return static_cast<int32_t>(acked_ - sequence) > 0; }
  bool all_acked() const { return acked_ == next_sequence_; }
  bool PeerHasReceive() const { return peer_receives_ != receives_used_; }
  void UsePeersReceive() { ++receives_used_; }
  bool Take(const FrameHeader& frame);
  void TakeHello(uint32_t receives) { peer_receives_ = receives; }

  // The peer's requests.
  uint32_t executed() const { return executed_; }
  void NoteExecuted() { ++executed_; }
  void NoteDelivered(uint64_t turn) { delivered_turn_ = turn; }

  // What the peer gets to know. Only headers on the first lane carry it.
  FrameHeader NewHeader(FrameType type, bool first_lane);
  uint32_t AnnounceReceives() { return receives_announced_ = receives_->posted(); }
  // Whether to tell the peer of receives that it does not know: early enough that it does not run
  // out, but not for each.
  bool CreditDue() const;
  bool AnythingUnsaid() const { return executed_ != executed_announced_ || CreditDue(); }

  // An acknowledgement that the peer is owed. BeginDebt() is true when none was owed before.
  bool BeginDebt();
  void EndDebt() { in_debt_ = false; }
  // Whether another frame may still carry it: an answer of ours, or our next request. `bytes`: of
  // the peer's last message.
  bool DebtMayWait(uint64_t turn, bool due, uint64_t bytes) const;

 private:
  const bool ends_when_left_;
  const bool acks_late_;  // SoftNicOptions::ack_delay
  const uint32_t receive_depth_;
  const SoftReceiveRing* const receives_;
  uint32_t next_sequence_ = 0;
  uint32_t acked_ = 0;          // Requests that the peer has executed.
  uint32_t peer_receives_ = 0;  // Receives that the peer has ever posted.
  uint32_t receives_used_ = 0;  // How many of those we have used.
  uint32_t receives_announced_ = 0;
  uint32_t executed_ = 0;
  uint32_t executed_announced_ = 0;
  bool in_debt_ = false;
  uint64_t delivered_turn_ = 0;  // When a receive last completed.
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_PROGRESS_H_
