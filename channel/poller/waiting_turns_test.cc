// Threads that take a poller's turns while they wait for what it brings.
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "channel/poller/poller.h"
#include "gtest/gtest.h"
#include "rendezvous/delivering.h"
#include "rendezvous/executor.h"
#include "rendezvous/waiter.h"

namespace tryst {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

int64_t UsedUs(int who) {
  rusage used;
  getrusage(who, &used);
  return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * int64_t{1'000'000} +
         used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

int64_t SleepsOfThisThread() {
  rusage used;
  getrusage(RUSAGE_THREAD, &used);
  return used.ru_nvcsw;
}

void WaitUntil(const std::function<bool()>& over) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!over()) {
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    std::this_thread::sleep_for(milliseconds(1));
  }
}

// A peer: what was asked of it comes after a while, as an event of the poller.
class Peer final : public PollerSource, private PollerTimer {
 public:
  explicit Peer(Poller* poller) : poller_(poller), fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    poller_->AddSource(this);
  }
  ~Peer() override {
    poller_->RemoveSource(this);
    close(fd_);
  }
  // As Channel::Fetch. REQUIRES: on the poller thread.
  void Ask(int64_t delay_ns, Waiter* waiter) {
    if (!poller_->OnThread()) wrong = true;
    asked_.push_back({poller_->now_ns() + delay_ns, waiter});
    SetTimer();
  }
  // Another process answers, by the descriptor.
  void Ring() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof(one));
  }

  Waiter* rings_for = nullptr;  // Ring() ends it.
  std::atomic<bool> wrong{false};
  std::atomic<int64_t> served{0};
  std::atomic<int64_t> served_by_own{0};
  std::function<void()> on_served;

 private:
  struct Asked {
    int64_t at_ns;
    Waiter* waiter;
  };
  bool Poll() override {
    if (turning_.exchange(true) || !DeliversForOthers() || !poller_->OnThread()) wrong = true;
    bool worked = false;
    uint64_t count;
    if (rings_for != nullptr && read(fd_, &count, sizeof(count)) > 0) {
      Serve(std::exchange(rings_for, nullptr));
      worked = true;
    }
    for (size_t i = 0; i < asked_.size();) {
      if (asked_[i].at_ns > poller_->clock().NowNs()) {
        ++i;
        continue;
      }
      Waiter* const waiter = asked_[i].waiter;
      asked_.erase(asked_.begin() + static_cast<ptrdiff_t>(i));
      worked = true;
      Serve(waiter);
    }
    turning_ = false;
    if (worked) SetTimer();
    return worked;
  }
  void SetTimer() {
    poller_->CancelTimer(this);
    int64_t first_ns = INT64_MAX;
    for (const Asked& asked : asked_) first_ns = std::min(first_ns, asked.at_ns);
    if (first_ns != INT64_MAX) poller_->SetTimer(this, first_ns);
  }
  void Serve(Waiter* waiter) {
    ++served;
    if (std::this_thread::get_id() == first_) ++served_by_own;
    if (on_served) on_served();
    waiter->End();
  }
  void Arm() override {}
  int event_fd() const override { return fd_; }
  void OnTimer() override {}

  Poller* const poller_;
  const int fd_;
  std::vector<Asked> asked_;
  std::atomic<bool> turning_{false};
  std::thread::id first_;

 public:
  void LearnOwnThread() {
    poller_->RunAndWait([this] { first_ = std::this_thread::get_id(); });
  }
};

// As a FetchTask of the channels.
class AskTask final : public PollerTask {
 public:
  AskTask(Peer* peer, int64_t delay_ns, Waiter* waiter)
      : peer_(peer), delay_ns_(delay_ns), waiter_(waiter) {}
  void RunOnPoller() override { peer_->Ask(delay_ns_, waiter_); }

 private:
  Peer* const peer_;
  const int64_t delay_ns_;
  Waiter* const waiter_;
};

