#ifndef TRYST_RENDEZVOUS_ALLOCATOR_H_
#define TRYST_RENDEZVOUS_ALLOCATOR_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "rendezvous/tensor.h"

namespace tryst {

// Host memory for tensors, handed to runtimes that embed Tryst. Tensors made in it reach
// other processes of the host without a copy. Thread-safe.
class Allocator {
 public:
  virtual ~Allocator() = default;
  // At least `bytes`, aligned to 64, or to a page from 4 KiB on; not cleared.
  // kResourceExhausted: the cap, or no memory.
  virtual absl::StatusOr<StorageRef> Allocate(uint64_t bytes) = 0;
  // A tensor in such memory. kInvalidArgument: a type without fixed size, overflow.
  virtual absl::StatusOr<Tensor> AllocateTensor(DType dtype, const TensorShape& shape) = 0;
  // For runtimes with reference counts of their own: memory that stays until Free(); null if there
  // is none. Tensor::Adopt() makes a tensor of it, in the space that SpaceOf() returns.
  virtual void* AllocateRaw(uint64_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  virtual MemorySpace SpaceOf(const void* memory) const = 0;  // kHost: not from here.
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_ALLOCATOR_H_
