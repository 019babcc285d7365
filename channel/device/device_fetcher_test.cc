#include "channel/device/device_fetcher.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "channel/arena/arena.h"
#include "channel/device/device_engine.h"
#include "channel/device/device_proxy.h"
#include "channel/device/peer_segments.h"
#include "channel/device/staging_pool.h"
#include "gtest/gtest.h"
#include "rendezvous/cancellation.h"
#include "tests/doubles/cuda/fake_cuda.h"

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
  void Fetch(int64_t step, const TensorKey& key, const RecvArgs& args, FetchedFn&& done) override {
    waiting.emplace(std::string(key.edge()), std::move(done));
    steps[std::string(key.edge())] = step;
    destination = args.destination;
    leaves_at_once = args.leaves_at_once;
  }
  void FetchMany(int64_t, absl::Span<const TensorKey>, const RecvArgs&, ManyFetchedFn) override {
    ++manys;
  }
  void AbortStep(int64_t step, const absl::Status& why) override {
    if (!aborts) return;
    std::vector<std::string> ended;
    for (const auto& one : waiting) {
      if (steps[one.first] == step) ended.push_back(one.first);
    }
    for (const std::string& edge : ended) Answer(edge, why);
  }
  // Answers the one fetch whose edge ends so.
  void Answer(const std::string& end, absl::Status status, const Tensor& tensor = Tensor()) {
    for (auto at = waiting.begin(); at != waiting.end(); ++at) {
      const std::string& edge = at->first;
      if (edge.size() < end.size() || edge.substr(edge.size() - end.size()) != end) continue;
      FetchedFn done = std::move(at->second);
      waiting.erase(at);
      return std::move(done)({std::move(status), tensor, !tensor.valid()});
    }
    ADD_FAILURE() << "nobody asked for " << end;
  }
  std::multimap<std::string, FetchedFn> waiting;
  std::map<std::string, int64_t> steps;
  Tensor destination;           // The last fetch has it,
  bool leaves_at_once = false;  // and says so.
  int manys = 0;
  bool aborts = true;  // Else a step's answers cross its end.
};

// Has no room until the test says so.
class FullExecutor final : public Executor {
 public:
  bool TryRun(Work* work) override {
    ++tries;
    if (full) return false;
    std::move (*work)();
    return true;
  }
  void Run(Work work) override { std::move(work)(); }
  bool full = true;
  int tries = 0;
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
  const std::string kInto = absl::StrCat("|into|", static_cast<int>(DType::kUint8), "|64");

