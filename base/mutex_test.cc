#include "base/mutex.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace {

thread_local int system_calls = 0;

}  // namespace

// The linker has Mutex and CondVar call this.
extern "C" long __real_syscall(long number, ...);                            // NOLINT
extern "C" long __wrap_syscall(long number, long a, long b, long c, long d,  // NOLINT
                               long e, long f) {                             // NOLINT
  ++system_calls;
  return __real_syscall(number, a, b, c, d, e, f);
}

namespace tryst {
namespace {

class Counter {
 public:
  void Add() {
    MutexLock lock(&mu_);
    ++value_;
    changed_.NotifyAll();
  }
  int value() {
    MutexLock lock(&mu_);
    return value_;
  }
  void WaitFor(int value) {
    MutexLock lock(&mu_);
    while (value_ < value) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int value_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST(MutexTest, LetsOneInAtATime) {
  constexpr int kThreads = 4;
  constexpr int kAdds = 5000;
  Counter counter;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&counter] {
      for (int i = 0; i < kAdds; ++i) counter.Add();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), kThreads * kAdds);
}

// Tries in another thread, because try_lock() by the thread that holds the mutex is undefined.
bool TryLockElsewhere(Mutex* mu) {
  bool got = false;
  std::thread([mu, &got] {
    if (!mu->TryLock()) return;
    mu->Unlock();
    got = true;
  }).join();
  return got;
}

TEST(MutexTest, TryLockFailsWhileHeld) {
  Mutex mu;
  {
    MutexLock lock(&mu);
    EXPECT_FALSE(TryLockElsewhere(&mu));
  }
  EXPECT_TRUE(TryLockElsewhere(&mu));
}

// Whoever leaves last destroys it, while the one who let him in may still be in Unlock().
TEST(MutexTest, IsDestroyedByTheLastWhoHeldIt) {
  struct Shared {
    Mutex mu;
    int left ABSL_GUARDED_BY(mu) = 2;
  };
  for (int round = 0; round < 2000; ++round) {
    auto* shared = new Shared;
    const auto leave = [shared] {
      shared->mu.Lock();
      const bool last = --shared->left == 0;
      shared->mu.Unlock();
      if (last) delete shared;
    };
    std::thread other(leave);
    leave();
    other.join();
  }
}

TEST(MutexTest, WaitingForItLeavesErrnoAsItWas) {
  Mutex mu;
  std::atomic<bool> asleep{false};
  std::thread waiting([&] {
    errno = 77;
    asleep = true;
    MutexLock lock(&mu);
    EXPECT_EQ(errno, 77);
  });
  {
    MutexLock lock(&mu);
    while (!asleep) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    errno = 78;
  }
  EXPECT_EQ(errno, 78);
  waiting.join();
  CondVar never;
  MutexLock lock(&mu);
  errno = 79;
  EXPECT_TRUE(never.WaitUntil(&mu, std::chrono::steady_clock::now()));
  EXPECT_EQ(errno, 79);
}

// Every notification that is needed comes: else both sleep. Half of them are made without the
// mutex.
TEST(CondVarTest, LosesNoNotification) {
  constexpr int kRounds = 20'000;
  Mutex mu;
  CondVar changed[2];
  int turn = 0;
  const auto play = [&](int me) {
    for (int round = 0; round < kRounds; ++round) {
      mu.Lock();
      while (turn != me) changed[me].Wait(&mu);
      turn = 1 - me;
      if (round % 2 == 0) changed[1 - me].NotifyOne();
      mu.Unlock();
      if (round % 2 != 0) changed[1 - me].NotifyOne();
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  EXPECT_EQ(turn, 0);
}

// Threads of one kind share one variable: each notification wakes one of them at least.
TEST(CondVarTest, WakesOneForEachItem) {
  constexpr int kItems = 20'000;
  Mutex mu;
  CondVar more;
  int items = 0, taken = 0;
  bool over = false;
  std::vector<std::thread> takers;
  for (int i = 0; i < 3; ++i) {
    takers.emplace_back([&] {
      MutexLock lock(&mu);
      for (;;) {
        while (items == 0 && !over) more.Wait(&mu);
        if (items == 0) return;
        --items;
        ++taken;
      }
    });
  }
  for (int i = 0; i < kItems; ++i) {
    MutexLock lock(&mu);
    ++items;
    more.NotifyOne();
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (bool all = false; !all && std::chrono::steady_clock::now() < until;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    MutexLock lock(&mu);
    all = taken == kItems;
  }
  {
    MutexLock lock(&mu);
    EXPECT_EQ(taken, kItems) << "an item lies there, and all takers sleep";
    over = true;
    more.NotifyAll();
  }
  for (std::thread& taker : takers) taker.join();
}

TEST(CondVarTest, WakesAllWhoWait) {
  Counter counter;
  std::vector<std::thread> waiting;
  for (int i = 0; i < 3; ++i) waiting.emplace_back([&counter] { counter.WaitFor(2); });
  counter.Add();
  counter.Add();
  for (std::thread& thread : waiting) thread.join();
}

TEST(CondVarTest, WaitUntilSaysWhenTheTimeHasComeAndHoldsTheMutex) {
  Mutex mu;
  CondVar never;
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  {
    MutexLock lock(&mu);
    while (!never.WaitUntil(&mu, until)) {
    }
    EXPECT_GE(std::chrono::steady_clock::now(), until);
    EXPECT_FALSE(TryLockElsewhere(&mu));
  }
  EXPECT_TRUE(TryLockElsewhere(&mu));
}

TEST(CondVarTest, ANotificationAsksTheSystemForNothingWhereNobodyWaits) {
  Mutex mu;
  CondVar changed;
  bool ready = false;
  const auto notify = [&] {
    const int before = system_calls;
    changed.NotifyOne();
    changed.NotifyAll();
    return system_calls - before;
  };
  EXPECT_EQ(notify(), 0);
  std::thread waiting([&] {
    MutexLock lock(&mu);
    while (!ready) changed.Wait(&mu);
  });
  for (bool waits = false; !waits; std::this_thread::yield()) {
    MutexLock lock(&mu);
    waits = notify() > 0;
  }
  {
    MutexLock lock(&mu);
    ready = true;
    changed.NotifyAll();
  }
  waiting.join();
  {
    MutexLock lock(&mu);
    EXPECT_TRUE(changed.WaitUntil(&mu, std::chrono::steady_clock::now()));
  }
  EXPECT_EQ(notify(), 0) << "those who waited have left";
}

TEST(CondVarTest, ATimeBeforeTheMachineStartedHasCome) {
  Mutex mu;
  CondVar never;
  MutexLock lock(&mu);
  EXPECT_TRUE(never.WaitUntil(&mu, std::chrono::steady_clock::time_point::min()));
}

TEST(CondVarTest, WaitUntilReturnsEarlyWhenNotified) {
  Mutex mu;
  CondVar changed;
  bool ready = false;
  std::thread notifier([&] {
    MutexLock lock(&mu);
    ready = true;
    changed.NotifyOne();
  });
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  {
    MutexLock lock(&mu);
    bool late = false;
    while (!ready && !late) late = changed.WaitUntil(&mu, until);
    EXPECT_FALSE(late);
  }
  notifier.join();
}

}  // namespace
}  // namespace tryst
