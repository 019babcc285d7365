#include "rendezvous/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace tryst {
namespace {

TEST(InlineExecutor, RunsInTheCall) {
  InlineExecutor executor;
  int ran = 0;
  executor.Run([&] { ++ran; });
  Executor::Work work = [&] { ++ran; };
  EXPECT_TRUE(executor.TryRun(&work));
  EXPECT_EQ(ran, 2);
}

TEST(ThreadPoolExecutor, RunsEverythingBeforeItGoes) {
  std::atomic<int> ran{0};
  {
    ThreadPoolExecutor executor(2, 4);
    for (int i = 0; i < 1000; ++i) executor.Run([&] { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

// Holds a thread of the pool until told.
struct Plug {
  std::atomic<bool> in{false};
  std::atomic<bool> out{false};
  void Hold() {
    in = true;
    while (!out) std::this_thread::yield();
  }
};

TEST(ThreadPoolExecutor, IsIdleWhenTheLastHasReturned) {
  using std::chrono::steady_clock;
  Plug plug;
  std::atomic<bool> second{false};
  ThreadPoolExecutor executor(1, 4);
  EXPECT_TRUE(executor.WaitIdle(steady_clock::now()));
  executor.Run([&] { plug.Hold(); });
  executor.Run([&] { second = true; });
  while (!plug.in) std::this_thread::yield();
  EXPECT_FALSE(executor.WaitIdle(steady_clock::now() + std::chrono::milliseconds(10)));
  plug.out = true;
  EXPECT_TRUE(executor.WaitIdle(steady_clock::now() + std::chrono::minutes(1)));
  EXPECT_TRUE(second);
  Plug last;  // It runs alone.
  executor.Run([&] { last.Hold(); });
  while (!last.in) std::this_thread::yield();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    last.out = true;
  });
  EXPECT_TRUE(executor.WaitIdle(steady_clock::now() + std::chrono::minutes(1)));
  later.join();
}

// Traffic that never ends and brings the executor no work.
struct BusySource : WorkSource {
  std::atomic<bool> turned{false};
  void TurnUntil(const std::atomic<bool>& wanted) override {
    turned = true;
    while (!wanted) std::this_thread::yield();
    turned = false;
  }
};

TEST(ThreadPoolExecutor, WorkMayWaitForLaterWorkWhileAllThreadsTurnSources) {
  BusySource sources[2];
  ThreadPoolExecutor executor(2, 16);
  executor.SetSources({&sources[0], &sources[1]});
  // A thread looks at the sources when it wakes.
  for (int i = 0; i < 100; ++i) {
    while (!sources[0].turned || !sources[1].turned) {
      executor.Run([] {});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::atomic<bool> second{false};
    std::atomic<bool> first{false};
    executor.Run([&] {
      while (!second) std::this_thread::yield();
      first = true;
    });
    executor.Run([&] { second = true; });
    while (!first) std::this_thread::yield();
  }
  executor.SetSources({});
}

TEST(ThreadPoolExecutor, TryRunLeavesTheWorkWhenFull) {
  Plug plug;
  std::atomic<int> ran{0};
  ThreadPoolExecutor executor(1, 1);
  executor.Run([&] { plug.Hold(); });
  while (!plug.in) std::this_thread::yield();
  executor.Run([&] { ++ran; });
  Executor::Work work = [&] { ran += 10; };
  EXPECT_FALSE(executor.TryRun(&work));
  EXPECT_EQ(executor.queued(), 1u);
  std::move(work)();
  EXPECT_EQ(ran, 10) << "the work is whole";
  plug.out = true;
}

TEST(ThreadPoolExecutor, ItsOwnThreadNeverWaitsForItself) {
  std::atomic<int> ran{0};
  {
    ThreadPoolExecutor executor(1, 1);
    executor.Run([&] {
      for (int i = 0; i < 10; ++i) executor.Run([&] { ++ran; });
    });
  }
  EXPECT_EQ(ran, 10);
}

TEST(ThreadPoolExecutor, RunWaitsForRoom) {
  Plug plug;
  std::atomic<int> ran{0};
  {
    ThreadPoolExecutor executor(1, 1);
    executor.Run([&] { plug.Hold(); });
    while (!plug.in) std::this_thread::yield();
    executor.Run([&] { ++ran; });
    std::thread waiter([&] { executor.Run([&] { ++ran; }); });
    plug.out = true;
    waiter.join();
  }
  EXPECT_EQ(ran, 2);
}

// When told, brings two works in one turn, like a poller in whose turn two fetches end.
struct BringingSource : WorkSource {
  std::atomic<bool> turned{false};
  std::atomic<bool> bring{false};
  Executor* executor = nullptr;
  Executor::Work first, second;
  void TurnUntil(const std::atomic<bool>& wanted) override {
    turned = true;
    while (!wanted) {
      if (bring.exchange(false)) {
        executor->RunWithoutWaiting(std::move(first));
        executor->RunWithoutWaiting(std::move(second));
      }
      std::this_thread::yield();
    }
    turned = false;
  }
};

// Brings two works, of which the second finds no room.
struct CrowdedSource : WorkSource {
  std::atomic<bool> turned{false};
  std::atomic<bool> bring{false};
  std::atomic<bool> brought{false};
  std::atomic<int> ran_inside{0};
  Executor* executor = nullptr;
  void TurnUntil(const std::atomic<bool>& wanted) override {
    turned = true;
    for (; !wanted; std::this_thread::yield()) {
      if (!bring.exchange(false)) continue;
      const auto turner = std::this_thread::get_id();
      for (int i = 0; i < 2; ++i) {
        executor->Run(
            [this, turner] { ran_inside += !brought && std::this_thread::get_id() == turner; });
      }
      brought = true;
    }
    turned = false;
  }
};

// It may wait for what its source has to do first.
TEST(ThreadPoolExecutor, NoWorkRunsInsideTheTurnOfItsSource) {
  using std::chrono::steady_clock;
  CrowdedSource source;
  ThreadPoolExecutor executor(2, 1);
  source.executor = &executor;
  executor.SetSources({&source});
  std::atomic<bool> go_on{false};
  executor.Run([&go_on] {
    while (!go_on) std::this_thread::yield();
  });
  // The other thread may have begun to wait before there was a source.
  while (!source.turned) {
    executor.Run([] {});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  source.bring = true;
  while (executor.queued() == 0) std::this_thread::yield();
  // The second is not taken while the queue is full; a work that ran inside would be over by then.
  const auto until = steady_clock::now() + std::chrono::milliseconds(50);
  while (!source.brought && steady_clock::now() < until) std::this_thread::yield();
  go_on = true;
  while (!source.brought) std::this_thread::yield();
  EXPECT_TRUE(executor.WaitIdle(steady_clock::now() + std::chrono::minutes(1)));
  executor.SetSources({});
  EXPECT_EQ(source.ran_inside, 0);
}

TEST(ThreadPoolExecutor, WorkMayWaitForTheNextThatItsSourceBrought) {
  using std::chrono::steady_clock;
  BringingSource bringing;
  BusySource busy;
  ThreadPoolExecutor executor(2, 16);
  bringing.executor = &executor;
  executor.SetSources({&bringing, &busy});
  for (int i = 0; i < 20; ++i) {
    // A thread that is woken looks at the sources, if it finds nothing more to run.
    while (!bringing.turned || !busy.turned) {
      executor.Run([] {});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const auto until = steady_clock::now() + std::chrono::seconds(20);
    std::atomic<bool> came{false};
    std::atomic<int> ran{0};
    std::atomic<bool> late{false};
    bringing.first = [&] {
      while (!came && steady_clock::now() < until) std::this_thread::yield();
      late = !came;
      ++ran;
    };
    bringing.second = [&] {
      came = true;
      ++ran;
    };
    bringing.bring = true;
    while (ran < 2) std::this_thread::yield();
    ASSERT_FALSE(late) << "the first waited for the second, which no thread took, in round " << i;
  }
  executor.SetSources({});
}

// Writes down that it is turned, and brings work a few times.
struct NotedSource : WorkSource {
  void TurnUntil(const std::atomic<bool>&) override {
    const int turn = (*turns)++;
    if (turn >= kMost) return;
    order[turn] = this;
    if (turn == 0) return;  // What is turned first has nothing.
    if (this != order[0]) executor->Run([] {});
  }
  static constexpr int kMost = 4;
  ThreadPoolExecutor* executor = nullptr;
  std::atomic<int>* turns = nullptr;
  WorkSource** order = nullptr;
};

// A source that has brought work is likely to bring more.
TEST(ThreadPoolExecutor, AThreadTurnsFirstWhatHasBroughtItWork) {
  Plug plug;
  NotedSource sources[2];
  std::atomic<int> turns{0};
  WorkSource* order[NotedSource::kMost] = {};
  ThreadPoolExecutor executor(2, 16);
  for (NotedSource& source : sources) {
    source.executor = &executor;
    source.turns = &turns;
    source.order = order;
  }
  executor.Run([&] { plug.Hold(); });  // One thread is left.
  while (!plug.in) std::this_thread::yield();
  executor.SetSources({&sources[0], &sources[1]});
  executor.Run([] {});  // It looks at the sources when it has run something.
  while (turns < NotedSource::kMost) std::this_thread::yield();
  executor.SetSources({});
  plug.out = true;
  EXPECT_NE(order[1], order[0]);
  EXPECT_EQ(order[2], order[1]);
  EXPECT_EQ(order[3], order[1]);
}

// More sources than threads: whoever leaves one must not begin the next, which nobody ends.
TEST(ThreadPoolExecutor, NoSourceIsBegunOnceAllAreTakenAway) {
  using std::chrono::steady_clock;
  struct Patient : WorkSource {
    void TurnUntil(const std::atomic<bool>& wanted) override {
      turned = true;
      const auto until = steady_clock::now() + std::chrono::seconds(20);
      while (!wanted && steady_clock::now() < until) std::this_thread::yield();
      turned = false;
    }
    std::atomic<bool> turned{false};
  };
  Patient sources[3];
  ThreadPoolExecutor executor(2, 16);
  executor.SetSources({&sources[0], &sources[1], &sources[2]});
  // A thread looks at the sources when it wakes, and both are to have one.
  while (sources[0].turned + sources[1].turned + sources[2].turned < 2) {
    executor.Run([] {});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto began = steady_clock::now();
  executor.SetSources({});
  EXPECT_LT(steady_clock::now() - began, std::chrono::seconds(10));
}

}  // namespace
}  // namespace tryst
