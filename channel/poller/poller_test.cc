#include "channel/poller/poller.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

class FakeClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns; }
  std::atomic<int64_t> now_ns{1000};
};

struct NotingTimer final : PollerTimer {
  NotingTimer(std::vector<int>* fired, int id) : fired(fired), id(id) {}
  void OnTimer() override { fired->push_back(id); }
  std::vector<int>* fired;
  int id;
};

// Sleeps whenever it can.
PollerOptions Sleepy() {
  PollerOptions options;
  options.spin_us = 0;
  return options;
}

TEST(PollerTest, TimersFireInOrderOnceAndOnlyWhenDue) {
  FakeClock clock;
  Poller poller(&clock);
  std::vector<int> fired;
  NotingTimer a(&fired, 1), b(&fired, 2), c(&fired, 3), d(&fired, 4);
  poller.SetTimer(&a, 3000);
  poller.SetTimer(&b, 2000);
  poller.SetTimer(&c, 2500);
  poller.SetTimer(&d, 2200);
  poller.CancelTimer(&d);
  poller.SetTimer(&a, 2100);  // It is moved.
  EXPECT_FALSE(poller.Turn());
  EXPECT_EQ(poller.NextTimerNs(), 2000);
  clock.now_ns = 2100;
  EXPECT_TRUE(poller.Turn());
  EXPECT_EQ(fired, (std::vector<int>{2, 1}));
  clock.now_ns = 9000;
  poller.Turn();
  EXPECT_EQ(fired, (std::vector<int>{2, 1, 3}));
  EXPECT_FALSE(poller.Turn());
}