  void SetUp() override {
    auto driver = CudaDriver::Load("tests/doubles/cuda/libfake_cuda.so");
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
  void FetchWithoutDestination() {
    RecvArgs args;
    args.device_context = *GpuContext::Make(engine_.get(), nullptr);
    fetcher_->Fetch(1, Key("a"), args, [this](Received&& received) {
      ++ended_;
      status_ = std::move(received.status);
    });
    poller_.Turn();
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

  static TensorKey Key(const std::string& edge) {
    return TensorKeyPrefix::Make("/job:worker/replica:0/task:1/device:GPU:0", 1,
                                 "/job:worker/replica:0/task:0/device:GPU:0", edge)
        ->At(0, 0);
  }
  RecvArgs IntoMemory(RecvArgs args) {
    args.destination = *Tensor::Adopt(memory_.data(), DType::kUint8, {kBytes},
                                      MemorySpace{MemorySpace::Kind::kDevice, 0}, nullptr);
    args.device_context = *GpuContext::Make(engine_.get(), nullptr);
    return args;
  }
  static DeviceManifest InAnotherProcess() {
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
    return manifest;
  }
  void AnswerWith(const std::string& asked, const DeviceManifest& manifest) {
    auto answer = Tensor::Allocate(DType::kUint8, {int64_t{DeviceManifest::kBytes}});
    ASSERT_TRUE(answer.ok());
    EncodeManifest(manifest, static_cast<uint8_t*>(answer->mutable_data()));
    channel_.Answer(asked, absl::OkStatus(), *answer);
    poller_.Turn();
  }
  // Starts a fetch and lets it be told of memory in another process, which is to be proved.
  void FetchUntilTheProbe(const RecvArgs& wanted, const char* edge,
                          const DeviceManifest& manifest = InAnotherProcess()) {
    fetcher_->Fetch(1, Key(edge), IntoMemory(wanted), [this](Received&& received) {
      ++ended_;
      status_ = std::move(received.status);
      tensor_ = std::move(received.tensor);
    });
    poller_.Turn();
    AnswerWith(kInto, manifest);
  }
  void TurnUntilAsked(const std::string& edge) {
    for (int i = 0; i < 1000 && !Asked(edge); ++i) {
      poller_.Turn();
      usleep(1000);
    }
    EXPECT_TRUE(Asked(edge)) << edge;
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
  Tensor tensor_;
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
  EXPECT_TRUE(absl::StrContains(status_.message(), "waits for the proof of a way")) << status_;
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
  EXPECT_FALSE(tensor_.valid()) << "its bytes are nobody's";
}

TEST_F(DeviceFetcherTest, WhoLeavesAtOnceLeavesItsAsksAtOnce) {
  for (const bool at_once : {true, false}) {
    RecvArgs args;
    args.leaves_at_once = at_once;
    fetcher_->Fetch(1, Key("a"), IntoMemory(args), [](Received&&) {});
    poller_.Turn();
    EXPECT_EQ(channel_.leaves_at_once, at_once);
    channel_.Answer(kInto, absl::UnavailableError("over"));
    poller_.Turn();
  }
}

// As a program does that has what it wants.
TEST_F(DeviceFetcherTest, AStepThatEndsAtOnceLeavesNothingWithTheProducer) {
  FetchUntilTheProbe(RecvArgs(), "a");
  channel_.Answer(kProbe, absl::UnavailableError("no probe"));
  poller_.Turn();
  channel_.Answer("|chunk|0", absl::OkStatus(), *Tensor::Allocate(DType::kUint8, {kBytes}));
  for (int i = 0; i < 1000 && ended_ == 0; ++i) poller_.Turn();
  ASSERT_TRUE(status_.ok()) << status_;
  const auto end_step = [this] {
    fetcher_->AbortStep(1, absl::AbortedError("the step is over"));
    channel_.AbortStep(1, absl::AbortedError("the step is over"));
    poller_.Turn();
  };
  end_step();
  EXPECT_TRUE(Asked("a|device|7|done"));
  FetchUntilTheProbe(RecvArgs(), "b");
  EXPECT_EQ(ended_, 1);
  end_step();
  EXPECT_TRUE(absl::IsAborted(status_)) << status_;
  EXPECT_TRUE(Asked("b|device|7|back"));
}

// A tensor in the memory of a GPU that only NICs reach.
class DirectDeviceFetcherTest : public DeviceFetcherTest {
 protected:
  void SetUp() override {
    DeviceFetcherTest::SetUp();
    DeviceFetcherOptions options;
    options.direct_bytes = 1;
    fetcher_ = std::make_unique<DeviceFetcher>(&poller_, &channel_, options);
  }
  static DeviceManifest OnDevice() {
    DeviceManifest manifest = InAnotherProcess();
    manifest.has_ipc = false;
    manifest.on_device = true;
    return manifest;
  }
  // Fetches "a" until the channel has brought the probe's bytes into device memory.
  void FetchUntilProved() {
    FetchUntilTheProbe(RecvArgs(), "a", OnDevice());
    DeviceManifest probe = OnDevice();
    uint8_t bytes[kBytes] = {};
    probe.digest = Crc32c(0, bytes, kBytes);
    AnswerWith(kProbe, probe);
    TurnUntilAsked("a|device|0|direct");
    const Tensor into = channel_.destination;
    LoadFakeCuda()->poke(AddressOf(into.data()), bytes, kBytes);
    channel_.Answer("|direct", absl::OkStatus(), into);
    TurnUntilAsked("a|device|7|whole");
  }
};

// A proof by one channel says nothing of the next one, which has no such way.
TEST_F(DirectDeviceFetcherTest, WhatTheNicsNoLongerBringIsStaged) {
  DeviceManifest manifest = OnDevice();
  manifest.on_device = false;
  FetchUntilTheProbe(RecvArgs(), "host", manifest);
  EXPECT_TRUE(Asked("host|device|7|chunk|0")) << "it lies in no GPU's memory";
  FetchUntilProved();
  clock_.now_ns += 3600 * int64_t{1'000'000'000};
  FetchUntilTheProbe(RecvArgs(), "b", OnDevice());
  TurnUntilAsked("b|device|7|whole");  // What was proved stays so.
  channel_.Answer("a|device|7|whole", absl::UnimplementedError("this channel has no NIC"));
  poller_.Turn();
  EXPECT_EQ(ended_, 0) << status_;
  EXPECT_TRUE(Asked("a|device|7|chunk|0"));
  EXPECT_TRUE(absl::StrContains(fetcher_->Explain(), "this channel has no NIC"))
      << fetcher_->Explain();
}

// The next channel does not write into the destination, and says that all went well.
TEST_F(DirectDeviceFetcherTest, WhatComesIntoHostMemoryInsteadIsStaged) {
  FetchUntilProved();
  channel_.Answer("a|device|7|whole", absl::OkStatus(), *Tensor::Allocate(DType::kUint8, {kBytes}));
  poller_.Turn();
  EXPECT_EQ(ended_, 0) << "its destination was not written";
  EXPECT_EQ(fetcher_->counters().direct, 0u);
  EXPECT_TRUE(absl::StrContains(fetcher_->Explain(), "it came into host memory"))
      << fetcher_->Explain();
  Tensor chunk = *Tensor::Allocate(DType::kUint8, {kBytes});
  memset(chunk.mutable_data(), 7, kBytes);
  ASSERT_TRUE(Asked("a|device|7|chunk|0"));
  channel_.Answer("|chunk|0", absl::OkStatus(), chunk);
  for (int i = 0; i < 1000 && ended_ == 0; ++i) poller_.Turn();
  ASSERT_TRUE(ended_ == 1 && status_.ok()) << status_;
  char bytes[kBytes];
  LoadFakeCuda()->peek(memory_.address(), bytes, kBytes);
  EXPECT_EQ(std::string(bytes, kBytes), std::string(kBytes, 7));
}

TEST_F(DeviceFetcherTest, AManyEndsOnceWithTheLastOfItsKeys) {
  int many_ended = 0;
  const auto done = [&](const absl::Status& status, absl::Span<Received> received) {
    ++many_ended;
    EXPECT_EQ(received.size(), 2u);
    status_ = status;
  };
  fetcher_->FetchMany(1, {}, RecvArgs(), done);
  EXPECT_EQ(channel_.manys, 1) << "no key wants a GPU's memory";
  RecvArgs args;
  args.device_context = *GpuContext::Make(engine_.get(), nullptr);
  fetcher_->FetchMany(1, {Key("a"), Key("b")}, args, done);
  poller_.Turn();
  channel_.Answer("", absl::UnavailableError("no"));
  poller_.Turn();
  EXPECT_EQ(many_ended, 0);
  channel_.Answer("", absl::UnavailableError("no"));
  poller_.Turn();
  EXPECT_EQ(many_ended, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kUnavailable) << status_;
  EXPECT_EQ(channel_.manys, 1);
}

TEST_F(DeviceFetcherTest, AnExecutorWithoutRoomIsAskedAgain) {
  FullExecutor executor;
  RecvArgs args;
  args.executor = &executor;
  fetcher_->Fetch(1, Key("a"), IntoMemory(args), [this](Received&& received) {
    ++ended_;
    status_ = std::move(received.status);
  });
  poller_.Turn();
  channel_.Answer(kInto, absl::UnavailableError("no"));
  poller_.Turn();
  EXPECT_EQ(executor.tries, 1);
  executor.full = false;
  clock_.now_ns += 1'000'000;
  poller_.Turn();
  EXPECT_EQ(executor.tries, 2);
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kUnavailable) << status_;
}

TEST_F(DeviceFetcherTest, AnEngineNeedsASlotOfEachKind) {
  for (const uint32_t fetch_slots : {0, 1}) {
    DeviceEngineOptions options;
    options.fetch_slots = fetch_slots;
    EXPECT_EQ(DeviceEngine::Open(&poller_, gpu_.get(), options).ok(), fetch_slots > 0);
    DeviceProxyOptions proxy;
    proxy.engine = options;
    EXPECT_EQ(DeviceProxy::Open(&poller_, {gpu_.get()}, nullptr, proxy).ok(), fetch_slots > 0);
  }
}

TEST_F(DeviceFetcherTest, ServingAndFetchingHaveSlotsOfTheirOwn) {
  DeviceEngineOptions options;
  options.slot_bytes = 4096;
  options.serve_slots = 1;
  options.fetch_slots = 2;
  options.arena = Arena::Make(ArenaOptions());
  const auto engine = DeviceEngine::Open(&poller_, gpu_.get(), options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::vector<StorageRef> served, fetched;
  for (int i = 0; i < 3; ++i) {
    (*engine)->WhenServeSlot([&](StorageRef slot) { served.push_back(std::move(slot)); });
    (*engine)->WhenFetchSlot([&](StorageRef slot) { fetched.push_back(std::move(slot)); });
  }
  ASSERT_EQ(served.size(), 1u);
  ASSERT_EQ(fetched.size(), 2u);
  EXPECT_EQ(served[0]->space().kind, MemorySpace::Kind::kShared) << "peers read it";
  EXPECT_NE(fetched[0]->space().kind, MemorySpace::Kind::kShared);
  // Who waits gets them, and the poller has heard of all before the engine goes.
  for (int i = 0; i < 3; ++i, poller_.Turn()) {
    served.clear();
    fetched.clear();
  }
}

// It lies in a slot of the producer's, which no copy of ours may hold.
TEST_F(DeviceFetcherTest, WhatCameInSharedMemoryIsCopiedOutOfItAtOnce) {
  const auto arena = Arena::Make(ArenaOptions());
  DeviceManifest manifest = InAnotherProcess();
  manifest.transfer = 0;
  manifest.inside = true;
  auto answer = arena->AllocateTensor(DType::kUint8, {int64_t{DeviceManifest::kBytes} + kBytes});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EncodeManifest(manifest, static_cast<uint8_t*>(answer->mutable_data()));
  memset(static_cast<char*>(answer->mutable_data()) + DeviceManifest::kBytes, 7, kBytes);
  fetcher_->Fetch(1, Key("a"), IntoMemory(RecvArgs()), [this](Received&& received) {
    ++ended_;
    status_ = std::move(received.status);
  });
  poller_.Turn();
  channel_.Answer(kInto, absl::OkStatus(), *std::move(answer));
  answer = Tensor();
  for (int i = 0; i < 1000 && ended_ == 0; ++i) poller_.Turn();
  ASSERT_TRUE(ended_ == 1 && status_.ok()) << status_;
  char bytes[kBytes];
  LoadFakeCuda()->peek(memory_.address(), bytes, kBytes);
  EXPECT_EQ(std::string(bytes, kBytes), std::string(kBytes, 7));
}

TEST_F(DeviceFetcherTest, WithoutMemoryForATensorItStaysTheProducers) {
  FetchWithoutDestination();
  LoadFakeCuda()->fail("cuMemAlloc_v2", cuda::kOutOfMemory, 2, 0);
  ASSERT_EQ(channel_.waiting.size(), 1u);
  const std::string asked = channel_.waiting.begin()->first;
  AnswerWith(asked, InAnotherProcess());
  LoadFakeCuda()->fail("cuMemAlloc_v2", cuda::kOutOfMemory, 0, 0);
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kResourceExhausted) << status_;
  EXPECT_TRUE(Asked("a|device|7|back"));
}

// A tensor of more than eight dimensions, which only the host can unpack.
TEST_F(DeviceFetcherTest, WhatIsPackedStaysTheProducers) {
  DeviceManifest packed = InAnotherProcess();
  packed.has_ipc = false;
  packed.dtype = DType::kPacked;
  FetchWithoutDestination();
  ASSERT_EQ(channel_.waiting.size(), 1u);
  AnswerWith("", packed);
  EXPECT_EQ(ended_, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(status_)) << status_;
  EXPECT_TRUE(Asked("a|device|7|back"));
}

// The producer does not have what came inside of its answer any more.
class InsideDeviceFetcherTest : public DeviceFetcherTest {
 protected:
  struct Got {
    int ended = 0;
    absl::Status status;
    Tensor tensor;
  };
  RecvArgs WithoutDestination() {
    RecvArgs args;
    args.device_context = *GpuContext::Make(engine_.get(), nullptr);
    return args;
  }
  std::shared_ptr<Got> Fetch(const RecvArgs& args, int64_t step = 1) {
    auto got = std::make_shared<Got>();
    got_.push_back(got);  // The pool would have the memory for the next one.
    fetcher_->Fetch(step, Key("a"), args, [got](Received&& received) {
      ++got->ended;
      got->status = std::move(received.status);
      got->tensor = std::move(received.tensor);
    });
    poller_.Turn();
    return got;
  }
  // Answers the only fetch that is out with a tensor that has `value` in each byte.
  void AnswerInside(char value, Arena* arena = nullptr) {
    DeviceManifest manifest = InAnotherProcess();
    manifest.has_ipc = false;
    manifest.transfer = 0;
    manifest.inside = true;
    const TensorShape shape = {int64_t{DeviceManifest::kBytes} + kBytes};
    auto answer = arena != nullptr ? arena->AllocateTensor(DType::kUint8, shape)
                                   : Tensor::Allocate(DType::kUint8, shape);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EncodeManifest(manifest, static_cast<uint8_t*>(answer->mutable_data()));
    memset(static_cast<char*>(answer->mutable_data()) + DeviceManifest::kBytes, value, kBytes);
    ASSERT_EQ(channel_.waiting.size(), 1u);
    channel_.Answer("", absl::OkStatus(), *std::move(answer));
    poller_.Turn();
  }
  // While it lasts, the GPU has no memory left.
  static void FailAllocations(bool on) {
    LoadFakeCuda()->fail("cuMemAlloc_v2", cuda::kOutOfMemory, on ? 1 << 20 : 0, 0);
  }
  // The value in each byte of what a fetch has got.
  std::string ValueOf(const std::shared_ptr<Got>& got) {
    for (int i = 0; i < 1000 && got->ended == 0; ++i) poller_.Turn();
    if (got->ended != 1 || !got->status.ok()) return absl::StrCat(got->status.ToString());
    std::string bytes(kBytes, 0);
    LoadFakeCuda()->peek(AddressOf(got->tensor.data()), &bytes[0], kBytes);
    return bytes == std::string(kBytes, bytes[0]) ? bytes.substr(0, 1) : "mixed";
  }
  static bool OutOfMemory(const std::shared_ptr<Got>& got) {
    return got->ended == 1 && absl::IsResourceExhausted(got->status);
  }

  std::vector<std::shared_ptr<Got>> got_;
};

TEST_F(InsideDeviceFetcherTest, WithoutMemoryForItTheNextFetchOfItsKeyGetsIt) {
  const auto first = Fetch(WithoutDestination());
  FailAllocations(true);
  AnswerInside('1');
  EXPECT_TRUE(OutOfMemory(first)) << first->status;
  const auto second = Fetch(WithoutDestination());
  EXPECT_TRUE(OutOfMemory(second)) << second->status;
  FailAllocations(false);
  const auto of_another_step = Fetch(WithoutDestination(), 2);
  AnswerInside('x');
  EXPECT_EQ(ValueOf(of_another_step), "x");
  const auto third = Fetch(WithoutDestination());
  EXPECT_TRUE(channel_.waiting.empty()) << "the producer would send the next one";
  EXPECT_EQ(ValueOf(third), "1");
  const auto fourth = Fetch(WithoutDestination());
  AnswerInside('2');
  EXPECT_EQ(ValueOf(fourth), "2");
}

TEST_F(InsideDeviceFetcherTest, WithoutMemoryForItItIsTheFetchsThatWaitsInLine) {
  const auto first = Fetch(WithoutDestination());
  const auto second = Fetch(IntoMemory(RecvArgs()));
  const auto third = Fetch(WithoutDestination());
  FailAllocations(true);
  AnswerInside('1');
  EXPECT_TRUE(OutOfMemory(first)) << first->status;
  EXPECT_EQ(ValueOf(second), "1") << "it needs no memory of the pool";
  EXPECT_EQ(third->ended, 0);
  FailAllocations(false);
  AnswerInside('2');
  EXPECT_EQ(ValueOf(third), "2");
}

// A slot of the producer's must not wait for the next fetch.
TEST_F(InsideDeviceFetcherTest, WhatWaitsForTheNextFetchHoldsNothingOfTheProducers) {
  const auto arena = Arena::Make(ArenaOptions());
  const uint64_t unused = arena->counters().used_bytes;
  const auto first = Fetch(WithoutDestination());
  FailAllocations(true);
  AnswerInside('1', arena.get());
  EXPECT_TRUE(OutOfMemory(first)) << first->status;
  EXPECT_EQ(arena->counters().used_bytes, unused);
  FailAllocations(false);
  EXPECT_EQ(ValueOf(Fetch(WithoutDestination())), "1");
}

TEST_F(InsideDeviceFetcherTest, ACopyThatFailsLeavesItToTheNextFetch) {
  for (const bool shared : {false, true}) {
    const auto arena = Arena::Make(ArenaOptions());
    const auto first = Fetch(IntoMemory(RecvArgs()));
    LoadFakeCuda()->fail("cuLaunchKernel", cuda::kOutOfMemory, 1, 0);
    AnswerInside('1', shared ? arena.get() : nullptr);
    EXPECT_NE(ValueOf(first), "1");
    EXPECT_TRUE(OutOfMemory(first)) << first->status;
    const auto second = Fetch(WithoutDestination());
    EXPECT_TRUE(channel_.waiting.empty());
    EXPECT_EQ(ValueOf(second), "1");
  }
}

// Our GPU reads it in the producer's memory.
TEST_F(InsideDeviceFetcherTest, ACopyOutOfThePeersMemoryThatFailsLeavesItToTheNextFetch) {
  const auto segments = std::make_shared<PeerSegments>();
  DeviceEngineOptions options;
  options.arena = Arena::Make(ArenaOptions());
  options.arena->SetPeerWatcher(segments);
  const auto theirs = Arena::Make(ArenaOptions());
  auto first_block = theirs->Allocate(1);
  ASSERT_TRUE(first_block.ok());
  void* const segment = (*first_block)->data();
  segments->OnMapped(segment, ArenaOptions().first_segment_bytes / 2);
  engine_->Detach();
  engine_ = *DeviceEngine::Open(&poller_, gpu_.get(), options);
  engine_->Attach();
  const auto first = Fetch(WithoutDestination());
  LoadFakeCuda()->fail("cuLaunchKernel", cuda::kOutOfMemory, 1, 0);
  AnswerInside('1', theirs.get());
  EXPECT_NE(ValueOf(first), "1");
  EXPECT_TRUE(OutOfMemory(first)) << first->status;
  EXPECT_EQ(fetcher_->counters().read_in_peer, 1u);
  const auto second = Fetch(WithoutDestination());
  EXPECT_TRUE(channel_.waiting.empty());
  EXPECT_EQ(ValueOf(second), "1");
  segments->OnUnmapping(segment);
  got_.clear();
}

TEST_F(InsideDeviceFetcherTest, AnotherDestinationLeavesItToTheNextFetch) {
  const auto first = Fetch(WithoutDestination());
  FailAllocations(true);
  AnswerInside('1');
  EXPECT_TRUE(OutOfMemory(first)) << first->status;
  FailAllocations(false);
  RecvArgs args = IntoMemory(RecvArgs());
  args.destination = *Tensor::Adopt(memory_.data(), DType::kUint8, {kBytes / 2},
                                    MemorySpace{MemorySpace::Kind::kDevice, 0}, nullptr);
  const auto second = Fetch(args);
  EXPECT_EQ(second->status.code(), absl::StatusCode::kInvalidArgument) << second->status;
  EXPECT_EQ(ValueOf(Fetch(WithoutDestination())), "1");
  // An honest producer does not answer so: it knows the destination, and keeps the tensor.
  const auto third = Fetch(args);
  AnswerInside('2');
  EXPECT_EQ(third->status.code(), absl::StatusCode::kInvalidArgument) << third->status;
  const auto fourth = Fetch(WithoutDestination());
  AnswerInside('3');
  EXPECT_EQ(ValueOf(fourth), "3");
}

// One answer comes before the step's end, and the other crosses it.
TEST_F(InsideDeviceFetcherTest, WhatNobodyFetchedGoesWithItsStep) {
  channel_.aborts = false;
  for (const bool before : {true, false}) {
    const auto first = Fetch(WithoutDestination());
    FailAllocations(true);
    if (before) AnswerInside('1');
    fetcher_->AbortStep(1, absl::AbortedError("the step is over"));
    poller_.Turn();
    if (!before) AnswerInside('1');
    EXPECT_TRUE(first->ended == 1 && !first->status.ok()) << first->status;
    FailAllocations(false);
    const auto second = Fetch(WithoutDestination());
    AnswerInside('2');
    EXPECT_EQ(ValueOf(second), "2");
  }
}

TEST_F(DeviceFetcherTest, APeersSegmentIsReachedToItsLastByte) {
  const auto segments = std::make_shared<PeerSegments>();
  DeviceEngineOptions options;
  options.slot_bytes = 4096;
  options.arena = Arena::Make(ArenaOptions());
  options.arena->SetPeerWatcher(segments);
  const auto engine = DeviceEngine::Open(&poller_, gpu_.get(), options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::vector<char> memory(8192);
  char* const at = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(&memory[4095])) & ~4095);
  segments->OnMapped(at, 4096);
  EXPECT_TRUE((*engine)->ReadsPeer(at + 96, 4000)) << segments->refusal();
  EXPECT_FALSE((*engine)->ReadsPeer(at + 97, 4000));
  segments->OnUnmapping(at);
}

TEST_F(DeviceFetcherTest, ASlotInSharedMemorySaysWhereItLies) {
  const auto arena = Arena::Make(ArenaOptions());
  const auto pool = StagingPool::CreateShared(gpu_.get(), 4096, 2, arena.get());
  ASSERT_TRUE(pool.ok()) << pool.status();
  const StorageRef slots[2] = {(*pool)->Take(), (*pool)->Take()};
  for (const StorageRef& slot : slots) {
    ASSERT_TRUE(slot);
    const MemorySpace space = arena->SpaceOf(slot->data());
    EXPECT_EQ(slot->space().segment_id, space.segment_id);
    EXPECT_EQ(slot->space().segment_offset, space.segment_offset);
  }
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

// Every life of a peer is another process.
class ManyPeersDeviceFetcherTest : public DeviceFetcherTest {
 protected:
  static DeviceManifest InProcess(uint64_t number) {
    DeviceManifest manifest = InAnotherProcess();
    manifest.process = number;
    return manifest;
  }
  // Fetches "x" from a process; whether its memory is to be proved first.
  bool FetchIsProbed(uint64_t process) {
    FetchUntilTheProbe(RecvArgs(), "x", InProcess(process));
    const bool probed = Asked(std::string("x") + kProbe);
    if (probed) {
      channel_.Answer(std::string("x") + kProbe, absl::UnimplementedError("no GPU"));
      poller_.Turn();
    }
    channel_.Answer("x|device|7|chunk|0", absl::UnavailableError("nor this"));
    poller_.Turn();
    channel_.Answer("x|device|7|back", absl::OkStatus());
    poller_.Turn();
    return probed;
  }
  void RefuseAll(uint64_t first, uint64_t behind) {
    for (uint64_t process = first; process < behind; ++process) {
      ASSERT_TRUE(FetchIsProbed(process)) << process;
    }
  }
};

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
  DeviceManifest probe = InAnotherProcess();
  probe.address = memory_.address();
  probe.reference = producer.Export(*ours);
  uint8_t bytes[kBytes];
  LoadFakeCuda()->peek(memory_.address(), bytes, kBytes);
  probe.digest = Crc32c(0, bytes, kBytes) ^ 1;
  AnswerWith(kProbe, probe);
  TurnUntilAsked("a|device|7|chunk|0");  // It is staged.
  EXPECT_NE(fetcher_->Explain().find("a test of reading its GPU memory got wrong bytes"),
            std::string::npos)
      << fetcher_->Explain();
}

// A manifest is copied out of the answer, and strings are no bytes in a row.
TEST_F(DeviceFetcherTest, AProbeThatIsAnsweredWithWhatTheCpuCannotReadProvesNothing) {
  const Tensor strings = *Tensor::FromStrings({std::string(300, 'x')}, {1});
  const Tensor on_device =
      *Tensor::Adopt(memory_.data(), DType::kUint8, {int64_t{DeviceManifest::kBytes}},
                     MemorySpace{MemorySpace::Kind::kDevice, 0}, nullptr);
  for (const Tensor& answer : {strings, on_device}) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeManifest(answer).status()));
    DeviceManifest manifest = InAnotherProcess();
    manifest.process += answer.on_host() ? 0 : 1;
    const std::string edge = answer.on_host() ? "a" : "b";
    FetchUntilTheProbe(RecvArgs(), edge.c_str(), manifest);
    channel_.Answer(edge + kProbe, absl::OkStatus(), answer);
    poller_.Turn();
    TurnUntilAsked(edge + "|device|7|chunk|0");  // It is staged.
    channel_.Answer(edge + "|device|7|chunk|0", absl::UnavailableError("nor this"));
    poller_.Turn();
  }
  EXPECT_EQ(ended_, 2);
  EXPECT_NE(fetcher_->Explain().find("its answer does not describe a GPU's tensor"),
            std::string::npos)
      << fetcher_->Explain();
}

