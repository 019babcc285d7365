#include "base/fork_count.h"

#include <pthread.h>

#include <atomic>

namespace tryst {

int ForkCount() {
  static std::atomic<int> forks{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  static_cast<void>(registered);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace tryst
