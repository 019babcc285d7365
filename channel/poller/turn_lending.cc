#include "channel/poller/turn_lending.h"

#include <poll.h>
#include <unistd.h>

#include <chrono>

namespace tryst {

// Called only by the thread that has the turns, or right after a change of state_ has given them to
// the caller.
void TurnLending::Set(State state) {
  const bool nobody = state == State::kAway || state == State::kReturned || state == State::kAsleep;
  thread_->store(nobody ? std::thread::id() : std::this_thread::get_id(),
                 std::memory_order_relaxed);
  state_.store(Next(state_.load(std::memory_order_relaxed), state), std::memory_order_release);
}

void TurnLending::Lend(int wake_fd) {
  wanted_.store(false, std::memory_order_relaxed);
  Set(State::kAway);
  uint64_t before = 0;
  for (bool ours = false; !ours;) {
    pollfd woken{wake_fd, POLLIN, 0};
    const timespec pause{0, kLendNs};
    if (ppoll(&woken, 1, &pause, nullptr) > 0) {
      uint64_t ignored;
      [[maybe_unused]] const ssize_t got = read(wake_fd, &ignored, sizeof(ignored));
    }
    const uint64_t state = state_.load(std::memory_order_acquire);
    if (StateOf(state) == State::kReturned) {
      ours = true;
    } else if (StateOf(state) == State::kAway && state == before) {
      // The borrower is in a callback, and others must not wait for that.
      ours = Change(state, State::kOwn);
    }
    before = state;
  }
  Set(State::kOwn);
}

bool TurnLending::BorrowFromSleeper() {
  const uint64_t state = state_.load(std::memory_order_acquire);
  if (StateOf(state) != State::kAsleep || !Change(state, State::kBorrowed)) return false;
  BeTheThread();
  return true;
}

void TurnLending::TakeBack() {
  for (int tries = 0;; ++tries) {
    const uint64_t state = state_.load(std::memory_order_acquire);
    if (StateOf(state) == State::kAsleep && Change(state, State::kOwn)) break;
    if (tries < 8) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kBorrowNs));
    }
  }
  BeTheThread();
}

}  // namespace tryst
