#include "channel/rdma/landing_pool.h"

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {
namespace {

using For = LandingPool::For;
constexpr uint64_t kEach = 4096;
constexpr uint64_t kMost = 16;

class LandingPoolTest : public ::testing::Test {
 protected:
  explicit LandingPoolTest(bool pins_memory = true)
      : world_(1),
        pool_(std::make_shared<LandingPool>(
            std::shared_ptr<Nic>(world_.OpenNic(0, OptionsOf(pins_memory))), kMost * kEach)) {}
  static SimNicOptions OptionsOf(bool pins_memory) {
    SimNicOptions options;
    options.limits.pins_memory = pins_memory;
    return options;
  }
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

TEST_F(LandingPoolTest, WhatWaitsForASendKeepsNoTensorOutHoweverLarge) {
  const std::vector<StorageRef> waiting = TakeAll(For::kWaiting);
  ASSERT_EQ(waiting.size(), kMost / 2);
  for (const uint64_t bytes : {kMost * kEach, kMost * kEach / 2 + kEach}) {
    ASSERT_TRUE(pool_->TakeBudget(bytes, For::kReady)) << bytes;
    EXPECT_FALSE(pool_->TakeBudget(kMost * kEach / 2 + kEach, For::kReady)) << "two of them";
    EXPECT_LE(pool_->pinned_bytes(), kMost * kEach * 3 / 2);
    pool_->GiveBudget(bytes, For::kReady);
    const StorageRef landing = pool_->Take(bytes, For::kReady, 0);
    ASSERT_TRUE(landing) << bytes;
    EXPECT_FALSE(pool_->Take(kEach, For::kReady, 0)) << "beside all of it";
  }
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

// Where keys cannot be revoked, what is kept is kept for one producer, which may come no more.
TEST_F(LandingPoolTest, WritersThatAreGoneLeaveNothing) {
  for (uint64_t writer = 1; writer <= 1000; ++writer) {
    std::vector<StorageRef> all;
    while (StorageRef one = pool_->Take(kEach, For::kReady, writer)) all.push_back(std::move(one));
    ASSERT_EQ(all.size(), kMost);
    all.clear();
    ASSERT_TRUE(pool_->Take(kEach, For::kReady, writer));
  }
  EXPECT_GE(pool_->writers(), 1u);
  EXPECT_LE(pool_->writers(), 2u);
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

// One that a tensor needs is beside the bound, and is pinned until it was delivered.
TEST_F(LandingPoolTest, OneThatIsLargerThanTheCapIsAloneBesideIt) {
  const uint64_t large = 3 * kMost * kEach;
  int told = 0;
  pool_->SetRoomCallback([&] { ++told; });
  EXPECT_FALSE(pool_->Take(large, For::kWaiting, 0)) << "nobody has it yet";
  for (const bool delivered : {false, true}) {
    const std::vector<StorageRef> all = TakeAll(For::kReady);
    StorageRef one = pool_->Take(large, For::kReady, 0);
    ASSERT_TRUE(one);
    EXPECT_GE(one->bytes(), large);
    EXPECT_TRUE(pool_->large_is_lent());
    EXPECT_EQ(pool_->pinned_bytes(), kMost * kEach);
    told = 0;
    EXPECT_FALSE(pool_->Take(large, For::kReady, 0));
    const size_t regions = world_.nic(0)->regions();
    if (delivered) {
      pool_->NoteDelivered(one);
      EXPECT_EQ(world_.nic(0)->regions(), regions - 1) << "the program's own";
    } else {
      one = StorageRef();
    }
    EXPECT_FALSE(pool_->large_is_lent());
    EXPECT_EQ(told, 1);
    EXPECT_TRUE(pool_->Take(large, For::kReady, 0));
  }
  pool_->SetRoomCallback(nullptr);
}

TEST_F(LandingPoolTest, ABudgetAboveTheCapIsRefusedAndTakesNoRoom) {
  EXPECT_FALSE(pool_->TakeBudget(kMost * kEach + 1, For::kReady));
  EXPECT_EQ(pool_->pinned_bytes(), 0u);
  EXPECT_TRUE(pool_->Take(kMost * kEach, For::kReady, 0));
  EXPECT_TRUE(pool_->TakeBudget(kMost * kEach, For::kReady));
  EXPECT_EQ(pool_->in_use_bytes(), kMost * kEach);
  pool_->GiveBudget(kMost * kEach, For::kReady);
  EXPECT_EQ(pool_->pinned_bytes(), 0u);
}

TEST_F(LandingPoolTest, WhatWasDeliveredCountsWhereTheNicPinsIt) {
  const std::vector<StorageRef> all = TakeAll(For::kReady);
  pool_->NoteDelivered(all[0]);
  EXPECT_FALSE(pool_->Take(1, For::kReady, 0));
}

class UnpinnedLandingPoolTest : public LandingPoolTest {
 protected:
  UnpinnedLandingPoolTest() : LandingPoolTest(false) {}
};

// A program may hold as much as it likes of what it has received.
TEST_F(UnpinnedLandingPoolTest, WhatWasDeliveredDoesNotCount) {
  int told = 0;
  pool_->SetRoomCallback([&] { ++told; });
  std::vector<StorageRef> held = TakeAll(For::kReady);
  ASSERT_EQ(held.size(), kMost);
  for (const StorageRef& one : held) pool_->NoteDelivered(one);
  EXPECT_EQ(told, 1) << "who was refused hears of it once";
  EXPECT_EQ(pool_->pinned_bytes(), 0u);
  pool_->NoteDelivered(held[0]);  // It was a caller's destination after that.
  EXPECT_EQ(pool_->pinned_bytes(), 0u);
  std::vector<StorageRef> more = TakeAll(For::kReady);
  EXPECT_EQ(more.size(), kMost);
  held.clear();
  EXPECT_EQ(pool_->pinned_bytes(), kMost * kEach) << "there is no room to keep them";
  more.clear();
  EXPECT_EQ(pool_->in_use_bytes(), 0u);
  EXPECT_EQ(pool_->pinned_bytes(), kMost * kEach) << "these are kept";
  pool_->SetRoomCallback(nullptr);
}

TEST_F(UnpinnedLandingPoolTest, WhatWasDeliveredIsKeptWhereThereIsRoom) {
  StorageRef one = pool_->Take(kEach, For::kReady, 0);
  const void* const memory = one->data();
  pool_->NoteDelivered(one);
  one = StorageRef();
  EXPECT_EQ(pool_->pinned_bytes(), kEach);
  EXPECT_EQ(pool_->in_use_bytes(), 0u);
  one = pool_->Take(kEach, For::kReady, 0);
  EXPECT_EQ(one->data(), memory);
  EXPECT_EQ(pool_->in_use_bytes(), kEach) << "it counts again";
}

TEST_F(UnpinnedLandingPoolTest, OneThatIsLargerThanTheCapIsAloneAndIsNotKept) {
  const uint64_t large = 3 * kMost * kEach;
  EXPECT_FALSE(pool_->Take(large, For::kWaiting, 0));
  StorageRef other = pool_->Take(kEach, For::kReady, 0);
  EXPECT_FALSE(pool_->Take(large, For::kReady, 0));
  other = StorageRef();
  for (const bool delivered : {false, true}) {
    StorageRef one = pool_->Take(large, For::kReady, 0);
    ASSERT_TRUE(one);
    EXPECT_GE(one->bytes(), large);
    EXPECT_FALSE(pool_->Take(1, For::kReady, 0));
    if (delivered) pool_->NoteDelivered(one);
    EXPECT_EQ(pool_->pinned_bytes(), delivered ? 0 : kMost * kEach);
    one = StorageRef();
    EXPECT_EQ(pool_->pinned_bytes(), 0u);
  }
  EXPECT_FALSE(pool_->Take(uint64_t{1} << 60, For::kReady, 0));
}

// The bound of another NIC goes on counting it.
TEST_F(UnpinnedLandingPoolTest, ALandingOfAnotherPoolStaysItsAffair) {
  auto other = std::make_shared<LandingPool>(
      std::shared_ptr<Nic>(world_.OpenNic(1, OptionsOf(false))), kMost * kEach);
  const StorageRef one = other->Take(kEach, For::kReady, 0);
  pool_->NoteDelivered(one);
  EXPECT_EQ(other->pinned_bytes(), kEach);
  EXPECT_EQ(pool_->pinned_bytes(), 0u);
}

}  // namespace
}  // namespace tryst
