#include "rendezvous/waiter.h"

#include <chrono>

namespace tryst {

void Waiter::End() {
  // If nobody sleeps, the waiter may be gone after this.
  if (state_.fetch_or(kEnded, std::memory_order_acq_rel) < kSleeper) return;
  // Told under the lock, which keeps a sleeper from destroying this.
  MutexLock lock(&mu_);
  told_ = true;
  if (turns_ != nullptr) turns_->Wake();
  changed_.NotifyAll();
}

bool Waiter::FallAsleep() {
  uint32_t state = state_.load(std::memory_order_acquire);
  do {
    if ((state & kEnded) != 0) return false;
  } while (!state_.compare_exchange_weak(state, state + kSleeper, std::memory_order_acq_rel,
                                         std::memory_order_acquire));
  return true;
}

void Waiter::WakeUp() {
  if ((state_.fetch_sub(kSleeper, std::memory_order_acq_rel) & kEnded) == 0) return;
  // End() has seen this sleeper, and must be done with the waiter before it is destroyed.
  MutexLock lock(&mu_);
  while (!told_) changed_.Wait(&mu_);
}

bool Waiter::Sleep(int64_t until_ns) {
  if (!FallAsleep()) return true;
  {
    const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(until_ns)};
    MutexLock lock(&mu_);
    for (bool late = false; !told_ && !late;) {
      if (until_ns == kForever) {
        changed_.Wait(&mu_);
      } else {
        late = changed_.WaitUntil(&mu_, until);
      }
    }
  }
  WakeUp();
  return ended();
}

bool Waiter::Wait(int64_t until_ns) {
  if (ended()) return true;
  WaitScope scope(this);
  return scope.Until(until_ns);
}

WaitScope::WaitScope(Waiter* waiter)
    : waiter_(waiter), turns_(DeliversForOthers() ? nullptr : waiter->turns_) {
  if (turns_ != nullptr && turns_->Enter()) turning_.emplace();
}

WaitScope::~WaitScope() {
  if (turns_ != nullptr) turns_->Leave();
}

bool WaitScope::Until(int64_t until_ns) {
  if (turning_.has_value()) {
    turns_->TurnUntil(waiter_, until_ns);
    turning_.reset();
  }
  return waiter_->ended() || (until_ns > 0 && waiter_->Sleep(until_ns));
}

}  // namespace tryst
