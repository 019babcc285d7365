#ifndef TRYST_CHANNEL_SHM_PARTS_ROOM_H_
#define TRYST_CHANNEL_SHM_PARTS_ROOM_H_

#include <cstdint>

#include "channel/ops/ring_line.h"
#include "channel/shm/references.h"

namespace tryst {

// Places for parts of tensors on their way to one consumer, used in turn, around and around. So the
// next place is the one that was read longest ago, and is no longer in the reader's nearest caches:
// writing a place that was just read costs two to three times as much for each line. Poller thread
// only.
class PartsRoom {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;
  static constexpr uint64_t kGranule = 4096;

  // `bytes` is a multiple of kGranule.
  explicit PartsRoom(uint64_t bytes) : bytes_(bytes) {}

  // Where the next part of `bytes` may be written; kNone: everything is still being read. REQUIRES:
  // what `given` no longer lists has been read.
  uint64_t Find(uint64_t bytes, const GivenReferences& given);
  // The part was written, and given to the consumer as this reference. `offset` is Find()'s last
  // result.
  void Gave(uint64_t offset, uint64_t bytes, uint16_t reference, uint16_t generation);
  void Clear() {  // Nobody reads any of it.
    next_ = 0;
    parts_.clear();
  }

 private:
  struct Part {
    uint64_t begin = 0;
    uint16_t reference = 0;
    uint16_t generation = 0;
  };
  static uint64_t Rounded(uint64_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

  const uint64_t bytes_;
  uint64_t next_ = 0;     // The end of the newest part.
  RingLine<Part> parts_;  // In the order of their places.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_PARTS_ROOM_H_
