#include "channel/poller/turn_lending.h"

namespace tryst {

// Called only by the thread that has the turns, or right after a change of state_ has given them to
// the caller.
void TurnLending::Set(State state) {
  const bool nobody = state == State::kAway || state == State::kReturned ||
                      state == State::kAsleep || state == State::kLeft;
  thread_->store(nobody ? std::thread::id() : std::this_thread::get_id(),
                 std::memory_order_relaxed);
  state_.store(Next(state_.load(std::memory_order_relaxed), state), std::memory_order_release);
}

bool TurnLending::BorrowFromSleeper() {
  const uint64_t state = state_.load(std::memory_order_acquire);
  if (StateOf(state) != State::kAsleep || !Change(state, State::kBorrowed)) return false;
  BeTheThread();
  return true;
}

bool TurnLending::Take(uint64_t word) {
  if (!Change(word, State::kOwn)) return false;
  BeTheThread();
  return true;
}

}  // namespace tryst
