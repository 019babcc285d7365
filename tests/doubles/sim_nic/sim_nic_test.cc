// The simulator's NIC keeps verbs/nic.h, and shows what only a simulator can: bytes that land late
// or in part.

#include "tests/doubles/sim_nic/sim_nic.h"

#include <algorithm>
#include <numeric>

#include "gtest/gtest.h"
#include "tests/doubles/sim_nic/sim_completion_queue.h"
#include "tests/doubles/sim_nic/sim_ends.h"

namespace tryst {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr int64_t kLong = 10'000'000'000;  // Longer than all retries.

class SimNicTest : public testing::Test {
 protected:
  ~SimNicTest() override { EXPECT_EQ(world_.violations(), std::vector<std::string>()); }

  void JoinWith(const QueuePairOptions& options) {
    left_ = a_.AddQueuePair(options);
    right_ = b_.AddQueuePair(options);
    Join(left_, right_);
  }

  SimWorld world_{1};
  SimEnd a_{&world_, 0, kBytes};
  SimEnd b_{&world_, 1, kBytes};
  QueuePair* left_ = nullptr;
  QueuePair* right_ = nullptr;
};

TEST_F(SimNicTest, WriteLandsAndCompletes) {
  JoinWith(QueuePairOptions());
  std::iota(a_.memory.begin(), a_.memory.begin() + 100000, 1);
  ASSERT_TRUE(a_.Post(left_, a_.WriteTo(b_, 7, 16), 16, 90000).ok());
  EXPECT_EQ(left_->send_room(), 127u);
  world_.RunFor(kLong);
  const std::vector<Completion> done = a_.Poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, 7u);
  EXPECT_EQ(done[0].status, CompletionStatus::kOk);
  EXPECT_EQ(done[0].queue_pair, left_->number());
  EXPECT_EQ(left_->send_room(), 128u);
  EXPECT_TRUE(
      std::equal(a_.memory.begin() + 16, a_.memory.begin() + 90016, b_.memory.begin() + 16));
  EXPECT_EQ(b_.memory[15], 0);
  EXPECT_EQ(b_.memory[90016], 0);
  EXPECT_TRUE(b_.Poll().empty());
}

TEST_F(SimNicTest, ChunksLandInEventsOfTheirOwnBeforeTheImmediate) {
  JoinWith(QueuePairOptions());
  std::fill(a_.memory.begin(), a_.memory.end(), 0xAB);
  ASSERT_TRUE(b_.PostReceive(right_, 3).ok());
  SendWork work = a_.WriteTo(b_, 1, 0);
  work.op = SendOp::kWriteWithImmediate;
  work.immediate = 0xC0FFEE;
  ASSERT_TRUE(a_.Post(left_, work, 0, kBytes).ok());
  std::vector<int64_t> landed;  // How many bytes were there, each time that this changed.
  std::vector<Completion> received;
  while (received.empty() && world_.Step()) {
    const int64_t now = std::count(b_.memory.begin(), b_.memory.end(), 0xAB);
    if (landed.empty() || now != landed.back()) landed.push_back(now);
    received = b_.Poll();
  }
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].id, 3u);
  EXPECT_EQ(received[0].op, CompletionOp::kReceiveWriteImmediate);
  EXPECT_EQ(received[0].immediate, 0xC0FFEEu);
  EXPECT_EQ(received[0].bytes, kBytes);
  EXPECT_EQ(landed.size(), 1 + kBytes / world_.options().chunk_bytes);
  EXPECT_EQ(landed.back(), static_cast<int64_t>(kBytes));
}

