#include "gpu/copier.h"

#include <poll.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gpu/device_memory.h"
#include "gpu/pinned_memory.h"
#include "gtest/gtest.h"
#include "tests/doubles/cuda/fake_cuda.h"

namespace tryst {
namespace {

using ::testing::HasSubstr;
using Direction = Copier::Direction;

// Over the pretend driver, or the machine's with TRYST_TEST_CUDA=libcuda.so.1.
class CopierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* library = getenv("TRYST_TEST_CUDA");
    if (library == nullptr) fake_ = LoadFakeCuda();
    auto driver =
        CudaDriver::Load(library != nullptr ? library : "tests/doubles/cuda/libfake_cuda.so");
    ASSERT_TRUE(driver.ok()) << driver.status();
    driver_ = *std::move(driver);
    gpu_ = *Gpu::Open(driver_.get(), 0);
    looks_ = *gpu_->MakeStream();
    auto copier = Copier::Create(gpu_.get());
    ASSERT_TRUE(copier.ok()) << copier.status();
    copier_ = *std::move(copier);
    if (fake_ != nullptr) blocking_ = fake_->blocking_calls();
  }
  void TearDown() override {
    if (fake_ != nullptr) {
      fake_->hold(false);
      EXPECT_EQ(fake_->blocking_calls(), blocking_) << "something waited for the device";
      EXPECT_STREQ(fake_->complaints(), "");
    }
  }

  DeviceMemory OnDevice(uint64_t bytes) { return *DeviceMemory::Allocate(gpu_.get(), bytes); }
  PinnedMemory Pinned(uint64_t bytes) { return *PinnedMemory::Allocate(gpu_.get(), bytes); }
  static cuda::Address At(const PinnedMemory& memory, uint64_t offset = 0) {
    return reinterpret_cast<cuda::Address>(memory.data()) + offset;
  }
  Copier::Done Count(absl::Status* status = nullptr) {
    return [this, status](absl::Status ended) {
      ++ended_;
      if (status != nullptr) *status = std::move(ended);
    };
  }
  void RunAll() {
    copier_->Flush();
    for (int i = 0; i < 10'000'000 && !copier_->idle(); ++i) copier_->Poll();
    EXPECT_TRUE(copier_->idle());
  }

  // Launches the kernel that stands by, and lets it begin to run.
  void StandBy(bool wide = false) {
    copier_->StandBy(wide);
    if (fake_ == nullptr) {
      usleep(60);
    } else {
      // The pretend device goes on when it is called: a step for what clears the counts.
      for (int i = 0; i < 3; ++i) (void)gpu_->IsIdle(looks_.get());
    }
  }

  const FakeCudaControl* fake_ = nullptr;
  std::unique_ptr<CudaDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  GpuStream looks_;
  std::unique_ptr<Copier> copier_;
  int ended_ = 0;
  int blocking_ = 0;
};

TEST_F(CopierTest, BytesGoThereAndBack) {
  constexpr uint64_t kBytes = 100'000;
  DeviceMemory device = OnDevice(kBytes);
  PinnedMemory out = Pinned(kBytes);
  PinnedMemory back = Pinned(kBytes);
  for (uint64_t i = 0; i < kBytes; ++i)
    static_cast<uint8_t*>(out.data())[i] = static_cast<uint8_t>(i * 7);
  memset(back.data(), 0, kBytes);
  copier_->Start(Direction::kToDevice, device.address(), At(out), kBytes, {}, Count());
  EXPECT_EQ(ended_, 0);
  RunAll();
  EXPECT_EQ(ended_, 1);
  copier_->Start(Direction::kToHost, At(back), device.address(), kBytes, {}, Count());
  RunAll();
  EXPECT_EQ(memcmp(out.data(), back.data(), kBytes), 0);
  EXPECT_EQ(copier_->counters().bytes, 2 * kBytes);
}

TEST_F(CopierTest, ACopyFollowsTheWorkThatItsMarkStandsFor) {
  constexpr uint64_t kBytes = 1 << 20;
  DeviceMemory device = OnDevice(kBytes);
  PinnedMemory back = Pinned(kBytes);
  auto stream = gpu_->MakeStream();
  auto mark = gpu_->MakeEvent();
  ASSERT_TRUE(stream.ok() && mark.ok());
  for (int value = 1; value < 50; ++value) {
    ASSERT_TRUE(gpu_->Use().ok());
    ASSERT_EQ(gpu_->calls().cuMemsetD8Async(device.address(), static_cast<unsigned char>(value),
                                            kBytes, stream->get()),
              cuda::kSuccess);
    ASSERT_TRUE(mark->Record(stream->get()).ok());
    copier_->Start(Direction::kToHost, At(back), device.address(), kBytes, {&*mark}, Count());
    RunAll();
    EXPECT_EQ(static_cast<uint8_t*>(back.data())[0], value);
    EXPECT_EQ(static_cast<uint8_t*>(back.data())[kBytes - 1], value);
  }
}

