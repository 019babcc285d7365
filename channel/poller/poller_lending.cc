// Turns that another thread takes in place of the poller's own.
#include "channel/poller/poller.h"
#include "rendezvous/delivering.h"

namespace tryst {

using State = TurnLending::State;

void Poller::TurnUntil(const std::atomic<bool>& wanted) {
  const auto awake = [this] {
    return !asleep_.load(std::memory_order_relaxed) && !stopping_.load(std::memory_order_relaxed);
  };
  if (!lending_.Borrow(*clock_, awake)) return;
  const DeliveringScope delivering;
  int64_t idle_since_ns = now_ns_ = clock_->NowNs();
  for (;;) {
    const bool worked = NextTurn();
    if (wanted.load(std::memory_order_relaxed)) return lending_.Set(State::kAway);
    if (worked) {
      idle_since_ns = now_ns_;
    } else if (now_ns_ - idle_since_ns >= spin_.ns() || stopping_.load(std::memory_order_relaxed)) {
      break;
    }
  }
  lending_.Set(State::kReturned);
  Wake();
}

void Poller::TurnIfAsleep() {
  // Pairs with MaySleep(): a thread that is awake reads the inbox before it sleeps.
  if (inbox_.load(std::memory_order_seq_cst) == nullptr) return;
  if (!asleep_.load(std::memory_order_seq_cst)) return;
  if (options_.keeps_its_thread || !lending_.BorrowFromSleeper()) return Wake();
  const DeliveringScope delivering;
  int turns = 0;
  do {
    asleep_.store(false, std::memory_order_relaxed);
    now_ns_ = clock_->NowNs();
    while (++turns < kMostTurnsAsleep && FullTurn()) now_ns_ = clock_->NowNs();
    asleep_.store(true, std::memory_order_seq_cst);
  } while (turns < kMostTurnsAsleep && !MaySleep());
  const bool wake = turns >= kMostTurnsAsleep || NextTimerNs() < sleeps_until_ns_ ||
                    stopping_.load(std::memory_order_seq_cst);
  lending_.Set(State::kAsleep);
  if (wake) Wake();
}

}  // namespace tryst
