// Many producers send to one consumer whose memory is short: which fetches are admitted, and in
// which order.

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "bench/instant_nic.h"
#include "gtest/gtest.h"
#include "tests/process/pair/pool_counters.h"
#include "tests/process/pair/worker_pair.h"
#include "verbs/nic.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

constexpr int kProducers = 8;
constexpr int kEach = 24;  // Tensors.
constexpr int64_t kBytes = 4 << 20;

class IncastTest : public ::testing::Test {
 protected:
  enum class Keys { kOne, kMany };

  void Pair(uint64_t cap_bytes, std::function<std::unique_ptr<Nic>()> open_nic) {
    cap_bytes_ = cap_bytes;
    WorkerPairOptions options;
    options.threads = false;
    options.producers = kProducers;
    options.open_nic = std::move(open_nic);
    options.adjust = [cap_bytes](TransportsOptions* pool) {
      pool->landing_bytes = cap_bytes;
      pool->link.digests = false;
      // All ends take turns on one thread, so each waits while another works.
      pool->silence_ms = 20'000;
      pool->link.stall_ms = 60'000;
      pool->link.ack_timeout = 20;
    };
    pair_ = std::make_unique<WorkerPair>(options);
  }

  // Asks for everything that all producers have at once, many times the cap, one producer after the
  // other. Tensors of one key are asked for one after the other, those of many keys at once. After
  // every turn of every end, the bytes that peers may write must be below the cap.
  void Run(Keys keys, bool into_place) {
    const Tensor source = *Tensor::Allocate(DType::kUint8, {kBytes});
    std::vector<int> ended(kProducers, 0);
    int all = 0;
    for (int producer = 0; producer < kProducers; ++producer) {
      for (int i = 0; i < kEach; ++i) {
        const TensorKey key =
            WorkerPair::Key(absl::StrCat("incast", keys == Keys::kOne ? 0 : i), producer);
        ASSERT_TRUE(pair_->step()->Send(key, SendArgs(), source, false).ok());
        RecvArgs args;
        if (into_place) args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
        pair_->consumer()->Fetch(1, key, args, [&, producer](Received&& received) {
          EXPECT_TRUE(received.status.ok()) << received.status;
          ++ended[static_cast<size_t>(producer)];
          ++all;
        });
      }
    }
    for (int turns = 0; all < kProducers * kEach && turns < 10'000'000; ++turns) {
      pair_->Turn();
      ASSERT_LE(PinnedBytes(*pair_->consumer()).first, cap_bytes_);
      const auto [least, most] = std::minmax_element(ended.begin(), ended.end());
      most_apart_ = std::max(most_apart_, *most - *least);
    }
    ASSERT_EQ(all, kProducers * kEach);
    // The high-water mark covers the time between turns, too.
    EXPECT_LE(PinnedBytes(*pair_->consumer()).second, cap_bytes_);
    EXPECT_GT(PinnedBytes(*pair_->consumer()).second, cap_bytes_ / 3) << "it was not short";
  }

  std::unique_ptr<WorkerPair> pair_;
  uint64_t cap_bytes_ = 0;
  int most_apart_ = 0;  // How many tensors one producer was ahead of another.
};

// Sockets carry the bytes, as fast as the kernel lets each.
class IncastSoftTest : public IncastTest {
 protected:
  IncastSoftTest() {
    Pair(64 << 20, [] {
      auto nic = OpenSoftNic(SoftNicOptions());
      TRYST_CHECK(nic.ok()) << nic.status();
      return *std::move(nic);
    });
  }
};

TEST_F(IncastSoftTest, IntoLandings) { Run(Keys::kMany, /*into_place=*/false); }
TEST_F(IncastSoftTest, IntoTheCallersMemory) { Run(Keys::kMany, /*into_place=*/true); }

// No socket is faster than another here: what one producer is ahead is the consumer's choice.
class IncastTurnsTest : public IncastTest {
 protected:
  IncastTurnsTest() { Pair(16 << 20, OpenInstantNic); }
};

TEST_F(IncastTurnsTest, OneKeyEachIntoLandings) {
  Run(Keys::kOne, /*into_place=*/false);
  EXPECT_LE(most_apart_, 2);
}
TEST_F(IncastTurnsTest, OneKeyEachIntoTheCallersMemory) {
  Run(Keys::kOne, /*into_place=*/true);
  EXPECT_LE(most_apart_, 2);
}
// The producer that is asked first gets all the room while nobody waits yet, and is never further
// ahead than by that.
TEST_F(IncastTurnsTest, ManyKeysIntoLandings) {
  Run(Keys::kMany, /*into_place=*/false);
  EXPECT_LE(most_apart_, kEach / 2);
}
TEST_F(IncastTurnsTest, ManyKeysIntoTheCallersMemory) {
  Run(Keys::kMany, /*into_place=*/true);
  EXPECT_LE(most_apart_, kEach / 2);
}

}  // namespace
}  // namespace tryst
