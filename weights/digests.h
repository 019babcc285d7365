#ifndef TRYST_WEIGHTS_DIGESTS_H_
#define TRYST_WEIGHTS_DIGESTS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tryst {

// XXH3 of 128 bits. It finds what went wrong by accident; it does not stop somebody who wants two
// contents of one digest.
struct Digest {
  uint64_t low = 0, high = 0;
  std::string ToString() const;  // 32 hex digits, high first.
  friend bool operator==(const Digest& a, const Digest& b) {
    return a.low == b.low && a.high == b.high;
  }
  friend bool operator!=(const Digest& a, const Digest& b) { return !(a == b); }
};

Digest DigestOf(const void* bytes, size_t size);
inline Digest DigestOf(absl::string_view bytes) { return DigestOf(bytes.data(), bytes.size()); }

}  // namespace tryst

#endif  // TRYST_WEIGHTS_DIGESTS_H_
