// Selected bytes of pretended GPUs' memory, whose streams work late and bit by bit.
#include "channel/device/device_selections.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/doubles/cuda/fake_cuda.h"

namespace tryst {
namespace {

using ::testing::HasSubstr;

class DeviceSelectionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_ = LoadFakeCuda();
    ASSERT_NE(fake_, nullptr);
    driver_ = *CudaDriver::Load("tests/doubles/cuda/libfake_cuda.so");
    for (int i = 0; i < 2; ++i) gpus_.push_back(*Gpu::Open(driver_.get(), i));
    Open();
    stream_ = *gpus_[0]->MakeStream();
    blocking_ = fake_->blocking_calls();
  }
  void TearDown() override {
    fake_->hold(false);
    EXPECT_EQ(fake_->blocking_calls(), blocking_) << "something waited for the device";
    Close();
    EXPECT_STREQ(fake_->complaints(), "");
  }
  void Open() {
    engine_ = *DeviceEngine::Open(&poller_, gpus_[0].get(), DeviceEngineOptions());
    engine_->AddPeer(1);
    engine_->Attach();
  }
  void Close() {
    for (int i = 0; i < 100'000 && !engine_->idle(); ++i) poller_.Turn();
    engine_->Detach();
    engine_.reset();
  }

  Tensor OnGpu(const std::string& bytes, int gpu = 0) {
    memory_.push_back(*DeviceMemory::Allocate(gpus_[static_cast<size_t>(gpu)].get(), bytes.size()));
    const Tensor tensor =
        *Tensor::Adopt(memory_.back().data(), DType::kUint8, {static_cast<int64_t>(bytes.size())},
                       MemorySpace{MemorySpace::Kind::kDevice, gpu}, nullptr);
    fake_->poke(AddressOf(tensor.data()), bytes.data(), bytes.size());
    return tensor;
  }
  static Tensor OnHost(const std::string& bytes) {
    const Tensor tensor = *Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(bytes.size())});
    memcpy(tensor.mutable_data(), bytes.data(), bytes.size());
    return tensor;
  }
  std::string TextOf(const Tensor& tensor) {
    std::string bytes(tensor.bytes(), '\0');
    fake_->peek(AddressOf(tensor.data()), &bytes[0], bytes.size());
    return bytes;
  }
  void Fill(const Tensor& tensor, char with) {
    ASSERT_EQ(gpus_[0]->calls().cuMemsetD8Async(AddressOf(tensor.data()),
                                                static_cast<unsigned char>(with), tensor.bytes(),
                                                stream_.get()),
              0);
  }
  std::shared_ptr<GpuContext> Context() { return *GpuContext::Make(engine_.get(), stream_.get()); }
  absl::StatusOr<SelectionCopier::Gathered> Gather(const Tensor& tensor, const Selection& selection,
                                                   SelectionUse use = SelectionUse::kRead) {
    return Context()->selection_copier()->Gather(tensor, selection,
                                                 *CheckSelection(selection, tensor.bytes(), use));
  }
  // What became of a scatter, perhaps not yet.
  struct Ended {
    bool ended = false;
    absl::Status status;
  };
  std::shared_ptr<Ended> Scatter(const Tensor& dense, const Tensor& into,
                                 const Selection& selection) {
    auto ended = std::make_shared<Ended>();
    const std::shared_ptr<GpuContext> context = Context();
    context->selection_copier()->StartScatter(dense, into, selection,
                                              [ended, context](absl::Status status) {
                                                EXPECT_FALSE(ended->ended) << "it ends twice";
                                                *ended = {true, std::move(status)};
                                              });
    return ended;
  }
  void Await(const Ended& ended) {
    for (int i = 0; i < 1'000'000 && !ended.ended; ++i) poller_.Turn();
    ASSERT_TRUE(ended.ended);
  }
  void AwaitStream() {
    for (int i = 0; i < 1'000'000; ++i) {
      if (*gpus_[0]->IsIdle(stream_.get())) return;
    }
    FAIL() << "the stream still works";
  }

  SteadyClock clock_;
  Poller poller_{&clock_};
  const FakeCudaControl* fake_ = nullptr;
  std::unique_ptr<CudaDriver> driver_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::vector<DeviceMemory> memory_;
  GpuStream stream_;
  std::unique_ptr<DeviceEngine> engine_;
  int blocking_ = 0;
};

std::string Random(size_t bytes, uint32_t seed) {
  std::minstd_rand random(seed);
  std::string text(bytes, '\0');
  for (char& one : text) one = static_cast<char>(random());
  return text;
}

