#ifndef TRYST_RENDEZVOUS_HOST_FETCHER_H_
#define TRYST_RENDEZVOUS_HOST_FETCHER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "rendezvous/kept_tensors.h"
#include "rendezvous/tensor_fetcher.h"

namespace tryst {

// Fetches into memory of a program's own device, by a fetcher that fills host memory: the device
// context of the receive copies what has come. A tensor that cannot be copied, for lack of memory
// on the device or into a destination of another shape, is kept for the next fetch of its key, in
// memory of its own, until its step ends. A fetch that is cancelled or late while its tensor is
// copied still gets it. Everything else passes through unchanged.
class HostFetcher final : public TensorFetcher {
 public:
  explicit HostFetcher(TensorFetcher* fetcher) : fetcher_(fetcher) {}  // `fetcher` outlives it.

  // Inside this call fails what asks no peer: kInvalidArgument, a destination on a device without a
  // device context; what the tensor that is kept for it cannot be copied for; kResourceExhausted,
  // where too many are kept (KeptTensors).
  void Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
             FetchedFn&& done) override;
  void FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                 ManyFetchedFn done) override;
  std::shared_ptr<Turns> TurnsFor(const TensorKey& key) override { return fetcher_->TurnsFor(key); }
  void AbortStep(int64_t step_id, const absl::Status& status) override;

  // Whether a receive wants its tensor in a device's memory.
  static bool WantsDevice(const TensorKey& key, const RecvArgs& args);
  // Whether one of a FetchMany does.
  static bool AnyWantsDevice(absl::Span<const TensorKey> keys, const RecvArgs& args);

  // Copies under way. The end of each uses this object.
  size_t copying() const { return copying_.load(std::memory_order_acquire); }

 private:
  using Place = KeptTensors::Place;

  // A fetch that wants a device's memory, from its call to its end.
  struct Op {
    Place place;
    RecvArgs args;
    FetchedFn done;
    uint64_t aborts = 0;  // So often its step had been aborted when it began.
  };
  // A step with such fetches.
  struct Step {
    size_t fetches = 0;
    uint64_t aborts = 0;  // Since the first of them began.
  };

  void OnFetched(std::unique_ptr<Op> op, Received&& received);
  void Give(std::unique_ptr<Op> op, KeptTensor first);
  void Copy(std::unique_ptr<Op> op, Tensor from, Tensor into);
  void Keep(const Op& op, Tensor tensor);
  void End(std::unique_ptr<Op> op, Received&& received);

  TensorFetcher* const fetcher_;
  std::atomic<size_t> copying_{0};
  KeptTensors kept_;  // What no copy could bring to its receive.
  Mutex mu_;
  absl::flat_hash_map<int64_t, Step> steps_ ABSL_GUARDED_BY(mu_);
};

// FetchMany() by a Fetch() of each.
void FetchEach(TensorFetcher* fetcher, int64_t step_id, absl::Span<const TensorKey> keys,
               const RecvArgs& args, ManyFetchedFn done);

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_HOST_FETCHER_H_
