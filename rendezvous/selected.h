#ifndef TRYST_RENDEZVOUS_SELECTED_H_
#define TRYST_RENDEZVOUS_SELECTED_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/allocator.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/selection.h"
#include "rendezvous/tensor.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// The `bytes` that are selected of host memory as a tensor of their own, in memory of `shared`, or
// of the heap where that is null or has no room. kResourceExhausted. REQUIRES: the selection was
// checked, and has so many.
absl::StatusOr<Tensor> GatherChecked(const Tensor& tensor, const Selection& selection,
                                     uint64_t bytes, Allocator* shared);

// Checks the selection and does the same. Also kInvalidArgument: it does not fit `tensor`; strings;
// memory of a device.
absl::StatusOr<Tensor> GatherTensor(const TensorKey& key, const Tensor& tensor,
                                    const Selection& selection, Allocator* shared);

// Where in a tensor of the caller's a receive lands. It keeps both.
class SelectedDestination {
 public:
  // kInvalidArgument, as CheckSelection(); `into` is none, read-only, of strings, or on a device.
  static absl::StatusOr<SelectedDestination> Make(const TensorKey& key, const Tensor& into,
                                                  const Selection& selection);
  // Whether the bytes of `tensor` fill it. kInvalidArgument names both totals.
  absl::Status Check(const Tensor& tensor) const;
  // Copies the bytes of `*received` there, and makes the caller's tensor the one that was received.
  // REQUIRES: Check() was OK.
  void Fill(Received* received) const;

 private:
  SelectedDestination(TensorKey key, Tensor into, OwnSelection selection)
      : key_(std::move(key)), into_(std::move(into)), selection_(std::move(selection)) {}

  TensorKey key_;
  Tensor into_;
  OwnSelection selection_;
  uint64_t bytes_ = 0;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_SELECTED_H_
