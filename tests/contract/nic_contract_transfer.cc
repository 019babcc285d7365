// What is moved, and in which order.
#include <cstring>
#include <numeric>

#include "tests/contract/nic_contract.h"

namespace tryst {
namespace {

TEST_P(NicContractTest, WriteLandsAndCompletesOnce) {
  OpenBoth();
  ExpectStatus(Write(7, 10, 100, 300), CompletionStatus::kOk);
  EXPECT_EQ(a_.done[0].op, CompletionOp::kSend);
  EXPECT_EQ(memcmp(&b_.memory[100], &a_.memory[10], 300), 0);
  EXPECT_EQ(b_.memory[99], 0);
  EXPECT_EQ(b_.memory[400], 0);
  LetPass(absl::Milliseconds(5));
  EXPECT_EQ(a_.done.size(), 1u);
  EXPECT_TRUE(b_.done.empty()) << "a plain write is silent on the other side";
}

TEST_P(NicContractTest, WriteWithImmediateTakesOneReceive) {
  OpenBoth();
  PostReceives(&b_, 2);
  SendWork work = Write(1, 0, 64, 64);
  work.op = SendOp::kWriteWithImmediate;
  work.immediate = 0x01020304;
  ExpectStatus(work, CompletionStatus::kOk);
  ASSERT_TRUE(UntilDone(b_, 1));
  EXPECT_EQ(b_.done[0].id, 100u);
  EXPECT_EQ(b_.done[0].status, CompletionStatus::kOk);
  EXPECT_EQ(b_.done[0].op, CompletionOp::kReceiveWriteImmediate);
  EXPECT_EQ(b_.done[0].immediate, 0x01020304u);
  EXPECT_EQ(b_.done[0].bytes, 64u);
  EXPECT_EQ(b_.done[0].queue_pair, b_.queue_pair->number());
  EXPECT_EQ(memcmp(&b_.memory[64], &a_.memory[0], 64), 0);
}

TEST_P(NicContractTest, SendFillsTheReceivesEntriesInOrder) {
  OpenBoth();
  const Entry into[] = {b_.Piece(1000, 5), b_.Piece(2000, 0), b_.Piece(3000, 100)};
  ReceiveWork receive;
  receive.id = 9;
  receive.entries = into;
  ASSERT_TRUE(b_.queue_pair->PostReceive(absl::MakeConstSpan(&receive, 1)).ok());
  const Entry from[] = {a_.Piece(0, 3), a_.Piece(50, 17)};
  SendWork work = Send(1, 0, 0);
  work.entries = from;
  ExpectStatus(work, CompletionStatus::kOk);
  ASSERT_TRUE(UntilDone(b_, 1));
  EXPECT_EQ(b_.done[0].op, CompletionOp::kReceive);
  EXPECT_EQ(b_.done[0].bytes, 20u);
  EXPECT_EQ(memcmp(&b_.memory[1000], &a_.memory[0], 3), 0);
  EXPECT_EQ(memcmp(&b_.memory[1003], &a_.memory[50], 2), 0);
  EXPECT_EQ(memcmp(&b_.memory[3000], &a_.memory[52], 15), 0);
  EXPECT_EQ(b_.memory[1005], 0);
  EXPECT_EQ(b_.memory[3015], 0);
}

TEST_P(NicContractTest, ReadFetchesAndScatters) {
  OpenBoth();
  std::iota(b_.memory.begin(), b_.memory.end(), uint8_t{77});
  const Entry into[] = {a_.Piece(0, 10), a_.Piece(500, 90)};
  SendWork work = Read(3, 0, 200, 0);
  work.entries = into;
  ExpectStatus(work, CompletionStatus::kOk);
  EXPECT_EQ(a_.done[0].op, CompletionOp::kRead);
  EXPECT_EQ(memcmp(&a_.memory[0], &b_.memory[200], 10), 0);
  EXPECT_EQ(memcmp(&a_.memory[500], &b_.memory[210], 90), 0);
  LetPass(absl::Milliseconds(2));
  EXPECT_TRUE(b_.done.empty());
}

TEST_P(NicContractTest, NothingAtAllCanBeMoved) {
  OpenBoth();
  PostReceives(&b_, 2);
  ExpectStatus(Write(1, 0, 0, 0), CompletionStatus::kOk);
  SendWork no_entries = Write(2, 0, 0, 0);
  no_entries.entries = {};
  no_entries.op = SendOp::kWriteWithImmediate;
  no_entries.immediate = 6;
  ExpectStatus(no_entries, CompletionStatus::kOk);
  ExpectStatus(Send(3, 0, 0), CompletionStatus::kOk);
  ExpectStatus(Read(4, 0, 0, 0), CompletionStatus::kOk);
  ASSERT_TRUE(UntilDone(b_, 2));
  EXPECT_EQ(b_.done[0].bytes, 0u);
  EXPECT_EQ(b_.done[0].immediate, 6u);
  EXPECT_EQ(b_.done[1].bytes, 0u);
}

TEST_P(NicContractTest, ArrivesInTheOrderOfPosting) {
  OpenBoth();
  // Each write covers the last one, and its immediate says which bytes must be there.
  int sent = 0;
  int received = 0;
  PostReceives(&b_, 16);
  while (received < 2000) {
    while (sent < 2000 && a_.queue_pair->send_room() > 0 && sent - received < 16) {
      uint8_t* const from = &a_.memory[static_cast<size_t>(sent % 64) * 256];
      memset(from, sent & 0xff, 256);
      SendWork work = Write(static_cast<uint64_t>(sent), static_cast<uint64_t>(sent % 64) * 256, 0,
                            1 + static_cast<uint64_t>(sent % 256));
      work.op = SendOp::kWriteWithImmediate;
      work.immediate = static_cast<uint32_t>(sent);
      ASSERT_TRUE(Post(&a_, work).ok());
      ++sent;
    }
    const size_t before = b_.done.size();
    ASSERT_TRUE(UntilDone(b_, before + 1));
    for (size_t i = before; i < b_.done.size(); ++i) {
      ASSERT_EQ(b_.done[i].status, CompletionStatus::kOk)
          << "after " << received << "; of the other side: "
          << (a_.done.empty() ? "nothing" : CompletionStatusName(a_.done.back().status));
      ASSERT_EQ(b_.done[i].immediate, static_cast<uint32_t>(received));
      ASSERT_EQ(b_.done[i].bytes, 1 + static_cast<uint64_t>(received % 256));
      ++received;
      PostReceives(&b_, 1);
    }
  }
  ASSERT_TRUE(UntilDone(a_, 2000));
  for (size_t i = 0; i < 2000; ++i) ASSERT_EQ(a_.done[i].id, i);
  EXPECT_EQ(b_.memory[0], 1999 & 0xff);
}

TEST_P(NicContractTest, KindsOfWorkCompleteInTheOrderOfPosting) {
  OpenBoth();
  ReceiveWork receive;
  const Entry into = b_.Piece(0, 100);
  receive.entries = absl::MakeConstSpan(&into, 1);
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(b_.queue_pair->PostReceive(absl::MakeConstSpan(&receive, 1)).ok());
  }
  std::vector<SendWork> works;
  for (uint64_t i = 0; i < 8; i += 4) {
    works.push_back(Read(i, 1000, 300, 9000));
    works.push_back(Write(i + 1, 0, 300, 20));
    works.push_back(Send(i + 2, 0, 50));
    works.push_back(Write(i + 3, 0, 0, 0));
  }
  ASSERT_TRUE(a_.queue_pair->PostSend(works).ok());
  ASSERT_TRUE(UntilDone(a_, 8));
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(a_.done[i].id, i);
    EXPECT_EQ(a_.done[i].status, CompletionStatus::kOk);
  }
}