// Spans that do not overlap, in any order: many of one byte, some of none, some long.
std::vector<ByteSpan> RandomSpans(uint64_t bytes, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<ByteSpan> spans;
  for (uint64_t at = random() % 7; at < bytes;) {
    uint64_t size = random() % 4 == 0    ? 1
                    : random() % 50 == 0 ? random() % 200'000
                                         : random() % 300;
    size = std::min(size, bytes - at);
    spans.push_back({at, size});
    at += size + random() % 5;
  }
  std::shuffle(spans.begin(), spans.end(), random);
  return spans;
}

std::string Gathered(const std::string& from, const std::vector<ByteSpan>& spans) {
  std::string row;
  for (const ByteSpan& span : spans) row += from.substr(span.offset, span.bytes);
  return row;
}

TEST_F(DeviceSelectionsTest, WhatIsGatheredIsWhatTheStreamHadWritten) {
  const Tensor pool = OnGpu("aaaabbbbccccdddd");
  const std::vector<uint32_t> blocks = {3, 0};
  fake_->hold(true);
  Fill(pool, 'x');
  const auto gathered = Gather(pool, Selection::Indices(blocks, 4));
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  Fill(pool, 'y');
  fake_->hold(false);
  AwaitStream();
  EXPECT_EQ(TextOf(gathered->tensor), "xxxxxxxx");
  EXPECT_EQ(TextOf(pool), "yyyyyyyyyyyyyyyy");
  EXPECT_EQ(gathered->tensor.space().device_ordinal, 0);
}

TEST_F(DeviceSelectionsTest, ItIsSentFromTheMomentWhenItIsThere) {
  const Tensor pool = OnGpu("aaaabbbb");
  const std::vector<uint32_t> blocks = {1};
  fake_->hold(true);
  const auto gathered = Gather(pool, Selection::Indices(blocks, 4));
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  const auto* context = static_cast<const GpuContext*>(gathered->context.get());
  ASSERT_NE(context->moment(), nullptr);
  EXPECT_FALSE(*context->moment()->Done());
  fake_->hold(false);
  while (!*context->moment()->Done()) {
  }
  EXPECT_EQ(TextOf(gathered->tensor), "bbbb");
}

TEST_F(DeviceSelectionsTest, EachGatherHasAListOfItsOwn) {
  const Tensor pool = OnGpu("aaaabbbbccccdddd");
  fake_->hold(true);
  std::vector<Tensor> rows;
  for (uint32_t block = 0; block < 4; ++block) {
    const auto gathered = Gather(pool, Selection::Indices({&block, 1}, 4));
    ASSERT_TRUE(gathered.ok()) << gathered.status();
    rows.push_back(gathered->tensor);
  }
  fake_->hold(false);
  AwaitStream();
  std::string all;
  for (const Tensor& row : rows) all += TextOf(row);
  EXPECT_EQ(all, "aaaabbbbccccdddd");
}

TEST_F(DeviceSelectionsTest, SpansOfAnySizeThereAndBack) {
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    const uint64_t bytes = seed == 6 ? 6'000'000 : seed * 20'011;
    const std::string from = Random(bytes, seed), old = Random(bytes, seed + 100);
    const std::vector<ByteSpan> spans = RandomSpans(bytes, seed);
    const auto gathered = Gather(OnGpu(from), Selection::Spans(spans));
    ASSERT_TRUE(gathered.ok()) << gathered.status();
    AwaitStream();
    const std::string row = Gathered(from, spans);
    ASSERT_TRUE(TextOf(gathered->tensor) == row) << "of seed " << seed;
    const std::vector<ByteSpan> lands = RandomSpans(bytes, seed);
    const Tensor into = OnGpu(old);
    Await(*Scatter(gathered->tensor, into, Selection::Spans(lands)));
    std::string wanted = old;
    uint64_t at = 0;
    for (const ByteSpan& span : lands) {
      wanted.replace(span.offset, span.bytes, row, at, span.bytes);
      at += span.bytes;
    }
    EXPECT_TRUE(TextOf(into) == wanted) << "of seed " << seed;
  }
}

// More spans than one turn of the poller lists.
TEST_F(DeviceSelectionsTest, AScatterOfManySpansGoesInParts) {
  constexpr uint64_t kSpans = 40'000;
  const ByteRun run = {1, 1, 3, kSpans};
  const std::string row = Random(kSpans, 1);
  const Tensor into = OnGpu(std::string(3 * kSpans, '.'));
  const auto ended = Scatter(OnGpu(row), into, Selection::Runs({&run, 1}));
  Await(*ended);
  EXPECT_TRUE(ended->status.ok()) << ended->status;
  std::string wanted(3 * kSpans, '.');
  for (uint64_t i = 0; i < kSpans; ++i) wanted[1 + 3 * i] = row[i];
  EXPECT_TRUE(TextOf(into) == wanted);
}

