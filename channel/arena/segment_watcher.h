#ifndef TRYST_CHANNEL_ARENA_SEGMENT_WATCHER_H_
#define TRYST_CHANNEL_ARENA_SEGMENT_WATCHER_H_

#include <cstdint>

namespace tryst {

// Is told which segments of peers are mapped into this process, so that it can pin them for a
// device. A segment stays mapped while any tensor in it is held. Thread-safe.
class SegmentWatcher {
 public:
  virtual ~SegmentWatcher() = default;
  virtual void OnMapped(const void* data, uint64_t bytes) = 0;
  // The last chance: afterwards other memory may have these addresses.
  virtual void OnUnmapping(const void* data) = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_ARENA_SEGMENT_WATCHER_H_