TEST_F(SimNicTest, OrderHoldsWithinAQueuePairAndVariesAcross) {
  constexpr int kPairs = 4;
  constexpr int kWorks = 50;
  for (int i = 0; i < kPairs; ++i) JoinWith(QueuePairOptions());
  for (int w = 0; w < kWorks; ++w) {
    for (int p = 0; p < kPairs; ++p) {
      const SendWork work = a_.WriteTo(b_, static_cast<uint64_t>(p * kWorks + w), 0);
      ASSERT_TRUE(a_.Post(a_.pairs[p].get(), work, 0, 1000).ok());
    }
  }
  world_.RunFor(kLong);
  std::vector<int> next(kPairs);
  int round_robin = 0;
  int at = 0;
  for (const Completion& c : a_.Poll()) {
    const int pair = static_cast<int>(c.id) / kWorks;
    EXPECT_EQ(static_cast<int>(c.id) % kWorks, next[pair]++);
    round_robin += pair == at++ % kPairs ? 1 : 0;
  }
  EXPECT_EQ(next, std::vector<int>(kPairs, kWorks));
  EXPECT_LT(round_robin, kPairs * kWorks * 3 / 4) << "the seed does not vary the order";
}

TEST_F(SimNicTest, WriteOneByteOutsideChangesNothing) {
  struct {
    uint64_t offset;
    uint64_t bytes;
  } const kOutside[] = {{kBytes - 999, 1000}, {kBytes, 1}, {uint64_t(0) - 1, 2}, {0, kBytes + 1}};
  for (const auto& outside : kOutside) {
    std::vector<uint8_t> large(kBytes + 64, 0xEE);
    auto from = a_.nic->RegisterRegion(large.data(), large.size(), kLocalOnly);
    ASSERT_TRUE(from.ok());
    JoinWith(QueuePairOptions());
    SendWork work = a_.WriteTo(b_, 1, outside.offset);
    const Entry entry{(*from)->address(), outside.bytes, (*from)->local_key()};
    work.entries = absl::MakeConstSpan(&entry, 1);
    ASSERT_TRUE(left_->PostSend(absl::MakeConstSpan(&work, 1)).ok());
    world_.RunFor(kLong);
    const std::vector<Completion> done = a_.Poll();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, CompletionStatus::kRemoteAccess);
    EXPECT_EQ(std::count(b_.memory.begin(), b_.memory.end(), 0), static_cast<int64_t>(kBytes));
    EXPECT_EQ(left_->state(), QueuePairState::kDrained);
  }
}

TEST_F(SimNicTest, KeysOfAnotherNicOrOfTheDeadReachNothing) {
  std::vector<uint8_t> gone(4096);
  auto region = b_.nic->RegisterRegion(gone.data(), gone.size(), kRemoteWrite);
  ASSERT_TRUE(region.ok());
  const uint32_t keys[] = {(*region)->remote_key(), a_.region->remote_key(), 0};
  const uint64_t address = (*region)->address();
  region->reset();
  for (const uint32_t key : keys) {
    JoinWith(QueuePairOptions());
    SendWork work = a_.WriteTo(b_, 1, 0);
    work.remote_key = key;
    if (key == keys[0]) work.remote_address = address;
    ASSERT_TRUE(a_.Post(left_, work, 0, 8).ok());
    world_.RunFor(kLong);
    ASSERT_EQ(a_.Poll().front().status, CompletionStatus::kRemoteAccess);
  }
}

TEST_F(SimNicTest, RegionRevokedInMidWriteStopsIt) {
  JoinWith(QueuePairOptions());
  std::vector<uint8_t> landing(kBytes);
  auto region = b_.nic->RegisterRegion(landing.data(), landing.size(), kRemoteWrite);
  ASSERT_TRUE(region.ok());
  std::fill(a_.memory.begin(), a_.memory.end(), 1);
  SendWork work = a_.WriteTo(b_, 1, 0);
  work.remote_address = (*region)->address();
  work.remote_key = (*region)->remote_key();
  ASSERT_TRUE(a_.Post(left_, work, 0, kBytes).ok());
  while (landing[100000] == 0) ASSERT_TRUE(world_.Step());
  region->reset();
  const auto landed = std::count(landing.begin(), landing.end(), 1);
  world_.Poison(landing.data(), landing.size());
  world_.RunFor(kLong);
  EXPECT_EQ(std::count(landing.begin(), landing.end(), 1), landed);
  EXPECT_EQ(a_.Poll().front().status, CompletionStatus::kRemoteAccess);
  world_.Unpoison(landing.data(), landing.size());
}

