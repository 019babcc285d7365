#ifndef TRYST_RENDEZVOUS_CANCELLATION_H_
#define TRYST_RENDEZVOUS_CANCELLATION_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "base/mutex.h"

namespace tryst {

// Cancels what is registered with it, once and for good. Safe from any thread. Allocates
// only while more callbacks are registered than ever before.
// REQUIRES at destruction: no callback is registered and StartCancel has returned.
class Cancellation {
 public:
  using Callback = absl::AnyInvocable<void() &&>;
  using Token = uint64_t;
  static constexpr Token kNoToken = 0;

  Cancellation() = default;
  ~Cancellation();
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  // Keeps `callback` until it is deregistered or cancelled. kNoToken when already
  // cancelled: `callback` is destroyed and never runs.
  [[nodiscard]] Token Register(Callback callback);
  // True: the callback will never run and is destroyed. False: it has run, runs now or
  // is about to. Never waits.
  bool TryDeregister(Token token);
  // As TryDeregister, but returns false only after the callback has run. Must not be
  // called from a callback of this Cancellation.
  bool Deregister(Token token);
  // Runs every registered callback on this thread, in the order of registration, and
  // returns. A second call does nothing (and does not wait for the first).
  void StartCancel();
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

 private:
  struct Slot {
    Callback callback;
    uint32_t generation = 1;  // Of the callback in the slot, or of the next one.
    bool used = false;
    uint64_t order = 0;
    uint32_t next_free = 0;
  };

  std::atomic<bool> cancelled_{false};
  Mutex mu_;
  CondVar done_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);
  uint32_t first_free_ ABSL_GUARDED_BY(mu_) = kNoSlot;
  uint64_t next_order_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t used_ ABSL_GUARDED_BY(mu_) = 0;
  bool running_ ABSL_GUARDED_BY(mu_) = false;

  static constexpr uint32_t kNoSlot = UINT32_MAX;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_CANCELLATION_H_
