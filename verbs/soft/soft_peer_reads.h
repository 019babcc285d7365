#ifndef TRYST_VERBS_SOFT_SOFT_PEER_READS_H_
#define TRYST_VERBS_SOFT_SOFT_PEER_READS_H_

#include <cstdint>
#include <vector>

#include "verbs/soft/frame.h"
#include "verbs/soft/soft_lane.h"

namespace tryst {

// The peer's READs that wait to be answered, oldest first.
class SoftPeerReads {
 public:
  explicit SoftPeerReads(uint32_t depth) : reads_(depth) {}

  bool empty() const { return begin_ == end_; }
  bool full() const { return end_ - begin_ == reads_.size(); }
  // Whether the oldest READ is partly answered, and asks for at least `bytes` in all.
  bool OldestIsCut(uint64_t bytes) const;
  void Add(const FrameHeader& frame);  // REQUIRES: not full.
  // Puts the next frame of the oldest one's answer, which begins as `header`, into the batch.
  void AddAnswer(FrameHeader header, SoftLane* lane);  // REQUIRES: not empty.

 private:
  struct Read {
    uint32_t sequence = 0;
    uint32_t remote_key = 0;
    uint64_t address = 0;
    uint64_t total = 0;
    uint64_t assigned = 0;
  };

  std::vector<Read> reads_;  // A ring.
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_PEER_READS_H_
