#include "base/crew.h"

#include <pthread.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
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
    Crew crew(threads, &Crew::Never);
    for (const uint64_t bytes : {0, 1, 999, 1000, 1001, 5000, 64'001}) {
      CheckShare(&crew, bytes, 1000);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CrewTest, HasSeveralCallers) {
  Crew crew(2, &Crew::Never);
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
  Crew crew(3, &Crew::Never);
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

// No thread can be started, as where the limit of processes is reached.
TEST(CrewTest, WorksAloneWhereNoThreadCanBeStarted) {
  pthread_attr_t usual;
  pthread_attr_t impossible;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&impossible), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&impossible, size_t{1} << 46), 0);
  Crew crew(3, &Crew::Never);
  ASSERT_EQ(pthread_setattr_default_np(&impossible), 0);
  CheckShare(&crew, 10'000, 1000);
  EXPECT_EQ(crew.threads(), 0u);
  EXPECT_FALSE(crew.helps()) << "it rests";
  Counted task;
  crew.Post(&task);
  EXPECT_TRUE(task.ran.load());
  EXPECT_FALSE(crew.TakeBack(&task));
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  Counted later;
  crew.Post(&later);
  while (!later.ran.load()) std::this_thread::yield();
  EXPECT_EQ(crew.threads(), 1u);
  pthread_attr_destroy(&usual);
  pthread_attr_destroy(&impossible);
}

TEST(CrewTest, RunsTasks) {
  Crew crew(2, &Crew::Never);
  std::vector<std::unique_ptr<Counted>> tasks;
  for (int i = 0; i < 1000; ++i) {
    tasks.push_back(std::make_unique<Counted>());
    crew.Post(tasks.back().get());
    // The pauses come often enough that the threads fall asleep in between.
    if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const auto& task : tasks) {
    while (!task->ran.load()) std::this_thread::yield();
  }
}

// Each look finds the thread taken off its core once more.
int64_t AlwaysTakenOff() {
  thread_local int64_t times = 0;
  return ++times;
}

TEST(CrewTest, RestsWhenItsHelpersAreTakenOffTheirCores) {
  EXPECT_FALSE(Crew(0).helps());
  Crew crew(2, &AlwaysTakenOff);
  EXPECT_TRUE(crew.helps());
  for (int rest = 0; rest < 2; ++rest) {
    while (crew.helps()) {
      Counted task;
      crew.Post(&task);
      while (!task.ran.load()) std::this_thread::yield();
      // The helper counts after the task.
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    std::atomic<uint64_t> calls{0};
    const bool rests = !crew.helps();
    crew.Share(10'000, 1000, [&](uint64_t, uint64_t) { ++calls; });
    if (rests && !crew.helps()) {
      EXPECT_EQ(calls.load(), 1u);  // The caller alone, in one go.
    }
    while (!crew.helps()) std::this_thread::yield();  // No rest is for ever.
  }
}

// Is turned while helpers look at it.
struct SharedClock final : Clock {
  int64_t NowNs() const override { return now_ns.load(); }
  std::atomic<int64_t> now_ns{1'000'000'000};
};

TEST(CrewTest, ARestThatEndsTooEarlyIsFollowedByOneOfTwiceTheTimeUpToALimit) {
  constexpr int64_t kMs = 1'000'000;
  SharedClock clock;
  Crew crew(1, &AlwaysTakenOff, &clock);
  const auto check_rest = [&](int64_t ms) {
    SCOPED_TRACE(ms);
    Counted task;
    crew.Post(&task);
    while (!task.ran.load() || crew.helps()) std::this_thread::yield();
    clock.now_ns += ms * kMs - 1;
    EXPECT_FALSE(crew.helps());
    clock.now_ns += 1;
    EXPECT_TRUE(crew.helps());
  };
  for (const int64_t ms : {20, 40, 80, 160, 320, 640, 1280, 2000, 2000}) check_rest(ms);
  clock.now_ns += 100 * kMs;
  check_rest(2000);  // It ended as long ago as makes it good, and no longer.
  clock.now_ns += 100 * kMs + 1;
  check_rest(20);
}

int64_t ProcessorUs() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * int64_t{1'000'000} +
         used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

TEST(CrewTest, HelpersThatFindNothingSleep) {
  Crew crew(2, &Crew::Never);
  CheckShare(&crew, 10'000, 1000);
  for (int64_t used = 1'000'000; used > 10'000;) {
    const int64_t before = ProcessorUs();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    used = ProcessorUs() - before;
  }
}

TEST(CrewTest, TakesBackWhatHasNotBegun) {
  Crew crew(1, &Crew::Never);
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
