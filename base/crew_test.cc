#include "base/crew.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

// Marks each byte that a part covers.
void CheckShare(Crew* crew, uint64_t bytes, uint64_t part_bytes) {
  std::vector<uint8_t> times(bytes);
  crew->Share(bytes, part_bytes, [&](uint64_t begin, uint64_t count) {
    ASSERT_LE(begin + count, bytes);
    for (uint64_t i = begin; i < begin + count; ++i) ++times[i];
  });
  for (uint64_t i = 0; i < bytes; ++i) ASSERT_EQ(times[i], 1) << i << " of " << bytes;
}

TEST(CrewTest, SharesEveryByteOnce) {
  for (const int threads : {0, 1, 3}) {
    Crew crew(threads);
    for (const uint64_t bytes : {0, 1, 999, 1000, 1001, 5000, 64'001}) {
      CheckShare(&crew, bytes, 1000);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CrewTest, HasSeveralCallers) {
  Crew crew(2);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&crew] {
      for (int round = 0; round < 200 && !HasFatalFailure(); ++round) {
        CheckShare(&crew, 20'000, 1000);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// Most servers never move anything large.
TEST(CrewTest, StartsThreadsWhenThereIsWorkForThem) {
  Crew crew(3);
  CheckShare(&crew, 1000, 1000);  // One part is its caller's.
  EXPECT_EQ(crew.threads(), 0u);
  CheckShare(&crew, 10'000, 1000);
  EXPECT_GE(crew.threads(), 1u);
  EXPECT_LE(crew.threads(), 3u);
}

struct Counted final : CrewTask {
  void RunOnCrew() override {
    while (!may_run.load()) std::this_thread::yield();
    ran.store(true);
  }
  std::atomic<bool> may_run{true};
  std::atomic<bool> ran{false};
};

TEST(CrewTest, RunsTasks) {
  Crew crew(2);
  std::vector<std::unique_ptr<Counted>> tasks;
  for (int i = 0; i < 1000; ++i) {
    tasks.push_back(std::make_unique<Counted>());
    crew.Post(tasks.back().get());
    // Often enough that the threads fall asleep in between.
    if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const auto& task : tasks) {
    while (!task->ran.load()) std::this_thread::yield();
  }
}

TEST(CrewTest, TakesBackWhatHasNotBegun) {
  Crew crew(1);
  Counted first;
  first.may_run = false;
  Counted second;
  crew.Post(&first);
  while (crew.TakeBack(&first)) crew.Post(&first);  // Until the thread has it.
  crew.Post(&second);
  EXPECT_TRUE(crew.TakeBack(&second));
  EXPECT_FALSE(crew.TakeBack(&second));
  EXPECT_FALSE(crew.TakeBack(&first));
  first.may_run = true;
  while (!first.ran.load()) std::this_thread::yield();
  EXPECT_FALSE(second.ran.load());
}

}  // namespace
}  // namespace tryst