TEST_F(ManyPeersDeviceFetcherTest, AProcessIsProvedHoweverManyThereWereBefore) {
  SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});  // One line for each.
  RefuseAll(1, ProvedWays::kMost + 1);
  EXPECT_FALSE(FetchIsProbed(1)) << "it is known";
  const auto ours = engine_->exporter()->Export(memory_.address(), kBytes);
  ASSERT_TRUE(ours.ok()) << ours.status();
  const Heir producer;
  DeviceManifest manifest = InProcess(1'000'000);
  manifest.address = memory_.address();
  manifest.reference = producer.Export(*ours);
  uint8_t bytes[kBytes];
  LoadFakeCuda()->peek(memory_.address(), bytes, kBytes);
  manifest.digest = Crc32c(0, bytes, kBytes);
  FetchUntilTheProbe(RecvArgs(), "a", manifest);
  AnswerWith(std::string("a") + kProbe, manifest);
  // The pretended device goes on when it is called, and has a mark of each fetch on its way.
  const int before = ended_;
  for (int i = 0; i < 1'000'000 && ended_ == before; ++i) poller_.Turn();
  SetLogSink(nullptr);
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(fetcher_->counters().ipc, 1u);
  EXPECT_FALSE(FetchIsProbed(1)) << "it was used later than others";
  EXPECT_FALSE(FetchIsProbed(3));
  EXPECT_TRUE(FetchIsProbed(2)) << "it made room, as it was not used for longest";
}

