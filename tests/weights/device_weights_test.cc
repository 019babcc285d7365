// Weights in the memory of pretended GPUs, whose kernel is run thread by thread.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "channel/device/device_engine.h"
#include "gmock/gmock.h"
#include "gpu/device_memory.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "server/weights/device_boxes.h"
#include "server/weights/weight_member.h"
#include "server/weights/weight_owner.h"
#include "tests/doubles/cuda/fake_cuda.h"
#include "weights/boxes.h"
#include "weights/cast.h"

namespace tryst {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

std::unique_ptr<Server> StartWithGpu(const char* job, const Gpu* gpu, const Server* seed) {
  ServerConfig config;
  config.cluster = "lab";
  config.job = job;
  config.protocol = "grpc";
  config.insecure = true;
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  if (seed != nullptr) config.join = absl::StrCat(seed->worker(), "@", seed->address());
  ServerBuilder builder;
  auto server = builder.SetEnvironment({}).UseGpu(gpu).Build(config);
  EXPECT_TRUE(server.ok()) << server.status();
  const absl::Status started = (*server)->Start();
  EXPECT_TRUE(started.ok()) << started;
  return *std::move(server);
}

class DeviceWeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_ = LoadFakeCuda();
    ASSERT_NE(fake_, nullptr);
    driver_ = *CudaDriver::Load("tests/doubles/cuda/libfake_cuda.so");
    for (int i = 0; i < 2; ++i) gpus_.push_back(*Gpu::Open(driver_.get(), i));
    server_ = StartWithGpu("owner", gpus_[0].get(), nullptr);
    stream_ = *gpus_[0]->MakeStream();
  }
  void TearDown() override {
    fake_->hold(false);
    server_.reset();
    EXPECT_STREQ(fake_->complaints(), "");
  }

  Tensor OnGpu(DType dtype, const std::string& bytes, int gpu = 0) {
    memory_.push_back(*DeviceMemory::Allocate(gpus_[static_cast<size_t>(gpu)].get(), bytes.size()));
    fake_->poke(memory_.back().address(), bytes.data(), bytes.size());
    return *Tensor::Adopt(memory_.back().data(), dtype,
                          {static_cast<int64_t>(bytes.size() / DTypeBytes(dtype))},
                          MemorySpace{MemorySpace::Kind::kDevice, gpu}, nullptr);
  }
  std::string BytesOf(const Tensor& tensor) {
    std::string bytes(tensor.bytes(), '\0');
    fake_->peek(AddressOf(tensor.data()), &bytes[0], bytes.size());
    return bytes;
  }
  static std::shared_ptr<GpuContext> Context(Server* server, int gpu, cuda::Stream stream) {
    return *GpuContext::Make(server->gpu(gpu), stream);
  }
  std::shared_ptr<GpuContext> Context() { return Context(server_.get(), 0, stream_.get()); }
  // What comes of a box in a GPU's memory, dense and cast.
  std::string FromGpu(const Tensor& from, const Strides& lies, const Extents& extent, DType to) {
    const Tensor dense = *Tensor::Allocate(to, *TensorShape::Make(extent));
    const absl::Status copied = CopyBoxFromGpu(*Context(), from, lies, extent, dense);
    EXPECT_TRUE(copied.ok()) << copied;
    return std::string(static_cast<const char*>(dense.data()), dense.bytes());
  }

  const FakeCudaControl* fake_ = nullptr;
  std::unique_ptr<CudaDriver> driver_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::vector<DeviceMemory> memory_;
  std::unique_ptr<Server> server_;
  GpuStream stream_;
};

std::string Random(uint64_t bytes, std::minstd_rand* random) {
  std::string text(bytes, '\0');
  for (char& one : text) one = static_cast<char>((*random)() >> 8);
  return text;
}

// A box of up to four dimensions, and how it lies in some memory: turned, reversed, with gaps.
struct RandomView {
  explicit RandomView(std::minstd_rand* random) {
    const size_t rank = (*random)() % 5;
    std::vector<size_t> order;
    for (size_t i = 0; i < rank; ++i) {
      extent.push_back(1 + (*random)() % 9);
      order.push_back(i);
    }
    if ((*random)() % 3 != 0) std::shuffle(order.begin(), order.end(), *random);
    lies.steps.resize(rank);
    lies.offset = (*random)() % 3;
    int64_t step = (*random)() % 4 == 0 ? 2 : 1;
    for (size_t n = rank; n-- > 0;) {
      const size_t i = order[n];
      const bool reversed = (*random)() % 4 == 0;
      lies.steps[i] = reversed ? -step : step;
      if (reversed) lies.offset += step * (extent[i] - 1);
      step *= extent[i] + (*random)() % 3 / 2;
    }
    elements = lies.offset + step + (*random)() % 3;
    for (const int64_t s : lies.steps) elements += s < 0 ? 0 : s;
  }
  Extents extent;
  Strides lies;
  int64_t elements;
};

