#ifndef TRYST_CHANNEL_POLLER_TURN_LENDING_H_
#define TRYST_CHANNEL_POLLER_TURN_LENDING_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "base/clock.h"

namespace tryst {

// Decides which thread takes a poller's turns: its own, or for a while another thread that has
// borrowed them (docs/decisions/0023-borrowed-turns.md). One thread has them at any time, and each
// sees what the one before has written.
class TurnLending {
 public:
  // Who has the turns, as the poller's own thread sees it.
  enum class State : uint64_t {
    kOwn,       // The poller's own thread.
    kAway,      // A borrower, which is in a callback.
    kBorrowed,  // A borrower, which takes turns.
    kReturned,  // Nobody: they were returned, and are the poller's own thread's again.
    kAsleep,    // Nobody, while the poller's own thread sleeps.
    kLeft,      // Nobody: a thread that waited has its tensor, and may soon wait for the next.
    kDozing,    // A thread that waits, which sleeps in the kernel where the poller's own would.
  };

  // The thread that takes turns now; the default id: no thread.
  std::thread::id thread() const { return thread_->load(std::memory_order_relaxed); }
  // thread() for those that outlive the poller. A thread that reads its own number there has the
  // turns, as nobody but itself writes that number.
  std::shared_ptr<const std::atomic<std::thread::id>> shared_thread() const { return thread_; }
  // The calling thread takes the turns: the poller's own, or a borrower.
  void BeTheThread() { thread_->store(std::this_thread::get_id(), std::memory_order_relaxed); }
  State state() const { return StateOf(word()); }
  // The state and a count of its changes.
  uint64_t word() const { return state_.load(std::memory_order_seq_cst); }
  static State StateOf(uint64_t word) { return static_cast<State>(word & ((1 << kStateBits) - 1)); }
  // Only the thread that has the turns may call it.
  void Set(State state);

  // ---- The poller's own thread ----
  // Whether another thread wants to borrow the turns.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
  void Lend() {
    wanted_.store(false, std::memory_order_relaxed);
    Set(State::kAway);
  }
  // Takes the turns if nothing has changed since `word` was read, which named a state in which
  // nobody has them.
  bool Take(uint64_t word);

  // ---- Another thread ----
  // Borrows the turns, mostly from a borrower that is in a callback; from the poller's own thread
  // only while that is awake, which `may_ask` says. False: they cannot be had.
  template <typename MayAsk>
  bool Borrow(const Clock& clock, MayAsk may_ask);
  // Borrows from the poller's own thread while it sleeps.
  bool BorrowFromSleeper();
  // From kDozing to kBorrowed. What the poller's own thread wrote before it last saw kDozing is
  // seen afterwards.
  void WakeFromDoze() { (void)Change(state_.load(std::memory_order_relaxed), State::kBorrowed); }

  // How often the poller's own thread looks after a borrower.
  static constexpr int64_t kLendNs = 200'000;

 private:
  static constexpr int kStateBits = 3;
  static constexpr int64_t kBorrowNs = 20'000;  // How long a borrower waits for an answer.

  static uint64_t Next(uint64_t state, State to) {
    return ((state >> kStateBits) + 1) << kStateBits | static_cast<uint64_t>(to);
  }
  // Changes the state to `to`. False: it has changed since `state` was read.
  bool Change(uint64_t state, State to) {
    return state_.compare_exchange_strong(state, Next(state, to), std::memory_order_seq_cst);
  }

  const std::shared_ptr<std::atomic<std::thread::id>> thread_ =
      std::make_shared<std::atomic<std::thread::id>>();
  // A State, and above it a count of changes, so that a borrower that is still in the same callback
  // can be told from one that is in another.
  std::atomic<uint64_t> state_{0};
  std::atomic<bool> wanted_{false};
};

template <typename MayAsk>
bool TurnLending::Borrow(const Clock& clock, MayAsk may_ask) {
  int64_t until_ns = 0;
  bool borrowed = false;
  while (!borrowed) {
    const uint64_t state = state_.load(std::memory_order_acquire);
    if (StateOf(state) == State::kAway || StateOf(state) == State::kLeft) {
      borrowed = Change(state, State::kBorrowed);
      continue;
    }
    if (StateOf(state) != State::kOwn || !may_ask()) break;
    const int64_t now_ns = clock.NowNs();
    if (until_ns == 0) until_ns = now_ns + kBorrowNs;
    if (now_ns >= until_ns) break;
    wanted_.store(true, std::memory_order_relaxed);
    std::this_thread::yield();  // The other thread may need this processor.
  }
  if (until_ns != 0) wanted_.store(false, std::memory_order_relaxed);
  if (borrowed) BeTheThread();
  return borrowed;
}

}  // namespace tryst

#endif  // TRYST_CHANNEL_POLLER_TURN_LENDING_H_
