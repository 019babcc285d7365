#ifndef TRYST_RENDEZVOUS_KEPT_TENSORS_H_
#define TRYST_RENDEZVOUS_KEPT_TENSORS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "rendezvous/tensor.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// A tensor of its own with the same bytes. What is kept for a caller who wants something else may
// be kept for long, and must hold neither a landing, for which others wait, nor a peer's memory.
// Strings, and what lies on a device, stay as they are.
Tensor Apart(Tensor tensor);

// What has come from a peer under a key.
struct KeptTensor {
  Tensor tensor;
  bool is_dead = false;

  bool valid() const { return is_dead || tensor.valid(); }
};

// Tensors that have come from peers and that their receives could not use. The next receive of the
// key gets them, in the order in which they were sent. Thread-safe.
//
// What has come is never let go of for another. Once tensors of 1,024 keys are kept, no receive of
// a further key is begun (Admit()), but one that was under way by then may still keep its tensor.
class KeptTensors {
 public:
  using Place = std::pair<int64_t, TensorKey>;  // A key of a step.

  // Whether a receive may ask for a tensor that it may have to keep. kResourceExhausted: so many
  // keys have some already, and this one has none.
  absl::Status Admit(const Place& place);
  void Keep(const Place& place, KeptTensor kept);  // Before what is kept there.
  bool Keeps(const Place& place);
  // The first that is kept there; an invalid one if none is.
  KeptTensor TakeFirst(const Place& place);
  // The first that is kept there, behind which `came` lines up; `came` if none is.
  KeptTensor FirstBefore(const Place& place, KeptTensor came);
  void DropStep(int64_t step_id);
  // Whether nothing at all is kept, as of what has ended before. Without the lock.
  bool empty() const { return keys_.load(std::memory_order_acquire) == 0; }

 private:
  void Count() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    keys_.store(kept_.size(), std::memory_order_release);
  }

  Mutex mu_;
  absl::flat_hash_map<Place, std::deque<KeptTensor>> kept_ ABSL_GUARDED_BY(mu_);
  std::atomic<size_t> keys_{0};
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_KEPT_TENSORS_H_
