#ifndef TRYST_WEIGHTS_DIGESTS_H_
#define TRYST_WEIGHTS_DIGESTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weights/layout.h"

// What tells whether bytes are a version's: a root, which names a list of each owner; a list, which
// names the owner's boxes; a box, which names its blocks. Whoever knows the root can check each
// part that it gets from anybody.
namespace tryst {

// XXH3 of 128 bits. It finds what went wrong by accident; it does not stop somebody who wants two
// contents of one digest.
struct Digest {
  static constexpr size_t kBytes = 16;
  uint64_t low = 0, high = 0;
  std::string ToString() const;  // 32 hex digits, high first.
  friend bool operator==(const Digest& a, const Digest& b) {
    return a.low == b.low && a.high == b.high;
  }
  friend bool operator!=(const Digest& a, const Digest& b) { return !(a == b); }
};

Digest DigestOf(const void* bytes, size_t size);
// Makes the same on every processor.
Digest DigestPortable(const void* bytes, size_t size);
inline Digest DigestOf(absl::string_view bytes) { return DigestOf(bytes.data(), bytes.size()); }

// The bytes of a box, dense, are digested in blocks of this size; the last may be shorter.
inline constexpr uint64_t kDigestBlockBytes = uint64_t{64} << 10;
std::vector<Digest> BlockDigests(const void* bytes, uint64_t size);
// It depends on the bytes alone, so that replicas have the same.
Digest BoxDigest(uint64_t size, absl::Span<const Digest> blocks);

// Where the boxes of each tensor begin in an owner's list, which has those of BoxesOf() for each
// tensor in the order of the declaration; and at the end, how many there are.
std::vector<size_t> ListOffsets(absl::Span<const TensorLayout> layouts, uint32_t owner);

// Names the version that a root belongs to.
struct VersionName {
  Digest layouts;  // The digest of EncodeLayouts().
  uint64_t number = 0;
  uint64_t birth = 0;
};
// The digest of an owner's list, which has a BoxDigest() for each of its boxes.
Digest ListDigest(const VersionName& version, uint32_t owner, absl::Span<const Digest> boxes);
// `lists` has the ListDigest() of each owner.
Digest RootDigest(const VersionName& version, absl::Span<const Digest> lists);

// Checks that all owners of a box have published the same bytes for it. `lists` has each owner's
// list. kDataLoss names the tensor and two owners. REQUIRES: CheckLayouts() has accepted the
// layouts, for as many owners; each list is as long as ListOffsets() says.
absl::Status CheckReplicas(absl::Span<const TensorLayout> layouts,
                           absl::Span<const std::vector<Digest>> lists);

// Digests as they travel: 16 bytes each, little-endian, low first.
std::string EncodeDigests(absl::Span<const Digest> digests);
// kInvalidArgument: there are not `count` of them.
absl::StatusOr<std::vector<Digest>> DecodeDigests(absl::string_view bytes, size_t count);

}  // namespace tryst

#endif  // TRYST_WEIGHTS_DIGESTS_H_
