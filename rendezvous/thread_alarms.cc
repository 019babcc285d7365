#include "rendezvous/thread_alarms.h"

#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/thread_owner.h"
#include "rendezvous/delivering.h"

namespace tryst {

ThreadAlarms::ThreadAlarms() : thread_([this] { Loop(); }) {}

ThreadAlarms::~ThreadAlarms() {
  {
    MutexLock lock(&mu_);
    TRYST_CHECK(queue_.size() == 0) << queue_.size() << " alarms are still set";
    closing_ = true;
  }
  changed_.NotifyOne();
  thread_.join();
}

Alarms::Token ThreadAlarms::Set(Deadline at, Callback callback) {
  if (at.is_never()) return kNoToken;
  bool sooner;
  Token token;
  {
    MutexLock lock(&mu_);
    token = queue_.Push(at, std::move(callback));
    sooner = at.at_ns() < sleeps_until_ns_;
  }
  if (sooner) changed_.NotifyOne();
  return token;
}

bool ThreadAlarms::Cancel(Token token) {
  Callback dead;  // Destroyed after the lock is released.
  MutexLock lock(&mu_);
  return queue_.Remove(token, &dead);
}

void ThreadAlarms::Loop() {
  SetThreadOwner(this);
  const DeliveringScope delivering;
  for (;;) {
    Callback callback;
    {
      MutexLock lock(&mu_);
      sleeps_until_ns_ =
          std::numeric_limits<int64_t>::min();  // The thread is awake, so Set() need not wake it.
      while (!queue_.PopPassed(clock_.NowNs(), &callback)) {
        if (closing_) return;
        const Deadline until = queue_.Earliest();
        sleeps_until_ns_ = until.at_ns();
        if (until.is_never()) {
          changed_.Wait(&mu_);
        } else {
          // SteadyClock and steady_clock both read CLOCK_MONOTONIC.
          changed_.WaitUntil(
              &mu_, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(until.at_ns())));
        }
      }
    }
    std::move(callback)();
  }
}

}  // namespace tryst
