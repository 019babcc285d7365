// Servers with GPUs: device tensors in every way that a setting allows. Runs on pretended GPUs, or
// on the machine's (TRYST_TEST_CUDA=libcuda.so.1), of which one is enough.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "channel/device/device_engine.h"
#include "gmock/gmock.h"
#include "gpu/device_memory.h"
#include "gpu/fake_cuda.h"
#include "gtest/gtest.h"
#include "server/data_plane/open_nics.h"
#include "server/server.h"
#include "server/server_parts.h"
#include "tests/contract/dma_buf_nic.h"
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
    driver_ = *CudaDriver::Load(library != nullptr ? library : "gpu/libfake_cuda.so");
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
    builder.SetEnvironment({}).UseGpu(gpu);
    // "grpc+verbs" with a NIC that reaches the pretended GPU.
    const auto open = [](const ServerConfig&, const NicPlace&) {
      auto soft = OpenSoftNic(SoftNicOptions());
      EXPECT_TRUE(soft.ok()) << soft.status();
      return std::vector<NicPath>{{"rdma/soft", std::make_shared<DmaBufNic>(*std::move(soft))}};
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

  void Bring(uint64_t bytes, int64_t step) {
    const TensorKey key = *TensorKey::Parse(
        absl::StrFormat("%s/device:GPU:0;%016x;%s/device:GPU:1;weights;0:0", producer_->worker(),
                        producer_->incarnation(), consumer_->worker()));
    auto out = *producer_->gpu(0)->Allocate(DType::kUint8, {static_cast<int64_t>(bytes)}, nullptr);
    std::string value(bytes, '\0');
    for (uint64_t i = 0; i < bytes; ++i) value[i] = static_cast<char>(i * 7 + bytes);
    Put(*gpus_.front(), out, value);
    SendArgs send;
    send.device_context = *GpuContext::Make(producer_->gpu(0), nullptr);
    ASSERT_TRUE((*producer_->steps()->StartStep(step))->Send(key, send, out, false).ok());
    RecvArgs receive;
    receive.device_context = *GpuContext::Make(consumer_->gpu(theirs_), nullptr);
    auto got = (*consumer_->steps()->StartStep(step))->Recv(key, receive, absl::Seconds(20));
    ASSERT_TRUE(got.ok()) << got.status() << consumer_->Explain("");
    ASSERT_EQ(got->tensor.bytes(), bytes);
    EXPECT_EQ(got->tensor.space().kind, MemorySpace::Kind::kDevice);
    EXPECT_EQ(got->tensor.space().device_ordinal, theirs_);
    EXPECT_TRUE(Get(*gpus_.back(), got->tensor) == value) << "other bytes came";
    for (Server* server : {producer_.get(), consumer_.get()}) server->steps()->CleanupStep(step);
  }

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
