#include "gpu/device_memory.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gpu/flush_policy.h"
#include "gpu/ipc.h"
#include "gpu/pinned_memory.h"
#include "gtest/gtest.h"
#include "tests/doubles/cuda/fake_cuda.h"

namespace tryst {
namespace {

using ::testing::HasSubstr;

class DeviceMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* library = getenv("TRYST_TEST_CUDA");
    if (library == nullptr) fake_ = LoadFakeCuda();
    auto driver =
        CudaDriver::Load(library != nullptr ? library : "tests/doubles/cuda/libfake_cuda.so");
    ASSERT_TRUE(driver.ok()) << driver.status();
    driver_ = *std::move(driver);
    gpu_ = *Gpu::Open(driver_.get(), 0);
    stream_ = *gpu_->MakeStream();
    if (fake_ != nullptr) allocated_ = fake_->allocated();
  }
  void TearDown() override {
    if (fake_ == nullptr) return;
    EXPECT_EQ(fake_->allocated(), allocated_) << "device memory leaked";
    EXPECT_STREQ(fake_->complaints(), "");
  }
  void Fill(cuda::Address address, uint64_t bytes, int value) {
    ASSERT_TRUE(gpu_->Use().ok());
    ASSERT_EQ(gpu_->calls().cuMemsetD8Async(address, static_cast<unsigned char>(value), bytes,
                                            stream_.get()),
              0);
    ASSERT_TRUE(gpu_->WaitFor(stream_.get()).ok());
  }
  int Read(cuda::Address address) {
    auto pinned = *PinnedMemory::Allocate(gpu_.get(), 1);
    EXPECT_EQ(gpu_->calls().cuMemcpyAsync(reinterpret_cast<cuda::Address>(pinned.data()), address,
                                          1, stream_.get()),
              0);
    EXPECT_TRUE(gpu_->WaitFor(stream_.get()).ok());
    return *static_cast<uint8_t*>(pinned.data());
  }

  const FakeCudaControl* fake_ = nullptr;
  uint64_t allocated_ = 0;
  std::unique_ptr<CudaDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  GpuStream stream_;
};

TEST_F(DeviceMemoryTest, ThePoolUsesBlocksAgainAndKeepsItsCap) {
  DevicePool pool(gpu_.get(), 4 << 20);
  auto first = pool.Take(1 << 20);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->last_use(), nullptr);
  const cuda::Address address = (*first)->address();
  pool.Give(*first, stream_.get());
  auto again = pool.Take((1 << 20) - 100);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->address(), address);
  EXPECT_NE((*again)->last_use(), nullptr);
  auto second = pool.Take(2 << 20);
  ASSERT_TRUE(second.ok());
  auto third = pool.Take(2 << 20);
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(third.status().message()), HasSubstr("raise gpu_pool_bytes"));
  // What is only kept gives way to what is asked for.
  pool.Give(*again, stream_.get());
  third = pool.Take(2 << 20);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_GE(pool.lent_bytes(), uint64_t{4} << 20);
  pool.Give(*second, stream_.get());
  pool.Give(*third, stream_.get());
}

TEST_F(DeviceMemoryTest, ThePoolSaysWhenTheDeviceIsFull) {
  if (fake_ == nullptr) GTEST_SKIP() << "breaks the pretend device";
  DevicePool pool(gpu_.get(), 4 << 20);
  fake_->fail("cuMemAlloc_v2", cuda::kOutOfMemory, 1, 0);
  auto full = pool.Take(1 << 20);
  EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.status().message()), HasSubstr("GPU 0"));
  EXPECT_EQ(pool.lent_bytes(), 0u);
  auto room = pool.Take(4 << 20);
  ASSERT_TRUE(room.ok()) << "the failed one was still counted: " << room.status();
  pool.Give(*room, stream_.get());
}

