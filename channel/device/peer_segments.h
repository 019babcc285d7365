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

// The shared memory of this host's workers, as GPUs see it. When a copy first needs a segment, the
// whole of it is registered with the driver for every GPU, until it is unmapped. Thread-safe.
class PeerSegments final : public SegmentWatcher {
 public:
  void OnMapped(const void* data, uint64_t bytes) override;
  void OnUnmapping(const void* data) override;

  // Whether `gpu` can copy from [data, data + bytes) directly. The first call registers the
  // segment, which takes long. REQUIRES: a tensor there is held.
  bool Reaches(const Gpu* gpu, const void* data, uint64_t bytes);
  // Why the last refused segment could not be registered; empty: none was refused.
  std::string refusal() const;

 private:
  enum class State { kNew, kRegistering, kRegistered, kRefused };
  struct Segment {
    uint64_t bytes = 0;
    State state = State::kNew;
    PinnedMemory pinned;
  };

  mutable Mutex mu_;
  std::map<const char*, Segment> segments_ ABSL_GUARDED_BY(mu_);  // By their first address.
  std::string refusal_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_PEER_SEGMENTS_H_
