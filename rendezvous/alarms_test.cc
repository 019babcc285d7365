#include "rendezvous/alarms.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/alarm_queue.h"
#include "rendezvous/thread_alarms.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

TEST(AlarmQueueTest, ATokenOfAnAlarmThatNeverWasRemovesNothing) {
  AlarmQueue queue;
  Alarms::Callback callback;
  EXPECT_FALSE(queue.Remove(0, &callback));
  const Alarms::Token first = queue.Push(Deadline::AtNs(1), [] {});
  EXPECT_FALSE(queue.Remove(first + 1, &callback));
  EXPECT_TRUE(queue.Remove(first, &callback));
  EXPECT_FALSE(queue.Remove(first, &callback)) << "it was removed";
}

TEST(VirtualAlarms, FireInOrderEachAtItsMoment) {
  VirtualAlarms alarms;
  const int64_t start_ns = alarms.NowNs();
  std::vector<int64_t> fired;
  for (const int64_t after_ns : {30, 10, 20, 10}) {
    EXPECT_NE(alarms.Set(Deadline::AtNs(start_ns + after_ns),
                         [&] { fired.push_back(alarms.NowNs() - start_ns); }),
              Alarms::kNoToken);
  }
  EXPECT_EQ(alarms.Set(Deadline::Never(), [] { FAIL(); }), Alarms::kNoToken);
  alarms.AdvanceTo(start_ns + 9);
  EXPECT_TRUE(fired.empty());
  alarms.AdvanceTo(start_ns + 25);
  EXPECT_EQ(fired, (std::vector<int64_t>{10, 10, 20}));
  alarms.AdvanceBy(absl::Seconds(1));
  EXPECT_EQ(fired.size(), 4u);
}

TEST(VirtualAlarms, ThoseOfOneMomentFireAsTheyWereSet) {
  VirtualAlarms alarms;
  const Deadline at = Deadline::AtNs(alarms.NowNs() + 10);
  std::vector<int> fired;
  for (int i = 0; i < 20; ++i) alarms.Set(at, [&fired, i] { fired.push_back(i); });
  alarms.AdvanceBy(absl::Nanoseconds(10));
  ASSERT_EQ(fired.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(fired[static_cast<size_t>(i)], i);
}

TEST(VirtualAlarms, ACallbackMaySetAndCancel) {
  VirtualAlarms alarms;
  int fired = 0;
  const Alarms::Token victim = alarms.Set(Deadline::AtNs(alarms.NowNs() + 20), [] { FAIL(); });
  const Alarms::Token first = alarms.Set(Deadline::AtNs(alarms.NowNs() + 10), [&] {
    ++fired;
    EXPECT_TRUE(alarms.Cancel(victim));
    EXPECT_NE(alarms.Set(Deadline::AtNs(alarms.NowNs()), [&] { ++fired; }), Alarms::kNoToken);
  });
  alarms.AdvanceBy(absl::Nanoseconds(15));
  EXPECT_EQ(fired, 2);
  EXPECT_FALSE(alarms.Cancel(first));
}

TEST(VirtualAlarms, KeepTheirHeapUnderRandomSetAndCancel) {
  std::mt19937_64 random(1);
  VirtualAlarms alarms;
  std::vector<std::pair<Alarms::Token, int64_t>> set;
  int64_t last_ns = 0;
  size_t expected = 0, fired = 0;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 3 != 0 || set.empty()) {
      const int64_t at_ns = alarms.NowNs() + 1 + random() % 1000;
      set.push_back({alarms.Set(Deadline::AtNs(at_ns),
                                [&, at_ns] {
                                  EXPECT_GE(at_ns, last_ns);
                                  last_ns = at_ns;
                                  ++fired;
                                }),
                     at_ns});
      ++expected;
    } else {
      std::swap(set[random() % set.size()], set.back());
      if (alarms.Cancel(set.back().first)) --expected;
      set.pop_back();
    }
    if (random() % 50 == 0) alarms.AdvanceBy(absl::Nanoseconds(random() % 300));
  }
  alarms.AdvanceBy(absl::Seconds(1));
  EXPECT_EQ(fired, expected);
  EXPECT_EQ(alarms.size(), 0u);
}

TEST(ThreadAlarms, FiresSoonAfterAndNotBefore) {
  ThreadAlarms alarms;
  std::atomic<int64_t> fired_ns{0};
  const int64_t late_ns = alarms.clock().NowNs() + 3'600'000'000'000;
  const Alarms::Token late = alarms.Set(Deadline::AtNs(late_ns), [] { FAIL(); });
  const int64_t at_ns = alarms.clock().NowNs() + 5'000'000;
  EXPECT_NE(alarms.Set(Deadline::AtNs(at_ns), [&] { fired_ns = alarms.clock().NowNs(); }),
            Alarms::kNoToken);
  while (fired_ns == 0) std::this_thread::yield();
  EXPECT_GE(fired_ns, at_ns);
  EXPECT_TRUE(alarms.Cancel(late));
}

TEST(ThreadAlarms, EachAlarmFiresOrIsCancelledNeverBoth) {
  std::atomic<int> ended{0};
  {
    ThreadAlarms alarms;
    for (int i = 0; i < 2000; ++i) {
      const Alarms::Token token =
          alarms.Set(Deadline::AtNs(alarms.clock().NowNs() + i % 7 * 1000), [&] { ++ended; });
      if (i % 2 == 0 && alarms.Cancel(token)) ++ended;
    }
    while (ended < 2000) std::this_thread::yield();
  }
  EXPECT_EQ(ended, 2000);
}

int64_t CpuUs() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * int64_t{1'000'000} +
         usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

TEST(ThreadAlarms, UsesNoCpuWhenIdle) {
  ThreadAlarms alarms;
  const Alarms::Token token =
      alarms.Set(Deadline::After(alarms.clock(), absl::Hours(1)), [] { FAIL(); });
  const int64_t before_us = CpuUs();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(CpuUs() - before_us, 20'000);
  EXPECT_TRUE(alarms.Cancel(token));
}

TEST(ThreadAlarms, WhatIsNeverDueIsNotKept) {
  ThreadAlarms alarms;  // When it goes, none may be set.
  EXPECT_EQ(alarms.Set(Deadline::Never(), [] { FAIL(); }), Alarms::kNoToken);
}

}  // namespace
}  // namespace tryst
