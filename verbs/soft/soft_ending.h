#ifndef TRYST_VERBS_SOFT_SOFT_ENDING_H_
#define TRYST_VERBS_SOFT_SOFT_ENDING_H_

#include <cstddef>
#include <cstdint>

#include "verbs/nic.h"
#include "verbs/soft/frame.h"
#include "verbs/soft/soft_connection.h"
#include "verbs/soft/soft_lane.h"
#include "verbs/soft/soft_send_ring.h"
#include "verbs/soft/soft_shared.h"

namespace tryst {

// How the works of a queue pair end, and the queue pair itself: a failed work breaks it, and
// breaking it ends all works.
class SoftEnding {
 public:
  SoftEnding(SoftShared* shared, SoftConnection* connection)  // Both outlive it.
      : shared_(shared), connection_(connection) {}

  // Works hold room from posting until their completion is polled.
  uint32_t sends_held() const { return sends_held_; }
  uint32_t receives_held() const { return receives_held_; }
  void HoldSends(size_t works) { sends_held_ += static_cast<uint32_t>(works); }
  void HoldReceives(size_t works) { receives_held_ += static_cast<uint32_t>(works); }
  void OnPolled(uint32_t sends_back, uint32_t receives_back);

  void GiveBackSends();  // Completes finished works in order; breaks at a failed one.
  // `request` is the frame that it was for, if there is one.
  void FinishReceive(CompletionStatus status, CompletionOp op, const FrameHeader* request);

  // Work `culprit` ends with `first` (the oldest, if it is kNone); the others are flushed.
  void Break(CompletionStatus first, uint64_t culprit);
  void Lost();  // The peer is.
  void LoseLane(SoftLane* lane);
  // After HangUp(): ends all if what is left waits for what nobody brings.
  void LoseIfStuck();
  // Says no to request `sequence`, as the last word on this connection.
  void Refuse(uint32_t sequence, WireError error);
  void Nonsense(const char* what);  // The peer has sent what no peer of ours sends.

 private:
  // No lane but `lost` can bring what the first one waits for.
  bool IsStuckWithout(const SoftLane* lost) const;
  bool Done(const SoftSend& send) const;
  void FinishSend(const SoftSend& send, CompletionStatus status);
  void FlushAll(CompletionStatus first, uint64_t culprit);
  void SendRefusal(uint32_t sequence, WireError error);
  void ReportFatal();

  SoftShared* const shared_;
  SoftConnection* const connection_;
  uint32_t sends_held_ = 0;
  uint32_t receives_held_ = 0;
  uint32_t silent_ = 0;  // Done and unsignaled; given back with the next completion.
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_ENDING_H_