class WaitingTurnsTest : public ::testing::Test {
 protected:
  WaitingTurnsTest() {
    peer_ = std::make_unique<Peer>(&poller_);
    poller_.Start();
    peer_->LearnOwnThread();
  }
  ~WaitingTurnsTest() override {
    poller_.Stop();
    EXPECT_FALSE(peer_->wrong);
  }
  // As Rendezvous::Recv. Returns whether it came in time.
  bool Recv(int64_t delay_ns, int64_t until_ns = Waiter::kForever) {
    Waiter waiter(poller_.turns());
    AskTask task(peer_.get(), delay_ns, &waiter);
    WaitScope scope(&waiter);
    if (poller_.OnThread()) {
      peer_->Ask(delay_ns, &waiter);
    } else {
      poller_.Post(&task);
    }
    const bool in_time = scope.Until(until_ns);
    if (!in_time) {
      EXPECT_GE(clock_.NowNs(), until_ns);
      scope_ended_late_ns_ = clock_.NowNs() - until_ns;
      while (!waiter.ended()) std::this_thread::sleep_for(milliseconds(1));
    }
    return in_time;
  }

  const SteadyClock clock_;
  Poller poller_{&clock_};
  std::unique_ptr<Peer> peer_;
  std::atomic<int64_t> scope_ended_late_ns_{0};
};

TEST_F(WaitingTurnsTest, WhoWaitsTurnsAndNeverSleepsWhileAnswersComeSoon) {
  for (int i = 0; i < 200; ++i) Recv(0);
  const int64_t own_before = peer_->served_by_own;
  const int64_t sleeps_before = SleepsOfThisThread();
  constexpr int kRounds = 20'000;
  for (int i = 0; i < kRounds; ++i) Recv(0);
  // Another program may take the processor for longer than the poller's own thread waits for us.
  EXPECT_LT(peer_->served_by_own - own_before, kRounds / 10);
  EXPECT_LT(SleepsOfThisThread() - sleeps_before, kRounds / 10);
}

TEST_F(WaitingTurnsTest, OneWhoWaitsLongSleepsAndIsWokenByTheSourceItself) {
  int by_own = 0;
  for (int i = 0; i < 50; ++i) {
    Waiter waiter(poller_.turns());
    poller_.RunAndWait([&] { peer_->rings_for = &waiter; });
    std::this_thread::sleep_for(milliseconds(1));  // The poller's own thread falls asleep.
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(3));
      peer_->Ring();
    });
    const int64_t before = peer_->served_by_own;
    EXPECT_TRUE(waiter.Wait());
    by_own += peer_->served_by_own != before ? 1 : 0;
    other.join();
  }
  EXPECT_LT(by_own, 10);
}

