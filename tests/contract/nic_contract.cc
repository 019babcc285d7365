#include "tests/contract/nic_contract.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"

namespace tryst {
namespace {

constexpr absl::Duration kTurn = absl::Microseconds(20);

}  // namespace

void NicContractTest::SetUp() {
  const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  for (const auto& [test, reason] : GetParam().skips) {
    if (name.substr(0, name.find('/')) == test) GTEST_SKIP() << reason;
  }
  pair_ = GetParam().open();
  ASSERT_NE(pair_, nullptr);
}

void NicContractTest::TearDown() {
  a_.queue_pair.reset();
  b_.queue_pair.reset();
  for (NicEnd* end : {&a_, &b_}) {
    end->completions.reset();
    end->region.reset();
  }
}

QueuePairOptions NicContractTest::Options() const {
  QueuePairOptions options;
  options.send_depth = 32;
  options.receive_depth = 32;
  options.max_entries = 4;
  options.max_inline_bytes = 64;
  options.ack_timeout = GetParam().ack_timeout;
  return options;
}

QueuePairOptions NicContractTest::ImpatientOptions() const {
  QueuePairOptions options = Options();
  options.ack_timeout = GetParam().short_ack_timeout;
  options.retry_count = 1;
  options.rnr_retry_count = 1;
  return options;
}

NicEnd NicContractTest::OpenEnd(Nic* nic, QueuePairOptions options, uint64_t memory_bytes) {
  NicEnd end;
  end.nic = nic;
  end.memory.resize(memory_bytes);
  auto region = nic->RegisterRegion(end.memory.data(), end.memory.size(),
                                    kLocalWrite | kRemoteWrite | kRemoteRead);
  EXPECT_TRUE(region.ok()) << region.status();
  if (region.ok()) end.region = *std::move(region);
  auto completions = nic->CreateCompletionQueue(options.send_depth + options.receive_depth);
  EXPECT_TRUE(completions.ok()) << completions.status();
  if (completions.ok()) end.completions = *std::move(completions);
  OpenQueuePair(&end, options);
  return end;
}

void NicContractTest::OpenQueuePair(NicEnd* end, QueuePairOptions options) {
  options.completions = end->completions.get();
  auto queue_pair = end->nic->CreateQueuePair(options);
  ASSERT_TRUE(queue_pair.ok()) << queue_pair.status();
  end->queue_pair = *std::move(queue_pair);
}

void NicContractTest::Connect(NicEnd* a, NicEnd* b) {
  const std::string to_a = a->queue_pair->LocalAddress();
  const std::string to_b = b->queue_pair->LocalAddress();
  ASSERT_TRUE(a->queue_pair->Connect(to_b).ok());
  ASSERT_TRUE(b->queue_pair->Connect(to_a).ok());
}

void NicContractTest::OpenBoth(QueuePairOptions a_options, QueuePairOptions b_options,
                               uint64_t memory_bytes) {
  a_ = OpenEnd(pair_->first(), a_options, memory_bytes);
  b_ = OpenEnd(pair_->second(), b_options, memory_bytes);
  std::iota(a_.memory.begin(), a_.memory.end(), uint8_t{1});
  Connect(&a_, &b_);
}

void NicContractTest::PollOnce(NicEnd* end) {
  if (end->completions == nullptr) return;
  Completion batch[8];
  const absl::StatusOr<size_t> polled = end->completions->Poll(absl::MakeSpan(batch));
  ASSERT_TRUE(polled.ok()) << polled.status();
  end->done.insert(end->done.end(), batch, batch + *polled);
}

bool NicContractTest::Until(const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::After(pair_->clock(), GetParam().patience);
  while (!condition()) {
    if (deadline.Passed(pair_->clock().NowNs())) return false;
    PollOnce(&a_);
    PollOnce(&b_);
    pair_->Progress(kTurn);
  }
  return true;
}

bool NicContractTest::UntilDone(const NicEnd& end, size_t completions) {
  return Until([&] { return end.done.size() >= completions; });
}

void NicContractTest::LetPass(absl::Duration duration) {
  const Deadline end = Deadline::After(pair_->clock(), duration);
  while (!end.Passed(pair_->clock().NowNs())) {
    PollOnce(&a_);
    PollOnce(&b_);
    pair_->Progress(kTurn);
  }
}

SendWork NicContractTest::Write(uint64_t id, uint64_t from, uint64_t to, uint64_t bytes) {
  SendWork work = Send(id, from, bytes);
  work.op = SendOp::kWrite;
  work.remote_address = b_.At(to);
  work.remote_key = b_.region->remote_key();
  return work;
}

SendWork NicContractTest::Read(uint64_t id, uint64_t into, uint64_t from, uint64_t bytes) {
  SendWork work = Write(id, into, from, bytes);
  work.op = SendOp::kRead;
  return work;
}

SendWork NicContractTest::Send(uint64_t id, uint64_t from, uint64_t bytes) {
  Entry& piece = piece_[next_piece_++ % 8];
  piece = a_.Piece(from, bytes);
  SendWork work;
  work.id = id;
  work.op = SendOp::kSend;
  work.entries = absl::MakeConstSpan(&piece, 1);
  return work;
}

SendWork NicContractTest::Knock(uint64_t id) {
  if (!a_.nic->limits().write_with_immediate) return Send(id, 0, 1);
  SendWork work = Write(id, 0, 0, 1);
  work.op = SendOp::kWriteWithImmediate;
  return work;
}

void NicContractTest::PostReceives(NicEnd* end, int count, uint64_t first_id) {
  for (int i = 0; i < count; ++i) {
    ReceiveWork work;
    work.id = first_id + static_cast<uint64_t>(i);
    const Entry landing = end->Piece(0, 8);
    if (!end->nic->limits().write_with_immediate) work.entries = absl::MakeConstSpan(&landing, 1);
    ASSERT_TRUE(end->queue_pair->PostReceive(absl::MakeConstSpan(&work, 1)).ok());
  }
}

absl::Status NicContractTest::Post(NicEnd* end, const SendWork& work) {
  return end->queue_pair->PostSend(absl::MakeConstSpan(&work, 1));
}

void NicContractTest::ExpectStatus(const SendWork& work, CompletionStatus status) {
  const size_t before = a_.done.size();
  ASSERT_TRUE(Post(&a_, work).ok());
  ASSERT_TRUE(UntilDone(a_, before + 1));
  EXPECT_STREQ(CompletionStatusName(a_.done[before].status), CompletionStatusName(status));
  EXPECT_EQ(a_.done[before].id, work.id);
  EXPECT_EQ(a_.done[before].queue_pair, a_.queue_pair->number());
}

}  // namespace tryst