TEST_F(ManyPeersDeviceFetcherTest, AProcessThatIsBeingProvedMakesNoRoom) {
  SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});
  FetchUntilTheProbe(RecvArgs(), "a", InProcess(1));
  RefuseAll(2, ProvedWays::kMost + 1);
  RefuseAll(1'000'000, 1'000'003);
  FetchUntilTheProbe(RecvArgs(), "b", InProcess(1));
  EXPECT_FALSE(Asked(std::string("b") + kProbe)) << "both wait for one proof";
  channel_.Answer(std::string("a") + kProbe, absl::UnimplementedError("no GPU"));
  poller_.Turn();
  EXPECT_TRUE(Asked("a|device|7|chunk|0"));
  EXPECT_TRUE(Asked("b|device|7|chunk|0"));
  RefuseAll(2'000'000, 2'000'000 + ProvedWays::kMost);
  EXPECT_TRUE(FetchIsProbed(1)) << "its proof is over";
  SetLogSink(nullptr);
}

TEST_F(ManyPeersDeviceFetcherTest, WhereAllAreBeingProvedAnotherOneIsStaged) {
  SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});
  for (uint64_t process = 1; process <= ProvedWays::kMost; ++process) {
    FetchUntilTheProbe(RecvArgs(), absl::StrCat("a", process).c_str(), InProcess(process));
  }
  EXPECT_FALSE(FetchIsProbed(1'000'000));
  EXPECT_TRUE(Asked(std::string("a1") + kProbe));
  while (!channel_.waiting.empty()) {
    channel_.Answer("", absl::UnavailableError("over"));
    poller_.Turn();
  }
  EXPECT_TRUE(FetchIsProbed(1'000'000));
  SetLogSink(nullptr);
}