TEST_F(WaitingTurnsTest, KeepsDeadlinesTurningAndAsleep) {
  for (const int64_t wait_ns : {int64_t{0}, int64_t{20'000}, int64_t{5'000'000}}) {
    for (int i = 0; i < 20; ++i) {
      const int64_t began_ns = clock_.NowNs();
      // A thread that got no processor until the answer had come may find it.
      if (Recv(wait_ns + 20'000'000, began_ns + wait_ns)) {
        EXPECT_GE(clock_.NowNs() - began_ns, wait_ns + 20'000'000);
      }
      EXPECT_LT(scope_ended_late_ns_, 500'000'000);
    }
  }
  EXPECT_TRUE(Recv(1000, clock_.NowNs() + 60'000'000'000));
}

TEST_F(WaitingTurnsTest, TimersRunWhileAWaitingThreadSleeps) {
  struct Timer final : PollerTimer {
    void OnTimer() override { ran = true; }
    std::atomic<bool> ran{false};
  } timer;
  Waiter waiter(poller_.turns());
  std::thread waits([&] { waiter.Wait(); });
  std::this_thread::sleep_for(milliseconds(20));
  poller_.PostFn([&] { poller_.SetTimer(&timer, poller_.now_ns() + 10'000'000); });
  WaitUntil([&] { return timer.ran.load(); });
  waiter.End();  // Nothing of the poller's: it must wake the thread that sleeps there.
  waits.join();
}

TEST_F(WaitingTurnsTest, TasksAndTimersAreServedWhenAWaitingThreadHasLeft) {
  struct Timer final : PollerTimer {
    void OnTimer() override { ran = true; }
    std::atomic<bool> ran{false};
  };
  for (int i = 0; i < 200; ++i) {
    for (int k = 0; k <= i % 5; ++k) Recv(0);  // In each way to leave.
    Timer timer;
    std::atomic<bool> task_ran{false};
    poller_.PostFn([&] {
      task_ran = true;
      poller_.SetTimer(&timer, poller_.now_ns() + 1'000'000);
    });
    const int64_t began_ns = clock_.NowNs();
    WaitUntil([&] { return timer.ran.load(); });
    EXPECT_LT(clock_.NowNs() - began_ns, 1'000'000'000);
  }
}

TEST_F(WaitingTurnsTest, SeveralWaitAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 1000; ++i) {
        const bool hurries = i % 7 == 0;
        Recv((i + t) % 11 == 0 ? 2'000'000 : (i % 3) * 1000,
             hurries ? clock_.NowNs() + 1'000'000 : Waiter::kForever);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(peer_->served, 4000);
}

TEST_F(WaitingTurnsTest, AnExecutorTurnsBesideThem) {
  ThreadPoolExecutor executor(2, 1024);
  executor.SetSources({&poller_});
  std::atomic<int64_t> ran{0};
  std::atomic<bool> on_poller{false};
  peer_->on_served = [&] {
    Executor::Work work([&] {
      if (poller_.OnThread()) on_poller = true;  // No callback runs on a thread that has the turns.
      ++ran;
    });
    if (!executor.TryRun(&work)) ++ran;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 2000; ++i) Recv((i % 5) * 1000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Callbacks that wait, too.
  std::atomic<int> waited{0};
  for (int i = 0; i < 200; ++i) {
    executor.Run([&] {
      Recv(1000);
      ++waited;
    });
  }
  WaitUntil([&] { return waited == 200 && ran == 4200; });
  executor.SetSources({});
  EXPECT_FALSE(on_poller);
}

TEST_F(WaitingTurnsTest, StopLetsThoseGoWhoStillWait) {
  for (int i = 0; i < 50; ++i) {
    auto poller = std::make_unique<Poller>(&clock_);
    poller->Start();
    Waiter waiter(poller->turns());
    Waiter second(poller->turns());
    std::thread one([&] { waiter.Wait(); });
    std::thread two([&] { second.Wait(); });
    std::this_thread::sleep_for(microseconds(100 * (i % 10)));
    poller->Stop();
    poller.reset();
    waiter.End();
    second.End();
    one.join();
    two.join();
  }
}

TEST_F(WaitingTurnsTest, AThreadThatDeliversForOthersGetsNoTurns) {
  Waiter waiter(poller_.turns());
  const DeliveringScope delivering;
  const WaitScope scope(&waiter);
  EXPECT_FALSE(poller_.OnThread());
}

TEST(WaitingTurns, APollerThatKeepsItsThreadLendsNone) {
  const SteadyClock clock;
  PollerOptions options;
  options.keeps_its_thread = true;
  Poller poller(&clock, options);
  EXPECT_EQ(poller.turns(), nullptr);
}

TEST_F(WaitingTurnsTest, NobodySpinsWhileOneWaits) {
  Waiter waiter(poller_.turns());
  std::thread waits([&] { waiter.Wait(); });
  std::this_thread::sleep_for(milliseconds(50));
  const int64_t before_us = UsedUs(RUSAGE_SELF);
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_LT(UsedUs(RUSAGE_SELF) - before_us, 5'000);
  waiter.End();
  waits.join();
  std::this_thread::sleep_for(milliseconds(50));
  const int64_t after_us = UsedUs(RUSAGE_SELF);
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_LT(UsedUs(RUSAGE_SELF) - after_us, 5'000);
}

}  // namespace
}  // namespace tryst