TEST_F(DeviceSelectionsTest, AScatterComesFromTheHostAndFromAnotherGpu) {
  const std::vector<uint32_t> blocks = {2, 0};
  for (const bool host : {true, false}) {
    const Tensor into = OnGpu("............");
    const auto ended = Scatter(host ? OnHost("aaaabbbb") : OnGpu("aaaabbbb", 1), into,
                               Selection::Indices(blocks, 4));
    Await(*ended);
    EXPECT_TRUE(ended->status.ok()) << ended->status;
    EXPECT_EQ(TextOf(into), "bbbb....aaaa");
  }
}

TEST_F(DeviceSelectionsTest, NothingIsWrittenBeforeTheStreamIsThereAndItEndsWhenAllIs) {
  const Tensor into = OnGpu("........");
  const Tensor dense = OnGpu("aaaa");
  const std::vector<uint32_t> block = {1};
  fake_->hold(true);
  Fill(into, 'x');
  const int launches = fake_->calls("cuLaunchKernel");
  const auto ended = Scatter(dense, into, Selection::Indices(block, 4));
  for (int i = 0; i < 100; ++i) poller_.Turn();
  EXPECT_FALSE(ended->ended);
  EXPECT_EQ(TextOf(into), "........");
  EXPECT_EQ(fake_->calls("cuLaunchKernel"), launches) << "the order of streams is not known";
  fake_->hold(false);
  Await(*ended);
  EXPECT_EQ(TextOf(into), "xxxxaaaa");
}

