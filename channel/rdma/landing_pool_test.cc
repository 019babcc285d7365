#include "channel/rdma/landing_pool.h"

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "verbs/sim/sim_nic.h"
#include "verbs/sim/sim_world.h"

namespace tryst {
namespace {

using For = LandingPool::For;
constexpr uint64_t kEach = 4096;
constexpr uint64_t kMost = 16;

class LandingPoolTest : public ::testing::Test {
 protected:
  LandingPoolTest()
      : world_(1),
        pool_(std::make_shared<LandingPool>(
            std::shared_ptr<Nic>(world_.OpenNic(0, SimNicOptions())), kMost * kEach)) {}
  std::vector<StorageRef> TakeAll(For what) {
    std::vector<StorageRef> all;
    for (;;) {
      StorageRef one = pool_->Take(kEach, what, 0);
      if (!one) return all;
      all.push_back(std::move(one));
    }
  }

  SimWorld world_;
  std::shared_ptr<LandingPool> pool_;
};

TEST_F(LandingPoolTest, HalfIsKeptFromThoseWhoWaitForASend) {
  const std::vector<StorageRef> waiting = TakeAll(For::kWaiting);
  EXPECT_EQ(waiting.size(), kMost / 2);
  EXPECT_EQ(pool_->waiting_bytes(), kMost / 2 * kEach);
  EXPECT_EQ(TakeAll(For::kReady).size(), kMost / 2);
}

TEST_F(LandingPoolTest, WhatHasComeIsNotWaitedForAnyMore) {
  const std::vector<StorageRef> waiting = TakeAll(For::kWaiting);
  pool_->EndWaiting(kEach);
  EXPECT_EQ(pool_->waiting_bytes(), (kMost / 2 - 1) * kEach);
  EXPECT_EQ(TakeAll(For::kWaiting).size(), 1u);
}

TEST_F(LandingPoolTest, NothingIsLentAheadWhileAFetchWaitsForRoom) {
  EXPECT_FALSE(pool_->BeginWaitForRoom());
  EXPECT_TRUE(TakeAll(For::kWaiting).empty());
  EXPECT_FALSE(pool_->TakeBudget(kEach, For::kWaiting));
  EXPECT_TRUE(pool_->TakeBudget(kEach, For::kReady));
  EXPECT_TRUE(pool_->BeginWaitForRoom()) << "one waits already";
  pool_->EndWaitForRoom();
  EXPECT_TRUE(TakeAll(For::kWaiting).empty());
  pool_->EndWaitForRoom();
  EXPECT_EQ(TakeAll(For::kWaiting).size(), kMost / 2);
  pool_->GiveBudget(kEach, For::kReady);
}

TEST_F(LandingPoolTest, ARegistrationThatIsRefusedTakesNoRoom) {
  world_.FailRegistrations(0, 3);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(pool_->Take(kEach, For::kWaiting, 0));
  EXPECT_EQ(pool_->pinned_bytes(), 0u);
  EXPECT_EQ(pool_->in_use_bytes(), 0u);
  EXPECT_EQ(pool_->waiting_bytes(), 0u);
  EXPECT_EQ(TakeAll(For::kReady).size(), kMost);
}

TEST_F(LandingPoolTest, WhoWasRefusedHearsOfRoom) {
  int told = 0;
  pool_->SetRoomCallback([&] { ++told; });
  std::vector<StorageRef> all = TakeAll(For::kReady);
  ASSERT_EQ(all.size(), kMost);
  EXPECT_EQ(told, 0);
  all.pop_back();
  EXPECT_EQ(told, 1);
  all.pop_back();
  EXPECT_EQ(told, 1) << "nobody was refused since";
  EXPECT_TRUE(pool_->TakeBudget(2 * kEach, For::kReady));
  EXPECT_FALSE(pool_->TakeBudget(kEach, For::kReady));
  pool_->GiveBudget(2 * kEach, For::kReady);
  EXPECT_EQ(told, 2);
  pool_->SetRoomCallback(nullptr);
}

TEST_F(LandingPoolTest, NoMoreRegistrationsAreLostThanMustBe) {
  (void)TakeAll(For::kReady);
  ASSERT_EQ(pool_->pinned_bytes(), kMost * kEach);
  ASSERT_EQ(pool_->in_use_bytes(), 0u);
  const StorageRef twice = pool_->Take(2 * kEach, For::kReady, 0);
  ASSERT_TRUE(twice);
  EXPECT_EQ(pool_->pinned_bytes(), kMost * kEach) << "two have made way for it";
  EXPECT_EQ(TakeAll(For::kReady).size(), kMost - 2);
  EXPECT_EQ(pool_->pinned_bytes_most(), kMost * kEach);
}

TEST_F(LandingPoolTest, TheLargestGoesFirst) {
  {
    std::vector<StorageRef> all;
    all.push_back(pool_->Take(8 * kEach, For::kReady, 0));
    for (uint64_t i = 0; i < kMost / 2; ++i) all.push_back(pool_->Take(kEach, For::kReady, 0));
    ASSERT_TRUE(all.back());
  }
  ASSERT_EQ(pool_->pinned_bytes(), kMost * kEach);
  const StorageRef one = pool_->Take(4 * kEach, For::kReady, 0);
  EXPECT_EQ(pool_->pinned_bytes(), (8 + 4) * kEach) << "the one of eight";
}

TEST_F(LandingPoolTest, WhatIsAboveTheCapIsRefusedAndTakesNoRoom) {
  EXPECT_FALSE(pool_->Take(kMost * kEach + 1, For::kReady, 0));
  EXPECT_FALSE(pool_->TakeBudget(kMost * kEach + 1, For::kReady));
  EXPECT_EQ(pool_->pinned_bytes(), 0u);
  EXPECT_TRUE(pool_->Take(kMost * kEach, For::kReady, 0));
  EXPECT_TRUE(pool_->TakeBudget(kMost * kEach, For::kReady));
  EXPECT_EQ(pool_->in_use_bytes(), kMost * kEach);
  pool_->GiveBudget(kMost * kEach, For::kReady);
  EXPECT_EQ(pool_->pinned_bytes(), 0u);
}

}  // namespace
}  // namespace tryst