TEST_F(CopierTest, WhatIsNotThereHoldsUpNobodyElse) {
  if (fake_ == nullptr) GTEST_SKIP() << "holds the pretend device";
  DeviceMemory device = OnDevice(4096);
  PinnedMemory host = Pinned(4096);
  auto stream = gpu_->MakeStream();
  auto gate = gpu_->MakeEvent();  // Recorded behind what never runs while held.
  ASSERT_TRUE(gate.ok());
  fake_->hold(true);
  ASSERT_EQ(gpu_->calls().cuMemsetD8Async(device.address(), 1, 4096, stream->get()), 0);
  ASSERT_TRUE(gate->Record(stream->get()).ok());
  // More that wait than there are lanes to wait on.
  int late = 0;
  for (int i = 0; i < 8; ++i) {
    copier_->Start(Direction::kToHost, At(host), device.address(), 64, {&*gate},
                   [&late](absl::Status status) { late += status.ok(); });
  }
  EXPECT_GT(copier_->counters().waited_on_host, 0u);
  EXPECT_EQ(copier_->outstanding(), 8u);
  for (int i = 0; i < 100; ++i) copier_->Poll();
  EXPECT_EQ(late, 0);
  fake_->hold(false);
  copier_->Start(Direction::kToHost, At(host, 1024), device.address() + 1024, 64, {}, Count());
  RunAll();
  EXPECT_EQ(late, 8);
  EXPECT_EQ(ended_, 1);
}

