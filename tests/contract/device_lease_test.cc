// The lease of a tensor that a producer keeps for a consumer: it ends when it has to, on virtual
// time, whatever the consumer says and does not say.
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "channel/device/chunk_mail.h"
#include "channel/device/device_engine.h"
#include "channel/device/device_source.h"
#include "channel/poller/poller.h"
#include "gpu/device_memory.h"
#include "gtest/gtest.h"
#include "rendezvous/virtual_alarms.h"
#include "tests/doubles/cuda/expandable_range.h"
#include "tests/doubles/cuda/fake_cuda.h"
#include "tests/process/pair/one_step.h"

namespace tryst {
namespace {

constexpr int64_t kLeaseMs = 3000;
constexpr int64_t kBytes = 100'000;
constexpr uint64_t kPartBytes = 40'000;

class LeaseTest : public ::testing::Test {
 protected:
  LeaseTest() : step_(&alarms_), poller_(&alarms_) {
    DeviceSourceOptions options;
    options.inside_bytes = 1000;
    options.chunk_bytes = kPartBytes;
    options.lease_ms = kLeaseMs;
    source_ =
        std::make_unique<DeviceSource>(&poller_, &step_, std::vector<DeviceEngine*>(), options);
  }
  ~LeaseTest() override {
    source_->Close();
    poller_.Turn();
  }

  static TensorKey Key(const std::string& consumer = "c") {
    return TensorKeyPrefix::Make("/job:p/replica:0/task:0/device:CPU:0", 1,
                                 absl::StrCat("/job:", consumer, "/replica:0/task:0/device:CPU:0"),
                                 "edge")
        ->At(0, 0);
  }
  void Send(int number) {
    Tensor tensor = *Tensor::Allocate(DType::kUint8, {kBytes});
    memset(tensor.mutable_data(), number, tensor.bytes());
    ASSERT_TRUE(step_.step()->Send(Key(), SendArgs(), std::move(tensor), false).ok());
  }
  struct Answer {
    bool ended = false;
    absl::Status status;
    Tensor tensor;
  };
  Answer Take(const TensorKey& key) {
    auto answer = std::make_shared<Answer>();
    source_->Take(1, key, RecvArgs(), [answer](Received&& received) {
      answer->ended = true;
      answer->status = std::move(received.status);
      answer->tensor = std::move(received.tensor);
    });
    poller_.Turn();
    EXPECT_TRUE(answer->ended);
    return *answer;
  }
  // Takes the next tensor; the number under which it is kept.
  uint64_t Lend() {
    const Answer answer = Take(*ManifestKey(Key(), 0, Tensor()));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    if (!answer.status.ok()) return 0;
    const auto manifest = DecodeManifest(answer.tensor);
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    return manifest.ok() ? manifest->transfer : 0;
  }
  absl::Status Say(uint64_t transfer, const char* what, const std::string& consumer = "c") {
    return Take(*TransferKey(Key(consumer), transfer, what)).status;
  }
  // The byte that chunk `chunk` consists of; -1: it is not to be had.
  int Part(uint64_t transfer, uint64_t chunk) {
    const Answer answer = Take(*TransferKey(Key(), transfer, absl::StrCat("chunk|", chunk)));
    if (!answer.status.ok()) return -1;
    const uint8_t* const bytes = answer.tensor.data_as<uint8_t>();
    EXPECT_EQ(0, memcmp(bytes, bytes + 1, answer.tensor.bytes() - 1));
    return bytes[0];
  }
  void Pass(int64_t ms) {
    alarms_.AdvanceBy(absl::Milliseconds(ms));
    poller_.Turn();
  }

