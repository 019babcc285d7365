#ifndef TRYST_CHANNEL_SHM_PARTS_ROOM_H_
#define TRYST_CHANNEL_SHM_PARTS_ROOM_H_

#include <cstdint>

#include "channel/ops/ring_line.h"
#include "channel/shm/references.h"

namespace tryst {

// Where the parts of tensors lie on their way to one consumer: in turn, around and around. So
// what is written next is what was read longest ago, and has left the reader's nearest caches: a
// writer that takes the room just read pays for each line two to three times as much. Poller
// thread only.
class PartsRoom {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;
  static constexpr uint64_t kGranule = 4096;

  // `bytes`: a multiple of kGranule.
  explicit PartsRoom(uint64_t bytes) : bytes_(bytes) {}

  // Where the next part of `bytes` may be written; kNone: all is still read. REQUIRES: what
  // `given` does not know any more has been read.
  uint64_t Find(uint64_t bytes, const GivenReferences& given);
  // It is there, and given as this reference. `offset` is what Find() said last.
  void Gave(uint64_t offset, uint64_t bytes, uint16_t reference, uint16_t generation);

 private:
  struct Part {
    uint64_t begin = 0;
    uint16_t reference = 0;
    uint16_t generation = 0;
  };
  static uint64_t Rounded(uint64_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

  const uint64_t bytes_;
  uint64_t next_ = 0;     // Behind the newest part.
  RingLine<Part> parts_;  // In the order of their places.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_PARTS_ROOM_H_
