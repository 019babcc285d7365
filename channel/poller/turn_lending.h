#ifndef TRYST_CHANNEL_POLLER_TURN_LENDING_H_
#define TRYST_CHANNEL_POLLER_TURN_LENDING_H_

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/clock.h"

namespace tryst {

// Decides which thread takes a poller's turns: its own, or for a while another one that has
// borrowed them (docs/decisions/0023-borrowed-turns.md). It is one thread at any time, and what one
// has written the next one sees.
class TurnLending {
 public:
  // As what the poller's own thread stands to the turns.
  enum class State : uint64_t {
    kOwn,       // It takes them.
    kAway,      // They are lent; whoever had them is away in a callback.
    kBorrowed,  // Another thread takes them.
    kReturned,  // Nobody does; they are our thread's again.
    kAsleep,    // Nobody does; our thread sleeps.
  };

  // Of the thread that takes turns now; none: nobody's.
  std::thread::id thread() const { return thread_.load(std::memory_order_relaxed); }
  // The caller takes the turns, as the poller's own thread or in place of one.
  void BeTheThread() { thread_.store(std::this_thread::get_id(), std::memory_order_relaxed); }
  State state() const { return StateOf(state_.load(std::memory_order_acquire)); }
  // Only by whoever takes the turns.
  void Set(State state);

  // ---- Our own thread ----
  // Whether somebody would like to borrow the turns.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
  // Lends them until they are returned, or until who has them stays away for kLendNs. What is
  // written to `wake_fd` ends the pauses.
  void Lend(int wake_fd);
  // After a sleep: from who may have taken turns meanwhile.
  void TakeBack();

  // ---- Another thread ----
  // From who is away, most times; from our own thread only while that is awake, which `may_ask`
  // says. False: they are not to be had.
  template <typename MayAsk>
  bool Borrow(const Clock& clock, MayAsk may_ask);
  // From our own thread while it sleeps.
  bool BorrowFromSleeper();

 private:
  static constexpr int kStateBits = 3;
  static constexpr int64_t kLendNs = 200'000;
  static constexpr int64_t kBorrowNs = 20'000;  // How long a borrower waits for an answer.

  static State StateOf(uint64_t state) {
    return static_cast<State>(state & ((1 << kStateBits) - 1));
  }
  static uint64_t Next(uint64_t state, State to) {
    return ((state >> kStateBits) + 1) << kStateBits | static_cast<uint64_t>(to);
  }
  // `*state`, as seen last, becomes `to`. False: it has changed meanwhile.
  bool Change(uint64_t state, State to) {
    return state_.compare_exchange_strong(state, Next(state, to), std::memory_order_acquire);
  }

  std::atomic<std::thread::id> thread_{};
  // A State, and above it how often it has changed, so that one who is away still is told from
  // one who is away again.
  std::atomic<uint64_t> state_{0};
  std::atomic<bool> wanted_{false};
};

template <typename MayAsk>
bool TurnLending::Borrow(const Clock& clock, MayAsk may_ask) {
  const int64_t until_ns = clock.NowNs() + kBorrowNs;
  bool borrowed = false;
  for (bool asked = false; !borrowed; asked = true) {
    const uint64_t state = state_.load(std::memory_order_acquire);
    if (StateOf(state) == State::kAway) {
      borrowed = Change(state, State::kBorrowed);
      continue;
    }
    if (StateOf(state) != State::kOwn || !may_ask() || clock.NowNs() >= until_ns) break;
    if (!asked) wanted_.store(true, std::memory_order_relaxed);
    std::this_thread::yield();  // It may wait for this very processor.
  }
  wanted_.store(false, std::memory_order_relaxed);
  if (borrowed) BeTheThread();
  return borrowed;
}

}  // namespace tryst

#endif  // TRYST_CHANNEL_POLLER_TURN_LENDING_H_
