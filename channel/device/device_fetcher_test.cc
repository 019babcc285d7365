#include "channel/device/device_fetcher.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "channel/crc32c.h"
#include "channel/device/device_engine.h"
#include "gpu/fake_cuda.h"
#include "gtest/gtest.h"
#include "rendezvous/cancellation.h"

namespace tryst {
namespace {

class FixedClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns; }
  int64_t now_ns = 1'000'000'000;
};

// A channel that answers when the test says so.
class HeldFetcher final : public TensorFetcher {
 public:
  void Fetch(int64_t, const TensorKey& key, const RecvArgs&, DoneFn&& done) override {
    waiting.emplace(std::string(key.edge()), std::move(done));
  }
  void FetchMany(int64_t, absl::Span<const TensorKey>, const RecvArgs&, ManyDoneFn) override {}
  void AbortStep(int64_t, const absl::Status&) override {}
  // Answers the one fetch whose edge ends so.
  void Answer(const std::string& end, absl::Status status, const Tensor& tensor = Tensor()) {
    for (auto at = waiting.begin(); at != waiting.end(); ++at) {
      const std::string& edge = at->first;
      if (edge.size() < end.size() || edge.substr(edge.size() - end.size()) != end) continue;
      DoneFn done = std::move(at->second);
      waiting.erase(at);
      return std::move(done)({std::move(status), tensor, !tensor.valid()});
    }
    ADD_FAILURE() << "nobody asked for " << end;
  }
  std::multimap<std::string, DoneFn> waiting;
};

class DeviceFetcherTest : public ::testing::Test {
 protected:
  explicit DeviceFetcherTest(uint64_t max_tensor_bytes = UINT64_MAX) {
    DeviceFetcherOptions options;
    options.max_tensor_bytes = max_tensor_bytes;
    fetcher_ = std::make_unique<DeviceFetcher>(&poller_, &channel_, options);
  }
  static constexpr int64_t kBytes = 64;
  static constexpr char kProbe[] = "|device|0|probe";

  void SetUp() override {
    auto driver = CudaDriver::Load("gpu/libfake_cuda.so");
    ASSERT_TRUE(driver.ok()) << driver.status();
    driver_ = *std::move(driver);
    gpu_ = *Gpu::Open(driver_.get(), 0);
    auto engine = DeviceEngine::Open(&poller_, gpu_.get(), DeviceEngineOptions());
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    engine_->Attach();
    auto memory = DeviceMemory::Allocate(gpu_.get(), kBytes);
    ASSERT_TRUE(memory.ok());
    memory_ = *std::move(memory);
  }
  void TearDown() override {
    // Whom the fetcher tells of an end it made up its mind about.
    while (!channel_.waiting.empty()) {
      channel_.Answer("", absl::UnavailableError("the test is over"));
      poller_.Turn();
    }
    EXPECT_TRUE(fetcher_->Drained());
    engine_->Detach();
  }

  // Starts a fetch and lets it be told of memory in another process, which is to be proved.
  void FetchUntilTheProbe(const RecvArgs& wanted, const char* edge) {
    auto prefix = TensorKeyPrefix::Make("/job:worker/replica:0/task:1/device:GPU:0", 1,
                                        "/job:worker/replica:0/task:0/device:GPU:0", edge);
    ASSERT_TRUE(prefix.ok()) << prefix.status();
    RecvArgs args = wanted;
    auto into = Tensor::Adopt(memory_.data(), DType::kUint8, {kBytes},
                              MemorySpace{MemorySpace::Kind::kDevice, 0}, nullptr);
    ASSERT_TRUE(into.ok());
    args.destination = *into;
    auto context = GpuContext::Make(engine_.get(), nullptr);
    ASSERT_TRUE(context.ok());
    args.device_context = *context;
    fetcher_->Fetch(1, prefix->At(0, 0), args, [this](Received&& received) {
      ++ended_;
      status_ = std::move(received.status);
    });
    poller_.Turn();
    DeviceManifest manifest;
    manifest.dtype = DType::kUint8;
    manifest.shape = {kBytes};
    manifest.bytes = kBytes;
    manifest.chunk_bytes = 4096;
    manifest.transfer = 7;
    manifest.has_ipc = true;
    manifest.host = ThisHost();
    manifest.process = 12345;
    manifest.address = 1 << 20;
    manifest.reference.allocation_bytes = kBytes;
    auto answer = Tensor::Allocate(DType::kUint8, {int64_t{DeviceManifest::kBytes}});
    ASSERT_TRUE(answer.ok());
    EncodeManifest(manifest, static_cast<uint8_t*>(answer->mutable_data()));
    channel_.Answer("|into|" + std::to_string(static_cast<int>(DType::kUint8)) + "|64",
                    absl::OkStatus(), *answer);
    poller_.Turn();
  }
  bool Asked(const std::string& edge) const { return channel_.waiting.count(edge) != 0; }

  FixedClock clock_;
  Poller poller_{&clock_};
  HeldFetcher channel_;
  std::unique_ptr<CudaDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<DeviceEngine> engine_;
  DeviceMemory memory_;
  std::unique_ptr<DeviceFetcher> fetcher_;
  int ended_ = 0;
  absl::Status status_;
};

