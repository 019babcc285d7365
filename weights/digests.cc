#include "weights/digests.h"

#include <xxhash.h>

#include "absl/strings/str_format.h"

namespace tryst {

std::string Digest::ToString() const { return absl::StrFormat("%016x%016x", high, low); }

Digest DigestOf(const void* bytes, size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(bytes, size);
  return {hash.low64, hash.high64};
}

}  // namespace tryst
