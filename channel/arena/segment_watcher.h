#ifndef TRYST_CHANNEL_ARENA_SEGMENT_WATCHER_H_
#define TRYST_CHANNEL_ARENA_SEGMENT_WATCHER_H_

#include <cstdint>

namespace tryst {

// Learns which segments of peers are mapped into this process, so that it can pin them for a
// device. A segment stays mapped while any tensor in it is held. Any thread.
class SegmentWatcher {
 public:
  virtual ~SegmentWatcher() = default;
  virtual void OnMapped(const void* data, uint64_t bytes) = 0;
  // Last call: afterwards something else may be mapped there.
  virtual void OnUnmapping(const void* data) = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_ARENA_SEGMENT_WATCHER_H_