class ViewedDeviceFetcherTest : public DeviceFetcherTest {
 protected:
  // Fetches "a" by reference, out of the memory of another process.
  void FetchView() {
    const auto ours = engine_->exporter()->Export(memory_.address(), kBytes);
    ASSERT_TRUE(ours.ok()) << ours.status();
    DeviceManifest manifest = InAnotherProcess();
    manifest.address = memory_.address();
    manifest.reference = producer_.emplace().Export(*ours);
    uint8_t bytes[kBytes];
    LoadFakeCuda()->peek(memory_.address(), bytes, kBytes);
    manifest.digest = Crc32c(0, bytes, kBytes);
    RecvArgs args;
    args.by_reference = true;
    args.device_context = *GpuContext::Make(engine_.get(), nullptr);
    fetcher_->Fetch(1, Key("a"), args, [this](Received&& received) {
      ++ended_;
      status_ = std::move(received.status);
      tensor_ = std::move(received.tensor);
    });
    poller_.Turn();
    ASSERT_EQ(channel_.waiting.size(), 1u);
    AnswerWith(channel_.waiting.begin()->first, manifest);
    AnswerWith(kProbe, manifest);
    for (int i = 0; i < 1000 && ended_ == 0; ++i) {
      poller_.Turn();
      usleep(1000);
    }
    ASSERT_EQ(ended_, 1);
    ASSERT_TRUE(status_.ok()) << status_ << fetcher_->Explain();
    EXPECT_EQ(fetcher_->counters().views, 1u);
  }

