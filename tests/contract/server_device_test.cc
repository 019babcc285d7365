// Servers with GPUs: device tensors in every way that a setting allows. Runs on pretended GPUs, or
// on the machine's (TRYST_TEST_CUDA=libcuda.so.1), of which one is enough.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "channel/device/device_engine.h"
#include "gmock/gmock.h"
#include "gpu/device_memory.h"
#include "gtest/gtest.h"
#include "server/data_plane/open_nics.h"
#include "server/server.h"
#include "server/server_parts.h"
#include "tests/contract/dma_buf_nic.h"
#include "tests/doubles/cuda/fake_cuda.h"
#include "tests/process/pair/moment.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

using ::testing::HasSubstr;

struct Way {
  const char* name;
  const char* protocol;
  const char* shm;
  bool cuda_ipc;
  bool direct;
  const char* said;     // What Explain() says of the large tensor.
  const char* counted;  // The name of its counter in Stats().
};

class ServerDeviceTest : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    const char* library = getenv("TRYST_TEST_CUDA");
    if (library == nullptr) fake_ = LoadFakeCuda();
    if (fake_ == nullptr && std::string(GetParam().protocol) == "grpc+direct") {
      GTEST_SKIP() << "no NIC here reaches this GPU";
    }
    driver_ =
        *CudaDriver::Load(library != nullptr ? library : "tests/doubles/cuda/libfake_cuda.so");
    const size_t count = std::min<size_t>(driver_->Devices()->size(), 2);
    for (size_t i = 0; i < count; ++i) gpus_.push_back(*Gpu::Open(driver_.get(), int(i)));
    theirs_ = gpus_.back()->ordinal();
  }
  void TearDown() override {
    producer_.reset();
    consumer_.reset();
    if (fake_ == nullptr) return;
    EXPECT_STREQ(fake_->complaints(), "");
  }

  static void Copy(const Gpu& gpu, const void* to, const void* from, uint64_t bytes) {
    auto stream = gpu.MakeStream();
    ASSERT_TRUE(stream.ok());
    ASSERT_EQ(gpu.calls().cuMemcpyAsync(AddressOf(to), AddressOf(from), bytes, stream->get()), 0);
    ASSERT_TRUE(gpu.WaitFor(stream->get()).ok());
  }
  static void Put(const Gpu& gpu, const Tensor& tensor, const std::string& value) {
    auto host = *PinnedMemory::Allocate(&gpu, value.size());
    memcpy(host.data(), value.data(), value.size());
    Copy(gpu, tensor.data(), host.data(), value.size());
  }
  static std::string Get(const Gpu& gpu, const Tensor& tensor) {
    auto host = *PinnedMemory::Allocate(&gpu, tensor.bytes());
    Copy(gpu, host.data(), tensor.data(), tensor.bytes());
    return std::string(static_cast<const char*>(host.data()), tensor.bytes());
  }

  std::unique_ptr<Server> Start(const char* job, const Gpu* gpu, const std::string& join) {
    ServerConfig config;
    config.cluster = "lab";
    config.job = job;
    config.protocol = GetParam().protocol;
    config.insecure = true;
    config.listen = "127.0.0.1:0";
    config.open_cluster = true;
    config.nic = "soft";
    config.shm = GetParam().shm;
    config.join = join;
    ServerBuilder builder;
    builder.SetEnvironment({});
    if (gpu != nullptr) builder.UseGpu(gpu);
    // "grpc+verbs" with a NIC that reaches the pretended GPU.
    const auto open = [this](const ServerConfig&, const NicPlace&) {
      auto soft = OpenSoftNic(SoftNicOptions());
      EXPECT_TRUE(soft.ok()) << soft.status();
      nic_ = std::make_shared<DmaBufNic>(*std::move(soft));  // The consumer's is the last.
      return std::vector<NicPath>{{"rdma/soft", nic_}};
    };
    builder.AddProtocol("grpc+direct", OverNics(open));
    absl::StatusOr<ServerParts> parts = builder.Prepare(config);
    EXPECT_TRUE(parts.ok()) << parts.status();
    DeviceProxyOptions* const devices = &parts->inner.devices;
    devices->source.offer_ipc = devices->fetcher.use_ipc = GetParam().cuda_ipc;
    devices->source.offer_direct = devices->fetcher.use_direct = GetParam().direct;
    devices->engine.slot_bytes = devices->source.chunk_bytes = 64 << 10;
    devices->engine.serve_slots = devices->engine.fetch_slots = 4;
    std::unique_ptr<Server> server = MakeServer(*std::move(parts));
    const absl::Status started = server->Start();
    EXPECT_TRUE(started.ok()) << started;
    return server;
  }

  TensorKey Key() const {
    return *TensorKey::Parse(absl::StrFormat("%s/device:GPU:0;%016x;%s/device:GPU:1;weights;0:0",
                                             producer_->worker(), producer_->incarnation(),
                                             consumer_->worker()));
  }
  // Returns what was sent.
  std::string Send(uint64_t bytes, int64_t step) {
    auto out = *producer_->gpu(0)->Allocate(DType::kUint8, {static_cast<int64_t>(bytes)}, nullptr);
    std::string value(bytes, '\0');
    for (uint64_t i = 0; i < bytes; ++i) value[i] = static_cast<char>(i * 7 + bytes);
    Put(*gpus_.front(), out, value);
    SendArgs send;
    send.device_context = *GpuContext::Make(producer_->gpu(0), nullptr);
    EXPECT_TRUE((*producer_->steps()->StartStep(step))->Send(Key(), send, out, false).ok());
    return value;
  }
  RecvArgs Receive() const {
    RecvArgs receive;
    receive.device_context = *GpuContext::Make(consumer_->gpu(theirs_), nullptr);
    return receive;
  }
  void Bring(uint64_t bytes, int64_t step) {
    const std::string value = Send(bytes, step);
    auto got = (*consumer_->steps()->StartStep(step))->Recv(Key(), Receive(), absl::Seconds(20));
    ASSERT_TRUE(got.ok()) << got.status() << consumer_->Explain("");
    ASSERT_EQ(got->tensor.bytes(), bytes);
    EXPECT_EQ(got->tensor.space().kind, MemorySpace::Kind::kDevice);
    EXPECT_EQ(got->tensor.space().device_ordinal, theirs_);
    EXPECT_TRUE(Get(*gpus_.back(), got->tensor) == value) << "other bytes came";
    for (Server* server : {producer_.get(), consumer_.get()}) server->steps()->CleanupStep(step);
  }

  void SendSelectedBytes(bool producer_has_gpus);

  std::shared_ptr<DmaBufNic> nic_;
  const FakeCudaControl* fake_ = nullptr;
  int theirs_ = 0;  // The consumer's GPU.
  std::unique_ptr<CudaDriver> driver_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::unique_ptr<Server> producer_;
  std::unique_ptr<Server> consumer_;
};

