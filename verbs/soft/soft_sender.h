#ifndef TRYST_VERBS_SOFT_SOFT_SENDER_H_
#define TRYST_VERBS_SOFT_SOFT_SENDER_H_

#include <cstdint>

#include "verbs/nic.h"
#include "verbs/soft/frame.h"
#include "verbs/soft/soft_connection.h"
#include "verbs/soft/soft_ending.h"
#include "verbs/soft/soft_lane.h"
#include "verbs/soft/soft_receiver.h"
#include "verbs/soft/soft_shared.h"

namespace tryst {

// Turns posted works, and answers to the peer's READs, into frames, and sends them in batches.
class SoftSender {
 public:
  // All outlive it.
  SoftSender(SoftShared* shared, SoftConnection* connection, SoftEnding* ending,
             SoftReceiver* receiver)
      : shared_(shared), connection_(connection), ending_(ending), receiver_(receiver) {}

  void Pump();                        // Sends what the sockets take, and a turn may.
  void FinishHanded(SoftLane* lane);  // Takes back a lane's batch from a helper.
  // Sends acknowledgements now, in a frame of their own if there is no other.
  void Acknowledge();
  bool AnythingToSend() const;

 private:
  bool PumpLane(SoftLane* lane);
  bool HandOver(SoftLane* lane);
  bool WriteBatch(SoftLane* lane, SoftBatch::Progress* progress);
  bool FinishWrite(SoftLane* lane, SoftBatch::Progress progress);
  bool Fill(SoftLane* lane);
  void FillFirst(SoftLane* lane);
  bool StartNext();  // False: it must wait, or has failed.
  bool Start(SoftSend* send, uint64_t i);
  CompletionStatus CheckLocalKeys(const SoftSend& send, uint64_t i);
  bool NextIsCut() const;
  bool ComesTooLate(const SoftLane& lane) const;
  bool IsCut(const SoftSend& send) const;
  uint64_t MostFrameBytes(const SoftLane& lane, const SoftSend& send) const;
  void AddMessageFrame(SoftLane* lane);
  void AddAnswerFrame(SoftLane* lane);

  SoftShared* const shared_;
  SoftConnection* const connection_;
  SoftEnding* const ending_;
  SoftReceiver* const receiver_;
  bool answer_next_ = false;  // Alternates between our works and the peer's READs.
  bool ack_now_ = false;
  uint64_t written_ = 0;  // By this Pump().
  // As of the last Pump(), of which all lanes see the same, so that what one leaves to the others
  // is not left by them:
  int carriers_ = 0;     // Lanes on which helpers carry messages.
  bool leaves_ = false;  // The first lane leaves the rest of a large message to the others.
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_SENDER_H_
