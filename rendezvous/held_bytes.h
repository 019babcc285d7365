#ifndef TRYST_RENDEZVOUS_HELD_BYTES_H_
#define TRYST_RENDEZVOUS_HELD_BYTES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/mutex.h"

namespace tryst {

// A memory cap over what waits to be received: one for the process, one below it for
// each step. Safe from any thread. Costs nothing where nothing is capped.
class HeldBytes {
 public:
  using Ready = absl::AnyInvocable<void(absl::Status) &&>;
  // `ready` may run in any other caller's call. If it threw there, that call would fail for no
  // reason of its own, so the process ends instead (noexcept).
  static void Call(Ready ready, absl::Status status) noexcept {
    std::move(ready)(std::move(status));
  }
  // Releases the bytes that its owner has taken in advance, and returns how many.
  using ReleaseReserve = std::function<int64_t()>;

  // 0: no cap of its own. `process` may be null; it has no parent itself. Without a
  // reserve `release` may be null; it is called with a lock of HeldBytes held.
  explicit HeldBytes(int64_t max_bytes, std::shared_ptr<HeldBytes> process = nullptr,
                     ReleaseReserve release = nullptr);
  ~HeldBytes();  // REQUIRES: no waiter is left; call FailWaiting() before.

  // Takes `bytes` here and in the process, or nothing. May be called under a lock; after
  // a refusal call OnRefused() without it.
  [[nodiscard]] bool TryTake(int64_t bytes);
  // Takes back all reserves, so that a second TryTake is exact, and wakes waiters that the refused
  // TryTake may have passed over.
  void OnRefused();
  // Gives `bytes` back and runs the callbacks of waiters that now fit. Call it without a lock.
  void Give(int64_t bytes);
  // Calls `ready` once: when `bytes` would fit (perhaps in here), or with FailWaiting's status. If
  // `bytes` can never fit, it is called at once with kInvalidArgument.
  void WhenRoom(int64_t bytes, Ready ready);
  void FailWaiting(const absl::Status& status);  // Fails this cap's own waiters.

  bool capped() const { return capped_; }
  // While a caller waits for room, no other should hold a reserve.
  bool anybody_waits() const { return root_->anybody_waits_.load(); }
  int64_t held() const { return held_.load(std::memory_order_relaxed); }
  int64_t max_bytes() const { return max_bytes_; }
  // For the message of a refusal: the caps, and how much of each is held.
  std::string Explain() const;

 private:
  struct Waiter {
    HeldBytes* node;
    int64_t bytes;
    Ready ready;
  };

  bool Fits(int64_t bytes) const;
  bool TryTakeHere(int64_t bytes);
  void Return(int64_t bytes);
  void CollectReserves();
  void WakeWhoFits();

  // Constant after construction.
  const int64_t max_bytes_;
  const ReleaseReserve release_;
  const std::shared_ptr<HeldBytes> process_;
  const bool capped_;      // Here or in the process.
  HeldBytes* const root_;  // Where all waiters are, as room for them may appear anywhere.

  std::atomic<int64_t> held_{0};
  std::atomic<bool> anybody_waits_{false};
  Mutex mu_;
  std::vector<Waiter> waiters_ ABSL_GUARDED_BY(mu_);
  std::vector<HeldBytes*> with_reserve_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_HELD_BYTES_H_
