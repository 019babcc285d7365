// What is made, counted, waited for and released.
#include <dirent.h>
#include <malloc.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>

#include "absl/time/clock.h"
#include "tests/contract/nic_contract.h"

namespace tryst {
namespace {

int OpenDescriptors() {
  DIR* const all = opendir("/proc/self/fd");
  if (all == nullptr) return -1;
  int count = 0;
  while (readdir(all) != nullptr) ++count;
  closedir(all);
  return count;
}

// Bytes of the C library's heap. Under a sanitizer, which has its own heap, this is 0; there the
// sanitizer finds leaks.
int64_t AllocatedBytes() { return static_cast<int64_t>(mallinfo2().uordblks); }

TEST_P(NicContractTest, ConnectsAndDisconnectsWithoutALeak) {
  a_ = OpenEnd(pair_->first(), Options());
  b_ = OpenEnd(pair_->second(), Options());
  const auto cycle = [&](int count) {
    for (int i = 0; i < count; ++i) {
      a_.done.clear();
      b_.done.clear();
      OpenQueuePair(&a_, Options());
      OpenQueuePair(&b_, Options());
      Connect(&a_, &b_);
      PostReceives(&b_, 1);
      // Every other queue pair is destroyed with work outstanding.
      SendWork work = Write(1, 0, 0, 100);
      work.op = SendOp::kWriteWithImmediate;
      if (i % 2 == 0) {
        ExpectStatus(work, CompletionStatus::kOk);
      } else {
        ASSERT_TRUE(Post(&a_, work).ok());
      }
      a_.queue_pair.reset();
      if (i % 3 == 0) LetPass(absl::Microseconds(50));
      b_.queue_pair.reset();
    }
  };
  // What is allocated only once is not a leak.
  a_.queue_pair.reset();
  b_.queue_pair.reset();
  cycle(GetParam().connections / 10);
  LetPass(absl::Milliseconds(50));
  const int descriptors = OpenDescriptors();
  const int64_t allocated = AllocatedBytes();
  cycle(GetParam().connections);
  EXPECT_TRUE(Until([&] {
    PollOnce(&a_);
    PollOnce(&b_);  // Strangers whose queue pair has gone are seen off.
    return OpenDescriptors() <= descriptors;
  })) << OpenDescriptors()
      << " descriptors, " << descriptors << " before";
  EXPECT_LT(AllocatedBytes() - allocated, 64 << 10);
}

TEST_P(NicContractTest, CompletionQueueRefusesMoreThanItCanHold) {
  QueuePairOptions options = Options();
  a_ = OpenEnd(pair_->first(), options);  // This fills its queue.
  options.completions = a_.completions.get();
  options.send_depth = 1;
  options.receive_depth = 1;
  EXPECT_EQ(a_.nic->CreateQueuePair(options).status().code(), absl::StatusCode::kResourceExhausted);
  a_.queue_pair.reset();
  EXPECT_TRUE(a_.nic->CreateQueuePair(options).ok());
}

TEST_P(NicContractTest, QueuePairOverTheLimitsIsRefused) {
  a_ = OpenEnd(pair_->first(), Options());
  a_.queue_pair.reset();
  const NicLimits& limits = a_.nic->limits();
  const auto code = [&](QueuePairOptions options) {
    options.completions = a_.completions.get();
    return a_.nic->CreateQueuePair(options).status().code();
  };
  QueuePairOptions options = Options();
  options.max_entries = limits.max_entries + 1;
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument);
  options = Options();
  options.max_inline_bytes = limits.max_inline_bytes + 1;
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument);
  options = Options();
  options.send_depth = limits.max_send_depth + 1;
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument);
  options = Options();
  options.receive_depth = limits.max_receive_depth + 1;
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a_.nic->CreateCompletionQueue(limits.max_completion_depth + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(NicContractTest, ImpossibleRegionsAreRefused) {
  Nic* const nic = pair_->first();
  uint8_t byte = 0;
  const auto code = [&](void* address, uint64_t bytes) {
    return nic->RegisterRegion(address, bytes, kLocalWrite).status().code();
  };
  EXPECT_EQ(code(nullptr, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(&byte, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(&byte, std::numeric_limits<uint64_t>::max()), absl::StatusCode::kInvalidArgument);
  if (!nic->limits().dma_buf) {
    EXPECT_EQ(nic->RegisterDmaBuf(0, 0, 1, 0, kLocalWrite).status().code(),
              absl::StatusCode::kUnimplemented);
  }
}

TEST_P(NicContractTest, ImmediatesAreRefusedWhereThereAreNone) {
  if (pair_->first()->limits().write_with_immediate) GTEST_SKIP() << "it has them";
  OpenBoth();
  SendWork work = Write(1, 0, 0, 8);
  work.op = SendOp::kWriteWithImmediate;
  EXPECT_EQ(Post(&a_, work).code(), absl::StatusCode::kInvalidArgument);
  ExpectStatus(Write(2, 0, 0, 8), CompletionStatus::kOk);
}

TEST_P(NicContractTest, RegionsHaveKeysOfTheirOwn) {
  std::vector<uint8_t> memory(4096);
  Nic* const nic = pair_->first();
  std::vector<uint32_t> keys;
  std::vector<std::unique_ptr<Region>> regions;
  for (int i = 0; i < 100; ++i) {
    auto region = nic->RegisterRegion(memory.data(), memory.size(), kRemoteWrite);
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_EQ((*region)->address(), reinterpret_cast<uint64_t>(memory.data()));
    EXPECT_EQ((*region)->bytes(), memory.size());
    keys.push_back((*region)->remote_key());
    regions.push_back(*std::move(region));
  }
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::unique(keys.begin(), keys.end()), keys.end());
}

TEST_P(NicContractTest, ARenewedKeyEndsTheFormerOne) {
  OpenBoth();
  if (!b_.nic->limits().renews_keys) {
    EXPECT_FALSE(b_.region->RenewRemoteKey());
    return;
  }
  const uint32_t former = b_.region->remote_key();
  ExpectStatus(Write(1, 0, 0, 100), CompletionStatus::kOk);
  std::vector<uint32_t> keys = {former};
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(b_.region->RenewRemoteKey());
    EXPECT_NE(b_.region->remote_key(), keys.back());
    keys.push_back(b_.region->remote_key());
  }
  ExpectStatus(Write(2, 0, 0, 100), CompletionStatus::kOk);
  SendWork work = Write(3, 0, 0, 100);
  work.remote_key = former;
  ExpectStatus(work, CompletionStatus::kRemoteAccess);
}

TEST_P(NicContractTest, PortsAreDescribed) {
  const std::vector<NicPort> ports = pair_->first()->Ports();
  ASSERT_FALSE(ports.empty());
  EXPECT_EQ(ports[0].state, PortState::kActive);
  EXPECT_FALSE(ports[0].address.empty());
  EXPECT_FALSE(ports[0].description.empty());
  EXPECT_FALSE(pair_->first()->name().empty());
}

TEST_P(NicContractTest, BadAddressIsRefusedAndLeavesTheQueuePairAsItWas) {
  a_ = OpenEnd(pair_->first(), Options());
  b_ = OpenEnd(pair_->second(), Options());
  const std::string good = b_.queue_pair->LocalAddress();
  for (const std::string& bad : {std::string(), std::string("x"), good.substr(0, good.size() / 2),
                                 std::string(1000, '\0')}) {
    EXPECT_EQ(a_.queue_pair->Connect(bad).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(a_.queue_pair->state(), QueuePairState::kReset);
  }
  Connect(&a_, &b_);
  ExpectStatus(Write(1, 0, 0, 1), CompletionStatus::kOk);
  EXPECT_EQ(a_.queue_pair->Connect(good).code(), absl::StatusCode::kFailedPrecondition);
  ExpectStatus(Write(2, 0, 0, 1), CompletionStatus::kOk);
}

TEST_P(NicContractTest, RoomComesBackWhenTheCompletionIsPolled) {
  OpenBoth();
  PostReceives(&b_, 2);
  EXPECT_EQ(b_.queue_pair->receive_room(), Options().receive_depth - 2);
  ASSERT_TRUE(Post(&a_, Knock(1)).ok());
  EXPECT_EQ(a_.queue_pair->send_room(), Options().send_depth - 1);
  ASSERT_TRUE(UntilDone(a_, 1));
  ASSERT_TRUE(UntilDone(b_, 1));
  EXPECT_EQ(a_.queue_pair->send_room(), Options().send_depth);
  EXPECT_EQ(b_.queue_pair->receive_room(), Options().receive_depth - 1);
}

TEST_P(NicContractTest, QueuesOfOneAreEnough) {
  QueuePairOptions options = Options();
  options.send_depth = 1;
  options.receive_depth = 1;
  OpenBoth(options, options);
  for (uint32_t i = 0; i < 200; ++i) {
    PostReceives(&b_, 1);
    SendWork work = Write(i, 0, 0, 8);
    work.op = SendOp::kWriteWithImmediate;
    work.immediate = i;
    ExpectStatus(work, CompletionStatus::kOk);
    ASSERT_TRUE(UntilDone(b_, i + 1));
    ASSERT_EQ(b_.done[i].immediate, i);
  }
}

TEST_P(NicContractTest, QueuePairsOfOneQueueKeepTheirOwnOrder) {
  constexpr int kPairs = 5;
  QueuePairOptions options = Options();
  NicEnd ends[2];
  std::vector<std::unique_ptr<QueuePair>> pairs[2];
  for (int side = 0; side < 2; ++side) {
    Nic* const nic = side == 0 ? pair_->first() : pair_->second();
    ends[side] = OpenEnd(nic, options);
    ends[side].queue_pair.reset();
    auto completions =
        nic->CreateCompletionQueue(kPairs * (options.send_depth + options.receive_depth));
    ASSERT_TRUE(completions.ok());
    ends[side].completions = *std::move(completions);
    for (int i = 0; i < kPairs; ++i) {
      OpenQueuePair(&ends[side], options);
      pairs[side].push_back(std::move(ends[side].queue_pair));
    }
  }
  std::swap(a_, ends[0]);
  std::swap(b_, ends[1]);
  for (int i = 0; i < kPairs; ++i) {
    ASSERT_TRUE(pairs[0][i]->Connect(pairs[1][i]->LocalAddress()).ok());
    ASSERT_TRUE(pairs[1][i]->Connect(pairs[0][i]->LocalAddress()).ok());
  }
  for (uint64_t round = 0; round < 20; ++round) {
    for (int i = 0; i < kPairs; ++i) {
      const SendWork work = Write(round, 0, static_cast<uint64_t>(i) * 100, 100);
      ASSERT_TRUE(pairs[0][i]->PostSend(absl::MakeConstSpan(&work, 1)).ok());
    }
  }
  ASSERT_TRUE(UntilDone(a_, 20 * kPairs));
  for (int i = 0; i < kPairs; ++i) {
    uint64_t next = 0;
    for (const Completion& completion : a_.done) {
      if (completion.queue_pair != pairs[0][i]->number()) continue;
      EXPECT_EQ(completion.status, CompletionStatus::kOk);
      EXPECT_EQ(completion.id, next++);
    }
    EXPECT_EQ(next, 20u);
  }
  // One breaks, and the others go on.
  pairs[0][0]->Break();
  const SendWork work = Write(7, 0, 0, 100);
  ASSERT_TRUE(pairs[0][1]->PostSend(absl::MakeConstSpan(&work, 1)).ok());
  ASSERT_TRUE(UntilDone(a_, 20 * kPairs + 1));
  EXPECT_EQ(a_.done.back().status, CompletionStatus::kOk);
}

bool Readable(int fd, int timeout_ms) {
  pollfd one = {fd, POLLIN, 0};
  return poll(&one, 1, timeout_ms) == 1;
}

TEST_P(NicContractTest, ArmedQueueWakesItsSleeper) {
  if (!GetParam().sleeps) GTEST_SKIP() << "its time is virtual";
  OpenBoth();
  PostReceives(&b_, 2);
  ExpectStatus(Write(1, 0, 0, 1), CompletionStatus::kOk);  // Both are connected then.
  LetPass(absl::Milliseconds(5));
  ASSERT_TRUE(b_.completions->Arm().ok());
  PollOnce(&b_);
  ASSERT_TRUE(b_.done.empty());
  EXPECT_FALSE(Readable(b_.completions->event_fd(), 20)) << "nothing has happened";
  ASSERT_TRUE(Post(&a_, Knock(2)).ok());
  EXPECT_TRUE(Readable(b_.completions->event_fd(), 5000));
  ASSERT_TRUE(UntilDone(b_, 1));
  // Completions that exist already, and completions that its own thread makes.
  b_.queue_pair->Break();
  ASSERT_TRUE(b_.completions->Arm().ok());
  PollOnce(&b_);
  if (b_.done.size() < 2) {
    EXPECT_TRUE(Readable(b_.completions->event_fd(), 5000));
  }
  ASSERT_TRUE(UntilDone(b_, 2));
  ASSERT_TRUE(b_.completions->Arm().ok());
  PollOnce(&b_);
  EXPECT_FALSE(Readable(b_.completions->event_fd(), 20));
}

TEST_P(NicContractTest, ArmingTellsWhatCameBefore) {
  if (!GetParam().sleeps) GTEST_SKIP() << "its time is virtual";
  OpenBoth();
  if (!b_.completions->ArmTellsAll()) GTEST_SKIP() << "its sleeper polls once more";
  PostReceives(&b_, 2);
  ExpectStatus(Write(1, 0, 0, 1), CompletionStatus::kOk);  // Both are connected then.
  ASSERT_TRUE(Post(&a_, Knock(2)).ok());
  PollOnce(&a_);
  (void)Readable(b_.completions->event_fd(), 50);  // The write has arrived, and nobody polls it.
  ASSERT_TRUE(b_.completions->Arm().ok());
  EXPECT_TRUE(Readable(b_.completions->event_fd(), 5000));
  ASSERT_TRUE(UntilDone(b_, 1));
}

TEST_P(NicContractTest, SleeperLearnsThatItsPeerDoesNotAnswer) {
  if (!GetParam().sleeps) GTEST_SKIP() << "its time is virtual";
  a_ = OpenEnd(pair_->first(), ImpatientOptions());
  b_ = OpenEnd(pair_->second(), Options());
  ASSERT_TRUE(a_.queue_pair->Connect(b_.queue_pair->LocalAddress()).ok());
  ASSERT_TRUE(Post(&a_, Write(1, 0, 0, 1)).ok());
  // b is never polled. Several wake-ups are needed, and each must come by itself.
  for (int i = 0; i < 1000 && a_.done.empty(); ++i) {
    ASSERT_TRUE(a_.completions->Arm().ok());
    PollOnce(&a_);
    if (!a_.done.empty()) break;
    ASSERT_TRUE(Readable(a_.completions->event_fd(), 5000));
  }
  ASSERT_EQ(a_.done.size(), 1u);
  EXPECT_EQ(a_.done[0].status, CompletionStatus::kRetryExceeded);
}

// Sleeps until there are completions, and polls them.
size_t SleepAndPoll(CompletionQueue* completions, absl::Span<Completion> out) {
  for (;;) {
    absl::StatusOr<size_t> polled = completions->Poll(out);
    if (!polled.ok() || *polled > 0) return polled.ok() ? *polled : 0;
    if (!completions->Arm().ok()) return 0;
    polled = completions->Poll(out);
    if (!polled.ok() || *polled > 0) return polled.ok() ? *polled : 0;
    if (!Readable(completions->event_fd(), 10000)) return 0;
  }
}

TEST_P(NicContractTest, NoWakeUpIsLostBetweenTwoThreads) {
  if (!GetParam().threads || !GetParam().sleeps) GTEST_SKIP() << "its time is virtual";
  OpenBoth();
  constexpr int kRounds = 3000;
  constexpr uint64_t kFirstReceive = 100;
  // The receives are posted before any ball, so that each ball finds one.
  PostReceives(&a_, 4, kFirstReceive);
  PostReceives(&b_, 4, kFirstReceive);
  const auto play = [&](NicEnd* self, NicEnd* other, bool first) {
    const Entry piece = self->Piece(0, 8);
    SendWork ball;
    ball.op = SendOp::kSend;
    ball.entries = absl::MakeConstSpan(&piece, 1);
    if (self->nic->limits().write_with_immediate) {
      ball.op = SendOp::kWriteWithImmediate;
      ball.remote_address = other->At(0);
      ball.remote_key = other->region->remote_key();
    }
    int received = 0;
    if (first) {
      ASSERT_TRUE(Post(self, ball).ok());
    }
    while (received < kRounds) {
      Completion batch[8];
      const size_t polled = SleepAndPoll(self->completions.get(), absl::MakeSpan(batch));
      ASSERT_GT(polled, 0u) << "asleep for ever after " << received;
      for (size_t i = 0; i < polled; ++i) {
        ASSERT_EQ(batch[i].status, CompletionStatus::kOk);
        if (batch[i].id < kFirstReceive) continue;
        PostReceives(self, 1, kFirstReceive);
        if (!first || received + 1 < kRounds) {
          ASSERT_TRUE(Post(self, ball).ok());
        }
        ++received;
      }
    }
  };
  std::thread second([&] { play(&b_, &a_, false); });
  play(&a_, &b_, true);
  second.join();
}

TEST_P(NicContractTest, ThreadsWithQueuesOfTheirOwnDoNotDisturbEachOther) {
  if (!GetParam().threads) GTEST_SKIP() << "it lives on one thread";
  // Each thread has both ends of a connection between the same two NICs, and registers and
  // deregisters memory all the time.
  const auto live = [&](uint8_t value) {
    NicEnd from = OpenEnd(pair_->first(), Options());
    NicEnd to = OpenEnd(pair_->second(), Options());
    Connect(&from, &to);
    memset(from.memory.data(), value, from.memory.size());
    for (uint64_t i = 0; i < 300; ++i) {
      std::vector<uint8_t> fresh(5000);
      auto region = to.nic->RegisterRegion(fresh.data(), fresh.size(), kRemoteWrite);
      ASSERT_TRUE(region.ok());
      const Entry piece = from.Piece(0, fresh.size());
      SendWork work;
      work.id = i;
      work.entries = absl::MakeConstSpan(&piece, 1);
      work.remote_address = (*region)->address();
      work.remote_key = (*region)->remote_key();
      ASSERT_TRUE(Post(&from, work).ok());
      const absl::Time end = absl::Now() + GetParam().patience;
      while (from.done.size() <= i && absl::Now() < end) {
        PollOnce(&from);
        PollOnce(&to);
        if (from.done.size() <= i) std::this_thread::yield();
      }
      ASSERT_GT(from.done.size(), i);
      ASSERT_EQ(from.done[i].status, CompletionStatus::kOk);
      ASSERT_EQ(fresh.front(), value);
      ASSERT_EQ(fresh.back(), value);
    }
    from.queue_pair.reset();
    to.queue_pair.reset();
  };
  std::thread other([&] { live(1); });
  live(2);
  other.join();
}

}  // namespace
}  // namespace tryst
