#ifndef TRYST_RENDEZVOUS_KEPT_TENSORS_H_
#define TRYST_RENDEZVOUS_KEPT_TENSORS_H_

#include <cstdint>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "rendezvous/tensor.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// Tensors that have come from peers and that their receives could not use. The next receive of the
// key gets them, in the order in which they were sent. Of at most 1,024 keys. Thread-safe.
class KeptTensors {
 public:
  using Place = std::pair<int64_t, TensorKey>;  // A key of a step.

  void Keep(const Place& place, Tensor tensor);  // Before what is kept there.
  // The first that is kept there; an invalid one if none is.
  Tensor TakeFirst(const Place& place);
  // The first that is kept there, behind which `tensor` lines up; `tensor` if none is.
  Tensor FirstBefore(const Place& place, Tensor tensor);
  void DropStep(int64_t step_id);

 private:
  Mutex mu_;
  absl::flat_hash_map<Place, std::deque<Tensor>> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_KEPT_TENSORS_H_
