// A bit that flips on its way between the staging memories of two GPUs.
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/contract/channel_contract.h"
#include "tests/contract/device_world.h"
#include "tests/contract/pool_world.h"
#include "tests/doubles/cuda/fake_cuda.h"
#include "verbs/forwarding_nic.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {

// This test uses only its world.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ChannelContractTest);

namespace {

constexpr uint64_t kPartBytes = 64 << 10;
constexpr int64_t kElements = 100'000;  // Seven parts of floats.

// Flips a bit of what one write sends. The next write from there sends what is right again.
class FlippingNic final : public ForwardingNic {
 public:
  struct Plan {
    int at = -1;         // Which of the large writes, from 0.
    bool again = false;  // The writes that repeat it, too.
    int writes = 0;
    int flips = 0;
    uint8_t* flipped = nullptr;
  };
  FlippingNic(std::unique_ptr<Nic> nic, Plan* plan) : ForwardingNic(std::move(nic)), plan_(plan) {}

  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override {
    auto made = nic()->CreateQueuePair(options);
    if (!made.ok()) return made.status();
    return std::unique_ptr<QueuePair>(new Flipping(plan_, *std::move(made)));
  }

 private:
  class Flipping final : public ForwardingQueuePair {
   public:
    Flipping(Plan* plan, std::unique_ptr<QueuePair> queue_pair)
        : ForwardingQueuePair(std::move(queue_pair)), plan_(plan) {}
    absl::Status PostSend(absl::Span<const SendWork> works) override {
      for (const SendWork& work : works) {
        for (const Entry& entry : work.entries) Sent(entry);
      }
      return ForwardingQueuePair::PostSend(works);
    }

   private:
    void Sent(const Entry& entry) {
      if (entry.bytes < kPartBytes / 2) return;
      uint8_t* const middle = reinterpret_cast<uint8_t*>(entry.address) + entry.bytes / 2;
      if (plan_->flipped == middle && !plan_->again) {
        *plan_->flipped ^= 4;
        plan_->flipped = nullptr;
      }
      if (plan_->writes++ != plan_->at) return;
      *middle ^= 4;
      plan_->flipped = middle;
      ++plan_->flips;
    }

    Plan* const plan_;
  };

  Plan* const plan_;
};

class StagedFlipTest : public ::testing::Test {
 protected:
  void Open() {
    auto driver = CudaDriver::Load("tests/doubles/cuda/libfake_cuda.so");
    ASSERT_TRUE(driver.ok()) << driver.status();
    driver_ = *std::move(driver);
    auto gpu = Gpu::Open(driver_.get(), 0);
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    gpu_ = *std::move(gpu);
    PoolWorldOptions options;
    options.open_nic = [this]() -> std::unique_ptr<Nic> {
      auto nic = OpenSoftNic(SoftNicOptions());
      TRYST_CHECK(nic.ok()) << nic.status();
      return std::make_unique<FlippingNic>(*std::move(nic), &plan_);
    };
    options.adjust = [](TransportsOptions* pool) { pool->link.digests = true; };
    DeviceWorldOptions devices;
    devices.producer_gpu = devices.consumer_gpu = gpu_.get();
    devices.proxy.engine.slot_bytes = kPartBytes;
    devices.proxy.source.chunk_bytes = kPartBytes;
    devices.proxy.source.inside_bytes = 4096;
    devices.proxy.source.offer_ipc = false;
    PutDevicesUnder(devices, &options);
    world_ = OpenPoolWorld(options);
  }
  struct End {
    absl::Status status;
    Tensor tensor;
  };
  TensorKey Key() const {
    return TensorKeyPrefix::Make("/job:ps/replica:0/task:0/device:CPU:0",
                                 world_->producer_incarnation(),
                                 "/job:worker/replica:0/task:0/device:CPU:0", "e")
        ->At(0, 0);
  }
  void Send() {
    Tensor tensor = *Tensor::Allocate(DType::kFloat, {kElements});
    float* const at = static_cast<float*>(tensor.mutable_data());
    for (int64_t i = 0; i < kElements; ++i) at[i] = static_cast<float>(i);
    ASSERT_TRUE(world_->producer()->step(1)->Send(Key(), SendArgs(), tensor, false).ok());
  }
  static bool IsNumbers(const Tensor& tensor) {
    for (int64_t i = 0; i < kElements; ++i) {
      if (tensor.data_as<float>()[i] != static_cast<float>(i)) return false;
    }
    return true;
  }
  End Fetch() {
    std::promise<End> ended;
    world_->consumer()->Fetch(1, Key(), RecvArgs(), [&ended](Received&& got) {
      ended.set_value({std::move(got.status), std::move(got.tensor)});
    });
    return ended.get_future().get();
  }

  FlippingNic::Plan plan_;
  std::unique_ptr<CudaDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<ChannelWorld> world_;
};

TEST_F(StagedFlipTest, IsFoundAndThePartIsSentAgain) {
  plan_.at = 3;
  Open();
  Send();
  const End end = Fetch();
  ASSERT_TRUE(end.status.ok()) << end.status;
  EXPECT_EQ(plan_.flips, 1);
  EXPECT_EQ(plan_.writes, 7) << "six whole parts, and one of them again";
  EXPECT_TRUE(IsNumbers(end.tensor));
}

TEST_F(StagedFlipTest, IsToldWhenItComesAgain) {
  plan_.at = 3;
  plan_.again = true;
  Open();
  Send();
  const End end = Fetch();
  EXPECT_TRUE(absl::IsDataLoss(end.status)) << end.status;
  EXPECT_EQ(plan_.flips, 1);
  const End next = Fetch();  // It went back, and is staged anew.
  ASSERT_TRUE(next.status.ok()) << next.status;
  EXPECT_TRUE(IsNumbers(next.tensor));
}

}  // namespace
}  // namespace tryst
