#ifndef TRYST_RENDEZVOUS_TENSOR_FETCHER_H_
#define TRYST_RENDEZVOUS_TENSOR_FETCHER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// The port that rendezvous/ needs: get me this tensor of another worker. channel/
// implements it. Safe from any thread.
class TensorFetcher {
 public:
  virtual ~TensorFetcher() = default;

  // Asks the worker of key.src() for the tensor. `done` as in rendezvous.h, never inside
  // this call. Honours args.cancellation, deadline, executor, destination, allocation and
  // device context. Owns args.destination, which a NIC may write, until `done` runs.
  // Fails with kAborted (step ended, producer restarted), kUnavailable (peer or link
  // lost), kCancelled, kDeadlineExceeded, kInvalidArgument (the tensor is not as the
  // destination says), or what the producer's step failed with.
  virtual void Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) = 0;
  // One callback for all keys, which may be of several workers; fused where it can be.
  virtual void FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const Args& args,
                         ManyDoneFn done) = 0;

  // Ends every fetch of the step that has started with `status`. May be called again: a
  // fetch that started meanwhile is followed by another AbortStep. A fetch of a cleaned
  // or aborted step is not refused here; the caller does that.
  virtual void AbortStep(int64_t step_id, const absl::Status& status) = 0;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_TENSOR_FETCHER_H_
