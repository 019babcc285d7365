#ifndef TRYST_WEIGHTS_DELTA_H_
#define TRYST_WEIGHTS_DELTA_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// What changed in a box from one version to another, for a consumer that has the former. Bit by bit
// the same after decoding, whatever the type.
//
// The box's dense bytes are coded in blocks of kDeltaBlockBytes, each as whatever is shortest:
//   same    no bytes
//   sparse  a count of gap bytes (16 bits), the gap bytes, and the new value of each element that
//           changed. A gap byte below 255 says how many elements are skipped before the next one
//           that changed; 255 skips so many and goes on with the next gap byte.
//   whole   the block's bytes
// Before the blocks stand two bits for each: first whether it is not the same, for all of them,
// then whether it is whole. All integers are little-endian; the last block may be shorter.
namespace tryst {

inline constexpr size_t kDeltaBlockBytes = size_t{64} << 10;

// The most that `bytes` can become: 1/32,768 more than they are, and 2.
constexpr uint64_t MaxDeltaBytes(uint64_t bytes) {
  const uint64_t blocks = bytes / kDeltaBlockBytes + (bytes % kDeltaBlockBytes != 0);
  return bytes + 2 * ((blocks + 7) / 8);
}

// Appends what makes `now` of `base` to `*coded`. REQUIRES: both have `bytes`, a multiple of
// `element_bytes`, which is 1, 2, 4 or 8; 16 is two of 8.
void EncodeDelta(const void* base, const void* now, uint64_t bytes, uint32_t element_bytes,
                 std::string* coded);

// Whether `coded`, which anybody may have sent, can be decoded to `bytes` bytes of elements of
// `element_bytes` each.
// kInvalidArgument says why not.
absl::Status CheckDelta(absl::string_view coded, uint64_t bytes, uint32_t element_bytes);

// Makes `now` of `base`. They may be the same memory, which is then changed in place; otherwise
// they must not overlap. kInvalidArgument, as CheckDelta(), and nothing was written. Only the
// version's digests tell whether `base` was the right one. REQUIRES: as EncodeDelta().
absl::Status DecodeDelta(absl::string_view coded, const void* base, uint64_t bytes,
                         uint32_t element_bytes, void* now);

}  // namespace tryst

#endif  // TRYST_WEIGHTS_DELTA_H_
