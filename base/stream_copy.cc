#include "base/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tryst {
namespace {

#if defined(__x86_64__)
// `to` is at a cache line; `bytes` is a multiple of two lines.
__attribute__((target("avx2"))) void StreamLines(uint8_t* to, const uint8_t* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 128) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 64));
    const __m256i d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 96));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), b);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 64), c);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 96), d);
  }
}

bool HasStreamingStores() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}
#endif

}  // namespace

void StreamCopy(void* to, const void* from, size_t bytes) {
  StreamPart(to, from, bytes);
  FinishStreams();
}

void FinishStreams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

void StreamPart(void* to, const void* from, size_t bytes) {
  uint8_t* const out = static_cast<uint8_t*>(to);
  const uint8_t* const in = static_cast<const uint8_t*>(from);
  size_t done = 0;
#if defined(__x86_64__)
  if (HasStreamingStores()) {
    const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(out) & 63);
    const size_t lines = (bytes - head) & ~size_t{127};
    if (lines > 0) {
      memcpy(out, in, head);
      StreamLines(out + head, in + head, lines);
      done = head + lines;
    }
  }
#endif
  if (done < bytes) memcpy(out + done, in + done, bytes - done);
}

}  // namespace tryst