// Nobody asks for a flush when their data is there.
TEST_F(CopierTest, WhatWasHeldBackWithinTheGpuIsSubmittedByThePollThatFindsItThere) {
  if (fake_ == nullptr) GTEST_SKIP() << "holds the pretend device";
  constexpr uint64_t kCopies = 8;
  DeviceMemory from = OnDevice(kCopies * 64);
  DeviceMemory into = OnDevice(kCopies * 64);
  auto stream = gpu_->MakeStream();
  auto gate = gpu_->MakeEvent();
  ASSERT_TRUE(gate.ok());
  fake_->hold(true);
  ASSERT_EQ(gpu_->calls().cuMemsetD8Async(from.address(), 0x5a, kCopies * 64, stream->get()), 0);
  ASSERT_TRUE(gate->Record(stream->get()).ok());
  for (uint64_t i = 0; i < kCopies; ++i) {
    copier_->Start(Direction::kOnDevice, into.address() + 64 * i, from.address() + 64 * i, 64,
                   {&*gate}, Count());
  }
  copier_->Flush();
  EXPECT_GT(copier_->counters().waited_on_host, 1u);
  for (int i = 0; i < 100; ++i) copier_->Poll();
  EXPECT_EQ(ended_, 0);
  fake_->hold(false);
  for (int i = 0; i < 10'000 && !copier_->idle(); ++i) copier_->Poll();
  EXPECT_EQ(ended_, static_cast<int>(kCopies));
  EXPECT_TRUE(copier_->idle());
  std::vector<uint8_t> bytes(kCopies * 64);
  fake_->peek(into.address(), bytes.data(), bytes.size());
  EXPECT_EQ(bytes, std::vector<uint8_t>(kCopies * 64, 0x5a));
  RunAll();
}

// An owner that sleeps is woken by no copy that the driver does not have.
TEST_F(CopierTest, WhoSleepsHasSubmittedWhatItCollected) {
  DeviceMemory device = OnDevice(128);
  copier_->Start(Direction::kOnDevice, device.address(), device.address() + 64, 64, {}, Count());
  copier_->Arm();
  if (fake_ != nullptr) {
    for (int i = 0; i < 100; ++i) (void)gpu_->IsIdle(looks_.get());
  }
  pollfd waits{copier_->event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&waits, 1, 10'000), 1);
  for (int i = 0; i < 10'000'000 && ended_ == 0; ++i) copier_->Poll();
  EXPECT_EQ(ended_, 1);
  RunAll();
}

TEST_F(CopierTest, ManyPiecesAreOneSubmission) {
  // Every alignment and odd length, next to each other: a byte too much is seen.
  constexpr uint64_t kPieces = 3000;
  constexpr uint64_t kSpan = 512;
  DeviceMemory from = OnDevice(kPieces * kSpan);
  DeviceMemory into = OnDevice(kPieces * kSpan);
  PinnedMemory host = Pinned(kPieces * kSpan);
  auto* bytes = static_cast<uint8_t*>(host.data());
  for (uint64_t i = 0; i < kPieces * kSpan; ++i) bytes[i] = static_cast<uint8_t>(i * 31 + i / 251);
  copier_->Start(Direction::kToDevice, from.address(), At(host), kPieces * kSpan, {}, Count());
  RunAll();
  PinnedMemory poison = Pinned(kPieces * kSpan);
  memset(poison.data(), 0xee, kPieces * kSpan);
  copier_->Start(Direction::kToDevice, into.address(), At(poison), kPieces * kSpan, {}, Count());
  RunAll();
  const uint64_t before = copier_->counters().submissions;
  const auto length = [](uint64_t i) { return i * 13 % 470; };
  const auto to = [](uint64_t i) { return i * kSpan + i % 17; };
  const auto out_of = [](uint64_t i) { return i * kSpan + i * 5 % 23; };
  for (uint64_t i = 0; i < kPieces; ++i) {
    copier_->Start(Direction::kOnDevice, into.address() + to(i), from.address() + out_of(i),
                   length(i), {}, Count());
  }
  RunAll();
  EXPECT_EQ(ended_, 2 + static_cast<int>(kPieces));
  EXPECT_EQ(copier_->counters().submissions - before, 1u);
  std::vector<uint8_t> want(kPieces * kSpan, 0xee);
  for (uint64_t i = 0; i < kPieces; ++i) memcpy(&want[to(i)], bytes + out_of(i), length(i));
  PinnedMemory back = Pinned(kPieces * kSpan);
  copier_->Start(Direction::kToHost, At(back), into.address(), kPieces * kSpan, {}, Count());
  RunAll();
  EXPECT_EQ(memcmp(back.data(), want.data(), want.size()), 0);
  // Now the same copies go as one list.
  copier_->Start(Direction::kToDevice, into.address(), At(poison), kPieces * kSpan, {}, Count());
  RunAll();
  std::vector<GatherPiece> pieces;
  for (uint64_t i = 0; i < kPieces; ++i) {
    pieces.push_back({into.address() + to(i), from.address() + out_of(i), length(i)});
  }
  ended_ = 0;
  copier_->StartMany(pieces, Count());
  RunAll();
  EXPECT_EQ(ended_, 1);
  memset(back.data(), 0, kPieces * kSpan);
  copier_->Start(Direction::kToHost, At(back), into.address(), kPieces * kSpan, {}, Count());
  RunAll();
  const auto* got = static_cast<const uint8_t*>(back.data());
  EXPECT_EQ(memcmp(got, want.data(), want.size()), 0);
}

TEST_F(CopierTest, AStreamMayWaitInPlaceOfTheHost) {
  DeviceMemory a = OnDevice(1 << 20);
  DeviceMemory b = OnDevice(1 << 20);
  PinnedMemory out = Pinned(1 << 20);
  PinnedMemory back = Pinned(1 << 20);
  memset(out.data(), 0x5a, 1 << 20);
  memset(back.data(), 0, 1 << 20);
  auto stream = gpu_->MakeStream();
  copier_->Start(Direction::kToDevice, a.address(), At(out), 1 << 20, {}, Count());
  auto joined = copier_->JoinStream(Direction::kToDevice, stream->get());
  ASSERT_TRUE(joined.ok() && *joined);
  // Work of the caller's, queued before the copy has run.
  ASSERT_EQ(gpu_->calls().cuMemcpyAsync(b.address(), a.address(), 1 << 20, stream->get()), 0);
  auto mark = gpu_->MakeEvent();
  ASSERT_TRUE(mark->Record(stream->get()).ok());
  copier_->Start(Direction::kToHost, At(back), b.address(), 1 << 20, {&*mark}, Count());
  RunAll();
  EXPECT_EQ(static_cast<uint8_t*>(back.data())[12345], 0x5a);
}

TEST_F(CopierTest, WakesWhoSleeps) {
  DeviceMemory device = OnDevice(64 << 20);
  PinnedMemory host = Pinned(64 << 20);
  for (int i = 0; i < 3; ++i) {
    copier_->Start(Direction::kToDevice, device.address(), At(host), 64 << 20, {}, Count());
    copier_->Arm();
    pollfd waits{copier_->event_fd(), POLLIN, 0};
    ASSERT_EQ(poll(&waits, 1, 10'000), 1);
    RunAll();
  }
  EXPECT_EQ(ended_, 3);
  copier_->Arm();  // With nothing to do it stays silent.
  pollfd waits{copier_->event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&waits, 1, 0), 0);
}

TEST_F(CopierTest, SmallCopiesTellOfTheirEndThemselves) {
  DeviceMemory device = OnDevice(64 << 10);
  PinnedMemory host = Pinned(64 << 10);
  PinnedMemory back = Pinned(64 << 10);
  for (uint64_t i = 0; i < 64 << 10; ++i) static_cast<uint8_t*>(host.data())[i] = uint8_t(i * 11);
  const int queries = fake_ != nullptr ? fake_->calls("cuEventQuery") : 0;
  const int records = fake_ != nullptr ? fake_->calls("cuEventRecord") : 0;
  // These ends and beginnings are not all aligned.
  for (uint64_t bytes : {1, 8, 13, 1000, 65'000}) {
    for (uint64_t skew : {0, 1, 4, 8}) {
      memset(back.data(), 0, 64 << 10);
      copier_->Start(Direction::kToDevice, device.address() + skew, At(host, 3), bytes, {},
                     Count());
      RunAll();
      copier_->Start(Direction::kToHost, At(back, skew), device.address() + skew, bytes, {},
                     Count());
      RunAll();
      const auto* seen = static_cast<const uint8_t*>(back.data());
      EXPECT_EQ(memcmp(seen + skew, static_cast<uint8_t*>(host.data()) + 3, bytes), 0)
          << bytes << " bytes, " << skew;
      EXPECT_EQ(seen[skew + bytes], 0) << "written over the end";
    }
  }
  EXPECT_EQ(ended_, 40);
  if (fake_ == nullptr) return;
  EXPECT_EQ(fake_->calls("cuEventQuery"), queries);
  EXPECT_EQ(fake_->calls("cuEventRecord"), records);
}

TEST_F(CopierTest, AKernelStandsByForTheNextSmallCopy) {
  auto made = Copier::Create(gpu_.get(), 200'000);
  ASSERT_TRUE(made.ok()) << made.status();
  copier_ = *std::move(made);
  constexpr uint64_t kBytes = Standby::kMostBytes;
  DeviceMemory from = OnDevice(kBytes);
  DeviceMemory into = OnDevice(kBytes);
  PinnedMemory host = Pinned(kBytes);
  PinnedMemory back = Pinned(kBytes);
  const auto fill = [&](int round) {
    for (uint64_t i = 0; i < kBytes; ++i) {
      static_cast<uint8_t*>(host.data())[i] = uint8_t(i * 7 + i / 255 + round * 31);
    }
    copier_->Start(Direction::kToDevice, from.address(), At(host), kBytes, {}, Count());
    RunAll();
  };
  // Nothing stands by before it is asked to.
  EXPECT_FALSE(copier_->StartSmall(into.address(), from.address(), 64, {}, Count()));
  RunAll();
  int round = 0;
  for (int times = 0; times < 3; ++times) {
    for (uint64_t bytes : {uint64_t{1}, uint64_t{8}, uint64_t{13}, uint64_t{4096}, kBytes - 8}) {
      for (uint64_t skew : {0, 1, 4, 8}) {
        fill(++round);  // Other bytes at the same place, each time.
        StandBy();
        // More at once than there is room for: the others are launched.
        for (int i = 0; i < 10; ++i) {
          copier_->StartSmall(into.address() + skew, from.address() + 8 - skew,
                              bytes - skew % bytes, {}, Count());
        }
        RunAll();
        memset(back.data(), 0xee, kBytes);
        copier_->Start(Direction::kToHost, At(back), into.address() + skew, bytes - skew % bytes,
                       {}, Count());
        RunAll();
        EXPECT_EQ(memcmp(back.data(), static_cast<uint8_t*>(host.data()) + 8 - skew,
                         bytes - skew % bytes),
                  0)
            << bytes << " bytes, " << skew << ", round " << round;
      }
    }
  }
  EXPECT_GT(copier_->counters().by_standby, 60u);
  EXPECT_EQ(ended_, 1 + 60 * 12);
  copier_.reset();  // May wait.
  if (fake_ != nullptr) blocking_ = fake_->blocking_calls();
}

// Several blocks of threads make the copy, each one a share of it.
TEST_F(CopierTest, AWideKernelStandsByForLargerCopies) {
  auto made = Copier::Create(gpu_.get(), 200'000);
  ASSERT_TRUE(made.ok()) << made.status();
  copier_ = *std::move(made);
  constexpr uint64_t kBytes = Standby::kMostWideBytes;
  DeviceMemory from = OnDevice(kBytes);
  DeviceMemory into = OnDevice(kBytes);
  PinnedMemory host = Pinned(kBytes);
  PinnedMemory back = Pinned(kBytes);
  const auto copy = [&](uint64_t skew, uint64_t bytes) {
    return copier_->StartSmall(into.address() + skew, from.address() + 8 - skew, bytes, {},
                               Count());
  };
  int by_standby = 0;
  for (uint64_t bytes : {uint64_t{3}, uint64_t{70'001}, kBytes / 4, kBytes - 8}) {
    for (uint64_t skew : {0, 1, 4}) {
      for (uint64_t i = 0; i < kBytes; ++i) {
        static_cast<uint8_t*>(host.data())[i] = uint8_t(i * 7 + i / 255 + bytes + skew * 31);
      }
      copier_->Start(Direction::kToDevice, from.address(), At(host), kBytes, {}, Count());
      RunAll();
      StandBy(/*wide=*/true);
      for (int i = 0; i < 3; ++i) by_standby += copy(skew, bytes) ? 1 : 0;
      RunAll();
      memset(back.data(), 0xee, kBytes);
      copier_->Start(Direction::kToHost, At(back), into.address() + skew, bytes, {}, Count());
      RunAll();
      EXPECT_EQ(memcmp(back.data(), static_cast<uint8_t*>(host.data()) + 8 - skew, bytes), 0)
          << bytes << " bytes, " << skew;
    }
  }
  EXPECT_GT(by_standby, 18);
  EXPECT_EQ(ended_, 12 * 5);
  copier_.reset();  // May wait.
  if (fake_ != nullptr) blocking_ = fake_->blocking_calls();
}

TEST_F(CopierTest, OneBlockLeavesLargerCopiesToOthers) {
  auto made = Copier::Create(gpu_.get(), 200'000);
  ASSERT_TRUE(made.ok()) << made.status();
  copier_ = *std::move(made);
  DeviceMemory from = OnDevice(Standby::kMostBytes + 1);
  DeviceMemory into = OnDevice(Standby::kMostBytes + 1);
  StandBy(/*wide=*/false);
  EXPECT_FALSE(
      copier_->StartSmall(into.address(), from.address(), Standby::kMostBytes + 1, {}, Count()));
  RunAll();
  EXPECT_EQ(ended_, 1);
  copier_.reset();  // May wait.
  if (fake_ != nullptr) blocking_ = fake_->blocking_calls();
}

TEST_F(CopierTest, WhatStandsByLeavesAndIsCalledAgain) {
  if (fake_ == nullptr) GTEST_SKIP() << "steers the pretend device";
  auto made = Copier::Create(gpu_.get(), 200'000);
  ASSERT_TRUE(made.ok());
  copier_ = *std::move(made);
  DeviceMemory from = OnDevice(64);
  DeviceMemory into = OnDevice(64);
  const auto small = [&](absl::Status* status) {
    return copier_->StartSmall(into.address(), from.address(), 64, {}, Count(status));
  };
  absl::Status status;
  StandBy();
  const int launches = fake_->calls("cuLaunchKernel");
  copier_->StandBy(/*wide=*/false);
  EXPECT_EQ(fake_->calls("cuLaunchKernel"), launches) << "it stands by already";
  EXPECT_TRUE(small(&status));
  RunAll();
  EXPECT_EQ(fake_->calls("cuLaunchKernel"), launches);
  // Told of a copy when it has given up, and its word of that has not been seen: it is in memory
  // only after the copy was named.
  fake_->hold(true);
  EXPECT_TRUE(small(&status));
  EXPECT_TRUE(small(&status));
  fake_->hold(false);
  RunAll();
  EXPECT_EQ(ended_, 3);
  // Whoever looks for long enough sees it leave; the next one is launched.
  for (int i = 0; i < 1000; ++i) (void)gpu_->IsIdle(looks_.get());
  EXPECT_FALSE(small(&status));
  RunAll();
  EXPECT_EQ(ended_, 4);
  // A sleeper is woken.
  StandBy();
  EXPECT_TRUE(small(&status));
  copier_->Arm();
  pollfd waits{copier_->event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&waits, 1, 10'000), 1);
  RunAll();
  EXPECT_EQ(ended_, 5);
  EXPECT_TRUE(status.ok()) << status;
  // The GPU is lost: what it had ends, and what comes.
  StandBy();
  fake_->hold(true);
  EXPECT_TRUE(small(&status));
  for (const char* call : {"cuStreamQuery", "cuLaunchKernel"}) {
    fake_->fail(call, cuda::kIllegalAddress, 1 << 20, 0);
  }
  RunAll();
  EXPECT_EQ(ended_, 6);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_FALSE(small(&status));
  RunAll();
  EXPECT_EQ(ended_, 7);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  for (const char* call : {"cuStreamQuery", "cuLaunchKernel"}) fake_->fail(call, 0, 0, 0);
  fake_->hold(false);
  copier_.reset();
  blocking_ = fake_->blocking_calls();
}

TEST(StandbyTest, WhatLeftBeforeItSawTheLastCopyIsLaunchedAgain) {
  if (getenv("TRYST_TEST_CUDA") != nullptr) GTEST_SKIP() << "steers the pretend device";
  const FakeCudaControl* fake = LoadFakeCuda();
  ASSERT_NE(fake, nullptr);
  auto driver = CudaDriver::Load("tests/doubles/cuda/libfake_cuda.so");
  ASSERT_TRUE(driver.ok());
  auto gpu = Gpu::Open(driver->get(), 0);
  ASSERT_TRUE(gpu.ok());
  auto kernel = GatherKernel::Load(gpu->get());
  ASSERT_TRUE(kernel.ok());
  auto standby = Standby::Create(gpu->get(), kernel->get(), 100'000);
  ASSERT_TRUE(standby.ok());
  DeviceMemory memory = *DeviceMemory::Allocate(gpu->get(), 128);
  const GatherPiece piece{memory.address(), memory.address() + 64, 64};
  const GatherPiece far_away{uint64_t{1} << 50, memory.address() + 64, 64};
  EXPECT_FALSE((*standby)->Takes(piece));
  ASSERT_TRUE((*standby)->Call(/*wide=*/false).ok());
  EXPECT_FALSE((*standby)->Takes(piece)) << "it was launched and does not run yet";
  for (int i = 0; i < 3; ++i) ASSERT_TRUE((*standby)->Look().ok());
  EXPECT_TRUE((*standby)->Takes(piece));
  EXPECT_FALSE((*standby)->Takes(far_away));
  fake->hold(true);
  for (unsigned i = 0; i < kStandbySlots; ++i) {
    ASSERT_TRUE((*standby)->Takes(piece));
    EXPECT_EQ((*standby)->Copy(piece), i + 1);
  }
  EXPECT_FALSE((*standby)->Takes(piece)) << "its slots are named";
  fake->hold(false);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE((*standby)->Look().ok());
  EXPECT_EQ((*standby)->ended(), kStandbySlots);
  // By now it has left. What it is told of regardless, as if its leaving had not been seen yet,
  // it does when it is launched again.
  EXPECT_FALSE((*standby)->Takes(piece));
  const int launches = fake->calls("cuLaunchKernel");
  EXPECT_EQ((*standby)->Copy(piece), kStandbySlots + 1);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE((*standby)->Look().ok());
  EXPECT_EQ((*standby)->ended(), kStandbySlots + 1);
  EXPECT_EQ(fake->calls("cuLaunchKernel"), launches + 1);
}

TEST_F(CopierTest, ALostGpuEndsWhatIsOnItsWayAndWhatComes) {
  if (fake_ == nullptr) GTEST_SKIP() << "breaks the pretend device";
  struct Case {
    const char* call;
    uint64_t bytes;
  };
  constexpr uint64_t kLarge = 100'000;  // By a copy engine; a small one is a kernel.
  constexpr int kForEver = 1 << 20;
  for (const auto& [call, bytes] :
       {Case{"cuMemcpyAsync", kLarge}, Case{"cuEventRecord", kLarge}, Case{"cuEventQuery", kLarge},
        Case{"cuEventCreate", kLarge}, Case{"cuLaunchKernel", 64}, Case{"cuStreamQuery", 64}}) {
    auto copier = Copier::Create(gpu_.get());
    ASSERT_TRUE(copier.ok());
    DeviceMemory device = OnDevice(kLarge);
    PinnedMemory host = Pinned(kLarge);
    fake_->hold(true);
    fake_->fail(call, cuda::kIllegalAddress, kForEver, 0);
    fake_->fail("cuStreamQuery", cuda::kIllegalAddress, kForEver, 0);
    absl::Status first;
    absl::Status second;
    (*copier)->Start(Direction::kToHost, At(host), device.address(), bytes, {}, Count(&first));
    EXPECT_EQ(ended_, 0) << "inside of Start()";
    (*copier)->Start(Direction::kToHost, At(host), device.address(), bytes, {}, Count(&second));
    for (int i = 0; i < 200; ++i) (*copier)->Poll();
    EXPECT_EQ(ended_, 2) << call;
    EXPECT_EQ(first.code(), absl::StatusCode::kUnavailable) << call;
    EXPECT_THAT(std::string(first.message()), HasSubstr(call));
    EXPECT_EQ(second, first) << call;
    ended_ = 0;
    fake_->fail(call, 0, 0, 0);
    fake_->fail("cuStreamQuery", 0, 0, 0);
    fake_->hold(false);
    copier->reset();  // May wait.
    blocking_ = fake_->blocking_calls();
  }
}

// What the device is still writing must not end for it, nor what comes later.
TEST_F(CopierTest, ACallThatFailsOnceFailsOneCopy) {
  if (fake_ == nullptr) GTEST_SKIP() << "breaks the pretend device";
  constexpr uint64_t kLarge = 1 << 20;
  DeviceMemory device = OnDevice(kLarge);
  PinnedMemory host = Pinned(kLarge);
  for (const auto& [call, bytes] :
       {std::make_pair("cuMemcpyAsync", kLarge), std::make_pair("cuEventRecord", kLarge),
        std::make_pair("cuEventCreate", kLarge), std::make_pair("cuLaunchKernel", uint64_t{64})}) {
    auto copier = Copier::Create(gpu_.get());
    ASSERT_TRUE(copier.ok());
    copier_ = *std::move(copier);
    memset(host.data(), 0x5a, kLarge);
    fake_->hold(true);
    absl::Status before = absl::UnknownError("not ended");
    absl::Status failed;
    absl::Status later = absl::UnknownError("not ended");
    copier_->Start(Direction::kToDevice, device.address(), At(host), kLarge, {}, Count(&before));
    fake_->fail(call, 2, 1, 0);
    copier_->Start(Direction::kToDevice, device.address(), At(host), bytes, {}, Count(&failed));
    for (int i = 0; i < 200; ++i) copier_->Poll();
    EXPECT_EQ(ended_, 0) << call << ": its stream is not idle";
    EXPECT_EQ(copier_->JoinStream(Direction::kToDevice, looks_.get()).status().code(),
              absl::StatusCode::kResourceExhausted);
    copier_->Start(Direction::kToDevice, device.address(), At(host), bytes, {}, Count(&later));
    fake_->hold(false);
    RunAll();
    EXPECT_EQ(ended_, 3);
    EXPECT_TRUE(before.ok()) << call << ": " << before;
    EXPECT_EQ(failed.code(), absl::StatusCode::kResourceExhausted) << failed;
    EXPECT_THAT(std::string(failed.message()), HasSubstr(call));
    EXPECT_TRUE(later.ok()) << call << ": " << later;
    uint8_t last = 0;
    fake_->peek(device.address() + kLarge - 1, &last, 1);
    EXPECT_EQ(last, 0x5a);
    ended_ = 0;
    copier_.reset();  // May wait.
    blocking_ = fake_->blocking_calls();
  }
}

// A question that fails for a moment says nothing of the copy, which goes on.
TEST_F(CopierTest, AQuestionWithoutAnAnswerEndsNothing) {
  if (fake_ == nullptr) GTEST_SKIP() << "breaks the pretend device";
  constexpr uint64_t kLarge = 100'000;
  DeviceMemory device = OnDevice(kLarge);
  PinnedMemory host = Pinned(kLarge);
  for (const int result : {cuda::kOutOfMemory, cuda::kCaptureUnsupported, cuda::kCaptureImplicit}) {
    for (const auto& [call, bytes] :
         {std::make_pair("cuEventQuery", kLarge), std::make_pair("cuCtxSetCurrent", kLarge),
          std::make_pair("cuStreamQuery", uint64_t{64})}) {
      memset(host.data(), 0x5a, kLarge);
      absl::Status status = absl::UnknownError("not ended");
      fake_->hold(true);
      copier_->Start(Direction::kToDevice, device.address(), At(host), bytes, {}, Count(&status));
      fake_->fail(call, result, 100, 0);
      for (int i = 0; i < 300; ++i) copier_->Poll();
      EXPECT_EQ(ended_, 0) << call << " " << result << ": " << status;
      fake_->fail(call, 0, 0, 0);
      fake_->hold(false);
      RunAll();
      EXPECT_EQ(ended_, 1);
      EXPECT_TRUE(status.ok()) << call << " " << result << ": " << status;
      ended_ = 0;
    }
  }
}

TEST_F(CopierTest, WithoutMemoryForATableTheyAreCopiedOneByOne) {
  if (fake_ == nullptr) GTEST_SKIP() << "breaks the pretend device";
  constexpr uint64_t kPieces = 8;
  DeviceMemory device = OnDevice(kPieces * 128);
  const auto from = [&](uint64_t i) { return device.address() + 128 * i; };
  const char text[] = "the piece";
  for (uint64_t i = 0; i < kPieces; ++i) fake_->poke(from(i), text, sizeof(text));
  fake_->fail("cuMemAlloc_v2", 2, 2, 0);
  const int launches = fake_->calls("cuLaunchKernel");
  absl::Status status;
  for (uint64_t i = 0; i < kPieces / 2; ++i) {
    copier_->Start(Direction::kOnDevice, from(i) + 64, from(i), 64, {}, Count(&status));
  }
  copier_->Flush();
  std::vector<GatherPiece> pieces;
  for (uint64_t i = kPieces / 2; i < kPieces; ++i) pieces.push_back({from(i) + 64, from(i), 64});
  absl::Status many;
  copier_->StartMany(pieces, Count(&many));
  RunAll();
  EXPECT_EQ(fake_->calls("cuLaunchKernel"), launches);
  EXPECT_EQ(copier_->counters().submissions, kPieces);
  EXPECT_TRUE(status.ok() && many.ok()) << status << many;
  for (uint64_t i = 0; i < kPieces; ++i) {
    char got[sizeof(text)] = {};
    fake_->peek(from(i) + 64, got, sizeof(got));
    EXPECT_STREQ(got, text) << i;
  }
}

// Each time that its owner sleeps. The driver's queues are not endless.
TEST_F(CopierTest, OneWakeUpStandsBehindACopyHoweverOftenItIsAskedFor) {
  if (fake_ == nullptr) GTEST_SKIP() << "holds the pretend device";
  DeviceMemory device = OnDevice(64);
  PinnedMemory host = Pinned(64);
  fake_->hold(true);
  copier_->Start(Direction::kToDevice, device.address(), At(host), 64, {}, Count());
  const int before = fake_->calls("cuLaunchHostFunc");
  for (int i = 0; i < 100; ++i) {
    copier_->Arm();
    copier_->Poll();
  }
  EXPECT_EQ(fake_->calls("cuLaunchHostFunc") - before, 1);
  copier_->Start(Direction::kToDevice, device.address(), At(host), 64, {}, Count());
  copier_->Arm();
  EXPECT_EQ(fake_->calls("cuLaunchHostFunc") - before, 2) << "the last copy is another";
  pollfd waits{copier_->event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&waits, 1, 0), 0);
  fake_->hold(false);
  for (int i = 0; i < 10; ++i) (void)gpu_->IsIdle(looks_.get());
  EXPECT_EQ(poll(&waits, 1, 10'000), 1);
  RunAll();
  EXPECT_EQ(ended_, 2);
}

// Other work that the copier looks at must not delay this.
TEST_F(CopierTest, ALostKernelIsNoticedInTime) {
  if (fake_ == nullptr) GTEST_SKIP() << "breaks the pretend device";
  constexpr int kLooks = 64;
  DeviceMemory memory = OnDevice(128);
  PinnedMemory host = Pinned(64);
  for (size_t others = 0; others <= 3; ++others) {
    auto made = Copier::Create(gpu_.get(), 200'000);
    ASSERT_TRUE(made.ok());
    copier_ = *std::move(made);
    StandBy();
    auto stream = gpu_->MakeStream();
    auto mark = gpu_->MakeEvent();
    fake_->hold(true);
    ASSERT_TRUE(stream.ok() && mark.ok() && mark->Record(stream->get()).ok());
    for (size_t i = 0; i < others; ++i) {  // Each on a lane of its own.
      copier_->Start(Direction::kToHost, At(host), memory.address(), 64, {&*mark}, Count());
    }
    for (size_t i = 0; i < others; ++i) copier_->Poll();
    absl::Status status;
    ASSERT_TRUE(
        copier_->StartSmall(memory.address(), memory.address() + 64, 64, {}, Count(&status)));
    fake_->fail("cuStreamQuery", cuda::kIllegalAddress, 1 << 20, 0);
    for (int i = 0; i < kLooks; ++i) copier_->Poll();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << others << " others";
    fake_->fail("cuStreamQuery", 0, 0, 0);
    fake_->hold(false);
    RunAll();
    copier_.reset();  // May wait.
    blocking_ = fake_->blocking_calls();
  }
}

}  // namespace
}  // namespace tryst
