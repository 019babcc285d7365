#include "gpu/chunks.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gpu/device_memory.h"
#include "gpu/ipc.h"
#include "gpu/pinned_memory.h"
#include "gtest/gtest.h"
#include "tests/doubles/cuda/expandable_range.h"
#include "tests/doubles/cuda/fake_cuda.h"

// On the pretend GPU, or the machine's (TRYST_TEST_CUDA=libcuda.so.1).
namespace tryst {
namespace {

using ::testing::HasSubstr;

class ChunksTest : public ::testing::Test {
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
    range_ = std::make_unique<ExpandableRange>(gpu_.get(), 1, 8);
    mappings_ = std::make_unique<IpcMappings>(gpu_.get(), 4);
    exporter_ = std::make_unique<IpcExporter>(gpu_.get());
  }
  void TearDown() override {
    mappings_.reset();
    range_.reset();
    if (fake_ == nullptr) return;
    EXPECT_EQ(fake_->allocated(), allocated_) << "device memory leaked";
    EXPECT_STREQ(fake_->complaints(), "");
  }

  void Fill(cuda::Address address, uint64_t bytes, int value) {
    ASSERT_EQ(gpu_->calls().cuMemsetD8Async(address, static_cast<unsigned char>(value), bytes,
                                            stream_.get()),
              0);
    ASSERT_TRUE(gpu_->WaitFor(stream_.get()).ok());
  }
  std::vector<uint8_t> Read(cuda::Address address, uint64_t bytes) {
    auto pinned = *PinnedMemory::Allocate(gpu_.get(), bytes);
    EXPECT_EQ(gpu_->calls().cuMemcpyAsync(reinterpret_cast<cuda::Address>(pinned.data()), address,
                                          bytes, stream_.get()),
              0);
    EXPECT_TRUE(gpu_->WaitFor(stream_.get()).ok());
    const auto* at = static_cast<const uint8_t*>(pinned.data());
    return std::vector<uint8_t>(at, at + bytes);
  }
  // What the exporter hands on of [address, address + bytes).
  std::vector<OfferedChunk> Offer(cuda::Address address, uint64_t bytes) {
    const ChunkLayout layout = **exporter_->chunks()->Describe(address, bytes);
    std::vector<OfferedChunk> offered;
    cuda::Address at = layout.base;
    for (const MemoryChunk& chunk : layout.chunks) {
      auto handle = exporter_->chunks()->Export(at);
      EXPECT_TRUE(handle.ok()) << handle.status();
      offered.push_back({chunk, *std::move(handle)});
      at += chunk.bytes;
    }
    return offered;
  }
  absl::StatusOr<IpcMappings::Mapping*> OpenAll(cuda::Address address, uint64_t bytes) {
    auto reference = exporter_->Export(address, bytes);
    if (!reference.ok()) return reference.status();
    return mappings_->OpenChunks("them", *reference, Offer(address, bytes));
  }