TEST_P(NicContractTest, InlineBytesAreTakenAtOnce) {
  OpenBoth();
  // Inline data may be unregistered, and may change when PostSend() has returned.
  uint8_t bytes[64];
  memset(bytes, 0x5a, sizeof(bytes));
  const Entry entries[] = {{reinterpret_cast<uint64_t>(bytes), 40, 0},
                           {reinterpret_cast<uint64_t>(bytes) + 40, 24, 0}};
  SendWork work = Write(1, 0, 0, 0);
  work.entries = entries;
  work.inline_data = true;
  ASSERT_TRUE(Post(&a_, work).ok());
  memset(bytes, 0, sizeof(bytes));
  ASSERT_TRUE(UntilDone(a_, 1));
  EXPECT_EQ(a_.done[0].status, CompletionStatus::kOk);
  EXPECT_EQ(b_.memory[0], 0x5a);
  EXPECT_EQ(b_.memory[63], 0x5a);
  EXPECT_EQ(b_.memory[64], 0);
}

TEST_P(NicContractTest, UnsignaledWorksCompleteWithTheNextSignaledOne) {
  OpenBoth();
  const uint32_t room = a_.queue_pair->send_room();
  for (uint64_t i = 0; i < 3; ++i) {
    SendWork work = Write(i, 0, i * 8, 8);
    work.signaled = false;
    ASSERT_TRUE(Post(&a_, work).ok());
  }
  LetPass(absl::Milliseconds(5));
  EXPECT_TRUE(a_.done.empty());
  EXPECT_EQ(a_.queue_pair->send_room(), room - 3);
  ExpectStatus(Write(3, 0, 24, 8), CompletionStatus::kOk);
  EXPECT_EQ(a_.done.size(), 1u);
  EXPECT_EQ(a_.queue_pair->send_room(), room);
  EXPECT_EQ(memcmp(&b_.memory[16], &a_.memory[0], 8), 0);
}

