#include "server/members/repeating.h"

#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

// Keeps the alarms that were set; the test runs them itself.
class KeptAlarms final : public Alarms {
 public:
  Token Set(Deadline at, Callback callback) override {
    last_ns = at.at_ns();
    callbacks.push_back(std::move(callback));
    return callbacks.size();
  }
  bool Cancel(Token) override {
    ++cancelled;
    return in_time;  // False: it is about to run.
  }
  const Clock& clock() const override { return clock_; }

  std::vector<Callback> callbacks;
  std::atomic<int> cancelled{0};
  bool in_time = false;
  int64_t last_ns = 0;

 private:
  SteadyClock clock_;
};

TEST(RepeatingTest, CallsAgainAfterEachCall) {
  KeptAlarms alarms;
  int calls = 0;
  Repeating repeating(absl::Seconds(1), &alarms, [&] { ++calls; });
  for (int i = 1; i <= 3; ++i) {
    ASSERT_EQ(alarms.callbacks.size(), static_cast<size_t>(i));
    std::move(alarms.callbacks.back())();
    EXPECT_EQ(calls, i);
  }
}

TEST(RepeatingTest, WhatIsAboutToRunWhenItEndsDoesNothing) {
  KeptAlarms alarms;
  int calls = 0;
  auto repeating = std::make_unique<Repeating>(absl::Seconds(1), &alarms, [&] { ++calls; });
  repeating.reset();
  EXPECT_EQ(alarms.cancelled, 1);
  ASSERT_EQ(alarms.callbacks.size(), 1U);
  std::move(alarms.callbacks.back())();
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(alarms.callbacks.size(), 1U);  // It has not set another alarm either.
}

TEST(RepeatingTest, ACallDuringWhichItEndsIsTheLast) {
  KeptAlarms alarms;
  std::atomic<bool> called{false};
  auto repeating = std::make_unique<Repeating>(absl::Seconds(1), &alarms, [&] {
    called = true;
    while (alarms.cancelled == 0) std::this_thread::yield();
  });
  std::thread caller(std::move(alarms.callbacks.back()));
  while (!called) std::this_thread::yield();
  repeating.reset();
  caller.join();
  EXPECT_EQ(alarms.callbacks.size(), 1U);
}

TEST(RepeatingTest, TheNextCallMayComeSooner) {
  KeptAlarms alarms;
  int calls = 0;
  Repeating repeating(absl::Hours(1), &alarms, [&] { ++calls; });
  repeating.Soon();
  EXPECT_EQ(alarms.callbacks.size(), 1U) << "it is about to run anyway";
  alarms.in_time = true;
  repeating.Soon();
  ASSERT_EQ(alarms.callbacks.size(), 2U);
  EXPECT_LT(alarms.last_ns, SteadyClock().NowNs() + 1);
  std::move(alarms.callbacks.back())();
  EXPECT_EQ(calls, 1);
  ASSERT_EQ(alarms.callbacks.size(), 3U);
  EXPECT_GT(alarms.last_ns, SteadyClock().NowNs() + int64_t{3'000'000'000'000});
}

}  // namespace
}  // namespace tryst
