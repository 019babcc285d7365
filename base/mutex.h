#ifndef TRYST_BASE_MUTEX_H_
#define TRYST_BASE_MUTEX_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "absl/base/thread_annotations.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define TRYST_TSAN(call) call
#else
#define TRYST_TSAN(call) \
  do {                   \
  } while (false)
#endif

namespace tryst {

// A lock of one word, on which threads sleep in the kernel (futex) while another holds it. It
// stands under Abseil's thread-safety annotations, so that clang proves the locking, and tells
// ThreadSanitizer what it does (docs/decisions/0001-mutex.md).
class ABSL_LOCKABLE Mutex {
 public:
#ifdef __SANITIZE_THREAD__
  Mutex() { __tsan_mutex_create(this, __tsan_mutex_not_static); }
  ~Mutex() { __tsan_mutex_destroy(this, __tsan_mutex_not_static); }
#else
  Mutex() = default;
#endif
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    TRYST_TSAN(__tsan_mutex_pre_lock(this, 0));
    uint32_t free = kFree;
    if (!word_.compare_exchange_strong(free, kHeld, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
      LockAsleep();
    }
    TRYST_TSAN(__tsan_mutex_post_lock(this, 0, 0));
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    TRYST_TSAN(__tsan_mutex_pre_unlock(this, 0));
    // From here on another thread may destroy this: of the word only its address is used.
    if (word_.exchange(kFree, std::memory_order_release) == kAwaited) WakeOne();
    TRYST_TSAN(__tsan_mutex_post_unlock(this, 0));
  }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) {
    TRYST_TSAN(__tsan_mutex_pre_lock(this, __tsan_mutex_try_lock));
    uint32_t free = kFree;
    const bool got = word_.compare_exchange_strong(free, kHeld, std::memory_order_acquire,
                                                   std::memory_order_relaxed);
    TRYST_TSAN(__tsan_mutex_post_lock(
        this, __tsan_mutex_try_lock | (got ? 0 : __tsan_mutex_try_lock_failed), 0));
    return got;
  }

 private:
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kHeld = 1;
  static constexpr uint32_t kAwaited = 2;  // Held, and perhaps a thread sleeps until it is free.

  void LockAsleep();
  void WakeOne();

  std::atomic<uint32_t> word_{kFree};
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// A condition variable for Mutex. Wake-ups may be spurious: wait in a loop. What is waited for
// changes under the mutex; the notification may come after that, without it. NotifyOne() is for
// threads that all wait for the same.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  void Wait(Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Waits until notified or until `until`; true when the time has come.
  bool WaitUntil(Mutex* mu, std::chrono::steady_clock::time_point until)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  void NotifyOne() { Notify(1); }
  void NotifyAll() { Notify(INT32_MAX); }

 private:
  bool Sleep(Mutex* mu, const std::chrono::steady_clock::time_point* until)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Notify(int32_t most) {
    // A thread that waits was counted before it released the mutex under which the change was made.
    if (waiting_.load(std::memory_order_relaxed) != 0) Wake(most);
  }
  void Wake(int32_t most);

  std::atomic<uint32_t> waiting_{0};  // Threads in Sleep().
  std::atomic<uint32_t> turn_{0};     // Each notification changes it. Threads sleep on it.
};

}  // namespace tryst

#endif  // TRYST_BASE_MUTEX_H_
