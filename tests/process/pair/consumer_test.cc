#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/process/pair/worker_pair.h"
#include "verbs/forwarding_nic.h"
#include "verbs/soft/soft_nic.h"

// Situations of a consumer that random tests hardly reach.
namespace tryst {
namespace {

constexpr int kTurnsMost = 1'000'000;

// A NIC that cannot reach one part of memory.
class ShortNic final : public ForwardingNic {
 public:
  ShortNic(std::unique_ptr<Nic> nic, const void* beyond)
      : ForwardingNic(std::move(nic)), beyond_(beyond) {}
  absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void* address, uint64_t bytes,
                                                         uint32_t access) override {
    if (address == beyond_) return absl::InvalidArgumentError("out of reach");
    return nic()->RegisterRegion(address, bytes, access);
  }

 private:
  const void* const beyond_;
};

WorkerPairOptions OneThread() {
  WorkerPairOptions options;
  options.threads = false;
  options.open_nic = [] { return *OpenSoftNic(SoftNicOptions()); };
  options.adjust = [](TransportsOptions* pool) {
    pool->link.digests = false;  // Then an immediate alone may announce a tensor.
    pool->link.queue_pairs = 1;
    pool->silence_ms = 60'000;  // So that a slow machine does not matter.
    pool->link.stall_ms = 60'000;
  };
  return options;
}

// A landing has a power of two of bytes, so this tensor fills it.
TEST(ConsumerTest, ATensorAsLargeAsTheLandingBesideTheCallersMemoryComes) {
  constexpr int64_t kBytes = 1 << 16;
  const Tensor sent = *Tensor::Allocate(DType::kUint8, TensorShape({kBytes}));
  memset(sent.mutable_data(), 0x5a, kBytes);
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kUint8, TensorShape({kBytes}));
  memset(args.destination.mutable_data(), 0, kBytes);
  WorkerPairOptions options = OneThread();
  options.open_nic = [beyond = args.destination.data()] {
    return std::make_unique<ShortNic>(*OpenSoftNic(SoftNicOptions()), beyond);
  };
  WorkerPair pair(options);
  const TensorKey key = WorkerPair::Key("beside");
  ASSERT_TRUE(pair.step()->Send(key, SendArgs(), sent, false).ok());
  bool ended = false;
  pair.consumer()->Fetch(1, key, args, [&](Received&& received) {
    EXPECT_TRUE(received.status.ok()) << received.status;
    EXPECT_EQ(received.tensor.data(), args.destination.data());
    ended = true;
  });
  for (int turns = 0; !ended && turns < kTurnsMost; ++turns) pair.Turn();
  ASSERT_TRUE(ended) << pair.consumer()->ExplainNow("");
  EXPECT_EQ(memcmp(args.destination.data(), sent.data(), kBytes), 0);
}

TEST(ConsumerTest, AnAbortEndsNoFetchThatIsMadeBehindIt) {
  WorkerPair pair(OneThread());
  pair.Turn();  // From now on this is the poller thread, on which a fetch starts at once.
  const std::vector<TensorKey> before = {WorkerPair::Key("before")};
  const std::vector<TensorKey> behind = {WorkerPair::Key("behind")};
  absl::Status end_before;
  absl::Status end_behind;
  int ended = 0;
  pair.consumer()->FetchMany(1, before, RecvArgs(), [&](absl::Status status, absl::Span<Received>) {
    end_before = std::move(status);
    ++ended;
  });
  pair.consumer()->AbortStep(1, absl::AbortedError("over"));
  pair.consumer()->FetchMany(1, behind, RecvArgs(), [&](absl::Status status, absl::Span<Received>) {
    end_behind = std::move(status);
    ++ended;
  });
  const Tensor sent = *Tensor::Allocate(DType::kUint8, TensorShape({1}));
  ASSERT_TRUE(pair.step()->Send(behind[0], SendArgs(), sent, false).ok());
  for (int turns = 0; ended < 2 && turns < kTurnsMost; ++turns) pair.Turn();
  ASSERT_EQ(ended, 2) << pair.consumer()->ExplainNow("");
  EXPECT_EQ(end_before.code(), absl::StatusCode::kAborted) << end_before;
  EXPECT_TRUE(end_behind.ok()) << end_behind;
}

}  // namespace
}  // namespace tryst