struct Types {
  DType from, to;
};
constexpr Types kTypes[] = {
    {DType::kUint8, DType::kUint8},    {DType::kHalf, DType::kHalf},
    {DType::kFloat, DType::kFloat},    {DType::kDouble, DType::kDouble},
    {DType::kFloat, DType::kBfloat16}, {DType::kHalf, DType::kBfloat16},
    {DType::kDouble, DType::kFloat},   {DType::kComplex128, DType::kComplex128},
};

TEST_F(DeviceWeightsTest, BoxesOfAnyStridesComeAsTheHostCopiesAndCastsThem) {
  std::minstd_rand random(1);
  for (int round = 0; round < 600; ++round) {
    const Types types = kTypes[round % std::size(kTypes)];
    const RandomView view(&random);
    const uint32_t element = DTypeBytes(types.from);
    const std::string bytes = Random(static_cast<uint64_t>(view.elements) * element, &random);
    std::string dense(
        static_cast<size_t>(Box{Extents(view.extent.size(), 0), view.extent}.elements()) * element,
        '\0');
    RunCopy(PlanCopy(view.extent, element, view.lies, Dense(view.extent)), bytes.data(), &dense[0]);
    std::string wanted = dense;
    if (types.from != types.to) {
      wanted.resize(dense.size() / element * DTypeBytes(types.to));
      CastPortable(types.from, dense.data(), types.to, &wanted[0], dense.size() / element);
    }
    const Tensor from = OnGpu(types.from, bytes);
    ASSERT_TRUE(FromGpu(from, view.lies, view.extent, types.to) == wanted) << "in round " << round;

    // And back, beside what lies there.
    if (types.from != types.to) continue;
    const std::string old = Random(bytes.size(), &random);
    std::string there = old;
    RunCopy(PlanCopy(view.extent, element, Dense(view.extent), view.lies), dense.data(), &there[0]);
    const Tensor host = *Tensor::Allocate(types.to, *TensorShape::Make(view.extent));
    memcpy(host.mutable_data(), dense.data(), dense.size());
    const Tensor into = OnGpu(types.to, old);
    const absl::Status copied = CopyBoxToGpu(*Context(), host, into, view.lies, view.extent);
    ASSERT_TRUE(copied.ok()) << copied;
    ASSERT_TRUE(BytesOf(into) == there) << "in round " << round;
    if (round % 50 == 0) memory_.clear();
  }
}

template <typename Bits>
std::string Every(std::initializer_list<Bits> special, uint64_t random_ones, Bits begin) {
  std::vector<Bits> all(special);
  std::mt19937_64 random(1);
  for (uint64_t i = 0; i < random_ones; ++i) all.push_back(static_cast<Bits>(random()));
  for (const Bits one : special) {
    for (Bits by = 0; by < 4; ++by) {
      all.push_back(one + by);
      all.push_back(one - by);
      all.push_back((one + by) | begin);
    }
  }
  return std::string(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(Bits));
}

TEST_F(DeviceWeightsTest, CastsAreTheHostsBitByBit) {
  std::string halves(2 * 65536, '\0');
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    memcpy(&halves[2 * i], &bits, 2);
  }
  // Zeros, subnormals, ties, the largest, infinities, and numbers that are none.
  const std::string floats = Every<uint32_t>(
      {0, 0x00800000, 0x3f808000, 0x3f818000, 0x7f7f7fff, 0x7f800000, 0x7fc00000, 0x7fffffff},
      1'000'000, 0x80000000);
  const std::string doubles = Every<uint64_t>(
      {0, 0x0010000000000000, 0x36a0000000000000, 0x3690000000000000, 0x380fffffffffffff,
       0x3ff0000010000000, 0x3ff0000030000000, 0x47efffffefffffff, 0x47efffffffffffff,
       0x7ff0000000000000, 0x7ff8000000000000, 0x7ff0000020000000, 0x7fffffffffffffff},
      1'000'000, uint64_t{1} << 63);
  const std::pair<Types, const std::string*> casts[] = {
      {{DType::kHalf, DType::kBfloat16}, &halves},
      {{DType::kFloat, DType::kBfloat16}, &floats},
      {{DType::kDouble, DType::kFloat}, &doubles}};
  for (const auto& [types, bytes] : casts) {
    const auto count = static_cast<int64_t>(bytes->size() / DTypeBytes(types.from));
    std::string wanted(static_cast<size_t>(count) * DTypeBytes(types.to), '\0');
    CastPortable(types.from, bytes->data(), types.to, &wanted[0], static_cast<uint64_t>(count));
    const Tensor from = OnGpu(types.from, *bytes);
    EXPECT_TRUE(FromGpu(from, Dense({count}), {count}, types.to) == wanted)
        << DTypeName(types.from);
  }
}

