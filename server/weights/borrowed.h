#ifndef TRYST_SERVER_WEIGHTS_BORROWED_H_
#define TRYST_SERVER_WEIGHTS_BORROWED_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "rendezvous/tensor.h"
#include "server/weights/patience.h"

namespace tryst {

// Memory of callers in which boxes of versions lie. It is the caller's again when nobody reads it
// any more: no version has it, and no answer that was made of it is under way. Thread-safe.
class Borrowed {
 public:
  // A box of version `number` where it lies: the first bytes behind `offset` elements of `from`,
  // which stays as long as anybody has the box.
  absl::StatusOr<Tensor> Borrow(uint64_t number, const Tensor& from, int64_t offset,
                                const TensorShape& shape);
  uint64_t lent() const;  // How many boxes have been borrowed, of all versions.
  // Returns when the memory of all boxes of that version is the caller's again. kUnavailable: it is
  // not, and lent() is no longer `lent`.
  absl::Status AwaitReturned(uint64_t number, const Patience& patience, uint64_t lent) const;

 private:
  struct Out {
    Mutex mu;
    CondVar changed;
    std::map<uint64_t, size_t> boxes ABSL_GUARDED_BY(mu);  // By version; never 0.
    uint64_t lent ABSL_GUARDED_BY(mu) = 0;
  };
  const std::shared_ptr<Out> out_ = std::make_shared<Out>();
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_BORROWED_H_
