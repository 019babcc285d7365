#ifndef TRYST_SERVER_REGIONS_REGION_ASKS_H_
#define TRYST_SERVER_REGIONS_REGION_ASKS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rendezvous/selection.h"

namespace tryst {

// How the key of an ask says what is wanted of a region: "|region|NAME|LIST". A list has as many
// spans as fit into a key, and a longer selection is several asks. One that begins with a '.' and a
// number wants digests, too, of so many bytes each (rendezvous/span_digests.h).

inline constexpr char kGrantList[] = "?";  // In place of a list: it asks for a grant.
inline constexpr char kRegionPrefix[] = "|region|";
inline constexpr size_t kMaxRegionName = 200;
// The most that one ask may want, and the text of its list.
inline constexpr uint64_t kMaxAskBytes = 4 << 20;
inline constexpr size_t kMaxListText = 3 << 10;
inline constexpr size_t kMinListText = 64;  // So much has room for a span.

// kInvalidArgument: empty, too long, or with a '|', ';', or what is not printed.
absl::Status CheckRegionName(absl::string_view name);
// "|region|NAME|", with which the edges of its asks begin.
std::string RegionEdge(absl::string_view name);
// The name in "|region|NAME", or in an ask's edge; empty if it is no such edge.
absl::string_view RegionNameOf(absl::string_view edge);

// Writes lists of one selection, one after the other. REQUIRES: the selection was checked.
class ListWriter {
 public:
  // The selection's list outlives this. `most_text`, from kMinListText on, bounds each text.
  // `granule` 0: without digests.
  ListWriter(const Selection& selection, uint64_t granule, size_t most_text);
  // The next list and the bytes that it wants: at most kMaxAskBytes, and `left`, which are left.
  std::string Next(uint64_t left, uint64_t* bytes);

 private:
  const Selection selection_;
  const uint64_t granule_;
  const size_t most_text_;
  const int shift_;  // All offsets and sizes are multiples of 1 << shift_.
  SelectionPlace place_;
};

struct WantedSpans {
  std::vector<ByteSpan> spans;
  uint64_t bytes = 0;
  uint64_t granule = 0;  // Each digest is of so many bytes. 0: it wants none.
  uint64_t answer_bytes() const;
};
// kInvalidArgument: it is no list, wants more than kMaxAskBytes, or what is not in a region of
// `region_bytes`.
absl::StatusOr<WantedSpans> ParseList(absl::string_view list, uint64_t region_bytes);

}  // namespace tryst

#endif  // TRYST_SERVER_REGIONS_REGION_ASKS_H_
