#include "weights/wide_digest.h"

#if defined(__x86_64__)
// What xxhash.h includes comes first, so that nothing else is compiled for these processors alone.
#include <immintrin.h>

#include <climits>
#include <cstdlib>
#include <cstring>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif
#define XXH_VECTOR 2  // XXH_AVX2
#include <xxhash.h>

namespace tryst {
namespace {

void Digest(const void* bytes, size_t size, uint64_t* low, uint64_t* high) {
  const XXH128_hash_t hash = XXH3_128bits(bytes, size);
  *low = hash.low64;
  *high = hash.high64;
}

}  // namespace
}  // namespace tryst

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace tryst {
WideDigestFn WideDigest() { return __builtin_cpu_supports("avx2") ? &Digest : nullptr; }
}  // namespace tryst
#else
namespace tryst {
WideDigestFn WideDigest() { return nullptr; }
}  // namespace tryst
#endif
