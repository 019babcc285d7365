#ifndef TRYST_RENDEZVOUS_HOST_SOURCE_H_
#define TRYST_RENDEZVOUS_HOST_SOURCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "rendezvous/tensor_source.h"

namespace tryst {

// A source whose tensors lie in host memory, in front of one that also has tensors of devices:
// these are copied by the device context that their sender gave. Who gives one back gives back what
// was sent, and a tensor that cannot be copied goes back by itself. A take that is cancelled while
// its tensor is copied ends after the copy.
class HostSource final : public TensorSource {
 public:
  explicit HostSource(TensorSource* source) : source_(source) {}  // `source` outlives it.

  // kFailedPrecondition: the tensor's sender gave no device context. kResourceExhausted: the host
  // has no memory for it.
  void Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) override;
  bool TakeHere(int64_t step_id, TensorKey* key, Place* place, Received* taken) override;
  bool MayTake(const TensorKey& key) const override { return source_->MayTake(key); }
  void GiveBack(int64_t step_id, const TensorKey& key, Received taken) override;

  // Copies under way. The end of each uses this object, and whoever took the tensor.
  size_t copying() const { return copying_.load(std::memory_order_acquire); }

 private:
  void Copy(int64_t step_id, const TensorKey& key, Received&& taken, DoneFn done);
  void Fail(int64_t step_id, const TensorKey& key, Received&& taken, const absl::Status& why,
            DoneFn done);

  TensorSource* const source_;
  std::atomic<size_t> copying_{0};
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_HOST_SOURCE_H_
