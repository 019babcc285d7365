#ifndef TRYST_CHANNEL_SHM_STREAM_COPY_H_
#define TRYST_CHANNEL_SHM_STREAM_COPY_H_

#include <cstddef>

#include "base/crew.h"

namespace tryst {

// memcpy with stores that bypass the caches, if the processor has them: the destination is not read
// first, and nothing else is evicted.
void StreamCopy(void* to, const void* from, size_t bytes);

// From this size on a copy bypasses the caches.
inline constexpr size_t kStreamBytes = 256 << 10;
// From this size on it is shared with the crew.
inline constexpr size_t kSplitBytes = 512 << 10;

// Copies on the calling thread, and with the crew's help if it is large. `streaming`: it is a part
// of something larger than kStreamBytes.
void CrewCopy(Crew* crew, void* to, const void* from, size_t bytes, bool streaming);

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_STREAM_COPY_H_