TEST_F(SimNicTest, ReadsScatter) {
  QueuePairOptions options;
  options.max_entries = 2;
  JoinWith(options);
  std::iota(b_.memory.begin(), b_.memory.end(), 3);
  const Entry entries[] = {{a_.region->address() + 8, 70000, a_.region->local_key()},
                           {a_.region->address() + 500000, 100, a_.region->local_key()}};
  SendWork read = a_.WriteTo(b_, 1, 1000);
  read.op = SendOp::kRead;
  read.entries = entries;
  ASSERT_TRUE(left_->PostSend(absl::MakeConstSpan(&read, 1)).ok());
  world_.RunFor(kLong);
  const std::vector<Completion> done = a_.Poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].op, CompletionOp::kRead);
  EXPECT_TRUE(std::equal(&a_.memory[8], &a_.memory[70008], &b_.memory[1000]));
  EXPECT_TRUE(std::equal(&a_.memory[500000], &a_.memory[500100], &b_.memory[71000]));
}

TEST_F(SimNicTest, AWriteOvertakesTheReadBeforeIt) {
  JoinWith(QueuePairOptions());
  std::fill(b_.memory.begin(), b_.memory.end(), 9);
  SendWork read = a_.WriteTo(b_, 1, 0);
  read.op = SendOp::kRead;
  ASSERT_TRUE(a_.Post(left_, read, 0, 64).ok());
  ASSERT_TRUE(a_.Post(left_, a_.WriteTo(b_, 2, 4096), 0, 64).ok());
  world_.RunFor(kLong);
  ASSERT_EQ(a_.Poll().size(), 2u);
  EXPECT_EQ(b_.memory[4096], 0);
}

TEST_F(SimNicTest, ReadsInFlightAreBounded) {
  QueuePairOptions options;
  JoinWith(options);
  for (uint64_t i = 0; i < 100; ++i) {
    SendWork read = a_.WriteTo(b_, i, i * 1000);
    read.op = SendOp::kRead;
    ASSERT_TRUE(a_.Post(left_, read, i * 1000, 1000).ok());
  }
  world_.RunFor(kLong);
  const std::vector<Completion> done = a_.Poll();
  ASSERT_EQ(done.size(), 100u);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(done[i].id, i);
}

TEST_F(SimNicTest, SendsLandInReceivesInOrder) {
  JoinWith(QueuePairOptions());
  std::iota(a_.memory.begin(), a_.memory.end(), 5);
  for (uint64_t i = 0; i < 3; ++i) {
    const Entry entry{b_.region->address() + i * 1000, 1000, b_.region->local_key()};
    ReceiveWork receive;
    receive.id = 10 + i;
    receive.entries = absl::MakeConstSpan(&entry, 1);
    ASSERT_TRUE(right_->PostReceive(absl::MakeConstSpan(&receive, 1)).ok());
  }
  for (uint64_t i = 0; i < 3; ++i) {
    SendWork send;
    send.op = SendOp::kSend;
    ASSERT_TRUE(a_.Post(left_, send, i * 2000, 100 * i).ok());
  }
  world_.RunFor(kLong);
  const std::vector<Completion> received = b_.Poll();
  ASSERT_EQ(received.size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(received[i].id, 10 + i);
    EXPECT_EQ(received[i].op, CompletionOp::kReceive);
    EXPECT_EQ(received[i].bytes, 100 * i);
    EXPECT_TRUE(
        std::equal(&b_.memory[i * 1000], &b_.memory[i * 1000 + 100 * i], &a_.memory[i * 2000]));
  }
}