TEST_F(DeviceMemoryTest, SharedMemoryIsOneOnBothSides) {
  auto made = DeviceMemory::AllocateShareable(gpu_.get(), 100'000);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_GE(made->bytes(), 100'000u);
  auto fd = made->ExportFd();
  ASSERT_TRUE(fd.ok()) << fd.status();
  auto other = DeviceMemory::Import(gpu_.get(), *fd, made->bytes());
  ASSERT_TRUE(other.ok()) << other.status();
  close(*fd);
  Fill(made->address(), 1000, 77);
  EXPECT_EQ(Read(other->address() + 999), 77);
  EXPECT_EQ(DeviceMemory::Allocate(gpu_.get(), 10)->ExportFd().status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(DeviceMemoryTest, HalfMadeSharedMemoryIsTakenApart) {
  if (fake_ == nullptr) GTEST_SKIP() << "breaks the pretend device";
  for (const char* call : {"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemAddressReserve",
                           "cuMemMap", "cuMemSetAccess"}) {
    fake_->fail(call, cuda::kOutOfMemory, 1, 0);
    auto made = DeviceMemory::AllocateShareable(gpu_.get(), 4096);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kResourceExhausted) << call;
    EXPECT_THAT(std::string(made.status().message()), HasSubstr(call));
  }
}

TEST_F(DeviceMemoryTest, ADmaBufIsWholePages) {
  auto memory = DeviceMemory::Allocate(gpu_.get(), 100'000);
  ASSERT_TRUE(memory.ok());
  if (!gpu_->device().dma_buf) {
    EXPECT_EQ(ExportDmaBuf(*gpu_, memory->address(), 10).status().code(),
              absl::StatusCode::kUnimplemented);
    GTEST_SKIP() << "this GPU exports no dma-buf";
  }
  auto made = ExportDmaBuf(*gpu_, memory->address() + 5000, 10'000);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->offset, (memory->address() + 5000) % 4096);
  close(made->fd);
}

TEST_F(DeviceMemoryTest, PinnedMemoryOfEveryKindIsReached) {
  auto device = *DeviceMemory::Allocate(gpu_.get(), 4096);
  Fill(device.address(), 4096, 21);
  auto shared = PinnedMemory::AllocateShared(gpu_.get(), 5000);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(shared->bytes(), 8192u);
  void* theirs = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  {
    auto registered = PinnedMemory::Register(gpu_.get(), theirs, 8192);
    ASSERT_TRUE(registered.ok()) << registered.status();
    EXPECT_FALSE(PinnedMemory::Register(gpu_.get(), theirs, 8192).ok()) << "registered twice";
    for (void* data : {shared->data(), theirs}) {
      ASSERT_EQ(gpu_->calls().cuMemcpyAsync(reinterpret_cast<cuda::Address>(data), device.address(),
                                            4096, stream_.get()),
                0);
      ASSERT_TRUE(gpu_->WaitFor(stream_.get()).ok());
      EXPECT_EQ(static_cast<uint8_t*>(data)[4095], 21);
    }
  }
  munmap(theirs, 8192);
  // Another mapping of the segment sees what the GPU wrote.
  void* mapped = mmap(nullptr, 8192, PROT_READ, MAP_SHARED, shared->fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_EQ(static_cast<uint8_t*>(mapped)[100], 21);
  munmap(mapped, 8192);
}

// The exporter's process; a fork cannot use CUDA, so it is the test itself, run anew.
int ExportAndWait(int in, int out) {
  const char* library = getenv("TRYST_TEST_CUDA");
  auto driver =
      CudaDriver::Load(library != nullptr ? library : "tests/doubles/cuda/libfake_cuda.so");
  if (!driver.ok()) return 2;
  auto gpu = Gpu::Open(driver->get(), 0);
  auto stream = (*gpu)->MakeStream();
  auto memory = DeviceMemory::Allocate(gpu->get(), 1 << 20);
  if (!memory.ok()) return 3;
  (*gpu)->calls().cuMemsetD8Async(memory->address() + 70'000, 99, 4096, stream->get());
  if (!(*gpu)->WaitFor(stream->get()).ok()) return 4;
  IpcExporter exporter(gpu->get());
  auto reference = exporter.Export(memory->address() + 70'000, 4096);
  if (!reference.ok()) return 5;
  if (write(out, &*reference, sizeof(*reference)) != sizeof(*reference)) return 6;
  char over;
  return read(in, &over, 1) >= 0 ? 0 : 7;
}

TEST_F(DeviceMemoryTest, AnotherProcessesMemoryIsReadAndMappedOnce) {
  int to_child[2];
  int from_child[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(from_child), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string in = std::to_string(to_child[0]);
    const std::string out = std::to_string(from_child[1]);
    close(to_child[1]);
    execl("/proc/self/exe", "device_memory_test", "--export", in.c_str(), out.c_str(), nullptr);
    _exit(9);
  }
  close(to_child[0]);
  close(from_child[1]);
  IpcReference reference;
  ASSERT_EQ(read(from_child[0], &reference, sizeof(reference)),
            static_cast<ssize_t>(sizeof(reference)));
  EXPECT_EQ(reference.offset, 70'000u);
  IpcMappings mappings(gpu_.get(), 1);
  auto first = mappings.Open("them", reference);
  ASSERT_TRUE(first.ok()) << first.status();
  auto second = mappings.Open("them", reference);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(Read((*first)->base() + reference.offset), 99);
  mappings.Close(*first);
  mappings.Close(*second);
  EXPECT_EQ(mappings.mapped(), 1u) << "kept for the next time";
  // Who says that it is larger than what its handle maps would have us read past its end.
  IpcReference lying = reference;
  lying.allocation_bytes += uint64_t{1} << 30;
  EXPECT_EQ(mappings.Open("them", lying).status().code(), absl::StatusCode::kDataLoss)
      << "it is mapped already";
  mappings.Forget("them");
  EXPECT_EQ(mappings.Open("them", lying).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(mappings.mapped(), 0u);
  auto honest = mappings.Open("them", reference);
  ASSERT_TRUE(honest.ok()) << honest.status() << ": the lie left nothing mapped";
  EXPECT_EQ(Read((*honest)->base() + reference.offset), 99);
  mappings.Close(*honest);
  if (fake_ != nullptr) {
    // Freed over there and allocated anew at its place: what is mapped and idle goes first.
    IpcReference again = reference;
    ++again.allocation_id;
    const int opened = fake_->calls("cuIpcOpenMemHandle_v2");
    auto anew = mappings.Open("them", again);
    ASSERT_TRUE(anew.ok()) << anew.status();
    EXPECT_EQ(mappings.mapped(), 1u) << "the earlier one is closed";
    EXPECT_EQ(fake_->calls("cuIpcOpenMemHandle_v2") - opened, 1);
    mappings.Close(*anew);
    // The new allocation is at another place, and the old mapping is in its way.
    ++again.allocation_id;
    again.allocation_at += uint64_t{1} << 30;
    fake_->fail("cuIpcOpenMemHandle_v2", cuda::kAlreadyMapped, 1, 0);
    anew = mappings.Open("them", again);
    ASSERT_TRUE(anew.ok()) << anew.status();
    EXPECT_EQ(mappings.mapped(), 1u) << "the earlier one is closed";
    mappings.Close(*anew);
    // A second allocation lies behind the first: both mappings are kept.
    ++again.allocation_id;
    again.allocation_at += again.allocation_bytes;
    anew = mappings.Open("them", again);
    ASSERT_TRUE(anew.ok()) << anew.status();
    mappings.Close(*anew);
    IpcMappings both(gpu_.get(), 4);
    auto a = both.Open("them", reference);
    ASSERT_TRUE(a.ok());
    both.Close(*a);
    auto b = both.Open("them", again);
    ASSERT_TRUE(b.ok());
    both.Close(*b);
    EXPECT_EQ(both.mapped(), 2u);
  }
  mappings.Forget("somebody else");
  EXPECT_EQ(mappings.mapped(), 1u);
  mappings.Forget("them");
  EXPECT_EQ(mappings.mapped(), 0u);
  IpcReference nonsense;
  EXPECT_FALSE(mappings.Open("them", nonsense).ok());
  ASSERT_EQ(write(to_child[1], "x", 1), 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(DeviceMemoryTest, WhatCannotBeExportedSaysSo) {
  IpcExporter exporter(gpu_.get());
  auto memory = *DeviceMemory::Allocate(gpu_.get(), 4096);
  EXPECT_TRUE(exporter.Export(memory.address(), 4096).ok());
  EXPECT_EQ(exporter.Export(memory.address(), uint64_t{1} << 40).status().code(),
            absl::StatusCode::kInternal);
  auto shareable = DeviceMemory::AllocateShareable(gpu_.get(), 4096);
  ASSERT_TRUE(shareable.ok());
  auto in_chunks = exporter.Export(shareable->address(), 4096);
  ASSERT_TRUE(in_chunks.ok()) << in_chunks.status();
  EXPECT_EQ(in_chunks->chunks, 1u) << "it has no handle as a whole";
}

TEST(FlushPolicyTest, FollowsCapabilityAndLink) {
  GpuDevice ampere;
  ampere.compute_major = 8;
  GpuDevice hopper;
  hopper.compute_major = 9;
  EXPECT_TRUE(ChooseFlush(ampere, GpuLink::kPcie, false).flush);
  EXPECT_FALSE(ChooseFlush(hopper, GpuLink::kPcie, false).flush);
  EXPECT_TRUE(ChooseFlush(hopper, GpuLink::kPcie, true).flush);
  EXPECT_FALSE(ChooseFlush(hopper, GpuLink::kC2c, true).flush);
  ampere.writes_ordered = true;
  EXPECT_FALSE(ChooseFlush(ampere, GpuLink::kPcie, false).flush);
  EXPECT_THAT(ChooseFlush(hopper, GpuLink::kPcie, true).why, HasSubstr("C2C"));
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--export") {
    return tryst::ExportAndWait(atoi(argv[2]), atoi(argv[3]));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
