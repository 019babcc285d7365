// How works fail, and the state of a queue pair afterwards.
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "tests/contract/nic_contract.h"

namespace tryst {
namespace {

using ::testing::Each;

// A refused request: the requester's completion says why, both queue pairs break (if one without
// receives can tell), and no byte of `memory` has changed.
#define EXPECT_REFUSED(work, status)                                                        \
  do {                                                                                      \
    const std::vector<uint8_t> before = b_.memory;                                          \
    ExpectStatus(work, status);                                                             \
    if (GetParam().responder_events) {                                                      \
      EXPECT_TRUE(Until([&] { return b_.queue_pair->state() != QueuePairState::kReady; })); \
    }                                                                                       \
    EXPECT_NE(a_.queue_pair->state(), QueuePairState::kReady);                              \
    EXPECT_EQ(memcmp(before.data(), b_.memory.data(), before.size()), 0);                   \
  } while (false)

TEST_P(NicContractTest, WriteOneBytePastTheEndChangesNothing) {
  OpenBoth();
  EXPECT_REFUSED(Write(1, 0, kMemoryBytes - 99, 100), GetParam().refusal);
}

TEST_P(NicContractTest, WriteOneByteBeforeTheBeginningChangesNothing) {
  OpenBoth();
  SendWork work = Write(1, 0, 0, 100);
  work.remote_address -= 1;
  EXPECT_REFUSED(work, GetParam().refusal);
}

TEST_P(NicContractTest, WriteThatWrapsAroundTheAddressSpaceChangesNothing) {
  OpenBoth();
  SendWork work = Write(1, 0, 0, 100);
  work.remote_address = std::numeric_limits<uint64_t>::max() - 49;
  EXPECT_REFUSED(work, GetParam().refusal);
}

TEST_P(NicContractTest, WriteUpToTheLastByteSucceeds) {
  OpenBoth();
  ExpectStatus(Write(1, 0, kMemoryBytes - 100, 100), CompletionStatus::kOk);
  EXPECT_EQ(memcmp(&b_.memory[kMemoryBytes - 100], &a_.memory[0], 100), 0);
}

TEST_P(NicContractTest, LargeWriteOneBytePastTheEndChangesNothing) {
  const uint64_t bytes = 4 << 20;
  OpenBoth(Options(), Options(), bytes);
  EXPECT_REFUSED(Write(1, 0, 1, bytes), GetParam().refusal);
}

TEST_P(NicContractTest, ReadPastTheEndBringsNothing) {
  OpenBoth();
  const std::vector<uint8_t> before = a_.memory;
  EXPECT_REFUSED(Read(1, 0, kMemoryBytes - 99, 100), GetParam().refusal);
  EXPECT_EQ(memcmp(before.data(), a_.memory.data(), before.size()), 0);
}

TEST_P(NicContractTest, WrongKeyOpensNothing) {
  OpenBoth();
  SendWork work = Write(1, 0, 0, 100);
  work.remote_key ^= 0x100;
  EXPECT_REFUSED(work, GetParam().refusal);
}

TEST_P(NicContractTest, RevokedKeyOpensNothing) {
  OpenBoth();
  ExpectStatus(Write(1, 0, 0, 100), CompletionStatus::kOk);
  const SendWork again = Write(2, 100, 0, 100);
  b_.region.reset();
  EXPECT_REFUSED(again, GetParam().refusal);
}

TEST_P(NicContractTest, RegionIsWrittenOnlyWhereItAllowsIt) {
  OpenBoth();
  std::vector<uint8_t> readable(100);
  auto region = b_.nic->RegisterRegion(readable.data(), readable.size(), kRemoteRead);
  ASSERT_TRUE(region.ok()) << region.status();
  SendWork work = Read(1, 0, 0, 100);
  work.remote_address = (*region)->address();
  work.remote_key = (*region)->remote_key();
  ExpectStatus(work, CompletionStatus::kOk);
  work.op = SendOp::kWrite;
  EXPECT_REFUSED(work, GetParam().refusal);
  EXPECT_THAT(readable, Each(0));
}

TEST_P(NicContractTest, RegionIsReadOnlyWhereItAllowsIt) {
  OpenBoth();
  std::vector<uint8_t> writable(100);
  auto region = b_.nic->RegisterRegion(writable.data(), writable.size(), kRemoteWrite);
  ASSERT_TRUE(region.ok()) << region.status();
  SendWork work = Write(1, 0, 0, 100);
  work.remote_address = (*region)->address();
  work.remote_key = (*region)->remote_key();
  ExpectStatus(work, CompletionStatus::kOk);
  work.op = SendOp::kRead;
  EXPECT_REFUSED(work, GetParam().refusal);
}

TEST_P(NicContractTest, LocalEntryPastItsRegionIsAProtectionError) {
  OpenBoth();
  const std::vector<uint8_t> before = b_.memory;
  ExpectStatus(Write(2, kMemoryBytes - 99, 0, 100), CompletionStatus::kLocalProtection);
  EXPECT_NE(a_.queue_pair->state(), QueuePairState::kReady);
  LetPass(absl::Milliseconds(5));
  EXPECT_EQ(memcmp(before.data(), b_.memory.data(), before.size()), 0);
}

TEST_P(NicContractTest, ReadIntoMemoryThatIsNotWritableIsAProtectionError) {
  OpenBoth();
  std::vector<uint8_t> constant(100);
  auto region = a_.nic->RegisterRegion(constant.data(), constant.size(), kLocalOnly);
  ASSERT_TRUE(region.ok()) << region.status();
  memset(&b_.memory[0], 1, 100);
  const Entry into = {(*region)->address(), 100, (*region)->local_key()};
  SendWork work = Read(1, 0, 0, 0);
  work.entries = absl::MakeConstSpan(&into, 1);
  ExpectStatus(work, CompletionStatus::kLocalProtection);
  EXPECT_THAT(constant, Each(0));
}

TEST_P(NicContractTest, WorkBeforeAFailedOneIsDoneAndThoseAfterAreFlushed) {
  OpenBoth();
  SendWork works[] = {Write(1, 0, 0, 10), Write(2, kMemoryBytes - 1, 10, 2), Write(3, 0, 20, 10),
                      Write(4, 0, 30, 10)};
  works[2].signaled = false;  // A flushed work always completes, even if it was not signaled.
  ASSERT_TRUE(a_.queue_pair->PostSend(works).ok());
  ASSERT_TRUE(UntilDone(a_, 4));
  const CompletionStatus expected[] = {CompletionStatus::kOk, CompletionStatus::kLocalProtection,
                                       CompletionStatus::kFlushed, CompletionStatus::kFlushed};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(a_.done[i].id, i + 1);
    EXPECT_STREQ(CompletionStatusName(a_.done[i].status), CompletionStatusName(expected[i]));
  }
  EXPECT_EQ(b_.memory[0], a_.memory[0]);
  EXPECT_EQ(b_.memory[20], 0);
}

TEST_P(NicContractTest, SendWithoutAReceiveFailsWhenTheRetriesAreOver) {
  OpenBoth(ImpatientOptions(), Options());
  SendWork works[] = {Send(1, 0, 10), Write(2, 0, 0, 10)};
  ASSERT_TRUE(a_.queue_pair->PostSend(works).ok());
  ASSERT_TRUE(UntilDone(a_, 2));
  EXPECT_STREQ(CompletionStatusName(a_.done[0].status),
               CompletionStatusName(CompletionStatus::kReceiverNotReady));
  EXPECT_EQ(a_.done[1].status, CompletionStatus::kFlushed);
  EXPECT_EQ(b_.memory[0], 0);
}

TEST_P(NicContractTest, SendWaitsForItsReceiveAsLongAsItIsTold) {
  QueuePairOptions patient = ImpatientOptions();
  patient.rnr_retry_count = 7;
  OpenBoth(patient, Options());
  SendWork work = Write(1, 0, 0, 10);
  work.op = SendOp::kWriteWithImmediate;
  ASSERT_TRUE(Post(&a_, work).ok());
  // Longer than the peer's time to answer: without a request that clock must not run.
  LetPass(absl::Microseconds(4.096 * (1 << GetParam().short_ack_timeout)) * 3);
  EXPECT_TRUE(a_.done.empty());
  PostReceives(&b_, 1);
  ASSERT_TRUE(UntilDone(a_, 1));
  EXPECT_STREQ(CompletionStatusName(a_.done[0].status),
               CompletionStatusName(CompletionStatus::kOk));
  ASSERT_TRUE(UntilDone(b_, 1));
}

TEST_P(NicContractTest, WorkOfAPeerWithoutReceivesIsDoneMeanwhile) {
  QueuePairOptions patient = Options();
  patient.rnr_retry_count = 7;
  OpenBoth(patient, patient);
  SendWork waits = Send(1, 0, 10);
  ASSERT_TRUE(Post(&a_, waits).ok());
  LetPass(absl::Milliseconds(2));
  const Entry piece = b_.Piece(0, 100);
  SendWork back;
  back.id = 5;
  back.entries = absl::MakeConstSpan(&piece, 1);
  back.remote_address = a_.At(500);
  back.remote_key = a_.region->remote_key();
  ASSERT_TRUE(Post(&b_, back).ok());
  ASSERT_TRUE(UntilDone(b_, 1));
  EXPECT_EQ(b_.done[0].id, 5u);
  EXPECT_EQ(b_.done[0].status, CompletionStatus::kOk);
  EXPECT_TRUE(a_.done.empty());
}

TEST_P(NicContractTest, SendLongerThanItsReceiveFailsOnBothSides) {
  OpenBoth();
  const Entry small = b_.Piece(0, 9);
  ReceiveWork receive;
  receive.id = 77;
  receive.entries = absl::MakeConstSpan(&small, 1);
  ASSERT_TRUE(b_.queue_pair->PostReceive(absl::MakeConstSpan(&receive, 1)).ok());
  EXPECT_REFUSED(Send(1, 0, 10), CompletionStatus::kRemoteInvalidRequest);
  ASSERT_TRUE(UntilDone(b_, 1));
  EXPECT_EQ(b_.done[0].id, 77u);
  EXPECT_STREQ(CompletionStatusName(b_.done[0].status),
               CompletionStatusName(CompletionStatus::kLocalLength));
}

TEST_P(NicContractTest, ReceiveIntoMemoryThatIsNotOursFailsOnBothSides) {
  OpenBoth();
  const Entry outside = b_.Piece(kMemoryBytes - 9, 10);
  ReceiveWork receive;
  receive.entries = absl::MakeConstSpan(&outside, 1);
  ASSERT_TRUE(b_.queue_pair->PostReceive(absl::MakeConstSpan(&receive, 1)).ok());
  EXPECT_REFUSED(Send(1, 0, 10), CompletionStatus::kRemoteOperation);
  ASSERT_TRUE(UntilDone(b_, 1));
  EXPECT_STREQ(CompletionStatusName(b_.done[0].status),
               CompletionStatusName(CompletionStatus::kLocalProtection));
}

TEST_P(NicContractTest, RefusedRequestBreaksThePeerToo) {
  OpenBoth();
  PostReceives(&b_, 3);
  SendWork work = Write(1, 0, 0, 10);
  work.remote_key ^= 0x100;
  ExpectStatus(work, GetParam().refusal);
  ASSERT_TRUE(UntilDone(b_, 3));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(b_.done[i].id, 100 + i);
    EXPECT_EQ(b_.done[i].status, CompletionStatus::kFlushed);
  }
  EXPECT_TRUE(Until([&] { return b_.queue_pair->state() == QueuePairState::kDrained; }));
  EXPECT_TRUE(Until([&] { return a_.queue_pair->state() == QueuePairState::kDrained; }));
  if (!GetParam().responder_events) return;
  absl::optional<NicEvent> event;
  ASSERT_TRUE(Until([&] {
    if (!event.has_value()) event = b_.nic->NextEvent();
    return event.has_value();
  }));
  EXPECT_EQ(event->kind, NicEvent::Kind::kQueuePairFatal);
  EXPECT_EQ(event->id, b_.queue_pair->number());
}

