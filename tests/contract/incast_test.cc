// Many producers send to one consumer whose memory is short: which fetches are admitted, and in
// which order.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/pair/pool_counters.h"
#include "tests/pair/worker_pair.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

constexpr int kProducers = 8;
constexpr int kEach = 24;  // Tensors.
constexpr uint64_t kCapBytes = 64 << 20;

class IncastTest : public ::testing::Test {
 protected:
  IncastTest() {
    WorkerPairOptions options;
    options.threads = false;
    options.producers = kProducers;
    options.open_nic = [] {
      auto nic = OpenSoftNic(SoftNicOptions());
      TRYST_CHECK(nic.ok()) << nic.status();
      return *std::move(nic);
    };
    options.adjust = [](TransportsOptions* pool) {
      pool->landing_cap_bytes = kCapBytes;
      pool->link.digests = false;
      // All ends take turns on one thread, so each waits while another works.
      pool->silence_ms = 20'000;
      pool->link.stall_ms = 60'000;
      pool->link.ack_timeout = 20;
    };
    pair_ = std::make_unique<WorkerPair>(options);
  }

  // Asks for everything that all producers have at once: 12 times the cap. After every turn of
  // every end, the bytes that peers may write must be below the cap.
  void Run(bool into_place, int64_t bytes) {
    const Tensor source = *Tensor::Allocate(DType::kUint8, {bytes});
    std::vector<int> ended(kProducers, 0);
    int all = 0;
    for (int i = 0; i < kEach; ++i) {
      for (int producer = 0; producer < kProducers; ++producer) {
        const TensorKey key = WorkerPair::Key("incast", producer);
        ASSERT_TRUE(pair_->step()->Send(key, Args(), source, false).ok());
        Args args;
        if (into_place) args.destination = *Tensor::Allocate(DType::kUint8, {bytes});
        pair_->consumer()->Fetch(
            1, key, args,
            [&, producer](absl::Status status, const Args&, const Args&, Tensor, bool) {
              EXPECT_TRUE(status.ok()) << status;
              ++ended[static_cast<size_t>(producer)];
              ++all;
            });
      }
    }
    bool halfway = false;
    for (int turns = 0; all < kProducers * kEach && turns < 10'000'000; ++turns) {
      pair_->Turn();
      ASSERT_LE(PinnedBytes(*pair_->consumer()).first, kCapBytes);
      if (halfway || all < kProducers * kEach / 2) continue;
      halfway = true;
      // All producers were served equally (Jain's index is 1 when all are equal).
      double sum = 0;
      double squares = 0;
      for (const int count : ended) {
        sum += count;
        squares += count * count;
      }
      EXPECT_GE(sum * sum / (kProducers * squares), 0.85);
      EXPECT_GE(*std::min_element(ended.begin(), ended.end()), kEach / 4);
    }
    ASSERT_EQ(all, kProducers * kEach);
    // The high-water mark covers the time between turns, too.
    EXPECT_LE(PinnedBytes(*pair_->consumer()).second, kCapBytes);
    EXPECT_GT(PinnedBytes(*pair_->consumer()).second, kCapBytes / 3) << "it was not short";
  }

  std::unique_ptr<WorkerPair> pair_;
};

TEST_F(IncastTest, IntoLandings) { Run(/*into_place=*/false, 4 << 20); }
TEST_F(IncastTest, IntoTheCallersMemory) { Run(/*into_place=*/true, 4 << 20); }

}  // namespace
}  // namespace tryst
