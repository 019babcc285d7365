#ifndef TRYST_CHANNEL_DEVICE_PEER_SEGMENTS_H_
#define TRYST_CHANNEL_DEVICE_PEER_SEGMENTS_H_

#include <cstdint>
#include <map>
#include <string>

#include "base/mutex.h"
#include "channel/arena/segment_watcher.h"
#include "gpu/gpu.h"
#include "gpu/pinned_memory.h"

namespace tryst {

// The shared memory of this host's workers as GPUs see it: a segment is registered with the
// driver when a copy first wants to read it, whole and for every GPU, and until it is
// unmapped. Thread-safe.
class PeerSegments final : public SegmentWatcher {
 public:
  void OnMapped(const void* data, uint64_t bytes) override;
  void OnUnmapping(const void* data) override;

  // Whether `gpu` copies out of [data, data + bytes) as it is. The first time it takes as long
  // as registering the segment. REQUIRES: a tensor there is held.
  bool Reaches(const Gpu* gpu, const void* data, uint64_t bytes);
  // Why the last segment that cannot be registered cannot; empty: all could.
  std::string refusal() const;

 private:
  enum class State { kNew, kRegistering, kRegistered, kRefused };
  struct Segment {
    uint64_t bytes = 0;
    State state = State::kNew;
    PinnedMemory pinned;
  };

  mutable Mutex mu_;
  std::map<const char*, Segment> segments_ ABSL_GUARDED_BY(mu_);  // By where they begin.
  std::string refusal_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_PEER_SEGMENTS_H_