  VirtualAlarms alarms_;
  OneStep step_;
  Poller poller_;
  std::unique_ptr<DeviceSource> source_;
};

TEST_F(LeaseTest, ItLastsWhileItHasToAndNoLonger) {
  Send(3);
  const uint64_t transfer = Lend();
  Pass(kLeaseMs - 1);
  EXPECT_EQ(source_->transfers(), 1u) << "it has ended early";
  EXPECT_EQ(Part(transfer, 2), 3);
  Pass(kLeaseMs - 1);
  EXPECT_EQ(source_->transfers(), 1u) << "a chunk renews it";
  for (int i = 0; i < 20; ++i) Pass(kLeaseMs / 10);
  EXPECT_EQ(source_->transfers(), 0u) << "it never ends";
  EXPECT_EQ(source_->counters().expired, 1u);
  EXPECT_EQ(Part(transfer, 0), -1);
  EXPECT_EQ(Say(transfer, "alive").code(), absl::StatusCode::kAborted);
}

// A give-back that came before is done before it.
TEST_F(LeaseTest, WhoAsksOnAnotherThreadIsAnsweredInATurn) {
  Send(3);
  const TensorKey alive = *TransferKey(Key(), Lend(), "alive");
  bool ended = false;
  std::thread asks([&] {
    source_->Take(1, alive, RecvArgs(), [&](Received&& received) {
      EXPECT_TRUE(received.status.ok()) << received.status;
      ended = true;
    });
  });
  asks.join();
  EXPECT_FALSE(ended);
  poller_.Turn();
  EXPECT_TRUE(ended);
}

TEST_F(LeaseTest, AWordRenewsItForAsLongAsItComes) {
  Send(3);
  const uint64_t transfer = Lend();
  for (int i = 0; i < 100; ++i) {
    Pass(kLeaseMs * 6 / 10);
    ASSERT_TRUE(Say(transfer, "alive").ok()) << i;
  }
  EXPECT_EQ(Part(transfer, 1), 3);
  EXPECT_EQ(source_->counters().expired, 0u);
}

// A word that comes when it is too late finds nothing, and brings nothing back.
TEST_F(LeaseTest, AWordThatComesLateRenewsNothing) {
  Send(3);
  const uint64_t transfer = Lend();
  alarms_.AdvanceBy(absl::Milliseconds(5 * kLeaseMs));
  Pass(0);
  EXPECT_EQ(Say(transfer, "alive").code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Say(transfer, "done").ok());
  EXPECT_TRUE(Say(transfer, "back").ok());
  EXPECT_EQ(step_.step()->counters().given_back, 0);
  EXPECT_EQ(source_->transfers(), 0u);
}

TEST_F(LeaseTest, OneThatIsDoneEndsAtOnce) {
  Send(3);
  const uint64_t transfer = Lend();
  EXPECT_TRUE(Say(transfer, "done").ok());
  EXPECT_EQ(source_->transfers(), 0u);
  for (int i = 0; i < 30; ++i) Pass(kLeaseMs / 10);
  EXPECT_EQ(source_->counters().expired, 0u);
}

TEST_F(LeaseTest, OneThatIsGivenBackIsTheNextsInItsTurn) {
  for (const bool first_goes_first : {true, false}) {
    SCOPED_TRACE(first_goes_first);
    Send(3);
    Send(4);
    const uint64_t first = Lend();
    const uint64_t second = Lend();
    EXPECT_EQ(Part(first, 0), 3);
    EXPECT_TRUE(Say(first_goes_first ? first : second, "back").ok());
    EXPECT_TRUE(Say(first_goes_first ? second : first, "back").ok());
    EXPECT_EQ(Part(Lend(), 0), 3);
    EXPECT_EQ(Part(Lend(), 0), 4);
  }
}

TEST_F(LeaseTest, NobodyElseHearsOfIt) {
  Send(3);
  const uint64_t transfer = Lend();
  EXPECT_EQ(Say(transfer, "alive", "stranger").code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Say(transfer, "done", "stranger").ok());
  EXPECT_EQ(source_->transfers(), 1u);
  EXPECT_EQ(Part(transfer, 0), 3);
}

TEST_F(LeaseTest, PartsBeyondTheTensorAreNotThere) {
  Send(3);
  const uint64_t transfer = Lend();
  EXPECT_EQ(Part(transfer, 2), 3);
  for (const uint64_t chunk : {uint64_t{3}, uint64_t{4}, uint64_t{1} << 50, UINT64_MAX}) {
    EXPECT_EQ(Part(transfer, chunk), -1) << chunk;
  }
}

TEST_F(LeaseTest, WhatDoesNotFitStaysWhereItIs) {
  Send(3);
  const Tensor into = *Tensor::Allocate(DType::kUint8, {kBytes / 2});
  EXPECT_EQ(Take(*ManifestKey(Key(), 0, into)).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(source_->transfers(), 0u);
  EXPECT_EQ(Part(Lend(), 0), 3);
}

// Only a receive on the host can unpack it.
TEST_F(LeaseTest, WhatIsPackedStaysWhereItIs) {
  const Tensor packed = *Tensor::Allocate(DType::kPacked, {64});
  ASSERT_TRUE(step_.step()->Send(Key(), SendArgs(), packed, false).ok());
  const absl::Status refused = Take(*ManifestKey(Key(), 0, Tensor())).status;
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  const Answer on_host = Take(Key());
  EXPECT_TRUE(on_host.tensor.SharesBytesWith(packed)) << on_host.status;
}

// The GPUs are those of the pretend driver.
class DeviceLeaseTest : public LeaseTest {
 protected:
  void SetUp() override {
    fake_ = LoadFakeCuda();
    ASSERT_NE(fake_, nullptr);
    driver_ = *CudaDriver::Load("tests/doubles/cuda/libfake_cuda.so");
    gpu_ = *Gpu::Open(driver_.get(), 0);
    engine_ = *DeviceEngine::Open(&poller_, gpu_.get(), DeviceEngineOptions());
    engine_->Attach();
    memory_ = *DeviceMemory::Allocate(gpu_.get(), 64);
    args_.device_context = *GpuContext::Make(engine_.get(), nullptr, {false, /*is_there=*/true});
    Open(DeviceSourceOptions());
  }
  void TearDown() override {
    source_->Close();
    for (int i = 0; i < 10; ++i) poller_.Turn();
    engine_->Detach();
  }
  void Open(const DeviceSourceOptions& options) {
    source_->Close();
    source_ = std::make_unique<DeviceSource>(&poller_, &step_,
                                             std::vector<DeviceEngine*>{engine_.get()}, options);
  }
  static TensorKey GpuKey() {
    return TensorKeyPrefix::Make("/job:p/replica:0/task:0/device:GPU:0", 1,
                                 "/job:c/replica:0/task:0/device:GPU:0", "edge")
        ->At(0, 0);
  }
  // `number` is also the tensor's size in bytes.
  void SendGpu(int64_t number) {
    auto tensor = Tensor::Adopt(memory_.data(), DType::kUint8, {number},
                                MemorySpace{MemorySpace::Kind::kDevice, 0}, nullptr);
    ASSERT_TRUE(step_.step()->Send(GpuKey(), args_, *tensor, false).ok());
  }
  std::shared_ptr<Answer> StartTake(const TensorKey& key) {
    auto answer = std::make_shared<Answer>();
    source_->Take(1, key, RecvArgs(), [answer](Received&& received) {
      answer->ended = true;
      answer->status = std::move(received.status);
      answer->tensor = std::move(received.tensor);
    });
    return answer;
  }
  Answer TakeGpu(const TensorKey& key) {
    const auto answer = StartTake(key);
    for (int i = 0; i < 1000 && !answer->ended; ++i) poller_.Turn();
    EXPECT_TRUE(answer->ended);
    return *answer;
  }

  const FakeCudaControl* fake_ = nullptr;
  std::unique_ptr<CudaDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<DeviceEngine> engine_;
  DeviceMemory memory_;
  SendArgs args_;
};

// A call that fails once fails one receive, which takes no tensor.
TEST_F(DeviceLeaseTest, WhatCannotBeCopiedStaysWhereItIs) {
  DeviceSourceOptions options;
  options.offer_ipc = false;
  Open(options);
  for (const bool ordinary : {false, true}) {
    SCOPED_TRACE(ordinary);
    SendGpu(3);
    SendGpu(4);
    const TensorKey asked = ordinary ? GpuKey() : *ManifestKey(GpuKey(), 0, Tensor());
    fake_->fail("cuLaunchKernel", cuda::kOutOfMemory, 1, 0);
    EXPECT_EQ(TakeGpu(asked).status.code(), absl::StatusCode::kResourceExhausted);
    for (const uint64_t number : {3, 4}) {
      const Answer answer = TakeGpu(asked);
      ASSERT_TRUE(answer.status.ok()) << answer.status;
      EXPECT_EQ(answer.tensor.bytes(), number + (ordinary ? 0 : DeviceManifest::kBytes));
    }
  }
}

// A consumer that asks for memory which it was not offered, and one whose chunk cannot be exported.
TEST_F(DeviceLeaseTest, ChunksAreHandedOnOnlyWhereTheyAreOffered) {
  ExpandableRange range(gpu_.get(), 1, 1);
  range.Map(0);
  for (const bool offered : {false, true}) {
    DeviceSourceOptions options;
    options.inside_bytes = 0;
    options.offer_ipc = offered;
    Open(options);
    auto tensor = Tensor::Adopt(reinterpret_cast<void*>(range.At(0)), DType::kUint8, {64},
                                MemorySpace{MemorySpace::Kind::kDevice, 0}, nullptr);
    ASSERT_TRUE(step_.step()->Send(GpuKey(), args_, *tensor, false).ok());
    const Answer kept = TakeGpu(*ManifestKey(GpuKey(), ThisHost(), Tensor()));
    ASSERT_TRUE(kept.status.ok()) << kept.status;
    const auto manifest = DecodeManifest(kept.tensor);
    ASSERT_TRUE(manifest.ok());
    EXPECT_EQ(manifest->has_chunks, offered);
    const auto mailbox = *ChunkMailbox::Open();
    const TensorKey asked =
        *ChunksKey(GpuKey(), manifest->transfer, 0, mailbox->name(), mailbox->token());
    if (offered) {
      fake_->fail("cuMemExportToShareableHandle", cuda::kOutOfMemory, 1, 0);
      EXPECT_EQ(TakeGpu(asked).status.code(), absl::StatusCode::kResourceExhausted);
    }
    EXPECT_EQ(TakeGpu(asked).status.code(),
              offered ? absl::StatusCode::kOk : absl::StatusCode::kUnimplemented);
    EXPECT_EQ(source_->counters().handed_on, offered ? 1u : 0u);
  }
}

// A NIC reads it where it is, which has to wait for the sender's stream and fails with it.
TEST_F(DeviceLeaseTest, WhatIsReadInPlaceIsThereFirst) {
  DeviceSourceOptions options;
  options.inside_bytes = 0;
  Open(options);
  args_.device_context = *GpuContext::Make(engine_.get(), nullptr);
  SendGpu(64);
  const Answer kept = TakeGpu(*ManifestKey(GpuKey(), 0, Tensor()));
  ASSERT_TRUE(kept.status.ok()) << kept.status;
  const auto manifest = DecodeManifest(kept.tensor);
  ASSERT_TRUE(manifest.ok());
  const TensorKey whole = *TransferKey(GpuKey(), manifest->transfer, "whole");
  fake_->fail("cuEventQuery", cuda::kIllegalAddress, 1, 0);
  EXPECT_FALSE(TakeGpu(whole).status.ok());
  const Answer answer = TakeGpu(whole);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.tensor.data(), memory_.data());
}

TEST_F(DeviceLeaseTest, EachProbeIsAnsweredWithTheSameMemory) {
  const TensorKey asked = *TransferKey(GpuKey(), 0, "probe");
  fake_->fail("cuMemAlloc_v2", cuda::kOutOfMemory, 1, 0);
  EXPECT_EQ(TakeGpu(asked).status.code(), absl::StatusCode::kResourceExhausted);
  uint32_t digest = 0;
  for (const bool again : {false, true}) {
    const Answer answer = TakeGpu(asked);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    const auto probe = DecodeManifest(answer.tensor);
    ASSERT_TRUE(probe.ok());
    EXPECT_NE(probe->digest, 0u);
    if (again) {
      EXPECT_EQ(probe->digest, digest);
    }
    digest = probe->digest;
  }
}

// Its memory is there until nothing copies into it any more.
TEST_F(DeviceLeaseTest, AProbeThatIsMadeWhileItsProducerStopsEnds) {
  const TensorKey asked = *TransferKey(GpuKey(), 0, "probe");
  std::vector<StorageRef> slots;
  for (int i = 0; i < 100; ++i) {
    engine_->WhenServeSlot([&slots](StorageRef slot) { slots.push_back(std::move(slot)); });
  }
  const auto waits = StartTake(asked);  // For a slot to copy from.
  for (int i = 0; i < 10; ++i) poller_.Turn();
  EXPECT_FALSE(waits->ended);
  source_->Close();
  for (int i = 0; i < 1000 && !waits->ended; ++i) {
    slots.clear();
    poller_.Turn();
  }
  EXPECT_TRUE(waits->ended);
  EXPECT_EQ(waits->status.code(), absl::StatusCode::kUnavailable) << waits->status;
  EXPECT_STREQ(fake_->complaints(), "");
  slots.clear();
}

TEST_F(DeviceLeaseTest, WhoStopsLendsNoMoreAndKnowsWhatIsLent) {
  const TensorKey asked = *ManifestKey(GpuKey(), ThisHost(), Tensor());
  SendGpu(3);
  SendGpu(4);
  const Answer first = TakeGpu(asked);
  ASSERT_TRUE(first.status.ok()) << first.status;
  EXPECT_EQ(source_->EndLending(), 1u);
  EXPECT_EQ(TakeGpu(asked).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(step_.step()->counters().waiting_sends, 1) << "it stays";
  const auto manifest = DecodeManifest(first.tensor);
  ASSERT_TRUE(manifest.ok());
  EXPECT_TRUE(TakeGpu(*TransferKey(GpuKey(), manifest->transfer, "done")).status.ok());
  EXPECT_EQ(source_->EndLending(), 0u);
}

}  // namespace
}  // namespace tryst