TEST_F(DeviceFetcherTest, AFetchThatWaitsForAProbeKeepsItsDeadline) {
  RecvArgs args;
  args.deadline = Deadline::AtNs(clock_.now_ns + 3'000'000'000);
  FetchUntilTheProbe(args, "a");
  EXPECT_TRUE(Asked(std::string("a") + kProbe));
  clock_.now_ns += 2'999'000'000;
  poller_.Turn();
  EXPECT_EQ(ended_, 0);
  clock_.now_ns += 1'000'000;
  poller_.Turn();
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kDeadlineExceeded) << status_;
  EXPECT_TRUE(Asked("a|device|7|back")) << "it took nothing";
  // The probe goes on for others, and its end is nothing to who has left.
  channel_.Answer(kProbe, absl::UnavailableError("no probe"));
  poller_.Turn();
  EXPECT_EQ(ended_, 1);
}

TEST_F(DeviceFetcherTest, AFetchThatWaitsForAProbeCanBeCancelled) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  FetchUntilTheProbe(args, "a");
  cancellation.StartCancel();
  poller_.Turn();
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kCancelled) << status_;
  channel_.Answer(kProbe, absl::UnavailableError("no probe"));
  poller_.Turn();
}

TEST_F(DeviceFetcherTest, WhoWaitsForAProbeThatFailsIsStaged) {
  FetchUntilTheProbe(RecvArgs(), "a");
  EXPECT_EQ(ended_, 0);
  channel_.Answer(kProbe, absl::UnavailableError("no probe"));
  poller_.Turn();
  EXPECT_EQ(ended_, 0);
  EXPECT_TRUE(Asked("a|device|7|chunk|0"));
  channel_.Answer("|chunk|0", absl::UnavailableError("nor this"));
  poller_.Turn();
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kUnavailable) << status_;
}

// The step whose fetch asked for it was aborted; that says nothing of the way.
TEST_F(DeviceFetcherTest, AProbeThatWasAbortedIsMadeAgain) {
  for (const bool aborted : {false, true}) {
    FetchUntilTheProbe(RecvArgs(), aborted ? "b" : "a");
    ASSERT_EQ(Asked(std::string(aborted ? "b" : "a") + kProbe), true);
    channel_.Answer(kProbe, aborted ? absl::UnimplementedError("no GPU")
                                    : absl::AbortedError("the step was aborted"));
    poller_.Turn();
    channel_.Answer("|chunk|0", absl::UnavailableError("nor this"));
    poller_.Turn();
    clock_.now_ns += 11'000'000'000;
    poller_.Turn();
  }
  FetchUntilTheProbe(RecvArgs(), "c");
  EXPECT_FALSE(Asked(std::string("c") + kProbe)) << "there is no such way";
}

// Another process that has this one's memory. The pretended driver maps what a process has open,
// but, as a real one, none of its own.
class Heir {
 public:
  Heir() : pid_(fork()) {
    while (pid_ == 0) pause();
  }
  ~Heir() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  // Names our memory as that process exports it.
  IpcReference Export(const IpcReference& ours) const {
    IpcReference its = ours;
    char* const text = reinterpret_cast<char*>(its.handle.bytes);
    const std::string rest = strchr(text, ' ');
    snprintf(text, sizeof(its.handle.bytes), "%d%s", pid_, rest.c_str());
    return its;
  }

 private:
  const pid_t pid_;
};

TEST_F(DeviceFetcherTest, AProbeWithOtherBytesThanItsDigestProvesNothing) {
  const auto ours = engine_->exporter()->Export(memory_.address(), kBytes);
  ASSERT_TRUE(ours.ok()) << ours.status();
  const Heir producer;
  FetchUntilTheProbe(RecvArgs(), "a");
  DeviceManifest probe;
  probe.dtype = DType::kUint8;
  probe.shape = {kBytes};
  probe.bytes = kBytes;
  probe.chunk_bytes = 4096;
  probe.has_ipc = true;
  probe.host = ThisHost();
  probe.process = 12345;
  probe.address = memory_.address();
  probe.reference = producer.Export(*ours);
  uint8_t bytes[kBytes];
  LoadFakeCuda()->peek(memory_.address(), bytes, kBytes);
  probe.digest = Crc32c(0, bytes, kBytes) ^ 1;
  auto answer = Tensor::Allocate(DType::kUint8, {int64_t{DeviceManifest::kBytes}});
  ASSERT_TRUE(answer.ok());
  EncodeManifest(probe, static_cast<uint8_t*>(answer->mutable_data()));
  channel_.Answer(kProbe, absl::OkStatus(), *answer);
  for (int i = 0; i < 1000 && !Asked("a|device|7|chunk|0"); ++i) {
    poller_.Turn();
    usleep(1000);
  }
  EXPECT_TRUE(Asked("a|device|7|chunk|0")) << "it is not staged";
  EXPECT_NE(fetcher_->Explain().find("a test of reading its GPU memory got wrong bytes"),
            std::string::npos)
      << fetcher_->Explain();
}

class LimitedDeviceFetcherTest : public DeviceFetcherTest {
 protected:
  LimitedDeviceFetcherTest() : DeviceFetcherTest(static_cast<uint64_t>(kBytes - 1)) {}
};

TEST_F(LimitedDeviceFetcherTest, ATensorOverTheLimitIsRefused) {
  FetchUntilTheProbe(RecvArgs(), "a");
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kResourceExhausted) << status_;
  EXPECT_TRUE(Asked("a|device|7|back")) << "it is the producer's";
}

}  // namespace
}  // namespace tryst
