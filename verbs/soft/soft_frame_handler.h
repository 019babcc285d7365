#ifndef TRYST_VERBS_SOFT_SOFT_FRAME_HANDLER_H_
#define TRYST_VERBS_SOFT_SOFT_FRAME_HANDLER_H_

#include <cstdint>

#include "verbs/soft/frame.h"
#include "verbs/soft/soft_connection.h"
#include "verbs/soft/soft_ending.h"
#include "verbs/soft/soft_landing.h"
#include "verbs/soft/soft_lane.h"
#include "verbs/soft/soft_shared.h"

namespace tryst {

// Judges the headers of a peer's frames, and begins what they ask for. Nothing here trusts the
// peer: every field is checked before a byte is written, and nonsense breaks this queue pair alone.
class SoftFrameHandler {
 public:
  enum class Taken : uint8_t {
    kYes,
    kLater,   // A frame of another lane comes before it.
    kBroken,  // The queue pair is.
  };

  // All outlive it.
  SoftFrameHandler(SoftShared* shared, SoftConnection* connection, SoftEnding* ending,
                   SoftLanding* landing)
      : shared_(shared), connection_(connection), ending_(ending), landing_(landing) {}

  Taken Take(SoftLane* lane, const FrameHeader& frame);

 private:
  Taken TakeRequest(SoftLane* lane, const FrameHeader& frame);
  Taken TakeRead(const FrameHeader& frame);
  Taken TakeMessage(SoftLane* lane, const FrameHeader& frame);
  Taken CheckReceive(const FrameHeader& frame);
  Taken TakeFragment(SoftLane* lane, const FrameHeader& frame);
  Taken TakeReadResponse(SoftLane* lane, const FrameHeader& frame);
  Taken TakeError(const FrameHeader& frame);
  Taken Refuse(const FrameHeader& frame, WireError error);
  Taken Nonsense(const char* what);

  SoftShared* const shared_;
  SoftConnection* const connection_;
  SoftEnding* const ending_;
  SoftLanding* const landing_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_FRAME_HANDLER_H_
