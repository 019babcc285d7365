#ifndef TRYST_CHANNEL_SHM_LANDING_MEMORY_H_
#define TRYST_CHANNEL_SHM_LANDING_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "rendezvous/tensor.h"

namespace tryst {

// From here on memory of its own pages costs less than the heap's.
inline constexpr uint64_t kLandingHugeBytes = 8 << 20;

// Host memory for a tensor that is about to be written once, from its begin to its end. The heap
// takes large blocks fresh from the kernel and gives them back, so that every page of 4 KiB costs
// a fault: several times what copying into it costs. Large tensors are given huge pages, where
// the system has them. kResourceExhausted: there is no memory.
absl::StatusOr<Tensor> AllocateLanding(DType dtype, const TensorShape& shape);

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_LANDING_MEMORY_H_
