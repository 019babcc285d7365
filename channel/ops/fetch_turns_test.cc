#include "channel/ops/fetch_turns.h"

#include <string>

#include "gtest/gtest.h"

namespace tryst {
namespace {

class NoOwner final : public FetchOpOwner {
  void OnOpCancelled(FetchOp*) override {}
  void OnOpTimer(FetchOp*) override {}
  void OnOpDelivered(FetchOp*) override {}
};

class FetchTurnsTest : public ::testing::Test {
 protected:
  FetchTurnsTest() {
    for (FetchOp* op : {&first_, &second_, &third_}) op->step = 1;
    keys_.Join(&first_, key_);
  }
  ~FetchTurnsTest() override {
    for (FetchOp* op : {&first_, &second_, &third_}) {
      turns_.StopFollowing(op);
      keys_.Leave(op);
    }
  }

  NoOwner owner_;
  FetchKeys keys_{4, 1 << 20};
  FetchKey* const key_ =
      keys_.Intern(TensorKeyPrefix::Make("/job:p/replica:0/task:0/device:CPU:0", 1,
                                         "/job:c/replica:0/task:0/device:CPU:0", "e")
                       ->At(0, 0));
  FetchTurns turns_;
  FetchOp first_{&owner_};
  FetchOp second_{&owner_};
  FetchOp third_{&owner_};
};

TEST_F(FetchTurnsTest, OneOfAKeyAndStepIsAskedForAtATime) {
  EXPECT_EQ(FetchTurns::AskedBefore(*key_, 1, &second_), &first_);
  EXPECT_EQ(FetchTurns::AskedBefore(*key_, 2, &second_), nullptr) << "another step";
  EXPECT_EQ(FetchTurns::AskedBefore(*key_, 1, &first_), nullptr) << "it waits for nobody";
}

TEST_F(FetchTurnsTest, AFetchThatLeavesIsWaitedForWhileOthersFollowIt) {
  first_.reported = true;
  EXPECT_EQ(FetchTurns::AskedBefore(*key_, 1, &second_), nullptr);
  turns_.Follow(&first_, &third_);
  EXPECT_EQ(FetchTurns::AskedBefore(*key_, 1, &second_), &first_)
      << "else the second would be asked for before the third";
}

TEST_F(FetchTurnsTest, ThoseBehindFollowWhoSucceeds) {
  turns_.Follow(&first_, &second_);
  turns_.Follow(&first_, &third_);
  EXPECT_EQ(turns_.Succeed(&first_), &second_);
  EXPECT_EQ(first_.followers, nullptr);
  EXPECT_EQ(turns_.Succeed(&first_), nullptr);
  EXPECT_EQ(turns_.Succeed(&second_), &third_);
  EXPECT_EQ(second_.followers, nullptr);
}

// In the order in which they were fetched.
TEST_F(FetchTurnsTest, WhoJoinsALineBringsThoseBehindIt) {
  turns_.Follow(&second_, &third_);
  turns_.Follow(&first_, &second_);
  EXPECT_EQ(second_.followers, nullptr);
  EXPECT_EQ(turns_.Succeed(&first_), &second_);
  EXPECT_EQ(turns_.Succeed(&second_), &third_);
}

}  // namespace
}  // namespace tryst
