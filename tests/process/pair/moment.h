#ifndef TRYST_TESTS_PROCESS_PAIR_MOMENT_H_
#define TRYST_TESTS_PROCESS_PAIR_MOMENT_H_

#include <chrono>

#include "base/mutex.h"

namespace tryst {

// An event that happens once, on one thread, while another waits for it. absl::Notification would
// do, but it lies in the system's library, where ThreadSanitizer cannot see its order.
class Moment {
 public:
  void Come() {
    MutexLock lock(&mu_);
    come_ = true;
    changed_.NotifyAll();  // Under the lock, because the waiting thread may destroy this at once.
  }

  // Long enough for any machine. A test that waits longer hangs, and must say where.
  [[nodiscard]] bool Wait(std::chrono::milliseconds most = std::chrono::minutes(2)) {
    const auto until = std::chrono::steady_clock::now() + most;
    MutexLock lock(&mu_);
    while (!come_) {
      if (changed_.WaitUntil(&mu_, until)) return come_;
    }
    return true;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool come_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_PAIR_MOMENT_H_
