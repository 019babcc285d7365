#ifndef TRYST_VERBS_SOFT_SOFT_RECEIVER_H_
#define TRYST_VERBS_SOFT_SOFT_RECEIVER_H_

#include <sys/types.h>

#include <cstddef>

#include "verbs/soft/soft_connection.h"
#include "verbs/soft/soft_ending.h"
#include "verbs/soft/soft_frame_handler.h"
#include "verbs/soft/soft_landing.h"
#include "verbs/soft/soft_lane.h"
#include "verbs/soft/soft_shared.h"

namespace tryst {

// Receives bytes from a queue pair's lanes: payloads go straight to their places where that saves a
// copy, and all else is staged until it can be handled.
class SoftReceiver {
 public:
  // All outlive it.
  SoftReceiver(SoftShared* shared, SoftConnection* connection, SoftEnding* ending,
               SoftLanding* landing)
      : shared_(shared),
        connection_(connection),
        ending_(ending),
        landing_(landing),
        frames_(shared, connection, ending, landing) {}

  bool Read(SoftLane* lane);  // Returns whether any bytes came.
  // Takes back what a helper has received into a lane, and goes on.
  void FinishHanded(SoftLane* lane);
  // Handles what has waited in one lane for a frame of another.
  void TakeParked();
  bool any_parked() const { return any_parked_; }

 private:
  ssize_t ReadSome(SoftLane* lane, size_t* wanted);
  ssize_t ReadStaged(SoftLane* lane, size_t* wanted);
  ssize_t ReadPayload(SoftLane* lane, size_t* wanted);
  bool HandOver(SoftLane* lane);
  void MakeRoom(SoftLane* lane);
  bool TakeStaged(SoftLane* lane);  // False: the lane must wait, or is gone.
  bool TakeFrame(SoftLane* lane, const uint8_t* header);
  void Lose(SoftLane* lane, int error);
  void Leave(SoftLane* lane);

  SoftShared* const shared_;
  SoftConnection* const connection_;
  SoftEnding* const ending_;
  SoftLanding* const landing_;
  SoftFrameHandler frames_;
  bool any_parked_ = false;  // A lane has a frame that must wait.
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_RECEIVER_H_