  const FakeCudaControl* fake_ = nullptr;
  uint64_t allocated_ = 0;
  std::unique_ptr<CudaDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  GpuStream stream_;
  std::unique_ptr<ExpandableRange> range_;
  std::unique_ptr<IpcMappings> mappings_;
  std::unique_ptr<IpcExporter> exporter_;
};

TEST_F(ChunksTest, ATensorOverThreeChunksIsMappedSideBySide) {
  range_->Map(0, 5);
  const uint64_t chunk = range_->chunk_bytes();
  const cuda::Address at = range_->At(1) + 777;  // Ends in the fourth.
  const uint64_t bytes = 2 * chunk + 1000;
  auto reference = exporter_->Export(at, bytes);
  ASSERT_TRUE(reference.ok()) << reference.status();
  EXPECT_EQ(reference->chunks, 3u);
  EXPECT_EQ(reference->offset, 777u);
  EXPECT_EQ(reference->allocation_bytes, 3 * chunk);
  EXPECT_EQ(mappings_->FindChunks("them", *reference), nullptr);
  auto opened = mappings_->OpenChunks("them", *reference, Offer(at, bytes));
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_NE((*opened)->base(), reference->allocation_at);
  // Written there, over both seams, and read here.
  for (int i = 1; i <= 3; ++i) Fill(range_->At(i), chunk, 10 * i);
  const auto seen = Read((*opened)->base() + chunk - 2, chunk + 4);
  EXPECT_EQ(seen[1], 10);
  EXPECT_EQ(seen[2], 20);
  EXPECT_EQ(seen[chunk + 1], 20);
  EXPECT_EQ(seen[chunk + 2], 30);
  mappings_->Close(*opened);
  EXPECT_EQ(mappings_->FindChunks("them", *reference), *opened) << "kept for the next time";
  mappings_->Close(*opened);
}

TEST_F(ChunksTest, ARangeThatGrowsLeavesMappingsAndOneThatIsFilledAnewDoesNot) {
  range_->Map(0, 3);
  const uint64_t bytes = 3 * range_->chunk_bytes();
  auto first = exporter_->Export(range_->At(0), bytes);
  ASSERT_TRUE(first.ok()) << first.status();
  range_->Map(3, 2);
  EXPECT_EQ(exporter_->Export(range_->At(0), bytes)->allocation_id, first->allocation_id)
      << "the range has grown, and these chunks are where they were";
  auto old = OpenAll(range_->At(0), bytes);
  ASSERT_TRUE(old.ok()) << old.status();
  Fill((*old)->base(), bytes, 1);
  mappings_->Close(*old);
  // The middle one is given back and comes again: other memory at the same place.
  range_->Unmap(1);
  EXPECT_FALSE(exporter_->Export(range_->At(0), bytes).ok()) << "there is a hole in it";
  range_->Map(1);
  auto second = exporter_->Export(range_->At(0), bytes);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(second->allocation_id, first->allocation_id);
  EXPECT_EQ(mappings_->FindChunks("them", *second), nullptr) << "a stale mapping";
  Fill(range_->At(1), range_->chunk_bytes(), 2);
  auto anew = OpenAll(range_->At(0), bytes);
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_EQ(mappings_->mapped(), 1u) << "what was replaced is unmapped";
  const auto seen = Read((*anew)->base(), bytes);
  EXPECT_EQ(seen[0], 1);
  EXPECT_EQ(seen[range_->chunk_bytes()], 2);
  EXPECT_EQ(seen[bytes - 1], 1);
  mappings_->Close(*anew);
}

TEST_F(ChunksTest, AnExporterThatBeginsAnewGivesOtherNames) {
  range_->Map(0, 1);
  const IpcReference first = *exporter_->Export(range_->At(0), 10);
  exporter_ = std::make_unique<IpcExporter>(gpu_.get());  // Its server was restarted.
  EXPECT_NE(exporter_->Export(range_->At(0), 10)->allocation_id, first.allocation_id);
}

TEST_F(ChunksTest, WindowsThatShareChunksAreKeptTogether) {
  range_->Map(0, 4);
  const uint64_t chunk = range_->chunk_bytes();
  auto first = OpenAll(range_->At(0), 2 * chunk);
  ASSERT_TRUE(first.ok()) << first.status();
  mappings_->Close(*first);
  const int imported = fake_ != nullptr ? fake_->calls("cuMemImportFromShareableHandle") : 0;
  auto second = OpenAll(range_->At(1), 2 * chunk);
  ASSERT_TRUE(second.ok()) << second.status();
  mappings_->Close(*second);
  EXPECT_EQ(mappings_->mapped(), 2u) << "they overlap, and both are there";
  if (fake_ != nullptr) {
    EXPECT_EQ(fake_->calls("cuMemImportFromShareableHandle") - imported, 1)
        << "the chunk that both show is held already";
  }
  mappings_->Forget("them");
  EXPECT_EQ(mappings_->mapped(), 0u);
}

TEST_F(ChunksTest, IdleWindowsAreBounded) {
  IpcMappings few(gpu_.get(), 0);
  range_->Map(0, 2);
  auto reference = exporter_->Export(range_->At(0), 10);
  ASSERT_TRUE(reference.ok());
  auto opened = few.OpenChunks("them", *reference, Offer(range_->At(0), 10));
  ASSERT_TRUE(opened.ok()) << opened.status();
  few.Close(*opened);
  EXPECT_EQ(few.mapped(), 0u);
}

TEST_F(ChunksTest, APeersClaimsAreChecked) {
  range_->Map(0, 3);
  const uint64_t chunk = range_->chunk_bytes();
  const IpcReference honest = *exporter_->Export(range_->At(0), 2 * chunk);
  const auto refused = [&](const IpcReference& reference, std::vector<OfferedChunk> chunks) {
    auto opened = mappings_->OpenChunks("them", reference, chunks);
    EXPECT_FALSE(opened.ok());
    EXPECT_EQ(mappings_->mapped(), 0u);
    return opened.status();
  };
  EXPECT_TRUE(absl::IsDataLoss(refused(honest, {})));
  EXPECT_TRUE(absl::IsDataLoss(refused(honest, Offer(range_->At(0), chunk)))) << "one too few";
  EXPECT_TRUE(absl::IsDataLoss(refused(honest, Offer(range_->At(0), 3 * chunk)))) << "one more";
  for (uint64_t bytes : {uint64_t{0}, uint64_t{100}, ~uint64_t{0} / 2 + 1}) {
    auto odd = Offer(range_->At(0), 2 * chunk);
    odd[0].chunk.bytes = bytes;
    odd[1].chunk.bytes = 2 * chunk - bytes;  // The sum is right.
    EXPECT_FALSE(refused(honest, std::move(odd)).ok()) << bytes;
  }
  // The offer says that one chunk is as large as two, and the chunk has less memory than that.
  IpcReference one = honest;
  one.chunks = 1;
  auto large = Offer(range_->At(0), chunk);
  large[0].chunk.bytes = 2 * chunk;
  EXPECT_FALSE(refused(one, std::move(large)).ok());
  // The offer gives two chunks of different sizes the same name.
  auto twice = Offer(range_->At(0), 2 * chunk);
  twice[1].chunk.id = twice[0].chunk.id;
  twice[0].chunk.bytes = 3 * chunk;
  IpcReference four = honest;
  four.allocation_bytes = 4 * chunk;
  EXPECT_FALSE(refused(four, std::move(twice)).ok());
  // A handle stands for no memory at all.
  auto nothing = Offer(range_->At(0), 2 * chunk);
  nothing[1].handle = ChunkHandle(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(refused(honest, std::move(nothing)).ok());
  nothing = Offer(range_->At(0), 2 * chunk);
  nothing[1].handle = ChunkHandle();
  EXPECT_FALSE(refused(honest, std::move(nothing)).ok());
  // A layout is offered under the name of another one.
  auto opened = mappings_->OpenChunks("them", honest, Offer(range_->At(0), 2 * chunk));
  ASSERT_TRUE(opened.ok()) << opened.status();
  mappings_->Close(*opened);
  IpcReference other = *exporter_->Export(range_->At(0), 3 * chunk);
  other.allocation_id = honest.allocation_id;
  EXPECT_EQ(mappings_->FindChunks("them", other), nullptr);
  EXPECT_FALSE(mappings_->OpenChunks("them", other, Offer(range_->At(0), 3 * chunk)).ok());
}

TEST_F(ChunksTest, HalfMadeWindowsAreTakenApart) {
  if (fake_ == nullptr) GTEST_SKIP() << "breaks the pretend device";
  range_->Map(0, 3);
  for (const char* call : {"cuMemGetAllocationGranularity", "cuMemImportFromShareableHandle",
                           "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    auto reference = exporter_->Export(range_->At(0), 3 * range_->chunk_bytes());
    ASSERT_TRUE(reference.ok());
    auto offered = Offer(range_->At(0), 3 * range_->chunk_bytes());
    const bool is_one = std::string(call) != "cuMemMap";
    fake_->fail(call, cuda::kOutOfMemory, 1, is_one ? 0 : 1);
    auto opened = mappings_->OpenChunks("them", *reference, offered);
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kResourceExhausted) << call;
    EXPECT_EQ(mappings_->mapped(), 0u);
  }
}

TEST_F(ChunksTest, WhatCannotBeHandedOnSaysWhy) {
  ExpandableRange closed(gpu_.get(), 1, 2, 0);
  closed.Map(0, 2);
  const absl::Status no_type = exporter_->Export(closed.At(0), 100).status();
  EXPECT_EQ(no_type.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(no_type.message()), HasSubstr("with a handle type that can be exported"));
  cuda::Address pooled = 0;
  ASSERT_EQ(gpu_->calls().cuMemAllocAsync(&pooled, 4096, stream_.get()), 0);
  ASSERT_TRUE(gpu_->WaitFor(stream_.get()).ok());
  const absl::Status of_pool = exporter_->Export(pooled, 4096).status();
  EXPECT_EQ(of_pool.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(of_pool.message()), HasSubstr("from a pool (cudaMallocAsync)"));
  ASSERT_EQ(gpu_->calls().cuMemFreeAsync(pooled, stream_.get()), 0);
  ASSERT_TRUE(gpu_->WaitFor(stream_.get()).ok());
}

TEST_F(ChunksTest, AFabricHandleDoesWhereThereIsNoDescriptor) {
  if (fake_ == nullptr) GTEST_SKIP() << "takes a machine with a fabric";
  ExpandableRange fabric(gpu_.get(), 1, 2, cuda::kHandleFabric);
  fabric.Map(0, 2);
  auto offered = Offer(fabric.At(0), 2 * fabric.chunk_bytes());
  ASSERT_EQ(offered.size(), 2u);
  EXPECT_TRUE(offered[0].handle.is_fabric());
  EXPECT_EQ(offered[0].handle.fd(), -1);
  auto reference = exporter_->Export(fabric.At(0), 2 * fabric.chunk_bytes());
  auto opened = mappings_->OpenChunks("them", *reference, offered);
  ASSERT_TRUE(opened.ok()) << opened.status();
  Fill(fabric.At(1), 10, 5);
  EXPECT_EQ(Read((*opened)->base() + fabric.chunk_bytes(), 1)[0], 5);
  mappings_->Close(*opened);
}

}  // namespace
}  // namespace tryst
