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

TEST_F(PartShelfTest, ANewLogTakesNothingOfWhatIsActive) {
  Hold(Part(kFive));
  Hold(Part(kSix));
  shelf_.Allow({}, {});
  EXPECT_TRUE(shelf_.Allows(kFive));
  EXPECT_EQ(Find(Part(kFive)), State::kHeld);
  EXPECT_EQ(Find(Part(kSix)), State::kGone) << "it was never active";
  EXPECT_TRUE(shelf_.Expect(Part(kFive, 1), 4));
  // It seals another one, which is active at last.
  shelf_.Allow({}, {kSeven});
  Hold(Part(kSeven));
  EXPECT_EQ(Find(Part(kFive)), State::kHeld);
  shelf_.Allow(kSeven, {});
  EXPECT_EQ(Find(Part(kFive)), State::kGone);
  EXPECT_EQ(Find(Part(kSeven)), State::kHeld);
  shelf_.Clear();
  EXPECT_EQ(Find(Part(kSeven)), State::kGone);
  EXPECT_FALSE(shelf_.Allows(kSeven));
  EXPECT_EQ(shelf_.bytes(), 0u);
}

TEST_F(PartShelfTest, WhatWasActiveGoesWhereANewLogHasAnotherOfItsNumber) {
  constexpr WeightVersion kFiveAgain{5, 0xaa};
  Hold(Part(kFive));
  Hold(Part(kFive, 1));
  shelf_.Allow({}, {kFiveAgain});
  EXPECT_FALSE(shelf_.Allows(kFive));
  EXPECT_FALSE(shelf_.Expect(Part(kFive), 4));
  EXPECT_EQ(shelf_.bytes(), 0u);
  Hold(Part(kFiveAgain));
  EXPECT_EQ(Find(Part(kFiveAgain, 1)), State::kGone);
  EXPECT_EQ(Find(Part(kFive, 1)), State::kGone);
  // It is dropped, and nothing is active then.
  shelf_.Allow({}, {});
  EXPECT_FALSE(shelf_.Allows(kFive));
  EXPECT_EQ(Find(Part(kFiveAgain)), State::kGone);
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
  Tensor held;
  shelf_.Find(Part(kSeven), &held);
  EXPECT_TRUE(shelf_.BaseOf(Part(kSeven), held, 5).valid());
  EXPECT_FALSE(shelf_.BaseOf(Part(kSeven, 1), held, 5).valid());
  EXPECT_FALSE(shelf_.BaseOf(Part(kSeven), held, 6).valid());
  // As where the owners have opened the set anew with other layouts.
  EXPECT_FALSE(shelf_.BaseOf(Part(kSeven), *Tensor::Allocate(held.dtype(), {100}), 5).valid());
  EXPECT_FALSE(shelf_.BaseOf(Part(kSeven), *Tensor::Allocate(DType::kInt32, {1}), 5).valid());
}

TEST_F(PartShelfTest, ItTellsWhatItHasInTurnsWithTheOwnersDigests) {
  const auto all = [](uint32_t, const Box&) { return true; };
  for (uint32_t tensor = 0; tensor < 4; ++tensor) {
    EXPECT_TRUE(shelf_.Expect(Part(kFive, tensor), 4));
    if (tensor == 2) continue;  // It is still to come.
    shelf_.Put(Part(kFive, tensor), Bytes(),
               tensor == 1 ? std::optional<Digest>({7, 8}) : std::nullopt);
  }
  const Box box = Part(kFive).box;
  EXPECT_EQ(shelf_.PartsOf(kFive, 2, all),
            (std::vector<HeldPart>{{0, box, std::nullopt}, {1, box, Digest{7, 8}}}));
  std::pair<uint32_t, Box> after{1, box};
  EXPECT_EQ(shelf_.PartsOf(kFive, 2, all, &after), (std::vector<HeldPart>{{3, box, std::nullopt}}));
  after = {0, box};
  EXPECT_EQ(shelf_.PartsOf(kFive, 1, all, &after), (std::vector<HeldPart>{{1, box, Digest{7, 8}}}));
  after = {3, box};
  EXPECT_TRUE(shelf_.PartsOf(kFive, 2, all, &after).empty());
  EXPECT_TRUE(shelf_.PartsOf(kSix, 2, all).empty());
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

TEST(PartRouteTest, WhereNoOwnerHasItHoldersAreAskedOnceEach) {
  PartRoute route({{"m1", 1}, {"m2", 2}});
  EXPECT_EQ(route.choices(), 2u);
  EXPECT_FALSE(route.may_be_sent_on());
  EXPECT_TRUE(route.owners().empty());
  ASSERT_TRUE(route.referral().has_value());
  EXPECT_EQ(route.referral()->holder, (Holder{"m1", 1}));
  EXPECT_TRUE(route.Fail());
  EXPECT_EQ(route.choices(), 1u);
  EXPECT_EQ(route.referral()->holder, (Holder{"m2", 2}));
  EXPECT_FALSE(route.Fail());
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
