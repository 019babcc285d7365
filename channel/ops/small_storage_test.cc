#include "channel/ops/small_storage.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "channel/poller/poller.h"
#include "gtest/gtest.h"
#include "rendezvous/executor.h"

namespace tryst {
namespace {

TEST(SmallStorageTest, MemoryThatIsBackIsLentAgain) {
  auto taker = std::make_shared<std::atomic<std::thread::id>>();
  auto* storage = new SmallStorage(taker);
  for (const std::thread::id thread : {std::thread::id(), std::this_thread::get_id()}) {
    taker->store(thread);
    StorageRef first = storage->Take();
    void* const data = first->data();
    StorageRef second = storage->Take();
    EXPECT_NE(second->data(), data);
    first = StorageRef();
    EXPECT_EQ(storage->Take()->data(), data);
  }
  const StorageRef last = storage->Take();
  storage->Unref();
  memset(last->data(), 1, SmallStorage::kBytes);  // It outlives its owner.
}

// Threads of the executor borrow the turns. Now and then one stays in its callback until the
// poller's own thread has taken them back, and drops tensors while that one takes pieces.
// ThreadSanitizer sees both at one list.
TEST(SmallStorageTest, NothingIsLentTwiceWhileTurnsAreBorrowed) {
  constexpr int kTensors = 100'000;
  constexpr int kLent = 8;
  const SteadyClock clock;
  Poller poller(&clock);
  ThreadPoolExecutor executor(2, 64);
  auto* const storage = new SmallStorage(poller.shared_thread());
  std::atomic<int> wrong{0};
  std::atomic<int> dropped{0};
  class Taker final : public PollerTask {
   public:
    std::function<void()> take;
    void RunOnPoller() override { take(); }
  } taker;
  int taken = 0;
  taker.take = [&] {
    std::vector<StorageRef> lent;
    for (int i = 0; i < kLent; ++i) {
      lent.push_back(storage->Take());
      auto* const owner = static_cast<std::atomic<int>*>(lent.back()->data());
      owner->store(++taken, std::memory_order_relaxed);
    }
    Executor::Work work([&, number = taken - kLent, lent = std::move(lent)]() mutable {
      if (number + kLent < kTensors) poller.Post(&taker);
      while (!lent.empty()) {
        auto* const owner = static_cast<std::atomic<int>*>(lent.back()->data());
        const int expected = number + static_cast<int>(lent.size());
        if (number % 256 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
        wrong += owner->exchange(0, std::memory_order_relaxed) != expected;
        lent.pop_back();
        ++dropped;
      }
    });
    if (!executor.TryRun(&work)) ++wrong;
  };
  poller.Start();
  executor.SetSources({&poller});
  poller.Post(&taker);
  while (dropped < kTensors) std::this_thread::yield();
  executor.SetSources({});
  poller.Stop();
  EXPECT_EQ(wrong, 0);
  storage->Unref();
}

TEST(SmallStorageTest, WhatIsTakenAfterAllIsBackAllocatesNothing) {
  auto taker = std::make_shared<std::atomic<std::thread::id>>(std::this_thread::get_id());
  auto* storage = new SmallStorage(taker);
  std::vector<void*> first;
  for (int round = 0; round < 5; ++round) {
    std::vector<StorageRef> lent;
    std::vector<void*> places;
    for (int i = 0; i < 4; ++i) {
      lent.push_back(storage->Take());
      places.push_back(lent.back()->data());
    }
    std::sort(places.begin(), places.end());
    if (round == 0) first = places;
    EXPECT_EQ(places, first);
    if (round == 2) {  // Some come back on another thread.
      std::thread([&] { lent.resize(2); }).join();
    }
  }
  storage->Unref();
}

}  // namespace
}  // namespace tryst
