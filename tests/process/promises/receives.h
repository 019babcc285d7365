#ifndef TRYST_TESTS_PROCESS_PROMISES_RECEIVES_H_
#define TRYST_TESTS_PROCESS_PROMISES_RECEIVES_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "rendezvous/rendezvous.h"

namespace tryst {

// Receives, and how each has ended. Thread-safe. A receive that ends after this was destroyed does
// no harm.
class Receives {
 public:
  struct End {
    int calls = 0;
    absl::Status status;
    Tensor tensor;
    bool is_dead = false;
    int64_t asked_ns = 0;
    int64_t ended_ns = 0;
    bool ok() const { return calls == 1 && status.ok(); }
    double seconds() const { return static_cast<double>(ended_ns - asked_ns) / 1e9; }
  };

  Receives() : state_(std::make_shared<State>()) {}

  // Makes a receive; returns its index.
  size_t Make(Rendezvous* step, const TensorKey& key, const RecvArgs& args = RecvArgs());
  // Waits until all of them, or the given one, have ended; false: not within `timeout`.
  bool AwaitAll(absl::Duration timeout) const;
  bool Await(size_t which, absl::Duration timeout) const;
  End at(size_t which) const;
  size_t size() const;
  size_t open() const;

 private:
  struct State {
    Mutex mu;
    CondVar changed;
    std::vector<End> ends ABSL_GUARDED_BY(mu);
    size_t open ABSL_GUARDED_BY(mu) = 0;
  };
  const std::shared_ptr<State> state_;
};

int64_t SteadyNs();

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_PROMISES_RECEIVES_H_
