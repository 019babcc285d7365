#ifndef TRYST_RENDEZVOUS_BYTE_BOX_H_
#define TRYST_RENDEZVOUS_BYTE_BOX_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rendezvous/selection.h"

namespace tryst {

// A box of a tensor that lies in memory with a stride for each dimension, the outermost first: a
// part of a pool whose rows have a pitch of their own, for one.
struct ByteBox {
  uint64_t offset = 0;                 // Its first element lies there. All are bytes.
  uint64_t element_bytes = 0;          // An element lies without a gap.
  absl::Span<const uint64_t> extent;   // How many elements it has in each dimension.
  absl::Span<const uint64_t> strides;  // From one to the next of a dimension, in bytes.
};

// Its elements in row-major order, in as few runs as that order allows. kInvalidArgument: a stride
// is missing; what 64 bits cannot count; more than Selection::kMaxSpans runs. Whether it lies in
// the tensor, CheckSelection() says.
absl::StatusOr<std::vector<ByteRun>> RunsOfBox(const ByteBox& box);

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_BYTE_BOX_H_
