#include "server/repeating.h"

#include <vector>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

// Keeps the alarms that were set; the test runs them itself.
class KeptAlarms final : public Alarms {
 public:
  Token Set(Deadline, Callback callback) override {
    callbacks.push_back(std::move(callback));
    return callbacks.size();
  }
  bool Cancel(Token) override {
    ++cancelled;
    return false;  // Too late to cancel: it is about to run.
  }
  const Clock& clock() const override { return clock_; }

  std::vector<Callback> callbacks;
  int cancelled = 0;

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

}  // namespace
}  // namespace tryst
