#ifndef TRYST_RENDEZVOUS_TENSOR_FETCHER_H_
#define TRYST_RENDEZVOUS_TENSOR_FETCHER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"
#include "rendezvous/waiter.h"

namespace tryst {

// The port through which rendezvous/ gets tensors of other workers. channel/ implements it.
// Thread-safe.
class TensorFetcher {
 public:
  virtual ~TensorFetcher() = default;

  // Asks the worker of key.src() for the tensor. `done` as in rendezvous.h, never inside
  // this call. Honours args.cancellation, deadline, executor, destination, allocation and
  // device context. Owns args.destination, which a NIC may write, until `done` runs.
  // Fails with kAborted (step ended, producer restarted), kUnavailable (peer or link
  // lost), kCancelled, kDeadlineExceeded, kInvalidArgument (the tensor is not as the
  // destination says), or what the producer's step failed with.
  virtual void Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
                     DoneFn&& done) = 0;
  // Like Fetch(), with one callback for all keys, which may belong to several workers. Fetches are
  // joined where possible.
  virtual void FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                         ManyDoneFn done) = 0;

  // What a thread may turn while it waits for a fetch of `key`. Null: it can only sleep.
  virtual std::shared_ptr<Turns> TurnsFor(const TensorKey& key) {
    static_cast<void>(key);
    return nullptr;
  }

  // Ends every fetch of the step that has started, with `status`. The caller may call it again, for
  // a fetch that started meanwhile. This does not refuse fetches of a step that is over; the caller
  // does.
  virtual void AbortStep(int64_t step_id, const absl::Status& status) = 0;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_TENSOR_FETCHER_H_
