#ifndef TRYST_BASE_STREAM_COPY_H_
#define TRYST_BASE_STREAM_COPY_H_

#include <cstddef>

namespace tryst {

// memcpy with stores that bypass the caches, if the processor has them: the destination is not read
// first, and nothing else is evicted.
void StreamCopy(void* to, const void* from, size_t bytes);

// From this size on a copy bypasses the caches.
inline constexpr size_t kStreamBytes = 256 << 10;

}  // namespace tryst

#endif  // TRYST_BASE_STREAM_COPY_H_
