#include "channel/rdma/serve_leftovers.h"

#include <optional>
#include <utility>

#include "base/turned_clock.h"
#include "channel/poller/poller.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

class ServeLeftoversTest : public ::testing::Test {
 protected:
  // Says in `released` that its bytes were given back.
  static StorageRef Noticed(bool* released) {
    static uint8_t bytes[8];
    return Tensor::Adopt(bytes, DType::kUint8, {8}, MemorySpace(), [released] { *released = true; })
        ->TakeStorage();
  }

  TurnedClock clock_;
  Poller poller_{&clock_};
  std::optional<ServeLeftovers> leftovers_{&poller_};
};

TEST_F(ServeLeftoversTest, WhatWasAcceptedIsReleasedAfterTheAnswersOfItsTurn) {
  bool released = false;
  leftovers_->Retire(Noticed(&released));
  poller_.Turn();
  EXPECT_FALSE(released) << "the answers were not sent";
  leftovers_->OnAnswersSent();
  EXPECT_FALSE(released);
  poller_.Turn();
  EXPECT_TRUE(released);
}

TEST_F(ServeLeftoversTest, WhatWasAcceptedIsReleasedWhenTheLinkBreaks) {
  bool released = false;
  leftovers_->Retire(Noticed(&released));
  leftovers_->OnBroken();
  EXPECT_TRUE(released);
}

// The next one lies where it lay.
TEST_F(ServeLeftoversTest, ThePollerForgetsOneThatEndsBeforeTheTurn) {
  bool released = false;
  leftovers_->Retire(Noticed(&released));
  leftovers_->OnAnswersSent();
  leftovers_.reset();
  EXPECT_TRUE(released);
  leftovers_.emplace(&poller_);
  bool others = false;
  leftovers_->Retire(Noticed(&others));
  poller_.Turn();
  EXPECT_FALSE(others) << "the poller has called one that is gone";
  leftovers_.reset();  // Which says so in `others`.
}

}  // namespace
}  // namespace tryst
