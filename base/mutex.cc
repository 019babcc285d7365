#include "base/mutex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace tryst {
namespace {

// As pthread's calls do, these leave errno as it was.
class KeptErrno {
 public:
  ~KeptErrno() { errno = was_; }

 private:
  const int was_ = errno;
};

// Sleeps while `*word` is `value`, until it is woken or the time `until` has come (null: never).
// Returns 0 or the error. FUTEX_WAIT_BITSET takes a point of CLOCK_MONOTONIC, which is
// steady_clock.
int SleepOn(std::atomic<uint32_t>* word, uint32_t value, const timespec* until) {
  return syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, value, until, nullptr,
                 FUTEX_BITSET_MATCH_ANY) == 0
             ? 0
             : errno;
}

void WakeOn(std::atomic<uint32_t>* word, int32_t most) {
  syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, most, nullptr, nullptr, 0);
}

}  // namespace

void Mutex::LockAsleep() {
  const KeptErrno kept;
  // Whoever has slept takes it as awaited, because others may sleep still.
  while (word_.exchange(kAwaited, std::memory_order_acquire) != kFree) {
    SleepOn(&word_, kAwaited, nullptr);
  }
}

void Mutex::WakeOne() {
  const KeptErrno kept;
  WakeOn(&word_, 1);
}

bool CondVar::Sleep(Mutex* mu, const std::chrono::steady_clock::time_point* until) {
  const KeptErrno kept;
  timespec time{};
  if (until != nullptr) {
    const auto since_boot = std::max(until->time_since_epoch(), std::chrono::nanoseconds(0));
    time.tv_sec = static_cast<time_t>(since_boot.count() / 1'000'000'000);
    time.tv_nsec = static_cast<decltype(time.tv_nsec)>(since_boot.count() % 1'000'000'000);
  }
  waiting_.fetch_add(1, std::memory_order_relaxed);
  const uint32_t turn = turn_.load(std::memory_order_relaxed);
  mu->Unlock();
  const int error = SleepOn(&turn_, turn, until == nullptr ? nullptr : &time);
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  mu->Lock();
  return error == ETIMEDOUT;
}

void CondVar::Wait(Mutex* mu) { Sleep(mu, nullptr); }

bool CondVar::WaitUntil(Mutex* mu, std::chrono::steady_clock::time_point until) {
  return Sleep(mu, &until);
}

void CondVar::Wake(int32_t most) {
  const KeptErrno kept;
  turn_.fetch_add(1, std::memory_order_relaxed);
  WakeOn(&turn_, most);
}

}  // namespace tryst
