#ifndef TRYST_RENDEZVOUS_DLPACK_H_
#define TRYST_RENDEZVOUS_DLPACK_H_

#include "absl/status/statusor.h"
#include "rendezvous/dlpack_abi.h"
#include "rendezvous/tensor.h"

namespace tryst {

// A foreign tensor without a copy: `managed` is ours from now on and its deleter runs
// when the last tensor that shares the bytes goes, on that thread. On an error it still
// belongs to the caller, and nothing of it has been called. With the read-only flag the
// tensor is read_only(): it may be sent, and no receive fills it.
//
// kInvalidArgument: null, a bad rank, shape, offset or type, strides that are not compact,
// elements that are not aligned as their type must be, or a 4-bit type that is packed.
// kUnimplemented: another major version, vector lanes, a device that is neither the host nor CUDA.
absl::StatusOr<Tensor> FromDLPack(dlpack::DLManagedTensorVersioned* managed);

// `tensor` for a foreign program, without a copy and marked read-only: the receiver calls its
// deleter once, on any thread. A shared segment is shown as host memory. kInvalidArgument: an
// invalid or string tensor.
absl::StatusOr<dlpack::DLManagedTensorVersioned*> ToDLPack(const Tensor& tensor);

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_DLPACK_H_
