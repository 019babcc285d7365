#include "weights/shelf.h"

#include <gtest/gtest.h>

#include "weights/route.h"

namespace tryst {
namespace {

using State = PartShelf::State;

constexpr WeightVersion kFive{5, 0xf5}, kSix{6, 0xf6}, kSeven{7, 0xf7};

PartName Part(const WeightVersion& version, uint32_t tensor = 0) {
  return {version, tensor, {{0}, {4}}};
}
Tensor Bytes() { return *Tensor::Allocate(DType::kUint8, {4}); }

class PartShelfTest : public ::testing::Test {
 protected:
  PartShelfTest() { shelf_.Allow(kFive, {kSix, kSeven}); }
  State Find(const PartName& part) {
    Tensor bytes;
    const State state = shelf_.Find(part, &bytes);
    EXPECT_EQ(bytes.valid(), state == State::kHeld);
    return state;
  }
  void Hold(const PartName& part) {
    ASSERT_TRUE(shelf_.Expect(part, 4));
    shelf_.Put(part, Bytes());
    ASSERT_EQ(Find(part), State::kHeld);
  }
  PartShelf shelf_{16};
};

TEST_F(PartShelfTest, APartIsExpectedAndThenHeld) {
  EXPECT_EQ(Find(Part(kFive)), State::kGone);
  EXPECT_TRUE(shelf_.Expect(Part(kFive), 4));
  EXPECT_EQ(Find(Part(kFive)), State::kComing);
  EXPECT_EQ(Find(Part(kFive, 1)), State::kGone);
  EXPECT_EQ(Find(Part({5, 0xf6})), State::kGone);
  shelf_.Put(Part(kFive), Bytes());
  EXPECT_EQ(Find(Part(kFive)), State::kHeld);
  shelf_.GiveUp(Part(kFive));  // Another fetch of it.
  EXPECT_EQ(Find(Part(kFive)), State::kHeld);
  EXPECT_EQ(shelf_.bytes(), 4u);
}

TEST_F(PartShelfTest, WhatDoesNotComeGoes) {
  EXPECT_TRUE(shelf_.Expect(Part(kFive), 4));
  EXPECT_TRUE(shelf_.Expect(Part(kFive), 4));
  shelf_.GiveUp(Part(kFive));
  EXPECT_EQ(Find(Part(kFive)), State::kComing);
  shelf_.GiveUp(Part(kFive));
  EXPECT_EQ(Find(Part(kFive)), State::kGone);
  EXPECT_EQ(shelf_.bytes(), 0u);
  shelf_.GiveUp(Part(kFive));
  shelf_.Put(Part(kFive), Bytes());
  EXPECT_EQ(Find(Part(kFive)), State::kGone);
}

TEST_F(PartShelfTest, AVersionThatIsOverIsNotHad) {
  EXPECT_FALSE(shelf_.Expect(Part({4, 0xf4}), 4));
  EXPECT_FALSE(shelf_.Expect(Part({6, 0xf4}), 4));
  EXPECT_FALSE(shelf_.Expect(Part({0, 0}), 4));
  Hold(Part(kFive));
  Hold(Part(kSix));
  shelf_.Allow(kSix, {kSeven});
  EXPECT_EQ(Find(Part(kFive)), State::kGone);
  EXPECT_EQ(Find(Part(kSix)), State::kHeld);
  EXPECT_EQ(shelf_.bytes(), 4u);
  EXPECT_FALSE(shelf_.Expect(Part(kFive), 4));
  shelf_.Allow({6, 0xaa}, {});
  EXPECT_EQ(Find(Part(kSix)), State::kGone);
  EXPECT_EQ(shelf_.bytes(), 0u);
}

TEST_F(PartShelfTest, BesideTheActiveVersionOneIsHad) {
  Hold(Part(kFive));
  Hold(Part(kSix));
  EXPECT_TRUE(shelf_.Expect(Part(kSix, 1), 4));
  Hold(Part(kSeven));
  EXPECT_EQ(Find(Part(kSix)), State::kGone);
  EXPECT_EQ(Find(Part(kSix, 1)), State::kGone);
  EXPECT_EQ(Find(Part(kFive)), State::kHeld);
  // The active one may be fetched again meanwhile.
  EXPECT_TRUE(shelf_.Expect(Part(kFive, 1), 4));
  EXPECT_EQ(Find(Part(kSeven)), State::kHeld);
  EXPECT_TRUE(shelf_.BaseOf(Part(kSeven), 5).valid());
  EXPECT_FALSE(shelf_.BaseOf(Part(kSeven, 1), 5).valid());
  EXPECT_FALSE(shelf_.BaseOf(Part(kSeven), 6).valid());
}

TEST_F(PartShelfTest, ThereIsRoomForSoManyBytes) {
  EXPECT_TRUE(shelf_.Expect(Part(kFive), 12));
  EXPECT_FALSE(shelf_.Expect(Part(kFive, 1), 5));
  EXPECT_EQ(Find(Part(kFive, 1)), State::kGone);
  EXPECT_TRUE(shelf_.Expect(Part(kFive, 1), 4));
  EXPECT_EQ(shelf_.bytes(), 16u);
  EXPECT_TRUE(shelf_.Expect(Part(kFive), 12));  // It has its room.
}

TEST(PartRouteTest, AnOwnerIsAskedThenWhomItNamesThenOwnersInTurn) {
  PartRoute route({3, 4}, 1);
  EXPECT_EQ(route.owner(), 4u);
  EXPECT_EQ(route.choices(), 2u);
  EXPECT_TRUE(route.may_be_sent_on());
  route.SendOn({{"m", 1}, {}});
  EXPECT_EQ(route.choices(), 3u);
  ASSERT_TRUE(route.referral().has_value());
  EXPECT_EQ(route.owner(), 4u);
  ASSERT_TRUE(route.Fail());
  EXPECT_FALSE(route.referral().has_value());
  EXPECT_FALSE(route.may_be_sent_on());
  for (const uint32_t owner : {4, 3, 4}) {
    EXPECT_EQ(route.owner(), owner);
    ASSERT_TRUE(route.Fail());
  }
  EXPECT_EQ(route.owner(), 3u);
  EXPECT_FALSE(route.Fail());
}

TEST(PartRouteTest, OwnersThatFailAreAskedLast) {
  const auto failing = [](uint32_t owner) { return owner != 5; };
  PartRoute route({3, 4, 5}, 0);
  route.Avoid(failing);
  EXPECT_EQ(route.owner(), 5u);
  EXPECT_TRUE(route.may_be_sent_on());
  ASSERT_TRUE(route.Fail());
  EXPECT_EQ(route.owner(), 3u);
  EXPECT_FALSE(route.may_be_sent_on());
  route.Avoid(failing);  // Who was asked before goes on in turn.
  EXPECT_EQ(route.owner(), 3u);
  PartRoute all({3, 4}, 0);
  all.Avoid([](uint32_t) { return true; });
  EXPECT_EQ(all.owner(), 4u);
}

}  // namespace
}  // namespace tryst
