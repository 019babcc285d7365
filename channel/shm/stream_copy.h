#ifndef TRYST_CHANNEL_SHM_STREAM_COPY_H_
#define TRYST_CHANNEL_SHM_STREAM_COPY_H_

#include <cstddef>

#include "base/crew.h"
#include "base/stream_copy.h"

namespace tryst {

// From this size on it is shared with the crew.
inline constexpr size_t kSplitBytes = 512 << 10;

// Copies on the calling thread, and with the crew's help if it is large. `streaming`: it is a part
// of something larger than kStreamBytes.
void CrewCopy(Crew* crew, void* to, const void* from, size_t bytes, bool streaming);

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_STREAM_COPY_H_