// A step was aborted, for one: the row goes back to the pool while a kernel has yet to write it.
TEST_F(DeviceSelectionsTest, ARowThatGoesBeforeItsCopyIsNotWrittenInItsNextLife) {
  const Tensor pool = OnGpu(std::string(200'000, 'p'));
  const ByteSpan span = {0, 200'000};
  fake_->hold(true);
  auto gathered = Gather(pool, Selection::Spans({&span, 1}));
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  const void* const at = gathered->tensor.data();
  *gathered = SelectionCopier::Gathered();
  const Tensor next = *engine_->Allocate(DType::kUint8, {200'000}, nullptr);
  ASSERT_EQ(next.data(), at);
  bool copied = false;
  engine_->StartCopy(OnHost(std::string(200'000, 'n')), next, nullptr,
                     [&copied](const absl::Status&) { copied = true; });
  fake_->hold(false);
  for (int i = 0; i < 100'000 && !copied; ++i) poller_.Turn();
  AwaitStream();
  EXPECT_TRUE(TextOf(next) == std::string(200'000, 'n'));
}

// And a row is not written while its memory is still read in its former life.
TEST_F(DeviceSelectionsTest, ARowIsWrittenWhenItsFormerLifeIsOver) {
  const Tensor pool = OnGpu(std::string(200'000, 'p'));
  const Tensor sink = OnGpu(std::string(200'000, '.'));
  const ByteSpan span = {0, 200'000};
  const GpuStream reads = *gpus_[0]->MakeStream();
  Tensor former = *engine_->Allocate(DType::kUint8, {200'000}, reads.get());
  fake_->poke(AddressOf(former.data()), std::string(200'000, 'f').data(), 200'000);
  fake_->hold(true);
  ASSERT_EQ(gpus_[0]->calls().cuMemcpyAsync(AddressOf(sink.data()), AddressOf(former.data()),
                                            200'000, reads.get()),
            0);
  former.Reset();
  const auto gathered = Gather(pool, Selection::Spans({&span, 1}));
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  fake_->hold(false);
  AwaitStream();
  EXPECT_TRUE(TextOf(gathered->tensor) == std::string(200'000, 'p'));
  EXPECT_TRUE(TextOf(sink) == std::string(200'000, 'f'));
}

TEST_F(DeviceSelectionsTest, AScatterWaitsUntilItsDestinationsFormerLifeIsOver) {
  constexpr int64_t kBytes = 200'000;
  const Tensor dense = OnGpu(std::string(kBytes, 'd'));
  const Tensor sink = OnGpu(std::string(kBytes, '.'));
  const ByteSpan span = {0, kBytes};
  const GpuStream reads = *gpus_[0]->MakeStream();
  Tensor former = *engine_->Allocate(DType::kUint8, {kBytes}, reads.get());
  const void* const at = former.data();
  fake_->poke(AddressOf(at), std::string(kBytes, 'f').data(), kBytes);
  fake_->hold(true);
  ASSERT_EQ(
      gpus_[0]->calls().cuMemcpyAsync(AddressOf(sink.data()), AddressOf(at), kBytes, reads.get()),
      0);
  former.Reset();
  const Tensor into = *engine_->Allocate(DType::kUint8, {kBytes}, stream_.get());
  ASSERT_EQ(into.data(), at);
  const int launches = fake_->calls("cuLaunchKernel");
  const auto ended = Scatter(dense, into, Selection::Spans({&span, 1}));
  for (int i = 0; i < 100; ++i) poller_.Turn();
  EXPECT_FALSE(ended->ended);
  EXPECT_EQ(fake_->calls("cuLaunchKernel"), launches);
  fake_->hold(false);
  Await(*ended);
  EXPECT_TRUE(ended->status.ok()) << ended->status;
  EXPECT_TRUE(TextOf(sink) == std::string(kBytes, 'f'));
  EXPECT_TRUE(TextOf(into) == std::string(kBytes, 'd'));
}

TEST_F(DeviceSelectionsTest, WhoStopsWaitsForWhatStreamsHaveYetToCopy) {
  const Tensor pool = OnGpu("aaaabbbb");
  const std::vector<uint32_t> block = {1};
  EXPECT_TRUE(engine_->idle());
  fake_->hold(true);
  ASSERT_TRUE(Gather(pool, Selection::Indices(block, 4)).ok());
  EXPECT_FALSE(engine_->idle());
  const auto scatter = Scatter(OnGpu("cccc"), pool, Selection::Indices(block, 4));
  engine_->selections()->Close();
  EXPECT_FALSE(engine_->idle());
  EXPECT_TRUE(absl::IsUnavailable(Gather(pool, Selection::Indices(block, 4)).status()));
  const auto late = Scatter(OnGpu("dddd"), pool, Selection::Indices(block, 4));
  EXPECT_TRUE(late->ended && absl::IsUnavailable(late->status)) << late->status;
  for (int i = 0; i < 100; ++i) poller_.Turn();
  EXPECT_FALSE(engine_->idle());
  fake_->hold(false);
  Await(*scatter);
  EXPECT_TRUE(scatter->status.ok()) << scatter->status;
}

TEST_F(DeviceSelectionsTest, WhatTheDriverRefusesEndsWithItsError) {
  const Tensor pool = OnGpu("aaaabbbb");
  const std::vector<uint32_t> block = {1};
  for (const char* call : {"cuMemHostAlloc", "cuLaunchKernel"}) {
    fake_->fail(call, cuda::kOutOfMemory, 1, 0);
    const auto gathered = Gather(pool, Selection::Indices(block, 4));
    EXPECT_TRUE(absl::IsResourceExhausted(gathered.status())) << call << gathered.status();
  }
  fake_->fail("cuLaunchKernel", cuda::kIllegalAddress, 1, 0);
  const auto scatter = Scatter(OnGpu("cccc"), pool, Selection::Indices(block, 4));
  Await(*scatter);
  EXPECT_TRUE(absl::IsUnavailable(scatter->status)) << scatter->status;
  EXPECT_EQ(TextOf(pool), "aaaabbbb");
  blocking_ = fake_->blocking_calls();  // A launch that fails waits for what is there.
  EXPECT_TRUE(Gather(pool, Selection::Indices(block, 4)).ok()) << "the next one";
}

TEST_F(DeviceSelectionsTest, WhatCannotBeCopiedIsRefused) {
  const std::vector<uint32_t> block = {0};
  const Selection blocks = Selection::Indices(block, 4);
  const auto elsewhere = Gather(OnGpu("aaaa", 1), blocks);
  EXPECT_THAT(elsewhere.status().message(), HasSubstr("is of memory of GPU 1"));
  const auto scatter = Scatter(OnGpu("cccc"), OnGpu("....", 1), blocks);
  EXPECT_TRUE(scatter->ended && absl::IsInvalidArgument(scatter->status)) << scatter->status;
  const ByteRun many = {0, 1, 2, StreamGather::kMostCopies + 1};
  const auto too_many =
      Gather(OnGpu(std::string(2 * many.count, ' ')), Selection::Runs({&many, 1}));
  EXPECT_TRUE(absl::IsInvalidArgument(too_many.status())) << too_many.status();
  const Tensor pool = OnGpu("aaaa");
  const std::shared_ptr<GpuContext> context = Context();
  fake_->capture(true);
  const auto captured = context->selection_copier()->Gather(pool, blocks, 4);
  fake_->capture(false);
  EXPECT_TRUE(absl::IsFailedPrecondition(captured.status())) << captured.status();
}

TEST_F(DeviceSelectionsTest, ListsOfStreamsThatStandStillAreBounded) {
  const Tensor pool = OnGpu(std::string(2 * StreamGather::kMostCopies, 'p'));
  const ByteRun run = {0, 1, 2, StreamGather::kMostCopies};
  fake_->hold(true);
  for (uint64_t listed = 0; listed < StreamGather::kMostListed; listed += run.count) {
    const auto gathered = Gather(pool, Selection::Runs({&run, 1}));
    ASSERT_TRUE(gathered.ok()) << gathered.status();
  }
  const auto more = Gather(pool, Selection::Runs({&run, 1}));
  EXPECT_TRUE(absl::IsResourceExhausted(more.status())) << more.status();
  fake_->hold(false);
  AwaitStream();
  const auto again = Gather(pool, Selection::Runs({&run, 1}));
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST_F(DeviceSelectionsTest, ManyThreadsGather) {
  const std::string bytes = Random(40'000, 1);
  const Tensor pool = OnGpu(bytes);
  const ByteRun run = {1, 3, 20, 1000};
  std::string wanted;
  for (uint64_t i = 0; i < run.count; ++i) wanted += bytes.substr(1 + 20 * i, 3);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      const GpuStream stream = *gpus_[0]->MakeStream();
      for (int i = 0; i < 50; ++i) {
        const auto context = *GpuContext::Make(engine_.get(), stream.get());
        const auto gathered =
            context->selection_copier()->Gather(pool, Selection::Runs({&run, 1}), 3000);
        if (!gathered.ok()) return;
        while (!*gpus_[0]->IsIdle(stream.get())) {
        }
        right += TextOf(gathered->tensor) == wanted;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

TEST_F(DeviceSelectionsTest, ASentRowOutlivesItsStream) {
  const std::vector<uint32_t> block = {1};
  auto stream = std::make_unique<GpuStream>(*gpus_[0]->MakeStream());
  auto gathered = (*GpuContext::Make(engine_.get(), stream->get()))
                      ->selection_copier()
                      ->Gather(OnGpu("aaaabbbb"), Selection::Indices(block, 4), 4);
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  stream.reset();
  const Tensor host = OnHost("....");
  bool copied = false;
  gathered->context->StartCopy(gathered->tensor, host, [&copied](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    copied = true;
  });
  for (int i = 0; i < 100'000 && !copied; ++i) poller_.Turn();
  EXPECT_EQ(std::string(static_cast<const char*>(host.data()), 4), "bbbb");
}

TEST_F(DeviceSelectionsTest, NothingIsAllocatedForAListAgainAndAgain) {
  const Tensor pool = OnGpu(std::string(10'000, 'p'));
  const ByteRun run = {0, 1, 2, 5000};
  const auto once = [&] {
    ASSERT_TRUE(Gather(pool, Selection::Runs({&run, 1})).ok());
    AwaitStream();
    EXPECT_TRUE(engine_->idle());
  };
  once();
  once();
  const int allocated = fake_->calls("cuMemHostAlloc") + fake_->calls("cuMemAlloc_v2");
  for (int i = 0; i < 20; ++i) once();
  EXPECT_EQ(fake_->calls("cuMemHostAlloc") + fake_->calls("cuMemAlloc_v2"), allocated);
}

// Its GPUs cannot run the kernel.
class OldGpuTest : public DeviceSelectionsTest {
 protected:
  void SetUp() override {
    const FakeCudaControl* const fake = LoadFakeCuda();
    ASSERT_NE(fake, nullptr);
    fake->set_attribute(cuda::kComputeMajor, 7);
    DeviceSelectionsTest::SetUp();
    fake->set_attribute(cuda::kComputeMajor, 9);
  }
};

TEST_F(OldGpuTest, TheDriverCopiesEachSpan) {
  const Tensor pool = OnGpu("aaaabbbbcccc");
  const std::vector<uint32_t> blocks = {2, 0};
  const auto gathered = Gather(pool, Selection::Indices(blocks, 4));
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  AwaitStream();
  EXPECT_EQ(TextOf(gathered->tensor), "ccccaaaa");
  const ByteSpan span = {1, 8};
  Await(*Scatter(gathered->tensor, pool, Selection::Spans({&span, 1})));
  EXPECT_EQ(TextOf(pool), "accccaaaaccc");
}

}  // namespace
}  // namespace tryst
