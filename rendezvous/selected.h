#ifndef TRYST_RENDEZVOUS_SELECTED_H_
#define TRYST_RENDEZVOUS_SELECTED_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rendezvous/allocator.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/selected_landing.h"
#include "rendezvous/selection.h"
#include "rendezvous/tensor.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// The `bytes` that are selected of host memory as a tensor of their own, in memory of `shared`, or
// of the heap where that is null or has no room; with a trailer of digests of a granule each
// (span_digests.h), unless that is 0. kResourceExhausted. REQUIRES: the selection was checked, and
// has so many.
absl::StatusOr<Tensor> GatherChecked(const Tensor& tensor, const Selection& selection,
                                     uint64_t bytes, uint64_t granule, Allocator* shared);

// Checks the selection and does the same. Also kInvalidArgument: it does not fit `tensor`; strings;
// memory of a device.
absl::StatusOr<Tensor> GatherTensor(const TensorKey& key, const Tensor& tensor,
                                    const Selection& selection, bool digests, Allocator* shared);
// `context` copies a device's memory. kInvalidArgument: also where it copies no selections.
absl::StatusOr<SelectionCopier::Gathered> GatherOnDevice(const TensorKey& key, const Tensor& tensor,
                                                         const Selection& selection, bool digests,
                                                         DeviceContext* context);

// kDataLoss: spans of those numbers came with a wrong digest.
absl::Status WrongDigests(const TensorKey& key, absl::Span<const uint32_t> spans);

// Where in a tensor of the caller's a receive lands. It keeps both.
class SelectedDestination {
 public:
  // kInvalidArgument, as CheckSelection(); `into` is none, read-only, of strings, or on a device
  // with digests or without a `context` that copies selections. Otherwise every span counts as
  // failed from now on, until Fill().
  static absl::StatusOr<SelectedDestination> Make(const TensorKey& key, const Tensor& into,
                                                  const SelectedLanding& landing,
                                                  std::shared_ptr<DeviceContext> context = nullptr);
  bool on_device() const { return !into_.on_host(); }
  // Whether the bytes of `tensor` fill it. kInvalidArgument names both totals.
  absl::Status Check(const Tensor& tensor) const;
  // Copies the bytes of `*received` there, and makes the caller's tensor the one that was received.
  // Where digests are wrong: what came right, and perhaps it is failed. REQUIRES: Check() was OK;
  // !on_device().
  void Fill(Received* received) const;
  // A device does the same. `done` runs once, perhaps in here, with the caller's tensor, or with an
  // error and `tensor`, which is nowhere then. REQUIRES: Check() was OK; on_device(). This lasts
  // until then.
  void StartFill(Tensor tensor, absl::AnyInvocable<void(absl::Status, Tensor) &&> done) const;

 private:
  SelectedDestination(TensorKey key, Tensor into, const SelectedLanding& landing,
                      std::shared_ptr<DeviceContext> context)
      : key_(std::move(key)),
        into_(std::move(into)),
        context_(std::move(context)),
        selection_(landing.selection),
        digests_(landing.digests),
        partial_(landing.partial),
        result_(landing.result) {}

  TensorKey key_;
  Tensor into_;
  std::shared_ptr<DeviceContext> context_;
  OwnSelection selection_;
  bool digests_, partial_;
  GatherResult* result_;
  uint64_t bytes_ = 0;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_SELECTED_H_
