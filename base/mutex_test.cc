#include "base/mutex.h"

#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

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