TEST(PollerTest, TimeForWhichItWasStoppedIsNoTimeOfItsRunning) {
  constexpr int64_t kMs = 1'000'000;
  FakeClock clock;
  Poller poller(&clock);
  std::vector<int> fired;
  NotingTimer timer(&fired, 1);
  const int64_t began_ns = clock.now_ns;
  poller.SetTimer(&timer, began_ns + 100 * kMs);
  clock.now_ns += 350 * kMs;  // Late, as on a machine with much to do.
  poller.Turn();
  EXPECT_EQ(poller.RunningSince(began_ns), 350 * kMs) << "250 ms late is not too late";
  const int64_t stopped_ns = clock.now_ns;
  poller.SetTimer(&timer, stopped_ns + 100 * kMs);
  clock.now_ns += 60'000 * kMs;
  poller.Turn();
  EXPECT_EQ(poller.RunningSince(began_ns), 450 * kMs);
  EXPECT_EQ(poller.RunningSince(stopped_ns + 99 * kMs), 1 * kMs);
  EXPECT_EQ(poller.RunningSince(stopped_ns + 50'000 * kMs), 0);
  EXPECT_EQ(poller.RunningSince(clock.now_ns), 0);
  clock.now_ns += 70 * kMs;
  poller.Turn();
  EXPECT_EQ(poller.RunningSince(began_ns), 520 * kMs);
  // A timer for a moment that has passed is not late.
  poller.SetTimer(&timer, began_ns);
  poller.Turn();
  EXPECT_EQ(poller.RunningSince(began_ns), 520 * kMs);
  EXPECT_EQ(fired.size(), 3u);
}

// A peer that is waited for meanwhile has not been silent for any of these times.
TEST(PollerTest, EachOfTheTimesForWhichItWasStoppedIsNoTimeOfItsRunning) {
  constexpr int64_t kMs = 1'000'000;
  FakeClock clock;
  Poller poller(&clock);
  std::vector<int> fired;
  NotingTimer timer(&fired, 1);
  const int64_t began_ns = clock.now_ns;
  for (int64_t stops = 1; stops <= 4; ++stops) {
    poller.SetTimer(&timer, clock.now_ns + 100 * kMs);
    clock.now_ns += 60'000 * kMs;
    poller.Turn();
    EXPECT_EQ(poller.RunningSince(began_ns), stops * 100 * kMs) << stops;
  }
}

TEST(PollerTest, HeapKeepsItsOrderUnderRandomSettingAndCancelling) {
  FakeClock clock;
  Poller poller(&clock);
  std::vector<int> fired;
  std::vector<std::unique_ptr<NotingTimer>> timers;
  uint32_t random = 12345;
  for (int i = 0; i < 500; ++i) {
    random = random * 1664525 + 1013904223;
    timers.push_back(std::make_unique<NotingTimer>(&fired, static_cast<int>(random >> 12)));
    poller.SetTimer(timers.back().get(), timers.back()->id);
    if (i % 3 == 0) poller.CancelTimer(timers[static_cast<size_t>(i / 2)].get());
  }
  size_t set = 0;
  for (const auto& timer : timers) set += timer->is_set();
  clock.now_ns = 1 << 30;
  poller.Turn();
  EXPECT_EQ(fired.size(), set);
  EXPECT_TRUE(std::is_sorted(fired.begin(), fired.end()));
}

TEST(PollerTest, TasksOfOneThreadRunInOrderOnThePollerThread) {
  SteadyClock clock;
  Poller poller(&clock);
  poller.Start();
  std::vector<int> ran;
  for (int i = 0; i < 1000; ++i) {
    poller.PostFn([&, i] {
      EXPECT_TRUE(poller.OnThread());
      ran.push_back(i);
    });
  }
  poller.RunAndWait([] {});
  ASSERT_EQ(ran.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(ran.begin(), ran.end()));
  EXPECT_FALSE(poller.OnThread());
  poller.Stop();
}

TEST(PollerTest, StopRunsWhatWasPostedBefore) {
  SteadyClock clock;
  Poller poller(&clock);
  poller.Start();
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) poller.PostFn([&] { ++ran; });
  poller.Stop();
  EXPECT_EQ(ran, 100);
}

// Somebody posts and stops it at the end of a turn that found nothing, as its clock is read.
TEST(PollerTest, StopRunsWhatWasPostedAfterTheLastTurn) {
  struct StoppedAt final : Clock {
    int64_t NowNs() const override {
      if (--reads_left == 0) at();
      return SteadyClock().NowNs();
    }
    mutable std::atomic<int> reads_left{0};
    std::function<void()> at;
  };
  for (int read = 1; read <= 6; ++read) {
    StoppedAt clock;
    Poller poller(&clock);
    std::atomic<bool> ran{false};
    std::thread stopper;
    std::atomic<bool> started{false};
    std::atomic<bool> stops{false};
    clock.at = [&] {
      while (!started) std::this_thread::yield();
      poller.PostFn([&] { ran = true; });
      stopper = std::thread([&] { poller.Stop(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      stops = true;
    };
    clock.reads_left = read;
    poller.Start();
    started = true;
    while (!stops) std::this_thread::yield();
    stopper.join();
    EXPECT_TRUE(ran) << "read " << read;
  }
}

TEST(PollerTest, NoWakeUpIsLostBetweenThreads) {
  SteadyClock clock;
  Poller poller(&clock, Sleepy());
  poller.Start();
  for (int i = 0; i < 5000; ++i) poller.RunAndWait([] {});
  poller.Stop();
}

struct CountingTask final : PollerTask {
  CountingTask(Poller* p, int64_t* ran) : poller(p), ran(ran) {}
  void RunOnPoller() override {
    EXPECT_TRUE(poller->OnThread());
    ++*ran;
    by = std::this_thread::get_id();
    done.store(true);
  }
  Poller* const poller;
  int64_t* const ran;
  std::thread::id by;
  std::atomic<bool> done{false};
};

// The thread that ran the last of several tasks, after PostToTurn() and TurnIfAsleep().
std::thread::id WhoTurns(Poller* poller) {
  int64_t ran = 0;
  std::thread::id by;
  for (int i = 0; i < 200 && by != std::this_thread::get_id(); ++i) {
    usleep(1000);  // Lets the poller fall asleep.
    CountingTask task(poller, &ran);
    poller->PostToTurn(&task);
    poller->TurnIfAsleep();
    while (!task.done.load()) std::this_thread::yield();
    by = task.by;
  }
  return by;
}

TEST(PollerTest, WhoFindsItAsleepTurns) {
  SteadyClock clock;
  Poller poller(&clock);
  poller.Start();
  EXPECT_EQ(WhoTurns(&poller), std::this_thread::get_id());
  EXPECT_FALSE(poller.OnThread());
  poller.Stop();
}

TEST(PollerTest, OneThatKeepsItsThreadIsWoken) {
  SteadyClock clock;
  PollerOptions options;
  options.keeps_its_thread = true;
  Poller poller(&clock, options);
  poller.Start();
  EXPECT_NE(WhoTurns(&poller), std::this_thread::get_id());
  poller.Stop();
}

// Notes which thread sleeps for it.
struct ArmedSource final : PollerSource {
  bool Poll() override {
    ++polls;
    return false;
  }
  void Arm() override {
    armed_by = std::this_thread::get_id();
    ++arms;
  }
  int event_fd() const override { return -1; }
  std::atomic<std::thread::id> armed_by{};
  std::atomic<int> arms{0};
  std::atomic<int> polls{0};
};

// Waits until `over`; false: in vain.
bool Wait(const std::function<bool()>& over) {
  for (int i = 0; i < 10'000 && !over(); ++i) usleep(1000);
  return over();
}

TEST(PollerTest, WhoTurnsForASleeperLeavesItAsleep) {
  SteadyClock clock;
  Poller poller(&clock, Sleepy());
  ArmedSource source;
  poller.AddSource(&source);
  poller.Start();
  bool undisturbed = false;
  for (int i = 0; i < 200 && !undisturbed; ++i) {
    undisturbed = WhoTurns(&poller) == std::this_thread::get_id();
    usleep(1000);  // The sleeper arms its sources again if it was woken.
    undisturbed = undisturbed && source.armed_by.load() == std::this_thread::get_id();
  }
  EXPECT_TRUE(undisturbed);
  poller.Stop();
  poller.RemoveSource(&source);
}

// Its thread spins on a clock that the test turns.
class SpinningPollerTest : public ::testing::Test {
 protected:
  SpinningPollerTest() {
    poller_.AddSource(&source_);
    poller_.Start();
  }
  ~SpinningPollerTest() override {
    poller_.Stop();
    poller_.RemoveSource(&source_);
  }
  // Whether it takes further turns without falling asleep.
  bool SpinsOn() {
    const int before = source_.polls;
    return Wait([&] { return source_.polls > before + 100; });
  }

  FakeClock clock_;
  Poller poller_{&clock_};
  ArmedSource source_;
};

TEST_F(SpinningPollerTest, ItSpinsAnewAfterASleep) {
  ASSERT_TRUE(SpinsOn());
  clock_.now_ns += 1'000'000;
  ASSERT_TRUE(Wait([&] { return source_.arms == 1; })) << "its spin is over";
  poller_.RunAndWait([] {});
  EXPECT_TRUE(SpinsOn());
  EXPECT_EQ(source_.arms, 1) << "no time has passed";
  clock_.now_ns += 1'000'000;
}

TEST_F(SpinningPollerTest, ItSpinsAnewAfterWork) {
  constexpr int64_t kPartOfASpinNs = 30'000;
  ASSERT_TRUE(SpinsOn());
  clock_.now_ns += kPartOfASpinNs;
  poller_.RunAndWait([] {});
  ASSERT_TRUE(SpinsOn());
  clock_.now_ns += kPartOfASpinNs;
  EXPECT_TRUE(SpinsOn()) << "its last work was less than a spin ago";
  EXPECT_EQ(source_.arms, 0);
  clock_.now_ns += kPartOfASpinNs;
  EXPECT_TRUE(Wait([&] { return source_.arms == 1; }));
}

TEST_F(SpinningPollerTest, ATaskForOneThatIsAwakeDoesNotEndItsNextSleep) {
  ASSERT_TRUE(SpinsOn());
  poller_.RunAndWait([] {});
  ASSERT_TRUE(SpinsOn());
  clock_.now_ns += 1'000'000;
  ASSERT_TRUE(Wait([&] { return source_.arms == 1; })) << "its spin is over";
  const int before = source_.polls;
  usleep(20'000);
  EXPECT_LE(source_.polls, before + 1) << "it was woken, and spins as no time passes";
}

// What the process uses of its processors in `wait_us`.
int64_t UsedUsIn(useconds_t wait_us) {
  const auto used_us = [] {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * int64_t{1'000'000} +
           used.ru_utime.tv_usec + used.ru_stime.tv_usec;
  };
  const int64_t before_us = used_us();
  usleep(wait_us);
  return used_us() - before_us;
}

TEST(PollerTest, ATimerSetWhileItSleepsFires) {
  SteadyClock clock;
  Poller poller(&clock, Sleepy());
  std::atomic<int> fired{0};
  struct Timer final : PollerTimer {
    void OnTimer() override { ++*fired; }
    std::atomic<int>* fired = nullptr;
  } timer;
  timer.fired = &fired;
  struct Task final : PollerTask {
    void RunOnPoller() override { poller->SetTimer(timer, poller->now_ns() + 2'000'000); }
    Poller* poller = nullptr;
    PollerTimer* timer = nullptr;
  } task;
  task.poller = &poller;
  task.timer = &timer;
  poller.Start();
  for (int i = 1; i <= 20; ++i) {
    usleep(1000);
    poller.PostToTurn(&task);
    poller.TurnIfAsleep();
    for (int waited = 0; fired.load() < i && waited < 5000; ++waited) usleep(1000);
    ASSERT_EQ(fired.load(), i);
  }
  EXPECT_LT(UsedUsIn(300'000), 10'000) << "whoever was woken sleeps again";
  poller.Stop();
}

TEST(PollerTest, ManyThatTurnAreOneThreadAtATime) {
  SteadyClock clock;
  Poller poller(&clock, Sleepy());
  poller.Start();
  int64_t ran = 0;  // Not atomic, because only the poller thread uses it.
  constexpr int kTasks = 3000;
  const auto turn = [&] {
    for (int i = 0; i < kTasks; ++i) {
      CountingTask task(&poller, &ran);
      poller.PostToTurn(&task);
      poller.TurnIfAsleep();
      while (!task.done.load()) std::this_thread::yield();
    }
  };
  std::thread one(turn), two(turn);
  for (int i = 0; i < kTasks; ++i) poller.RunAndWait([&] { ++ran; });
  one.join();
  two.join();
  poller.Stop();
  EXPECT_EQ(ran, 3 * kTasks);
}

TEST(PollerTest, IdleThreadUsesNoProcessor) {
  SteadyClock clock;
  Poller poller(&clock);
  poller.Start();
  poller.RunAndWait([] {});
  usleep(20'000);
  EXPECT_LT(UsedUsIn(300'000), 10'000);
  poller.Stop();
}

TEST(PollerSpinTest, ShrinksAsItFailsAndComesBackWhenItPays) {
  PollerSpin spin(20'000);
  EXPECT_EQ(spin.ns(), 20'000);
  spin.Failed();
  EXPECT_EQ(spin.ns(), 10'000);
  for (int i = 0; i < 5; ++i) spin.Failed();
  EXPECT_EQ(spin.ns(), 0);
  int tries = 0;
  int64_t spent_ns = 0;
  for (int i = 0; i < 160; ++i) {
    tries += spin.ns() == 20'000 ? 1 : 0;
    spent_ns += spin.ns();
    spin.Failed();
  }
  EXPECT_EQ(tries, 3);  // After 16, 32 and 64 more.
  EXPECT_LT(spent_ns, 160 * 20'000 / 20);
  spin.Paid();
  EXPECT_EQ(spin.ns(), 20'000);
  for (int i = 0; i < 16; ++i) spin.Failed();
  EXPECT_EQ(spin.ns(), 20'000);
}

struct CountingFlush final : PollerFlush {
  void Flush() override { ++count; }
  int count = 0;
};

// Has work in every poll, up to so many.
struct CountedSource final : PollerSource {
  CountedSource(int most, Sight sight) : most(most), sight(sight) {}
  bool Poll() override { return polls.fetch_add(1) + 1 < most; }
  Sight Glance() override { return sight; }
  void Arm() override {}
  int event_fd() const override { return -1; }
  const int most;
  const Sight sight;
  std::atomic<int> polls{0};
};

// A poll of others costs system calls, and here no time passes in which they could get work.
TEST(PollerTest, WhileWorkIsInSightOtherSourcesAreNotPolled) {
  constexpr int kPolls = 1000;
  FakeClock clock;
  Poller poller(&clock);
  CountedSource seen(kPolls, PollerSource::Sight::kWork);
  CountedSource blind(0, PollerSource::Sight::kBlind);
  poller.AddSource(&seen);
  poller.AddSource(&blind);
  poller.Start();
  while (seen.polls < kPolls) std::this_thread::yield();
  EXPECT_LT(blind.polls, kPolls / 10);
  poller.Stop();
  poller.RemoveSource(&seen);
  poller.RemoveSource(&blind);
}

TEST(PollerTest, FlushesOncePerTurnHoweverOftenAsked) {
  FakeClock clock;
  Poller poller(&clock);
  CountingFlush flush;
  poller.FlushThisTurn(&flush);
  poller.FlushThisTurn(&flush);
  poller.Turn();
  EXPECT_EQ(flush.count, 1);
  poller.FlushThisTurn(&flush);
  poller.ForgetFlush(&flush);
  poller.Turn();
  EXPECT_EQ(flush.count, 1);
  poller.FlushThisTurn(&flush);
  poller.Turn();
  EXPECT_EQ(flush.count, 2) << "it may ask again";
}

// Ends another in the middle of the flushes, like a channel that takes a second one down with it.
struct ForgettingFlush final : PollerFlush {
  void Flush() override { poller->ForgetFlush(other); }
  Poller* poller = nullptr;
  PollerFlush* other = nullptr;
};

TEST(PollerTest, AFlushMayForgetTheNextOfItsTurn) {
  FakeClock clock;
  Poller poller(&clock);
  CountingFlush forgotten, last;
  ForgettingFlush first;
  first.poller = &poller;
  first.other = &forgotten;
  poller.FlushThisTurn(&first);
  poller.FlushThisTurn(&forgotten);
  poller.FlushThisTurn(&last);
  poller.Turn();
  EXPECT_EQ(forgotten.count, 0) << "it may have been destroyed";
  EXPECT_EQ(last.count, 1);
  poller.FlushThisTurn(&forgotten);
  poller.Turn();
  EXPECT_EQ(forgotten.count, 1);
}

// Against a list that is sorted anew each time.
TEST(PollerTimersTest, FireInTheOrderOfTheirTimesWhateverIsMovedOrCancelled) {
  struct Noted final : PollerTimer {
    void OnTimer() override { fired->push_back(at_ns); }
    int64_t at_ns = 0;
    std::vector<int64_t>* fired = nullptr;
  };
  std::mt19937 random(20261126);
  std::vector<int64_t> fired;
  std::vector<Noted> timers(12);
  PollerTimers queue;
  for (Noted& timer : timers) timer.fired = &fired;
  for (int round = 0; round < 300; ++round) {
    for (int step = 0; step < 30; ++step) {
      Noted& timer = timers[random() % timers.size()];
      if (random() % 3 == 0) {
        queue.Cancel(&timer);
        EXPECT_FALSE(timer.is_set());
      } else {
        timer.at_ns = static_cast<int64_t>(random() % 100);
        queue.Set(&timer, timer.at_ns);
        EXPECT_TRUE(timer.is_set());
      }
    }
    std::vector<int64_t> due, later;
    for (const Noted& timer : timers) {
      if (timer.is_set()) (timer.at_ns <= 50 ? due : later).push_back(timer.at_ns);
    }
    std::sort(due.begin(), due.end());
    fired.clear();
    queue.RunUntil(50);
    ASSERT_EQ(fired, due) << "round " << round;
    ASSERT_EQ(queue.NextNs(), later.empty() ? std::numeric_limits<int64_t>::max()
                                            : *std::min_element(later.begin(), later.end()));
  }
  for (Noted& timer : timers) queue.Cancel(&timer);
}

TEST(PollerStopTest, OneWithoutAThreadMayBeStopped) {
  const SteadyClock clock;
  Poller poller(&clock);
  poller.Stop();
  poller.Start();
  poller.Stop();
  poller.Stop();
}

}  // namespace
}  // namespace tryst