TEST_F(SimNicTest, UnsignaledWorksComeBackWithTheNextSignaled) {
  QueuePairOptions options;
  options.send_depth = 4;
  JoinWith(options);
  for (uint64_t i = 0; i < 4; ++i) {
    SendWork work = a_.WriteTo(b_, i, 0);
    work.signaled = i == 2;
    ASSERT_TRUE(a_.Post(left_, work, 0, 8).ok());
  }
  const SendWork more = a_.WriteTo(b_, 9, 0);
  EXPECT_EQ(a_.Post(left_, more, 0, 8).code(), absl::StatusCode::kResourceExhausted);
  world_.RunFor(kLong);
  EXPECT_EQ(left_->send_room(), 0u) << "room comes back when polled";
  const std::vector<Completion> done = a_.Poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, 2u);
  EXPECT_EQ(left_->send_room(), 3u);
  // The last one ended well without a completion; that must not keep the queue pair.
  left_->Break();
  world_.RunFor(kLong);
  EXPECT_TRUE(a_.Poll().empty());
  EXPECT_EQ(left_->state(), QueuePairState::kDrained);
}

TEST_F(SimNicTest, InlineBytesAreTakenAtOnce) {
  QueuePairOptions options;
  options.max_inline_bytes = 64;
  JoinWith(options);
  std::fill_n(a_.memory.begin(), 64, 1);
  SendWork work = a_.WriteTo(b_, 1, 0);
  work.inline_data = true;
  ASSERT_TRUE(a_.Post(left_, work, 0, 64).ok());
  std::fill_n(a_.memory.begin(), 64, 2);
  EXPECT_EQ(a_.Post(left_, work, 0, 65).code(), absl::StatusCode::kInvalidArgument);
  world_.RunFor(kLong);
  EXPECT_EQ(b_.memory[63], 1);
}