// More than is dense in a GPU's memory at one time.
TEST_F(DeviceWeightsTest, ALargeBoxGoesInParts) {
  const int64_t rows = 33, columns = 1 << 20;
  std::minstd_rand random(1);
  const std::string some = Random(columns * 2 + 14, &random);
  std::string bytes, wanted;
  for (int64_t row = 0; row < rows; ++row) {
    std::string one = some.substr(static_cast<size_t>(row) % 7 * 2, columns * 2);
    wanted += one;
    bytes += one + "......";
  }
  const Tensor from = OnGpu(DType::kBfloat16, bytes);
  EXPECT_TRUE(FromGpu(from, {0, {columns + 3, 1}}, {rows, columns}, DType::kBfloat16) == wanted);
}

// One owner with GPU 0, whose server is server_, and a member with GPU 1.
class SetOnGpusTest : public DeviceWeightsTest {
 protected:
  void SetUp() override {
    DeviceWeightsTest::SetUp();
    theirs_ = StartWithGpu("member", gpus_[1].get(), server_.get());
    WeightOwnerOptions owns;
    owns.set = "policy";
    owns.owners = {server_->worker()};
    owner_ = *WeightOwner::Open(server_.get(), owns);
    WeightMemberOptions fetches;
    fetches.set = "policy";
    fetches.owners = owns.owners;
    fetches.observes = true;
    member_ = *WeightMember::Open(theirs_.get(), fetches);
    TensorLayout layout;
    layout.name = "w";
    layout.dtype = DType::kBfloat16;
    layout.shape = {kRows, kColumns};
    ASSERT_TRUE(owner_->Declare({layout}).ok());
    for (float& one : floats_) one = static_cast<float>(random_()) / 1e6f;
    reads_ = *gpus_[1]->MakeStream();
  }
  void TearDown() override {
    fake_->hold(false);
    member_.reset();
    owner_.reset();
    theirs_.reset();
    DeviceWeightsTest::TearDown();
  }

  // The floats lie transposed.
  Tensor Floats() {
    return OnGpu(DType::kFloat, std::string(reinterpret_cast<const char*>(floats_.data()),
                                            floats_.size() * sizeof(float)));
  }
  absl::Status Publish(uint64_t number, const Tensor& floats,
                       const std::shared_ptr<GpuContext>& context) {
    return owner_->Publish(number, "w", whole_, floats, {0, {1, kRows}}, context);
  }
  uint16_t Wanted(int64_t row, int64_t column) const {
    uint16_t bits;
    CastPortable(DType::kFloat, &floats_[static_cast<size_t>(column * kRows + row)],
                 DType::kBfloat16, &bits, 1);
    return bits;
  }
  WeightMember::Item ItemOf(const Tensor& into) {
    // Columns 8 to 24, beside each other in rows of 20 elements.
    return {"w",  Box{{0, 8}, {kRows, 16}},
            into, {3, {20, 1}},
            0,    Context(theirs_.get(), 1, reads_.get())};
  }

  static constexpr int64_t kRows = 48, kColumns = 40;
  const Box whole_{{0, 0}, {kRows, kColumns}};
  std::minstd_rand random_{1};
  std::vector<float> floats_ = std::vector<float>(kRows * kColumns);
  std::unique_ptr<Server> theirs_;
  std::unique_ptr<WeightOwner> owner_;
  std::unique_ptr<WeightMember> member_;
  GpuStream reads_;
};