const Way kWays[] = {
    {"Grpc", "grpc", "off", false, false, " 1 staged in chunks, 1 inside", "gpu_by_staging"},
    {"Soft", "grpc+verbs", "off", false, false, " 1 staged in chunks, 1 inside", "gpu_by_staging"},
    {"Shm", "grpc+verbs", "on", false, false, "staged in shared memory", "gpu_by_staging"},
    {"DirectFails", "grpc+verbs", "off", false, true,
     "not by rdma + GPUDirect: the NIC soft does not reach", "gpu_by_staging"},
    {"Direct", "grpc+direct", "off", false, true, "rdma + GPUDirect, a test read the right bytes",
     "gpu_by_direct"},
    {"InPlace", "grpc+verbs", "on", true, true, "cuda_ipc, it is this process", "gpu_by_cuda_ipc"},
};
INSTANTIATE_TEST_SUITE_P(, ServerDeviceTest, testing::ValuesIn(kWays),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ServerDeviceTest, DeviceTensorsGoTheWayThatIsAllowedAndProved) {
  producer_ = Start("ps", gpus_[0].get(), "");
  consumer_ = Start("worker", gpus_.back().get(),
                    absl::StrCat(producer_->worker(), "@", producer_->address()));
  Bring(100, 1);
  Bring((1 << 20) + 100, 2);
  const std::string said = consumer_->Explain("");
  EXPECT_THAT(said, HasSubstr(GetParam().said));
  EXPECT_THAT(said, HasSubstr(absl::StrCat("GPU ", theirs_, " ")));
  auto stats = consumer_->Stats();
  EXPECT_GE(stats.at(GetParam().counted), 1) << said;
  EXPECT_EQ(stats.at("gpu_fetches"), 2);
  EXPECT_EQ(stats.at("gpu_fetched_bytes"), (1 << 20) + 200);
  EXPECT_EQ(producer_->gpu(1), nullptr) << "not its GPU";
}