  std::optional<Heir> producer_;
};

// The producer keeps the memory until it hears of it.
TEST_F(ViewedDeviceFetcherTest, WhoDropsAViewTellsItsProducer) {
  FetchView();
  EXPECT_FALSE(Asked("a|device|7|done"));
  tensor_ = Tensor();
  TurnUntilAsked("a|device|7|done");
}

// All that a user can still be told of a tensor that he has.
TEST_F(ViewedDeviceFetcherTest, AViewThatItsProducerNoLongerKeepsIsLogged) {
  static std::string errors;  // A sink is a plain function.
  FetchView();
  SetLogSink([](LogSeverity severity, const char*, int, absl::string_view text) {
    if (severity == LogSeverity::kError) absl::StrAppend(&errors, text, "\n");
  });
  for (const bool kept : {true, false}) {
    EXPECT_FALSE(Asked("a|device|7|alive"));
    clock_.now_ns += DeviceFetcherOptions().view_renewal_ms * 1'000'000;
    poller_.Turn();
    ASSERT_TRUE(Asked("a|device|7|alive"));
    channel_.Answer("|alive", kept ? absl::OkStatus() : absl::AbortedError("it has ended"));
    EXPECT_EQ(errors.empty(), kept) << errors;
  }
  SetLogSink(nullptr);
  EXPECT_TRUE(absl::StrContains(errors, Key("a").text())) << errors;
  EXPECT_TRUE(absl::StrContains(errors, "it has ended")) << errors;
  tensor_ = Tensor();
  TurnUntilAsked("a|device|7|done");
}