TEST_F(SimNicTest, PostsAreAllOrNone) {
  JoinWith(QueuePairOptions());
  SendWork works[2] = {a_.WriteTo(b_, 1, 0), a_.WriteTo(b_, 2, 0)};
  works[1].inline_data = true;
  const Entry entry{a_.region->address(), 8, a_.region->local_key()};
  for (SendWork& work : works) work.entries = absl::MakeConstSpan(&entry, 1);
  EXPECT_EQ(left_->PostSend(works).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(left_->send_room(), 128u);
  world_.RunFor(kLong);
  EXPECT_TRUE(a_.Poll().empty());
}

TEST_F(SimNicTest, StatesRefuseWhatTheSeamSays) {
  QueuePair* const alone = a_.AddQueuePair();
  EXPECT_EQ(alone->state(), QueuePairState::kReset);
  EXPECT_EQ(a_.Post(alone, SendWork(), 0, 8).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(a_.PostReceive(alone, 1).ok());
  for (const char* bad : {"", "x", "tryst-sim-1,1,1,0,999999,3", "tryst-sim-1,1,0,0,0,3",
                          "tryst-sim-1,1,1,0,0", "tryst-sim-1,a,1,0,0,3"}) {
    EXPECT_EQ(alone->Connect(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  alone->Break();
  alone->Break();
  EXPECT_EQ(alone->state(), QueuePairState::kBroken);
  EXPECT_EQ(a_.PostReceive(alone, 2).code(), absl::StatusCode::kFailedPrecondition);
  world_.RunFor(kLong);
  EXPECT_EQ(alone->state(), QueuePairState::kBroken) << "its receive has not been polled";
  const std::vector<Completion> back = a_.Poll();
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(back[0].status, CompletionStatus::kFlushed);
  EXPECT_EQ(alone->state(), QueuePairState::kDrained);
}

TEST_F(SimNicTest, SendsWaitForThePeerAsLongAsTheRetriesAllow) {
  left_ = a_.AddQueuePair();
  right_ = b_.AddQueuePair();
  ASSERT_TRUE(left_->Connect(right_->LocalAddress()).ok());
  ASSERT_TRUE(a_.Post(left_, a_.WriteTo(b_, 1, 0), 0, 8).ok());
  world_.RunFor(100'000'000);
  EXPECT_TRUE(a_.Poll().empty());
  ASSERT_TRUE(right_->Connect(left_->LocalAddress()).ok());
  world_.RunFor(100'000'000);
  ASSERT_EQ(a_.Poll().front().status, CompletionStatus::kOk);
}

TEST_F(SimNicTest, ReceiverNotReadyIsWaitedFor) {
  QueuePairOptions options;
  JoinWith(options);
  SendWork work = a_.WriteTo(b_, 1, 0);
  work.op = SendOp::kWriteWithImmediate;
  ASSERT_TRUE(a_.Post(left_, work, 0, 8).ok());
  world_.RunFor(2 * world_.options().receiver_wait_ns);
  ASSERT_TRUE(b_.PostReceive(right_, 1).ok());
  world_.RunFor(2 * world_.options().receiver_wait_ns);
  ASSERT_EQ(a_.Poll().front().status, CompletionStatus::kOk);
  ASSERT_EQ(b_.Poll().size(), 1u);
  ASSERT_TRUE(a_.Post(left_, work, 0, 8).ok());
  world_.RunFor(kLong);
  EXPECT_EQ(a_.Poll().front().status, CompletionStatus::kReceiverNotReady);
}

TEST_F(SimNicTest, CompletionQueueRefusesWhatCouldOverrunIt) {
  auto queue = a_.nic->CreateCompletionQueue(20);
  ASSERT_TRUE(queue.ok());
  QueuePairOptions options;
  options.completions = queue->get();
  options.send_depth = 8;
  options.receive_depth = 8;
  auto one = a_.nic->CreateQueuePair(options);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(a_.nic->CreateQueuePair(options).status().code(), absl::StatusCode::kResourceExhausted);
  one->reset();
  EXPECT_TRUE(a_.nic->CreateQueuePair(options).ok());
}

TEST_F(SimNicTest, ArmedQueueWakes) {
  JoinWith(QueuePairOptions());
  auto* const queue = static_cast<SimCompletionQueue*>(a_.completions.get());
  ASSERT_TRUE(queue->Arm().ok());
  EXPECT_FALSE(queue->woken());
  ASSERT_TRUE(a_.Post(left_, a_.WriteTo(b_, 1, 0), 0, 8).ok());
  world_.RunFor(kLong);
  EXPECT_TRUE(queue->woken());
}

TEST_F(SimNicTest, RegistrationSaysWhatIsWrong) {
  uint8_t byte = 0;
  EXPECT_EQ(a_.nic->RegisterRegion(nullptr, 8, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a_.nic->RegisterRegion(&byte, 0, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a_.nic->RegisterRegion(&byte, ~uint64_t{0}, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a_.nic->RegisterDmaBuf(0, 0, 8, 0, 0).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(SimNicTest, DestroyedWithWorkOutstandingItIsSilent) {
  JoinWith(QueuePairOptions());
  std::fill(a_.memory.begin(), a_.memory.end(), 1);
  ASSERT_TRUE(b_.PostReceive(right_, 5).ok());
  ASSERT_TRUE(a_.Post(left_, a_.WriteTo(b_, 1, 0), 0, kBytes).ok());
  while (b_.memory[100000] == 0) ASSERT_TRUE(world_.Step());
  world_.Poison(b_.memory.data(), kBytes);
  b_.pairs.clear();
  a_.pairs.clear();
  world_.RunFor(kLong);
  EXPECT_TRUE(a_.Poll().empty());
  EXPECT_TRUE(b_.Poll().empty());
  world_.Unpoison(b_.memory.data(), kBytes);
}

TEST_F(SimNicTest, ManyConnectsLeaveNothingBehind) {
  for (int i = 0; i < 1000; ++i) {
    JoinWith(QueuePairOptions());
    ASSERT_TRUE(a_.Post(left_, a_.WriteTo(b_, 1, 0), 0, 8).ok());
    if (i % 3 == 0) world_.RunFor(100'000);
    a_.pairs.clear();
    b_.pairs.clear();
  }
  world_.RunFor(kLong);
  EXPECT_EQ(world_.next_ns(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(a_.nic->queue_pairs(), 0u);
}

// Memory that is released too early is detected: that is what the simulator is for.
class LateByteTest : public testing::Test {
 protected:
  // Writes into `landing` until some of it has landed.
  void StartWrite() {
    left_ = a_.AddQueuePair();
    right_ = b_.AddQueuePair();
    Join(left_, right_);
    ASSERT_TRUE(a_.Post(left_, a_.WriteTo(b_, 1, 0), 0, kBytes).ok());
    while (b_.memory[100000] == 0) ASSERT_TRUE(world_.Step());
  }

  SimOptions Slow() {
    SimOptions options;
    options.break_ns_max = 10'000'000;
    return options;
  }

  SimWorld world_{3, Slow()};
  SimEnd a_{&world_, 0, kBytes};
  SimEnd b_{&world_, 1, kBytes};
  QueuePair* left_ = nullptr;
  QueuePair* right_ = nullptr;
  const bool filled_ = (std::fill(a_.memory.begin(), a_.memory.end(), 1), true);
};

TEST_F(LateByteTest, BytesLandLongAfterThePosterBroke) {
  StartWrite();
  left_->Break();
  const auto then = std::count(b_.memory.begin(), b_.memory.end(), 1);
  world_.RunFor(kLong);
  EXPECT_GT(std::count(b_.memory.begin(), b_.memory.end(), 1), then);
  EXPECT_EQ(world_.guard().violation_count(), 0u);
}

TEST_F(LateByteTest, FreeingOnceThePosterBrokeIsAViolation) {
  StartWrite();
  left_->Break();
  world_.Poison(b_.memory.data(), kBytes);
  world_.RunFor(kLong);
  EXPECT_GT(world_.guard().violation_count(), 0u);
  ASSERT_FALSE(world_.violations().empty());
  EXPECT_NE(world_.violations()[0].find("poisoned"), std::string::npos);
}

TEST_F(LateByteTest, FreeingWhenOnlyBrokenIsAViolation) {
  StartWrite();
  right_->Break();
  EXPECT_EQ(right_->state(), QueuePairState::kBroken);
  world_.Poison(b_.memory.data(), kBytes);
  world_.RunFor(kLong);
  EXPECT_GT(world_.guard().violation_count(), 0u);
}

TEST_F(LateByteTest, FreeingWhenDrainedIsSafe) {
  StartWrite();
  right_->Break();
  while (right_->state() != QueuePairState::kDrained) ASSERT_TRUE(world_.Step());
  world_.Poison(b_.memory.data(), kBytes);
  world_.RunFor(kLong);
  EXPECT_EQ(world_.guard().violation_count(), 0u);
}

TEST_F(LateByteTest, SendingFromFreedMemoryIsAViolation) {
  StartWrite();
  world_.Poison(a_.memory.data(), kBytes);
  world_.RunFor(kLong);
  EXPECT_GT(world_.guard().violation_count(), 0u);
}

TEST_F(LateByteTest, DeregisteringWhatAWorkNamesIsAViolation) {
  StartWrite();
  a_.region.reset();
  EXPECT_EQ(world_.guard().violation_count(), 1u);
  world_.RunFor(kLong);
  EXPECT_EQ(a_.Poll().front().status, CompletionStatus::kLocalProtection);
}

}  // namespace
}  // namespace tryst
