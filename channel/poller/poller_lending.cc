// Turns that another thread takes in place of the poller's own.
#include "channel/poller/poller.h"
#include "rendezvous/delivering.h"

namespace tryst {

using State = TurnLending::State;

void Poller::TurnUntil(const std::atomic<bool>& wanted) {
  const auto awake = [this] {
    return asleep_.load(std::memory_order_relaxed) == Sleeper::kNobody &&
           !stopping_.load(std::memory_order_relaxed);
  };
  if (!lending_.Borrow(*clock_, awake)) return;
  asleep_.store(Sleeper::kNobody, std::memory_order_relaxed);
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
  WakeOwn();
}

void Poller::TurnIfAsleep(bool sources_have_work) {
  // Pairs with MaySleep(): a thread that is awake reads the inbox before it sleeps.
  if (!sources_have_work && inbox_.load(std::memory_order_seq_cst) == nullptr) return;
  const Sleeper sleeper = asleep_.load(std::memory_order_seq_cst);
  if (sleeper == Sleeper::kNobody) return;
  if (options_.keeps_its_thread || !lending_.BorrowFromSleeper()) return WakeSleeper(sleeper);
  const DeliveringScope delivering;
  int turns = 0;
  do {
    asleep_.store(Sleeper::kNobody, std::memory_order_relaxed);
    now_ns_ = clock_->NowNs();
    while (++turns < kMostTurnsAsleep && FullTurn()) now_ns_ = clock_->NowNs();
    asleep_.store(Sleeper::kInEpoll, std::memory_order_seq_cst);
  } while (turns < kMostTurnsAsleep && !MaySleep());
  const bool wake = turns >= kMostTurnsAsleep || NextTimerNs() < own_until_ns_.load() ||
                    stopping_.load(std::memory_order_seq_cst) || watching_.load();
  lending_.Set(State::kAsleep);
  if (wake) WakeOwn();
}

}  // namespace tryst