TEST_P(NicContractTest, SendsPostedBeforeThePeerIsThereWaitForIt) {
  a_ = OpenEnd(pair_->first(), Options());
  b_ = OpenEnd(pair_->second(), Options());
  a_.memory[0] = 42;
  const std::string to_a = a_.queue_pair->LocalAddress();
  ASSERT_TRUE(a_.queue_pair->Connect(b_.queue_pair->LocalAddress()).ok());
  ASSERT_TRUE(Post(&a_, Write(1, 0, 0, 1)).ok());
  LetPass(absl::Milliseconds(20));
  EXPECT_TRUE(a_.done.empty());
  ASSERT_TRUE(b_.queue_pair->Connect(to_a).ok());
  ASSERT_TRUE(UntilDone(a_, 1));
  EXPECT_EQ(a_.done[0].status, CompletionStatus::kOk);
  EXPECT_EQ(b_.memory[0], 42);
}

TEST_P(NicContractTest, BothWaysAtOnce) {
  OpenBoth();
  PostReceives(&a_, 16);
  PostReceives(&b_, 16);
  for (int round = 0; round < 200; ++round) {
    const size_t a_before = a_.done.size();
    const size_t b_before = b_.done.size();
    SendWork there = Write(1, 0, 0, 30000);
    there.op = SendOp::kWriteWithImmediate;
    Entry piece = b_.Piece(32768, 30000);
    SendWork back = there;
    back.entries = absl::MakeConstSpan(&piece, 1);
    back.remote_address = a_.At(32768);
    back.remote_key = a_.region->remote_key();
    ASSERT_TRUE(Post(&a_, there).ok());
    ASSERT_TRUE(Post(&b_, back).ok());
    ASSERT_TRUE(UntilDone(a_, a_before + 2));
    ASSERT_TRUE(UntilDone(b_, b_before + 2));
    for (size_t i = a_before; i < a_.done.size(); ++i) {
      ASSERT_EQ(a_.done[i].status, CompletionStatus::kOk);
    }
    PostReceives(&a_, 1);
    PostReceives(&b_, 1);
  }
}

TEST_P(NicContractTest, MoreThanAGibibyteInChunks) {
  const uint64_t bytes = GetParam().largest_region_bytes;
  QueuePairOptions options = Options();
  OpenBoth(options, options, bytes);
  const uint64_t chunk = std::min<uint64_t>(bytes / 4, a_.nic->limits().max_message_bytes);
  uint64_t posted = 0;
  uint64_t id = 0;
  while (posted < GetParam().total_bytes) {
    const size_t before = a_.done.size();
    std::vector<SendWork> works;
    for (uint64_t offset = 0; offset + chunk <= bytes && works.size() < 8; offset += chunk) {
      works.push_back(Write(id++, offset, bytes - chunk - offset, chunk));
      posted += chunk;
    }
    ASSERT_TRUE(a_.queue_pair->PostSend(works).ok());
    ASSERT_TRUE(UntilDone(a_, before + works.size()));
    for (size_t i = before; i < a_.done.size(); ++i) {
      ASSERT_EQ(a_.done[i].status, CompletionStatus::kOk);
      ASSERT_EQ(a_.done[i].id, i);
    }
  }
  const uint64_t covered = std::min<uint64_t>(8, bytes / chunk) * chunk;
  for (uint64_t offset = 0; offset + chunk <= covered; offset += chunk) {
    ASSERT_EQ(memcmp(&b_.memory[bytes - chunk - offset], &a_.memory[offset], chunk), 0);
  }
}

}  // namespace
}  // namespace tryst
