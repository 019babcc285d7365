// Turns that threads take while they wait for a tensor.
#include <algorithm>
#include <chrono>
#include <thread>

#include "channel/poller/poller.h"

namespace tryst {

// It outlives the poller for threads that have not yet noticed the end of what they waited for.
class Poller::WaitersTurns final : public Turns {
 public:
  explicit WaitersTurns(Poller* poller) : poller_(poller) {}

  bool Enter() override {
    // With several, one would find the tensors of all others and wake them, which the poller's own
    // thread does as well, and it does not leave.
    if (waiting_.fetch_add(1, std::memory_order_seq_cst) != 0 || !GoIn()) return false;
    if (poller_->BorrowForWaiter()) return true;
    GoOut();
    return false;
  }
  void TurnUntil(Waiter* waiter, int64_t until_ns) override {
    poller_->TurnForWaiter(waiter, until_ns);
    GoOut();
  }
  void Leave() override { waiting_.fetch_sub(1, std::memory_order_release); }
  void Wake() override {
    if (!GoIn()) return;
    poller_->Wake();
    GoOut();
  }

  bool several() const { return waiting_.load(std::memory_order_seq_cst) > 1; }
  void Close() {
    inside_.fetch_or(kClosed, std::memory_order_acq_rel);
    while (inside_.load(std::memory_order_acquire) != kClosed) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  static constexpr uint32_t kClosed = uint32_t{1} << 31;

  bool GoIn() {
    if (inside_.fetch_add(1, std::memory_order_acquire) < kClosed) return true;
    GoOut();
    return false;
  }
  void GoOut() { inside_.fetch_sub(1, std::memory_order_release); }

  Poller* const poller_;
  std::atomic<uint32_t> waiting_{0};
  std::atomic<uint32_t> inside_{0};  // Threads that use the poller just now, and kClosed.
};

void Poller::MakeTurns() {
  if (!options_.keeps_its_thread) waiters_ = std::make_shared<WaitersTurns>(this);
}

void Poller::CloseTurns() {
  if (waiters_ != nullptr) waiters_->Close();
}

std::shared_ptr<Turns> Poller::turns() const { return waiters_; }

bool Poller::BorrowForWaiter() {
  const auto awake = [this] {
    return has_thread_.load(std::memory_order_relaxed) &&
           asleep_.load(std::memory_order_relaxed) == Sleeper::kNobody &&
           !stopping_.load(std::memory_order_relaxed);
  };
  if (!lending_.BorrowFromSleeper() && !lending_.Borrow(*clock_, awake)) return false;
  asleep_.store(Sleeper::kNobody, std::memory_order_relaxed);
  now_ns_ = clock_->NowNs();
  return true;
}

void Poller::TurnForWaiter(Waiter* waiter, int64_t until_ns) noexcept {
  ShortTurn();  // Sends what the caller has just asked for.
  for (Idling idling; !waiter->ended() && now_ns_ < until_ns;) {
    if (stopping_.load(std::memory_order_relaxed)) break;
    if (SpunEnough(NextTurn(), &idling)) Doze(waiter, until_ns);
  }
  LeaveTurns();
}

// Sleeps where the poller's own thread would, which need not wake for what comes.
void Poller::Doze(Waiter* waiter, int64_t until_ns) {
  asleep_.store(Sleeper::kInEpoll, std::memory_order_seq_cst);
  if (!MaySleep() || !waiter->FallAsleep()) {
    asleep_.store(Sleeper::kNobody, std::memory_order_relaxed);
    return;
  }
  SetGate(false);
  lending_.Set(TurnLending::State::kDozing);
  SleepInEpoll(std::min(until_ns, NextTimerNs()), waiter);
}

// After a first wait the poller's own thread is left asleep, armed to wake for what comes. While
// one wait soon follows another it watches instead, so that nothing has to be armed for each.
void Poller::LeaveTurns() {
  const bool soon = now_ns_ - left_ns_ < kSoonNs;
  left_ns_ = now_ns_;
  for (int turns = 0; turns < kMostTurnsAsleep && !waiters_->several(); ++turns) {
    if (stopping_.load(std::memory_order_relaxed)) break;
    const bool watched = watching_.load(std::memory_order_seq_cst);
    if (watched || soon) {
      asleep_.store(Sleeper::kWatcher, std::memory_order_seq_cst);
      if (inbox_.load(std::memory_order_seq_cst) == nullptr && flushes_.empty()) {
        lending_.Set(TurnLending::State::kLeft);
        if (!watched) WakeOwn();
        return;
      }
    } else {
      asleep_.store(Sleeper::kInEpoll, std::memory_order_seq_cst);
      if (MaySleep()) {
        SetGate(true);
        const bool wake = NextTimerNs() < own_until_ns_.load(std::memory_order_seq_cst);
        lending_.Set(TurnLending::State::kAsleep);
        if (wake) WakeOwn();
        return;
      }
    }
    asleep_.store(Sleeper::kNobody, std::memory_order_relaxed);
    now_ns_ = clock_->NowNs();
    FullTurn();
  }
  // Others wait too: the poller's own thread finds their tensors.
  lending_.Set(TurnLending::State::kReturned);
  WakeOwn();
}

}  // namespace tryst