TEST_F(SetOnGpusTest, AVersionGoesFromOneGpuToAnotherStridedAndCast) {
  const Tensor floats = Floats();
  const absl::Status published = Publish(1, floats, Context());
  ASSERT_TRUE(published.ok()) << published;
  const auto sealed = owner_->Seal(1, "", kLong);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  const std::string old(2 * 20 * kRows, '.');
  const Tensor into = OnGpu(DType::kBfloat16, old, 1);
  WeightMember::Item item = ItemOf(into);
  for (const uint64_t has : {0, 1}) {  // What it has costs time, and no byte.
    item.has = has;
    const absl::Status fetched = member_->Fetch(*sealed, {item}, kLong);
    ASSERT_TRUE(fetched.ok()) << fetched;
    std::string wanted = old;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < 16; ++column) {
        const uint16_t bits = Wanted(row, 8 + column);
        memcpy(&wanted[static_cast<size_t>(2 * (3 + 20 * row + column))], &bits, 2);
      }
    }
    EXPECT_TRUE(BytesOf(into) == wanted);
  }
}

TEST_F(SetOnGpusTest, ItIsReadAndWrittenWhenTheStreamsHaveCome) {
  const Tensor floats = Floats();
  fake_->hold(true);
  ASSERT_EQ(
      gpus_[0]->calls().cuMemsetD8Async(AddressOf(floats.data()), 0, floats.bytes(), stream_.get()),
      0);
  absl::Status published;
  std::thread publishes([&] { published = Publish(1, floats, Context()); });
  absl::SleepFor(absl::Milliseconds(20));
  fake_->hold(false);
  publishes.join();
  ASSERT_TRUE(published.ok()) << published;
  const auto sealed = owner_->Seal(1, "", kLong);
  ASSERT_TRUE(sealed.ok()) << sealed.status();

  const Tensor into = OnGpu(DType::kBfloat16, std::string(2 * 20 * kRows, '.'), 1);
  fake_->hold(true);
  ASSERT_EQ(
      gpus_[1]->calls().cuMemsetD8Async(AddressOf(into.data()), 7, into.bytes(), reads_.get()), 0);
  const WeightMember::Item item = ItemOf(into);
  const absl::Status late = member_->Fetch(*sealed, {item}, absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  Cancellation cancellation;
  std::thread cancels([&] {
    absl::SleepFor(absl::Milliseconds(20));
    cancellation.StartCancel();
  });
  const absl::Status cancelled = member_->Fetch(*sealed, {item}, {kLong, &cancellation});
  EXPECT_TRUE(absl::IsCancelled(cancelled)) << cancelled;
  cancels.join();
  EXPECT_EQ(BytesOf(into), std::string(into.bytes(), '.'));
  fake_->hold(false);
  const absl::Status fetched = member_->Fetch(*sealed, {item}, kLong);
  ASSERT_TRUE(fetched.ok()) << fetched;
  const std::string there = BytesOf(into);
  EXPECT_EQ(there.substr(0, 6), std::string(6, '\7'));
  EXPECT_EQ(there.substr(6, 32), std::string(32, '\0'));
}

TEST_F(SetOnGpusTest, WhatCannotBeCopiedIsRefused) {
  const Tensor floats = Floats();
  for (const auto& context :
       {std::shared_ptr<GpuContext>(), Context(theirs_.get(), 1, reads_.get())}) {
    const absl::Status refused = Publish(1, floats, context);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("a stream of that GPU"));
  }
  const Tensor bits = OnGpu(DType::kBfloat16, std::string(2 * kRows * kColumns, '.'));
  const absl::Status borrowed = owner_->Borrow(1, "w", whole_, bits, Dense(whole_.extent));
  EXPECT_TRUE(absl::IsInvalidArgument(borrowed)) << borrowed;
  fake_->fail("cuLaunchKernel", cuda::kIllegalAddress, 1, 0);
  const absl::Status failed = Publish(1, floats, Context());
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  ASSERT_TRUE(Publish(1, floats, Context()).ok()) << "its place is free";
  const auto sealed = owner_->Seal(1, "", kLong);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  const Tensor into = OnGpu(DType::kBfloat16, std::string(2 * 20 * kRows, '.'), 1);
  WeightMember::Item item = ItemOf(into);
  item.context = nullptr;
  EXPECT_TRUE(absl::IsInvalidArgument(member_->Fetch(*sealed, {item}, kLong)));
  item = ItemOf(into);
  fake_->fail("cuLaunchKernel", cuda::kIllegalAddress, 1, 0);
  const absl::Status lost = member_->Fetch(*sealed, {item}, kLong);
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_THAT(lost.message(), HasSubstr("cuLaunchKernel"));
}

}  // namespace
}  // namespace tryst