TEST_P(NicContractTest, BreakFlushesEverythingInOrderAndDrains) {
  OpenBoth();
  PostReceives(&a_, 4);
  SendWork waits = Send(0, 0, 10);  // The peer has posted no receive.
  for (uint64_t i = 0; i < 4; ++i) {
    waits.id = i;
    waits.signaled = i % 2 == 0;
    ASSERT_TRUE(Post(&a_, waits).ok());
  }
  EXPECT_EQ(a_.queue_pair->state(), QueuePairState::kReady);
  a_.queue_pair->Break();
  EXPECT_EQ(a_.queue_pair->state(), QueuePairState::kBroken);
  a_.queue_pair->Break();
  EXPECT_EQ(Post(&a_, waits).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(UntilDone(a_, 8));
  uint64_t next_send = 0;
  uint64_t next_receive = 100;
  for (const Completion& completion : a_.done) {
    EXPECT_EQ(completion.status, CompletionStatus::kFlushed);
    EXPECT_EQ(completion.id, completion.id < 100 ? next_send++ : next_receive++);
  }
  EXPECT_EQ(a_.queue_pair->state(), QueuePairState::kDrained);
  EXPECT_EQ(a_.queue_pair->send_room(), Options().send_depth);
  EXPECT_EQ(a_.queue_pair->receive_room(), Options().receive_depth);
  LetPass(absl::Milliseconds(2));
  EXPECT_EQ(a_.done.size(), 8u);
}

TEST_P(NicContractTest, ReceivesOfAQueuePairThatWasNeverConnectedComeBack) {
  a_ = OpenEnd(pair_->first(), Options());
  EXPECT_EQ(a_.queue_pair->state(), QueuePairState::kReset);
  EXPECT_EQ(Post(&a_, SendWork()).code(), absl::StatusCode::kFailedPrecondition);
  PostReceives(&a_, 2);
  a_.queue_pair->Break();
  ASSERT_TRUE(UntilDone(a_, 2));
  EXPECT_EQ(a_.done[0].id, 100u);
  EXPECT_EQ(a_.done[1].status, CompletionStatus::kFlushed);
  EXPECT_EQ(a_.queue_pair->state(), QueuePairState::kDrained);
}

TEST_P(NicContractTest, IdleQueuePairDrainsAtOnce) {
  OpenBoth();
  ExpectStatus(Write(1, 0, 0, 10), CompletionStatus::kOk);
  a_.queue_pair->Break();
  EXPECT_TRUE(Until([&] { return a_.queue_pair->state() == QueuePairState::kDrained; }));
  EXPECT_EQ(a_.done.size(), 1u);
}

TEST_P(NicContractTest, SilentWorksAreNoReasonNotToDrain) {
  OpenBoth();
  for (uint64_t i = 0; i < 3; ++i) {
    SendWork work = Write(i, 0, i * 10, 10);
    work.signaled = false;
    ASSERT_TRUE(Post(&a_, work).ok());
  }
  ASSERT_TRUE(Until([&] { return b_.memory[29] == a_.memory[9]; }));
  LetPass(absl::Milliseconds(5));
  a_.queue_pair->Break();
  EXPECT_TRUE(Until([&] { return a_.queue_pair->state() == QueuePairState::kDrained; }));
  EXPECT_EQ(a_.queue_pair->send_room(), Options().send_depth);
}

TEST_P(NicContractTest, WorkFailsWhenThePeersQueuePairIsGone) {
  if (!GetParam().loss_is_noticed) GTEST_SKIP() << "this NIC cannot tell";
  OpenBoth(ImpatientOptions(), Options());
  ExpectStatus(Write(1, 0, 0, 10), CompletionStatus::kOk);
  b_.queue_pair.reset();
  // If the loss is noticed first, posting the work is refused.
  const absl::Status posted = Post(&a_, Write(2, 0, 0, 10));
  if (!posted.ok()) {
    EXPECT_EQ(posted.code(), absl::StatusCode::kFailedPrecondition);
    return;
  }
  ASSERT_TRUE(UntilDone(a_, 2));
  EXPECT_STREQ(CompletionStatusName(a_.done[1].status),
               CompletionStatusName(CompletionStatus::kRetryExceeded));
  EXPECT_NE(a_.queue_pair->state(), QueuePairState::kReady);
}

TEST_P(NicContractTest, WorkFailsWhenNobodyIsThere) {
  a_ = OpenEnd(pair_->first(), ImpatientOptions());
  b_ = OpenEnd(pair_->second(), Options());
  ASSERT_TRUE(a_.queue_pair->Connect(b_.queue_pair->LocalAddress()).ok());
  SendWork works[] = {Write(1, 0, 0, 10), Write(2, 0, 0, 10)};
  b_.queue_pair.reset();
  b_.completions.reset();
  ASSERT_TRUE(a_.queue_pair->PostSend(works).ok());
  ASSERT_TRUE(UntilDone(a_, 2));
  EXPECT_STREQ(CompletionStatusName(a_.done[0].status),
               CompletionStatusName(CompletionStatus::kRetryExceeded));
  EXPECT_EQ(a_.done[1].status, CompletionStatus::kFlushed);
}

TEST_P(NicContractTest, StrangerDoesNotReachAConnectedQueuePair) {
  OpenBoth();
  ExpectStatus(Write(1, 0, 0, 10), CompletionStatus::kOk);
  const std::vector<uint8_t> before = b_.memory;
  NicEnd friend_of_b = std::move(a_);
  a_ = OpenEnd(pair_->first(), ImpatientOptions());
  memset(a_.memory.data(), 0xee, a_.memory.size());
  // It knows b's address, but b was not told of it.
  ASSERT_TRUE(a_.queue_pair->Connect(b_.queue_pair->LocalAddress()).ok());
  ExpectStatus(Write(2, 0, 0, 10), CompletionStatus::kRetryExceeded);
  EXPECT_EQ(memcmp(before.data(), b_.memory.data(), before.size()), 0);
  std::swap(a_, friend_of_b);
  ExpectStatus(Write(3, 1, 0, 10), CompletionStatus::kOk);
  friend_of_b.queue_pair.reset();
}

TEST_P(NicContractTest, DestroyedReceiverIsNotWrittenAnyMore) {
  const uint64_t bytes = 8 << 20;
  OpenBoth(ImpatientOptions(), Options(), bytes);
  // First connect both sides.
  ExpectStatus(Write(0, 0, 0, 1), CompletionStatus::kOk);
  for (uint64_t i = 1; i <= 8; ++i) ASSERT_TRUE(Post(&a_, Write(i, 0, 0, bytes)).ok());
  PollOnce(&b_);
  b_.queue_pair.reset();
  const std::vector<uint8_t> left = b_.memory;
  LetPass(absl::Milliseconds(20));
  EXPECT_EQ(memcmp(left.data(), b_.memory.data(), left.size()), 0);
}

TEST_P(NicContractTest, DestroyedSenderCompletesNothingAnyMore) {
  const uint64_t bytes = 8 << 20;
  OpenBoth(Options(), Options(), bytes);
  for (uint64_t i = 1; i <= 8; ++i) ASSERT_TRUE(Post(&a_, Write(i, 0, 0, bytes)).ok());
  PostReceives(&a_, 4);
  PollOnce(&b_);
  a_.queue_pair.reset();
  a_.done.clear();
  // Nothing reads the memory, so it may be freed, too.
  a_.region.reset();
  a_.memory = {};
  LetPass(absl::Milliseconds(20));
  EXPECT_TRUE(a_.done.empty());
}

TEST_P(NicContractTest, ReaderMayBeDestroyedBeforeTheAnswer) {
  const uint64_t bytes = 4 << 20;
  OpenBoth(Options(), Options(), bytes);
  for (uint64_t i = 1; i <= 8; ++i) ASSERT_TRUE(Post(&a_, Read(i, 0, 0, bytes)).ok());
  PollOnce(&b_);
  PollOnce(&a_);
  a_.queue_pair.reset();
  const std::vector<uint8_t> left = a_.memory;
  LetPass(absl::Milliseconds(20));
  EXPECT_EQ(memcmp(left.data(), a_.memory.data(), left.size()), 0);
}

TEST_P(NicContractTest, OverTheLimitsNothingIsPosted) {
  OpenBoth();
  PostReceives(&b_, 1);
  const QueuePairOptions options = Options();
  std::vector<Entry> entries(options.max_entries + 1, a_.Piece(0, 1));
  SendWork good = Write(1, 0, 0, 1);
  SendWork bad = good;
  bad.entries = entries;
  SendWork works[] = {good, bad};
  EXPECT_EQ(a_.queue_pair->PostSend(works).code(), absl::StatusCode::kInvalidArgument);
  bad = Write(2, 0, 0, a_.nic->limits().max_inline_bytes + 1);
  bad.inline_data = true;
  EXPECT_EQ(Post(&a_, bad).code(), absl::StatusCode::kInvalidArgument);
  bad = Write(3, 0, 0, a_.nic->limits().max_message_bytes + 1);
  EXPECT_EQ(Post(&a_, bad).code(), absl::StatusCode::kInvalidArgument);
  bad = Write(4, 0, 0, std::numeric_limits<uint64_t>::max());
  const Entry wrapping[] = {a_.Piece(0, std::numeric_limits<uint64_t>::max()), a_.Piece(0, 2)};
  bad.entries = wrapping;
  EXPECT_EQ(Post(&a_, bad).code(), absl::StatusCode::kInvalidArgument);
  const std::vector<SendWork> many(a_.queue_pair->send_room() + 1, good);
  EXPECT_EQ(a_.queue_pair->PostSend(many).code(), absl::StatusCode::kResourceExhausted);
  const std::vector<ReceiveWork> receives(a_.queue_pair->receive_room() + 1);
  EXPECT_EQ(a_.queue_pair->PostReceive(receives).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(a_.queue_pair->send_room(), options.send_depth);
  EXPECT_EQ(a_.queue_pair->receive_room(), options.receive_depth);
  LetPass(absl::Milliseconds(2));
  EXPECT_TRUE(a_.done.empty());
  EXPECT_EQ(b_.memory[0], 0);
  ExpectStatus(good, CompletionStatus::kOk);
}

}  // namespace
}  // namespace tryst
