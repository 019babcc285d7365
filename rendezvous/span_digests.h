#ifndef TRYST_RENDEZVOUS_SPAN_DIGESTS_H_
#define TRYST_RENDEZVOUS_SPAN_DIGESTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "rendezvous/selected_landing.h"
#include "rendezvous/selection.h"

// Digests that travel with selected bytes. The two ends' spans need not agree, and so the bytes are
// digested in the order in which they travel, a granule at a time. Behind the bytes stands a
// trailer: a CRC-32C of each granule; how many bytes are in a granule (u32); and a CRC-32C of the
// trailer up to here. All are little-endian.
namespace tryst {

inline constexpr uint64_t kMinGranule = 64;
inline constexpr uint64_t kMaxGranule = 1 << 20;

// The size of its spans where they are of one size; else of an average one. Within the bounds.
uint64_t GranuleFor(const Selection& selection, uint64_t bytes);
// What the trailer takes behind so many bytes.
uint64_t TrailerBytes(uint64_t bytes, uint64_t granule);
// Whether `all` bytes at `dense` are `bytes` and their trailer, which may be wrong.
bool HasTrailer(const void* dense, uint64_t all, uint64_t bytes);

// Gather() of all of it, and the trailer behind. REQUIRES: `dense` has room for both; as Gather().
void GatherDigested(const Selection& selection, const void* tensor, void* dense, uint64_t bytes,
                    uint64_t granule);
// The parts of `bytes` whose digests are wrong, ascending; all of it if the trailer itself is.
// REQUIRES: HasTrailer().
std::vector<ByteSpan> FindWrong(const void* dense, uint64_t all, uint64_t bytes);

// The numbers of the spans that have bytes in `parts` of all their bytes, which ascend. REQUIRES:
// the selection was checked with `tensor_bytes`.
std::vector<uint32_t> SpansIn(const Selection& selection, uint64_t tensor_bytes,
                              absl::Span<const ByteSpan> parts);
// Writes to the result, if there is one, that no span is there. REQUIRES: the selection was
// checked.
void NoneIsThere(const SelectedLanding& landing);

// Scatter(), but for the parts `except` of the bytes, which ascend.
void ScatterExcept(const Selection& selection, const void* dense, void* tensor, uint64_t bytes,
                   absl::Span<const ByteSpan> except, SelectionPlace place);

// Writes to `digests`, by their numbers, those of the spans that lie as a whole in the next `bytes`
// from `place` on. Where granules are just these, they are the trailer's. Adds the numbers of those
// that are cut to `*cut`. REQUIRES: HasTrailer(); as SpansIn().
void DigestSpans(const Selection& selection, uint64_t tensor_bytes, const SelectionPlace& place,
                 const void* dense, uint64_t all, uint64_t bytes, uint32_t* digests,
                 std::vector<uint32_t>* cut);
// Digests those of `tensor` whose numbers are in `cut`.
void DigestCut(const Selection& selection, const void* tensor, uint64_t tensor_bytes,
               std::vector<uint32_t> cut, uint32_t* digests);

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_SPAN_DIGESTS_H_