// As a parameter server does whose workers have GPUs.
TEST_P(ServerDeviceTest, AWorkerWithoutGpusSendsIntoThoseOfOthers) {
  producer_ = Start("ps", nullptr, "");
  consumer_ = Start("worker", gpus_.back().get(),
                    absl::StrCat(producer_->worker(), "@", producer_->address()));
  const TensorKey key = *TensorKey::Parse(
      absl::StrFormat("%s/device:CPU:0;%016x;%s/device:GPU:0;weights;0:0", producer_->worker(),
                      producer_->incarnation(), consumer_->worker()));
  int64_t step = 0;
  for (const int64_t bytes : {1, 100, (1 << 20) + 100}) {
    const Tensor out = *Tensor::Allocate(DType::kUint8, {bytes});
    std::string value(static_cast<size_t>(bytes), '\0');
    for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 7 + value.size());
    memcpy(out.mutable_data(), value.data(), value.size());
    for (const bool first_asks : {true, false}) {
      ++step;
      const auto sends = (*producer_->steps()->StartStep(step));
      Moment ended;
      Received got;
      const auto receives = (*consumer_->steps()->StartStep(step));
      const auto receive = [&] {
        receives->RecvAsync(key, Receive(), [&](Received&& received) {
          got = std::move(received);
          ended.Come();
        });
      };
      if (first_asks) receive();
      ASSERT_TRUE(sends->Send(key, SendArgs(), out, false).ok());
      if (!first_asks) receive();
      ASSERT_TRUE(ended.Wait()) << consumer_->Explain("");
      ASSERT_TRUE(got.status.ok()) << got.status;
      EXPECT_EQ(got.tensor.space().kind, MemorySpace::Kind::kDevice);
      ASSERT_EQ(got.tensor.bytes(), value.size());
      EXPECT_TRUE(Get(*gpus_.back(), got.tensor) == value) << "other bytes came";
      for (Server* server : {producer_.get(), consumer_.get()}) server->steps()->CleanupStep(step);
    }
  }
}

void ServerDeviceTest::SendSelectedBytes(bool producer_has_gpus) {
  producer_ = Start("ps", producer_has_gpus ? gpus_[0].get() : nullptr, "");
  consumer_ = Start("worker", gpus_.back().get(),
                    absl::StrCat(producer_->worker(), "@", producer_->address()));
  const TensorKey cpu_key = *TensorKey::Parse(
      absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;kv;0:0", producer_->worker(),
                      producer_->incarnation(), consumer_->worker()));
  constexpr uint64_t kBlock = 1000;  // Not aligned as the kernel likes it.
  constexpr uint32_t kBlocks = 700;  // More than goes in one chunk.
  std::string pool(2 * kBlock * kBlocks, ' ');
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = static_cast<char>('a' + i * i / 7 % 23);
  std::vector<uint32_t> sent, lands;
  for (uint32_t i = 0; i < kBlocks; ++i) {
    sent.push_back((i * 13) % (2 * kBlocks));
    lands.push_back(2 * (kBlocks - 1 - i));
  }
  std::string wanted(pool.size(), '.');
  for (uint32_t i = 0; i < kBlocks; ++i) {
    wanted.replace(lands[i] * kBlock, kBlock, pool, sent[i] * kBlock, kBlock);
  }
  const auto tensor_of = [&](Server* server, const Gpu& gpu, bool on_gpu,
                             const std::string& bytes) {
    const TensorShape shape({static_cast<int64_t>(bytes.size())});
    if (!on_gpu) {
      const Tensor host = *Tensor::Allocate(DType::kUint8, shape);
      memcpy(host.mutable_data(), bytes.data(), bytes.size());
      return host;
    }
    const Tensor there = *server->gpu(gpu.ordinal())->Allocate(DType::kUint8, shape, nullptr);
    Put(gpu, there, bytes);
    return there;
  };
  int64_t step = 0;
  std::vector<TensorKey> keys = {cpu_key};
  if (producer_has_gpus) keys.push_back(Key());
  for (const TensorKey& key : keys) {
    for (const bool from_gpu : {true, false}) {
      if (from_gpu && !producer_has_gpus) continue;
      for (const bool to_gpu : {true, false}) {
        SCOPED_TRACE(
            absl::StrCat(key.text(), from_gpu ? " from a GPU" : "", to_gpu ? " to one" : ""));
        auto from = tensor_of(producer_.get(), *gpus_.front(), from_gpu, pool);
        const Tensor into =
            tensor_of(consumer_.get(), *gpus_.back(), to_gpu, std::string(pool.size(), '.'));
        SendArgs send;
        if (from_gpu) send.device_context = *GpuContext::Make(producer_->gpu(0), nullptr);
        ++step;
        const absl::Status left =
            (*producer_->steps()->StartStep(step))
                ->SendSelected(key, send, from, Selection::Indices(sent, kBlock));
        ASSERT_TRUE(left.ok()) << left;
        from.Reset();
        RecvArgs receive;
        if (to_gpu) receive = Receive();
        receive.destination = into;
        Moment ended;
        absl::Status status;
        // The first does not fit, and takes nothing.
        (*consumer_->steps()->StartStep(step))
            ->RecvSelectedAsync(key, receive, Selection(), [&](Received&& received) {
              EXPECT_TRUE(absl::IsInvalidArgument(received.status)) << received.status;
              (*consumer_->steps()->StartStep(step))
                  ->RecvSelectedAsync(key, receive, Selection::Indices(lands, kBlock),
                                      [&](Received&& got) {
                                        status = got.status;
                                        EXPECT_TRUE(got.tensor.SharesBytesWith(into));
                                        ended.Come();
                                      });
            });
        ASSERT_TRUE(ended.Wait()) << consumer_->Explain("");
        ASSERT_TRUE(status.ok()) << status;
        const std::string there =
            to_gpu ? Get(*gpus_.back(), into)
                   : std::string(static_cast<const char*>(into.data()), into.bytes());
        EXPECT_TRUE(there == wanted) << "other bytes came";
        for (Server* server : {producer_.get(), consumer_.get()}) {
          server->steps()->CleanupStep(step);
        }
      }
    }
  }
}

