#ifndef TRYST_CHANNEL_SHM_LANDING_MEMORY_H_
#define TRYST_CHANNEL_SHM_LANDING_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "rendezvous/tensor.h"

namespace tryst {

// From this size on, pages of its own cost less than memory of the heap.
inline constexpr uint64_t kLandingHugeBytes = 8 << 20;

// Host memory for a tensor that will be written once, from beginning to end. The heap takes large
// blocks fresh from the kernel and gives them back, so every page of 4 KiB costs a fault, several
// times as much as copying into it. Large tensors get huge pages where the system has them.
// kResourceExhausted: there is no memory.
absl::StatusOr<Tensor> AllocateLanding(DType dtype, const TensorShape& shape);

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_LANDING_MEMORY_H_