// Copies that follow each other so closely that the next is expected.
class StandbyDeviceFetcherTest : public DeviceFetcherTest {
 protected:
  static constexpr uint64_t kWide = Standby::kMostBytes + 1;

  void SetUp() override {
    DeviceFetcherTest::SetUp();
    from_ = *DeviceMemory::Allocate(gpu_.get(), kWide);
    into_ = *DeviceMemory::Allocate(gpu_.get(), kWide);
    asked_ = *gpu_->MakeStream();
  }
  void TearDown() override {
    for (int turn = 0; turn < 100'000 && done_ < begun_; ++turn) poller_.Turn();
    EXPECT_EQ(done_, begun_);
    DeviceFetcherTest::TearDown();
  }
  // Whether a kernel that stands by takes it.
  bool Copy(uint64_t bytes) {
    ++begun_;
    const bool stood = engine_->CopySmall(reinterpret_cast<void*>(into_.address()),
                                          reinterpret_cast<const void*>(from_.address()), bytes,
                                          nullptr, nullptr, [this](absl::Status) { ++done_; });
    poller_.Turn();
    // The pretended device goes on when it is called: the copy may end, and the kernel begins.
    for (int i = 0; i < 8; ++i) (void)gpu_->IsIdle(asked_.get());
    return stood;
  }
  bool StandsBy(uint64_t bytes) {
    for (int i = 0; i < 20; ++i) {
      if (Copy(bytes)) return true;
    }
    return false;
  }

  DeviceMemory from_;
  DeviceMemory into_;
  GpuStream asked_;
  int begun_ = 0;
  int done_ = 0;
};

TEST_F(StandbyDeviceFetcherTest, BlocksStandByForTheWiderCopiesToo) {
  EXPECT_TRUE(StandsBy(kWide));
}

TEST_F(StandbyDeviceFetcherTest, OneBlockAloneStandsByForWhatItTakes) {
  EXPECT_TRUE(StandsBy(kWide - 1));
  EXPECT_FALSE(Copy(kWide));
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
