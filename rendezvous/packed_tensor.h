#ifndef TRYST_RENDEZVOUS_PACKED_TENSOR_H_
#define TRYST_RENDEZVOUS_PACKED_TENSOR_H_

#include "absl/status/statusor.h"
#include "rendezvous/tensor.h"

namespace tryst {

// A wire's description of a tensor has room for TensorShape::kMaxRank dimensions. One with more
// travels packed: as bytes (DType::kPacked) that begin with its type and shape.

// A copy. kInvalidArgument: strings, or memory of a device. kResourceExhausted: no memory.
absl::StatusOr<Tensor> Pack(const Tensor& tensor);

// Returns the tensor that was packed; it shares the memory of `packed`. kDataLoss: `packed` is no
// packed tensor. kInvalidArgument: it lies in memory of a device.
absl::StatusOr<Tensor> Unpack(const Tensor& packed);

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_PACKED_TENSOR_H_
