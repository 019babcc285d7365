#ifndef TRYST_CHANNEL_RDMA_FAREWELL_H_
#define TRYST_CHANNEL_RDMA_FAREWELL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// What a consumer says to a path that it gives up: a hello without queue pairs, with this
// as its parameters (docs/WIRE.md, "Farewell").
struct Farewell {
  struct Wanted {
    uint16_t slot = 0;
    uint16_t generation = 0;
  };
  uint64_t session = 0;        // As the producer's hello had it; 0: it never came.
  std::vector<Wanted> wanted;  // What has not landed, in the order in which it was asked for.
};

std::string EncodeFarewell(const Farewell& farewell);
absl::StatusOr<Farewell> DecodeFarewell(absl::string_view in);  // kDataLoss.

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FAREWELL_H_
