#include "verbs/soft/soft_progress.h"

#include "gtest/gtest.h"

namespace tryst {
namespace {

class SoftProgressTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kDepth = 16;  // A quarter of it is told at once.

  static QueuePairOptions Options(bool ends_when_left) {
    QueuePairOptions options;
    options.receive_depth = kDepth;
    options.max_entries = 1;
    options.ends_when_left = ends_when_left;
    return options;
  }
  void PostReceives(int count) {
    for (int i = 0; i < count; ++i) ring_.Post(ReceiveWork());
  }
  void Execute(int count) {
    for (int i = 0; i < count; ++i) progress_.NoteExecuted();
  }
  void TellAll() { progress_.NewHeader(FrameType::kAck, /*first_lane=*/true); }
  static FrameHeader Says(uint32_t executed, uint32_t receives) {
    FrameHeader header;
    header.executed = executed;
    header.receives = receives;
    return header;
  }

  SoftReceiveRing ring_{Options(false)};
  SoftProgress progress_{Options(false), false, &ring_};
  SoftProgress late_{Options(false), true, &ring_};
  SoftProgress when_left_{Options(true), false, &ring_};
};

TEST_F(SoftProgressTest, APeerAcknowledgesWhatWasSentAndInOrder) {
  EXPECT_TRUE(progress_.all_acked());
  EXPECT_FALSE(progress_.WasSent(0));
  for (uint32_t sequence = 0; sequence < 3; ++sequence) {
    EXPECT_EQ(progress_.NewSequence(), sequence);
  }
  EXPECT_TRUE(progress_.WasSent(0));
  EXPECT_TRUE(progress_.WasSent(2));
  EXPECT_FALSE(progress_.WasSent(3));
  EXPECT_FALSE(progress_.Take(Says(4, 0))) << "so many were not sent";
  EXPECT_FALSE(progress_.IsAcked(0));
  EXPECT_TRUE(progress_.Take(Says(2, 0)));
  EXPECT_TRUE(progress_.IsAcked(1));
  EXPECT_FALSE(progress_.IsAcked(2));
  EXPECT_FALSE(progress_.Take(Says(1, 0))) << "it takes an acknowledgement back";
  EXPECT_TRUE(progress_.IsAcked(1));
  EXPECT_FALSE(progress_.all_acked());
  EXPECT_TRUE(progress_.Take(Says(3, 0)));
  EXPECT_TRUE(progress_.all_acked());
}

TEST_F(SoftProgressTest, ThePeersReceivesAreUsedOnceAndNotTakenBack) {
  EXPECT_FALSE(progress_.PeerHasReceive());
  progress_.TakeHello(1);
  EXPECT_TRUE(progress_.PeerHasReceive());
  progress_.UsePeersReceive();
  EXPECT_FALSE(progress_.PeerHasReceive());
  EXPECT_TRUE(progress_.Take(Says(0, 3)));
  EXPECT_TRUE(progress_.Take(Says(0, 2))) << "an older frame";
  progress_.UsePeersReceive();
  EXPECT_TRUE(progress_.PeerHasReceive());
  progress_.UsePeersReceive();
  EXPECT_FALSE(progress_.PeerHasReceive());
}

TEST_F(SoftProgressTest, OnlyTheFirstLaneTellsWhatIsNew) {
  PostReceives(3);
  Execute(2);
  const FrameHeader later = progress_.NewHeader(FrameType::kFragment, /*first_lane=*/false);
  EXPECT_EQ(later.type, FrameType::kFragment);
  EXPECT_EQ(later.executed, 0u);
  EXPECT_EQ(later.receives, 0u);
  EXPECT_TRUE(progress_.AnythingUnsaid());
  const FrameHeader first = progress_.NewHeader(FrameType::kWrite, /*first_lane=*/true);
  EXPECT_EQ(first.type, FrameType::kWrite);
  EXPECT_EQ(first.executed, 2u);
  EXPECT_EQ(first.receives, 3u);
  EXPECT_FALSE(progress_.AnythingUnsaid());
}

TEST_F(SoftProgressTest, ReceivesAreToldBeforeThePeerRunsOutAndNotEach) {
  EXPECT_FALSE(progress_.CreditDue());
  PostReceives(1);
  EXPECT_TRUE(progress_.CreditDue()) << "it has none";
  EXPECT_EQ(progress_.AnnounceReceives(), 1u);
  EXPECT_FALSE(progress_.CreditDue());
  PostReceives(kDepth / 4 - 1);
  EXPECT_FALSE(progress_.CreditDue());
  EXPECT_FALSE(progress_.AnythingUnsaid());
  PostReceives(1);
  EXPECT_TRUE(progress_.CreditDue());
  EXPECT_TRUE(progress_.AnythingUnsaid());
  progress_.AnnounceReceives();
  for (uint32_t i = 0; i < kDepth / 4 + 1; ++i) ring_.TakeOldest();
  EXPECT_FALSE(progress_.CreditDue()) << "there are none to tell of";
  PostReceives(1);
  EXPECT_TRUE(progress_.CreditDue()) << "it has used all that it knows of";
}

TEST_F(SoftProgressTest, ADebtIsNotedOnce) {
  EXPECT_TRUE(progress_.BeginDebt());
  EXPECT_FALSE(progress_.BeginDebt());
  progress_.EndDebt();
  EXPECT_TRUE(progress_.BeginDebt());
}

// A lone acknowledgement costs both sides a system call.
TEST_F(SoftProgressTest, AFewAcknowledgementsWaitForCompany) {
  constexpr uint64_t kTurn = 100;
  constexpr uint64_t kMuch = 16 << 10;
  PostReceives(1);
  TellAll();
  progress_.NoteDelivered(kTurn);
  Execute(1);
  EXPECT_TRUE(progress_.DebtMayWait(kTurn + 1, false, 100));
  EXPECT_FALSE(progress_.DebtMayWait(kTurn + 1, /*due=*/true, 100));
  EXPECT_FALSE(progress_.DebtMayWait(kTurn, /*due=*/true, 100));
  EXPECT_TRUE(progress_.DebtMayWait(kTurn + 31, false, 100));
  late_.AnnounceReceives();
  late_.NoteDelivered(kTurn);
  late_.NoteExecuted();
  EXPECT_TRUE(late_.DebtMayWait(kTurn + 1000, false, 100)) << "time alone ends its wait";
  EXPECT_FALSE(late_.DebtMayWait(kTurn + 1000, /*due=*/true, 100));
  EXPECT_FALSE(progress_.DebtMayWait(kTurn + 32, false, 100));
  EXPECT_TRUE(progress_.DebtMayWait(kTurn + 1, false, kMuch - 1));
  EXPECT_FALSE(progress_.DebtMayWait(kTurn + 1, false, kMuch));
  EXPECT_TRUE(progress_.DebtMayWait(kTurn, false, kMuch)) << "our answer may follow in this turn";
  Execute(2);
  EXPECT_TRUE(progress_.DebtMayWait(kTurn + 1, false, 100));
  PostReceives(kDepth / 4);
  EXPECT_FALSE(progress_.DebtMayWait(kTurn + 1, false, 100)) << "there are receives to tell of";
  progress_.AnnounceReceives();
  Execute(1);
  EXPECT_FALSE(progress_.DebtMayWait(kTurn + 1, false, 100)) << "four are many";
  TellAll();
  EXPECT_FALSE(progress_.DebtMayWait(kTurn + 1, false, 100)) << "nothing is left to be carried";
}

TEST_F(SoftProgressTest, WhereSendsEndWhenTheyHaveLeftMoreOfThemWait) {
  PostReceives(1);
  when_left_.NewHeader(FrameType::kAck, true);
  for (int i = 0; i < 15; ++i) when_left_.NoteExecuted();
  EXPECT_TRUE(when_left_.DebtMayWait(1000, /*sleeping=*/true, 1 << 20));
  PostReceives(kDepth / 4);
  EXPECT_FALSE(when_left_.DebtMayWait(1000, /*sleeping=*/true, 1 << 20));
  when_left_.AnnounceReceives();
  EXPECT_TRUE(when_left_.DebtMayWait(1000, /*sleeping=*/true, 1 << 20));
  when_left_.NoteExecuted();
  EXPECT_FALSE(when_left_.DebtMayWait(1000, /*sleeping=*/true, 1 << 20));
}

}  // namespace
}  // namespace tryst