// One key, many spans: of a GPU at one end or at both, with the host at the other.
TEST_P(ServerDeviceTest, SelectedBytesGoBetweenGpusAndHosts) {
  SendSelectedBytes(/*producer_has_gpus=*/true);
}

TEST_P(ServerDeviceTest, SelectedBytesComeFromAWorkerWithoutGpus) {
  SendSelectedBytes(/*producer_has_gpus=*/false);
}

TEST(ServerGpusTest, ThoseThatTheSettingNamesAreOpened) {
  if (getenv("TRYST_TEST_CUDA") != nullptr || LoadFakeCuda() == nullptr) {
    GTEST_SKIP() << "needs pretended GPUs";
  }
  struct Case {
    const char* gpus;
    std::vector<int> opened;
    absl::StatusCode code;
  };
  const Case cases[] = {
      {"all", {0, 1}, absl::StatusCode::kOk},  {"1", {1}, absl::StatusCode::kOk},
      {"0, 1", {0, 1}, absl::StatusCode::kOk}, {"first", {}, absl::StatusCode::kInvalidArgument},
      {"9", {}, absl::StatusCode::kNotFound},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.gpus);
    ServerConfig config;
    config.cluster = "lab";
    config.job = "ps";
    config.protocol = "grpc";
    config.insecure = true;
    config.listen = "127.0.0.1:0";
    config.open_cluster = true;
    config.gpus = one.gpus;
    auto server = ServerBuilder().SetEnvironment({}).Build(config);
    ASSERT_TRUE(server.ok()) << server.status();
    const absl::Status started = (*server)->Start();
    ASSERT_EQ(started.code(), one.code) << started;
    for (int ordinal = 0; ordinal < 3 && started.ok(); ++ordinal) {
      EXPECT_EQ((*server)->gpu(ordinal) != nullptr,
                std::count(one.opened.begin(), one.opened.end(), ordinal) == 1)
          << ordinal;
    }
  }
}

TEST(ServerGpusTest, NoMoreMemoryIsTakenThanTheSettingSays) {
  if (getenv("TRYST_TEST_CUDA") != nullptr || LoadFakeCuda() == nullptr) {
    GTEST_SKIP() << "needs pretended GPUs";
  }
  constexpr int64_t kPool = 1 << 20;
  ServerConfig config;
  config.cluster = "lab";
  config.job = "ps";
  config.protocol = "grpc";
  config.insecure = true;
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  config.gpus = "0";
  config.gpu_pool_bytes = kPool;
  auto server = ServerBuilder().SetEnvironment({}).Build(config);
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE((*server)->Start().ok());
  DeviceEngine* const gpu = (*server)->gpu(0);
  ASSERT_NE(gpu, nullptr);
  const auto all = gpu->Allocate(DType::kUint8, {kPool}, nullptr);
  EXPECT_TRUE(all.ok()) << all.status();
  const absl::Status more = gpu->Allocate(DType::kUint8, {1}, nullptr).status();
  EXPECT_TRUE(absl::IsResourceExhausted(more)) << more;
}

using ServerDeviceStopTest = ServerDeviceTest;
INSTANTIATE_TEST_SUITE_P(, ServerDeviceStopTest, testing::Values(kWays[1]),
                         [](const auto& info) { return std::string(info.param.name); });

