#ifndef TRYST_RENDEZVOUS_WAITER_H_
#define TRYST_RENDEZVOUS_WAITER_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "absl/types/optional.h"
#include "base/mutex.h"
#include "rendezvous/delivering.h"

namespace tryst {

class Waiter;

// The turns of what brings tensors from peers (a poller), for threads that wait for a tensor. While
// a thread waits it may do the work that its tensor needs, so that no other thread has to wake it
// (docs/decisions/0062-waiting-threads-turn.md). Thread-safe; it may outlive the poller.
class Turns {
 public:
  virtual ~Turns() = default;
  // Counts the caller among the waiting threads, and takes the turns if they can be had at once and
  // no other thread waits. True: the caller has them, so what it asks for starts at once on its own
  // thread, and it must call TurnUntil() soon.
  virtual bool Enter() = 0;
  // Turns, and sleeps once turning no longer pays, until `waiter` has ended or until `until_ns` of
  // the steady clock. Gives the turns up before it returns, which may be earlier: what it turns is
  // being stopped. REQUIRES: Enter() said true.
  virtual void TurnUntil(Waiter* waiter, int64_t until_ns) = 0;
  virtual void Leave() = 0;  // The caller, who has no turns, no longer waits.
  virtual void Wake() = 0;   // Wakes who sleeps in TurnUntil().
};

// The end of something, and the threads that wait for it. End() allocates nothing, and enters the
// kernel only if a thread sleeps.
class Waiter {
 public:
  // Who waits may take the turns of `turns`. Null: nobody can.
  explicit Waiter(std::shared_ptr<Turns> turns = nullptr) : turns_(std::move(turns)) {}
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  bool ended() const { return (state_.load(std::memory_order_acquire) & kEnded) != 0; }
  // Call it once. A thread that sees the end in Wait() may destroy the waiter at once.
  void End();
  // Waits until the end, or until `until_ns` of the steady clock. Returns whether it has ended.
  bool Wait(int64_t until_ns = kForever);

  // ---- For an implementation of Turns, around its sleep ----
  // False: it has ended, so the thread must not sleep. Afterwards End() calls Turns::Wake().
  bool FallAsleep();
  void WakeUp();

  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

 private:
  friend class WaitScope;
  static constexpr uint32_t kEnded = 1;
  static constexpr uint32_t kSleeper = 2;

  bool Sleep(int64_t until_ns);

  const std::shared_ptr<Turns> turns_;
  std::atomic<uint32_t> state_{0};  // kEnded, and kSleeper for each thread that sleeps.
  Mutex mu_;
  CondVar changed_;
  bool told_ ABSL_GUARDED_BY(mu_) = false;  // End() has told the sleepers.
};

// A thread waits for `waiter`. Make it before the call that starts what is waited for: while it has
// the turns, that call starts it on this thread. A thread that delivers for others gets no turns.
class WaitScope {
 public:
  explicit WaitScope(Waiter* waiter);
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;
  // Waits until the end, or until `until_ns`. Call it once. Returns whether it has ended.
  bool Until(int64_t until_ns);

 private:
  Waiter* const waiter_;
  const std::shared_ptr<Turns> turns_;  // The waiter may be destroyed once it has ended.
  absl::optional<DeliveringScope> turning_;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_WAITER_H_
