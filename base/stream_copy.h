#ifndef TRYST_BASE_STREAM_COPY_H_
#define TRYST_BASE_STREAM_COPY_H_

#include <cstddef>
#include <cstring>

namespace tryst {

// memcpy with stores that bypass the caches, if the processor has them: the destination is not read
// first, and nothing else is evicted.
void StreamCopy(void* to, const void* from, size_t bytes);
// One of several parts. FinishStreams() comes behind the last, before anything tells that the bytes
// are there: others may see what is written after a part before its bytes. A fence for each part of
// 4 KiB would take a third of the time.
void StreamPart(void* to, const void* from, size_t bytes);
void FinishStreams();

// From this size on a copy bypasses the caches.
inline constexpr size_t kStreamBytes = 256 << 10;
// And a part of one does.
inline constexpr size_t kStreamSpanBytes = 1024;

// A part of a copy, which bypasses the caches if that `streams` and the part is long enough.
inline void CopyPart(void* to, const void* from, size_t bytes, bool streams) {
  if (streams && bytes >= kStreamSpanBytes) return StreamPart(to, from, bytes);
  memcpy(to, from, bytes);
}

}  // namespace tryst

#endif  // TRYST_BASE_STREAM_COPY_H_