// It would free what they write into.
TEST_P(ServerDeviceStopTest, GpusThatCopyAreWaitedFor) {
  if (fake_ == nullptr) GTEST_SKIP() << "needs pretended GPUs";
  producer_ = Start("ps", gpus_[0].get(), "");
  consumer_ = Start("worker", gpus_.back().get(),
                    absl::StrCat(producer_->worker(), "@", producer_->address()));
  const Tensor sent = *Tensor::Allocate(DType::kUint8, {100});
  ASSERT_TRUE((*producer_->steps()->StartStep(1))->Send(Key(), SendArgs(), sent, false).ok());
  fake_->hold(true);
  (*consumer_->steps()->StartStep(1))->RecvAsync(Key(), Receive(), [](Received&&) {});
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (consumer_->Stats().at("gpu_in_messages") == 0 && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  std::atomic<bool> stopped{false};
  std::thread stopper([&] {
    EXPECT_TRUE(consumer_->Stop(absl::Seconds(20)).ok());
    stopped = true;
  });
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_FALSE(stopped);
  fake_->hold(false);
  stopper.join();
}

// Its GPUs want a flush after what a NIC has written.
class FlushedTest : public ServerDeviceTest {
 protected:
  void SetUp() override {
    const FakeCudaControl* const fake = LoadFakeCuda();
    if (fake == nullptr || getenv("TRYST_TEST_CUDA") != nullptr) {
      GTEST_SKIP() << "needs pretended GPUs";
    }
    fake->set_attribute(cuda::kComputeMajor, 8);
    fake->set_attribute(cuda::kGpuDirectWritesOrdering, 0);
    ServerDeviceTest::SetUp();
  }
};
INSTANTIATE_TEST_SUITE_P(, FlushedTest, testing::Values(kWays[4]),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(FlushedTest, AFlushThatFailsIsCounted) {
  producer_ = Start("ps", gpus_[0].get(), "");
  consumer_ = Start("worker", gpus_.back().get(),
                    absl::StrCat(producer_->worker(), "@", producer_->address()));
  Bring(1 << 20, 1);
  EXPECT_GE(consumer_->Stats().at("gpu_flushes"), 1) << consumer_->Explain("");
  EXPECT_EQ(consumer_->Stats().at("gpu_flushes_failed"), 0);
  nic_->FailFlushes();
  Send(1 << 20, 2);
  (*consumer_->steps()->StartStep(2))->RecvAsync(Key(), Receive(), [](Received&&) {});
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (consumer_->Stats().at("gpu_flushes_failed") == 0 && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_GE(consumer_->Stats().at("gpu_flushes_failed"), 1) << consumer_->Explain("");
}

// A tensor for oneself is shared and not copied, so only its stream says when its bytes are there.
TEST_P(ServerDeviceTest, UnderTheCpusNameATensorForOneselfWaitsForItsStream) {
  constexpr uint64_t kBytes = 4096;
  producer_ = Start("ps", gpus_[0].get(), "");
  const Gpu& gpu = *gpus_.front();
  const uint64_t busy_bytes = fake_ != nullptr ? uint64_t{1} << 20 : uint64_t{2} << 30;
  auto busy = *DeviceMemory::Allocate(&gpu, busy_bytes);
  const std::string device = absl::StrCat(producer_->worker(), "/device:CPU:0");
  const TensorKey key = *TensorKey::Parse(
      absl::StrFormat("%s;%016x;%s;own;0:0", device, producer_->incarnation(), device));
  for (int64_t step = 1; step <= 20; ++step) {
    auto tensor = *producer_->gpu(0)->Allocate(DType::kUint8, {kBytes}, nullptr);
    Put(gpu, tensor, std::string(kBytes, 'a'));
    auto stream = *gpu.MakeStream();
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(gpu.calls().cuMemsetD8Async(busy.address(), 1, busy_bytes, stream.get()), 0);
    }
    ASSERT_EQ(gpu.calls().cuMemsetD8Async(AddressOf(tensor.data()), 'b', kBytes, stream.get()), 0);
    SendArgs send;
    send.device_context = *GpuContext::Make(producer_->gpu(0), stream.get());
    auto steps = *producer_->steps()->StartStep(step);
    ASSERT_TRUE(steps->Send(key, send, tensor, false).ok());
    auto got = steps->Recv(key, RecvArgs(), absl::Seconds(20));
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(got->tensor.SharesBytesWith(tensor));
    EXPECT_TRUE(Get(gpu, got->tensor) == std::string(kBytes, 'b')) << "its stream was at work";
    ASSERT_TRUE(gpu.WaitFor(stream.get()).ok());
    producer_->steps()->CleanupStep(step);
  }
}

}  // namespace
}  // namespace tryst
