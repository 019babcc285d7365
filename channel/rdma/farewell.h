#ifndef TRYST_CHANNEL_RDMA_FAREWELL_H_
#define TRYST_CHANNEL_RDMA_FAREWELL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// What a consumer tells the producer when it gives up a path: a hello without queue pairs, with
// this as its parameters (docs/WIRE.md, "Farewell").
struct Farewell {
  struct Wanted {
    uint16_t slot = 0;
    uint16_t generation = 0;
  };
  uint64_t session = 0;        // From the producer's hello; 0: no hello came.
  std::vector<Wanted> wanted;  // The requests whose tensors have not landed, in their order.
};

std::string EncodeFarewell(const Farewell& farewell);
absl::StatusOr<Farewell> DecodeFarewell(absl::string_view in);  // kDataLoss: it is malformed.

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FAREWELL_H_
