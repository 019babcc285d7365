#ifndef TRYST_VERBS_SOFT_SOFT_LANDING_H_
#define TRYST_VERBS_SOFT_SOFT_LANDING_H_

#include <sys/uio.h>

#include <cstdint>

#include "verbs/nic.h"
#include "verbs/soft/frame.h"
#include "verbs/soft/soft_ending.h"
#include "verbs/soft/soft_lane.h"
#include "verbs/soft/soft_shared.h"

namespace tryst {

// Where the payloads of a queue pair's frames go: into a region, a posted receive, or a READ's
// entries. The peer's messages are executed one at a time, in order of their sequence; the frames
// of one may come on several lanes.
class SoftLanding {
 public:
  // OpenSoftNic() allows no more entries of one transfer.
  static constexpr int kMostPlaces = 64;

  SoftLanding(SoftShared* shared, SoftEnding* ending) : shared_(shared), ending_(ending) {}

  // A message is arriving.
  bool busy() const { return busy_; }
  // The message that is arriving, or else the last one that arrived.
  const FrameHeader& message() const { return message_; }
  // Begins a message with its first frame. REQUIRES: not busy.
  void BeginMessage(SoftLane* lane, const FrameHeader& frame);
  // Bytes of the message that no frame has announced.
  uint64_t unannounced() const { return message_.total - announced_; }
  void BeginFragment(SoftLane* lane, const FrameHeader& frame);
  void BeginAnswer(SoftLane* lane, const FrameHeader& frame, uint64_t read);

  // The bytes of a write go where a region was when it was announced. False: the region is gone,
  // and the message is refused.
  bool Pin(SoftLane* lane);
  // What opens the rest of the lane's payload, for a helper that pins it by itself.
  SoftPin PinOf(const SoftLane& lane) const;
  void RefuseRest();  // The region is gone.
  // The places of the next `bytes` of the lane's payload; returns how many, at most `max`.
  int Places(SoftLane* lane, uint64_t bytes, iovec* out, int max);
  void Copy(SoftLane* lane, const uint8_t* from, uint64_t bytes);
  void NoteLanded(SoftLane* lane, uint64_t bytes);

  // Changes when a frame that had to wait for another may be taken.
  uint32_t changes() const { return changes_; }
  void NoteChange() { ++changes_; }

 private:
  void Begin(SoftLane* lane, const FrameHeader& frame, uint64_t offset);
  bool IsForRegion(const SoftLane& lane) const {
    return lane.frame.type != FrameType::kReadResponse && message_.type == FrameType::kWrite;
  }
  void EndPayload(SoftLane* lane);
  void EndMessage();

  SoftShared* const shared_;
  SoftEnding* const ending_;
  bool busy_ = false;
  FrameHeader message_;  // Its first frame.
  uint64_t announced_ = 0;
  uint64_t landed_ = 0;
  Entry region_;  // The destination of a write.
  uint32_t changes_ = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_LANDING_H_
