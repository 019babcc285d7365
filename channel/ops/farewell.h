#ifndef TRYST_CHANNEL_OPS_FAREWELL_H_
#define TRYST_CHANNEL_OPS_FAREWELL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// What a consumer tells the producer when it gives up a path: a hello for no link, with this in its
// parameters (docs/WIRE.md, "Farewell").
struct Farewell {
  static constexpr size_t kMostWanted = 4096;  // No path has more slots.
  struct Wanted {
    uint16_t slot = 0;
    uint16_t generation = 0;  // Its low bits.
  };
  uint64_t session = 0;        // From the producer's hello; 0: no hello came.
  std::vector<Wanted> wanted;  // The requests whose tensors have not landed, in their order.
};

std::string EncodeFarewell(const Farewell& farewell);
absl::StatusOr<Farewell> DecodeFarewell(absl::string_view in);  // kDataLoss: it is malformed.

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FAREWELL_H_
