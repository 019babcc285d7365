// What ends a fetch while its bytes are on their way: whoever is told of an end may use the
// destination, so nothing is told while the GPU may still write there.
#include <sys/resource.h>

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "channel/device/chunk_mail.h"
#include "channel/device/device_engine.h"
#include "channel/device/device_fetcher.h"
#include "gtest/gtest.h"
#include "rendezvous/cancellation.h"
#include "rendezvous/device_handover.h"
#include "tests/doubles/cuda/expandable_range.h"
#include "tests/doubles/cuda/fake_cuda.h"

namespace tryst {
namespace {

constexpr int64_t kBytes = 100'000;

class FixedClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns; }
  int64_t now_ns = 1'000'000'000;
};

// A channel that answers when the test says so.
class HeldFetcher final : public TensorFetcher {
 public:
  void Fetch(int64_t, const TensorKey& key, const RecvArgs&, FetchedFn&& done) override {
    waiting.emplace_back(std::string(key.edge()), std::move(done));
  }
  void FetchMany(int64_t, absl::Span<const TensorKey>, const RecvArgs&, ManyFetchedFn) override {}
  void AbortStep(int64_t, const absl::Status&) override {}
  // The edge of the first one asked for that has `part` in it; empty: nobody asked.
  std::string Asked(const std::string& part) const {
    for (const auto& [edge, done] : waiting) {
      if (absl::StrContains(edge, part)) return edge;
    }
    return "";
  }
  void Answer(const std::string& part, absl::Status status, const Tensor& tensor = Tensor()) {
    for (auto at = waiting.begin(); at != waiting.end(); ++at) {
      if (!absl::StrContains(at->first, part)) continue;
      FetchedFn done = std::move(at->second);
      waiting.erase(at);
      return std::move(done)({std::move(status), tensor, !tensor.valid()});
    }
    ADD_FAILURE() << "nobody asked for " << part;
  }
  std::vector<std::pair<std::string, FetchedFn>> waiting;
};

enum class How { kInPlace, kChunks, kStaged, kInside };
enum class What { kCancel, kAbort, kDeadline };

class CopyUnderWayTest : public ::testing::TestWithParam<std::tuple<How, What>> {
 protected:
  void SetUp() override {
    fake_ = LoadFakeCuda();
    ASSERT_NE(fake_, nullptr);
    driver_ = *CudaDriver::Load("tests/doubles/cuda/libfake_cuda.so");
    gpu_ = *Gpu::Open(driver_.get(), 0);
    other_ = *Gpu::Open(driver_.get(), 1);
    engine_ = *DeviceEngine::Open(&poller_, gpu_.get(), DeviceEngineOptions());
    engine_->Attach();
    fetcher_ = std::make_unique<DeviceFetcher>(&poller_, &channel_, DeviceFetcherOptions());
    into_ = *DeviceMemory::Allocate(gpu_.get(), kBytes);
    plain_ = *DeviceMemory::Allocate(other_.get(), kBytes);
    theirs_ = std::make_unique<ExpandableRange>(other_.get(), 1, 4);
    theirs_->Map(0, 4);
  }
  void TearDown() override {
    fake_->hold(false);
    for (int i = 0; i < 200 && !(channel_.waiting.empty() && fetcher_->Drained()); ++i) {
      if (!channel_.waiting.empty()) channel_.Answer("", absl::UnavailableError("over"));
      poller_.Turn();
    }
    EXPECT_TRUE(fetcher_->Drained());
    engine_->Detach();
    fetcher_.reset();
    engine_.reset();
    theirs_.reset();
    EXPECT_STREQ(fake_->complaints(), "");
  }

  void Turns(int count) {
    for (int i = 0; i < count; ++i) poller_.Turn();
  }
  static Tensor Bytes(int64_t count) { return *Tensor::Allocate(DType::kUint8, {count}); }

  static TensorKey Key(const std::string& edge) {
    return TensorKeyPrefix::Make("/job:worker/replica:0/task:1/device:GPU:0", 1,
                                 "/job:worker/replica:0/task:0/device:GPU:0", edge)
        ->At(0, 0);
  }
  void Start() {
    RecvArgs args;
    args.destination = *Tensor::Adopt(into_.data(), DType::kUint8, {kBytes},
                                      MemorySpace{MemorySpace::Kind::kDevice, 0}, nullptr);
    args.device_context = *GpuContext::Make(engine_.get(), nullptr);
    args.cancellation = &cancellation_;
    args.deadline = Deadline::AtNs(clock_.now_ns + 1'000'000'000);
    fetcher_->Fetch(1, Key("t"), args, [this](Received&& received) {
      ++ended_;
      status_ = std::move(received.status);
    });
    Turns(1);
  }
  void AnswerManifest(How how, const std::string& asked = "|into|", const char* edge = "t") {
    DeviceManifest manifest;
    manifest.dtype = DType::kUint8;
    manifest.shape = {kBytes};
    manifest.bytes = kBytes;
    manifest.chunk_bytes = DeviceEngineOptions().slot_bytes;
    manifest.transfer = how == How::kInside ? 0 : 7;
    manifest.host = ThisHost();
    manifest.process = ThisProcess();
    manifest.ordinal = 1;
    manifest.address = how == How::kInPlace ? plain_.address() : theirs_->At(0) + 5;
    manifest.inside = how == How::kInside;
    manifest.has_ipc = how == How::kInPlace;
    manifest.has_chunks = how == How::kChunks;
    if (manifest.has_ipc || manifest.has_chunks) {
      manifest.reference = *exporter()->Export(manifest.address, kBytes);
      manifest.forgotten = IpcExporter::forgotten();
      ProveProcess(Key(edge), &manifest);
    }
    auto answer = Bytes(DeviceManifest::kBytes + (manifest.inside ? kBytes : 0));
    EncodeManifest(manifest, static_cast<uint8_t*>(answer.mutable_data()));
    rlimit files;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
    const rlimit lowered = {no_descriptor_is_left_ ? 0 : files.rlim_cur, files.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &lowered), 0);
    channel_.Answer(asked, absl::OkStatus(), answer);
    Turns(1);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  }
  IpcExporter* exporter() {
    if (exporter_ == nullptr) exporter_ = std::make_unique<IpcExporter>(other_.get());
    return exporter_.get();
  }
  // As the producer does.
  void HandOnChunks() {
    const std::vector<std::string> asked = absl::StrSplit(channel_.Asked("|chunks|"), '|');
    ASSERT_EQ(asked.size(), 7u);
    const ChunkLayout layout = **exporter()->chunks()->Describe(theirs_->At(0) + 5, kBytes);
    std::vector<OfferedChunk> offered;
    cuda::Address at = layout.base;
    for (const MemoryChunk& chunk : layout.chunks) {
      offered.push_back({chunk, *exporter()->chunks()->Export(at)});
      at += chunk.bytes;
    }
    ASSERT_TRUE(SendChunks(asked[5], asked[6], layout.id, 0, offered).ok());
    channel_.Answer("|chunks|", absl::OkStatus());
    Turns(1);
  }

  FixedClock clock_;
  Poller poller_{&clock_};
  HeldFetcher channel_;
  Cancellation cancellation_;
  const FakeCudaControl* fake_ = nullptr;
  std::unique_ptr<CudaDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<Gpu> other_;
  std::unique_ptr<ExpandableRange> theirs_;
  std::unique_ptr<IpcExporter> exporter_;
  std::unique_ptr<DeviceEngine> engine_;
  DeviceMemory into_;
  DeviceMemory plain_;
  std::unique_ptr<DeviceFetcher> fetcher_;
  bool no_descriptor_is_left_ = false;
  int ended_ = 0;
  absl::Status status_;
};

TEST_P(CopyUnderWayTest, NobodyIsToldBeforeTheCopyHasEnded) {
  const auto [how, what] = GetParam();
  Start();
  fake_->hold(true);
  AnswerManifest(how);
  if (how == How::kChunks) HandOnChunks();
  if (how == How::kStaged) {
    channel_.Answer("|chunk|0", absl::OkStatus(), Bytes(kBytes));
    Turns(1);
  }
  ASSERT_GT(engine_->copier()->outstanding(), 0u) << "a copy is to be under way";
  switch (what) {
    case What::kCancel:
      cancellation_.StartCancel();
      break;
    case What::kAbort:
      fetcher_->AbortStep(1, absl::AbortedError("the step was aborted"));
      break;
    case What::kDeadline:
      clock_.now_ns += 2'000'000'000;
      break;
  }
  Turns(20);
  EXPECT_EQ(ended_, 0) << "the GPU may still write there: " << status_;
  EXPECT_EQ(channel_.Asked("|done") + channel_.Asked("|back"), "") << "and read over there";
  fake_->hold(false);
  Turns(200);
  ASSERT_EQ(ended_, 1);
  // What is all on its way when the deadline passes, or lay in the message, has come.
  const bool came = what == What::kDeadline || (how == How::kInside && what == What::kCancel);
  if (came) {
    EXPECT_TRUE(status_.ok()) << status_;
  } else {
    EXPECT_EQ(status_.code(),
              what == What::kAbort ? absl::StatusCode::kAborted : absl::StatusCode::kCancelled)
        << status_;
  }
  if (how != How::kInside) {
    EXPECT_NE(channel_.Asked(came ? "|device|7|done" : "|device|7|back"), "");
  }
}

INSTANTIATE_TEST_SUITE_P(
    , CopyUnderWayTest,
    ::testing::Combine(::testing::Values(How::kInPlace, How::kChunks, How::kStaged, How::kInside),
                       ::testing::Values(What::kCancel, What::kAbort, What::kDeadline)));

class ChunksAskedForTest : public CopyUnderWayTest {};

// The fetch is cancelled before the descriptors of the chunks have come.
TEST_P(ChunksAskedForTest, WhoIsCancelledGivesTheTensorBack) {
  Start();
  AnswerManifest(How::kChunks);
  ASSERT_NE(channel_.Asked("|chunks|0|"), "");
  cancellation_.StartCancel();
  Turns(1);
  channel_.Answer("|chunks|", absl::CancelledError("as asked"));
  Turns(2);
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kCancelled);
  EXPECT_NE(channel_.Asked("|device|7|back"), "");
}

// What a mapping holds of freed memory goes at once: here, and where others have it mapped.
TEST_P(ChunksAskedForTest, WhatIsMappedGoesWhenEitherEndSaysSo) {
  const auto fetch = [this] {
    Start();
    AnswerManifest(How::kChunks);
    const bool asked = !channel_.Asked("|chunks|0|").empty();
    if (asked) HandOnChunks();
    const int ended = ended_;
    for (int i = 0; i < 1000 && ended_ == ended; ++i) {
      Turns(1);
      if (!channel_.Asked("|done").empty()) channel_.Answer("|done", absl::OkStatus());
    }
    EXPECT_TRUE(status_.ok()) << status_;
    return asked;
  };
  EXPECT_TRUE(fetch());
  EXPECT_FALSE(fetch()) << "it is mapped";
  EXPECT_EQ(engine_->mappings()->mapped(), 1u);
  const int unmapped = fake_->calls("cuMemUnmap");
  size_t released = 0;
  std::atomic<bool> over{false};
  std::thread caller([&] {
    released = engine_->ReleaseMappings();
    over = true;
  });
  while (!over) Turns(1);
  caller.join();
  EXPECT_EQ(released, 1u);
  EXPECT_EQ(engine_->mappings()->mapped(), 0u);
  EXPECT_GT(fake_->calls("cuMemUnmap"), unmapped);
  EXPECT_TRUE(fetch());
  EXPECT_FALSE(fetch());
  exporter()->Forget();
  EXPECT_TRUE(fetch()) << "the producer has given memory back";
  EXPECT_EQ(engine_->mappings()->mapped(), 1u);
  EXPECT_FALSE(fetch()) << "once";
}

// The poller is in a callback of its user's, say, that waits for this very thread.
TEST_P(ChunksAskedForTest, APollerThatDoesNotAnswerIsNotWaitedForForEver) {
  std::thread caller([&] { EXPECT_EQ(engine_->ReleaseMappings(), 0u); });
  caller.join();
  Turns(1);  // It comes too late, and does nothing.
}

TEST_P(ChunksAskedForTest, WhatDoesNotComeIsStagedAndExplained) {
  Start();
  AnswerManifest(How::kChunks);
  channel_.Answer("|chunks|", absl::OkStatus());  // And nothing in the mailbox.
  Turns(1);
  EXPECT_NE(channel_.Asked("|chunk|0"), "");
  EXPECT_TRUE(absl::StrContains(fetcher_->Explain(),
                                "has not sent the file descriptors of its GPU's memory"))
      << fetcher_->Explain();
  channel_.Answer("|chunk|0", absl::OkStatus(), Bytes(kBytes));
  Turns(200);
  EXPECT_EQ(ended_, 1);
  EXPECT_TRUE(status_.ok()) << status_;
}

TEST_P(ChunksAskedForTest, WhoHasNoDescriptorLeftForAMailboxIsStaged) {
  Start();
  no_descriptor_is_left_ = true;
  AnswerManifest(How::kChunks);
  EXPECT_NE(channel_.Asked("|chunk|0"), "");
  EXPECT_TRUE(absl::StrContains(fetcher_->Explain(), "cannot open a local socket"))
      << fetcher_->Explain();
}

TEST_P(ChunksAskedForTest, AProducerThatNoLongerKeepsTheTensorEndsTheFetch) {
  Start();
  AnswerManifest(How::kChunks);
  channel_.Answer("|chunks|", absl::AbortedError("the tensor is no longer kept"));
  Turns(2);
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kAborted);
}

TEST_P(ChunksAskedForTest, StrangersInTheMailboxArePassedOver) {
  Start();
  AnswerManifest(How::kChunks);
  const std::vector<std::string> asked = absl::StrSplit(channel_.Asked("|chunks|"), '|');
  ASSERT_EQ(asked.size(), 7u);
  std::vector<OfferedChunk> theirs;
  theirs.push_back({{1, 65536}, *exporter()->chunks()->Export(theirs_->At(3))});
  // All is right but the token, then all but the layout.
  const uint64_t layout = (**exporter()->chunks()->Describe(theirs_->At(0) + 5, kBytes)).id;
  EXPECT_TRUE(SendChunks(asked[5], std::string(32, '0'), layout, 0, theirs).ok());
  EXPECT_TRUE(SendChunks(asked[5], asked[6], layout + 1, 0, theirs).ok());
  EXPECT_TRUE(absl::IsUnimplemented(SendChunks(std::string(32, 'a'), asked[6], 1, 0, theirs)));
  EXPECT_TRUE(absl::IsInvalidArgument(SendChunks("short", asked[6], 1, 0, theirs)));
  HandOnChunks();
  Turns(200);
  EXPECT_EQ(ended_, 1);
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(fetcher_->counters().in_chunks, 1u);
}

INSTANTIATE_TEST_SUITE_P(, ChunksAskedForTest,
                         ::testing::Values(std::make_tuple(How::kChunks, What::kCancel)));

// What a fetch may be told and where it may wait, beside the copies.
class OddFetchTest : public CopyUnderWayTest {
 protected:
  struct Got {
    int ended = 0;
    absl::Status status;
    Tensor tensor;
  };
  std::shared_ptr<Got> Fetch(const std::string& edge, Cancellation* cancellation, Deadline deadline,
                             bool has_destination = true, bool by_reference = false) {
    auto got = std::make_shared<Got>();
    auto prefix = TensorKeyPrefix::Make("/job:worker/replica:0/task:1/device:GPU:0", 1,
                                        "/job:worker/replica:0/task:0/device:GPU:0", edge);
    RecvArgs args;
    if (has_destination) {
      args.destination = *Tensor::Adopt(into_.data(), DType::kUint8, {kBytes},
                                        MemorySpace{MemorySpace::Kind::kDevice, 0}, nullptr);
    }
    args.by_reference = by_reference;
    args.device_context = *GpuContext::Make(engine_.get(), nullptr);
    args.cancellation = cancellation;
    args.deadline = deadline;
    fetcher_->Fetch(1, prefix->At(0, 0), args, [got](Received&& received) {
      ++got->ended;
      got->status = std::move(received.status);
      got->tensor = std::move(received.tensor);
    });
    Turns(1);
    return got;
  }
  Deadline InOneSecond() const { return Deadline::AtNs(clock_.now_ns + 1'000'000'000); }
  static DeviceManifest Staged(int64_t bytes) {
    DeviceManifest manifest;
    manifest.dtype = DType::kUint8;
    manifest.shape = {bytes};
    manifest.bytes = static_cast<uint64_t>(bytes);
    manifest.chunk_bytes = DeviceEngineOptions().slot_bytes;
    manifest.transfer = 7;
    return manifest;
  }
  DeviceManifest InThisProcess() {
    DeviceManifest manifest = Staged(kBytes);
    manifest.host = ThisHost();
    manifest.process = ThisProcess();
    manifest.ordinal = 1;
    manifest.has_ipc = true;
    manifest.address = plain_.address();
    manifest.reference = *exporter()->Export(manifest.address, kBytes);
    manifest.forgotten = IpcExporter::forgotten();
    return manifest;
  }
  void AnswerWith(const std::string& asked, const DeviceManifest& manifest, int64_t more = 0) {
    Tensor answer = Bytes(DeviceManifest::kBytes + more);
    EncodeManifest(manifest, static_cast<uint8_t*>(answer.mutable_data()));
    channel_.Answer(asked, absl::OkStatus(), answer);
    Turns(1);
  }
  void PassSeconds(int seconds) {
    clock_.now_ns += seconds * int64_t{1'000'000'000};
    Turns(2);
  }
};

TEST_P(OddFetchTest, MoreBytesInsideThanASlotHoldsAreRefused) {
  const auto got = Fetch("t", nullptr, Deadline::Never(), /*has_destination=*/false);
  const auto bytes = static_cast<int64_t>(engine_->slot_bytes() + 1);
  DeviceManifest manifest = Staged(bytes);
  manifest.inside = true;
  manifest.transfer = 0;
  AnswerWith("|device|", manifest, bytes);
  Turns(100);
  EXPECT_EQ(got->ended, 1);
  EXPECT_EQ(got->status.code(), absl::StatusCode::kDataLoss) << got->status;
}

TEST_P(OddFetchTest, ATensorOfNoBytesNeedsNoChunk) {
  const auto got = Fetch("t", nullptr, InOneSecond(), /*has_destination=*/false);
  AnswerWith("|device|", Staged(0));
  Turns(10);
  EXPECT_EQ(got->ended, 1);
  EXPECT_TRUE(got->status.ok()) << got->status;
}

// The first waits so long for its stream that the producer may have let go. It is cancelled; the
// next must not get what lies there now.
TEST_P(OddFetchTest, ATensorIsHandedOnOnlyIfItIsStillKept) {
  const auto first = Fetch("t", &cancellation_, Deadline::Never());
  fake_->hold(true);
  AnswerManifest(How::kInPlace);
  const auto second = Fetch("t", nullptr, Deadline::Never());
  cancellation_.StartCancel();
  PassSeconds(70);
  fake_->hold(false);
  Turns(100);
  EXPECT_EQ(first->ended, 0) << "it asks whether the tensor is kept";
  channel_.Answer("|device|7|alive", absl::AbortedError("the tensor is no longer kept"));
  Turns(100);
  EXPECT_EQ(first->status.code(), absl::StatusCode::kCancelled) << first->status;
  EXPECT_EQ(second->ended, 0);
  channel_.Answer("|device|7|back", absl::OkStatus());
  Turns(2);
  EXPECT_NE(channel_.Asked("|into|"), "") << "the second asks for itself";
}

// The answer that it is kept begins a new lease, also for the next.
TEST_P(OddFetchTest, ATensorThatIsStillKeptIsHandedOnWithItsNewLease) {
  const auto first = Fetch("t", &cancellation_, Deadline::Never());
  fake_->hold(true);
  AnswerManifest(How::kInPlace);
  const auto second = Fetch("t", nullptr, Deadline::Never());
  cancellation_.StartCancel();
  PassSeconds(70);
  fake_->hold(false);
  Turns(100);
  channel_.Answer("|device|7|alive", absl::OkStatus());
  Turns(100);
  EXPECT_EQ(first->status.code(), absl::StatusCode::kCancelled) << first->status;
  EXPECT_EQ(channel_.Asked("|alive") + channel_.Asked("|back"), "") << "it was just answered";
  EXPECT_EQ(second->ended, 1);
  EXPECT_TRUE(second->status.ok()) << second->status;
}

TEST_P(OddFetchTest, ATensorThatIsNotAsTheDestinationIsRefused) {
  for (const bool of_another_type : {false, true}) {
    const auto got = Fetch("t", nullptr, Deadline::Never());
    DeviceManifest manifest = Staged(kBytes);
    if (of_another_type) {
      manifest.dtype = DType::kInt8;
    } else {
      manifest.shape = {kBytes, 1};
    }
    AnswerWith("|into|", manifest);
    Turns(10);
    EXPECT_EQ(got->ended, 1);
    EXPECT_EQ(got->status.code(), absl::StatusCode::kInvalidArgument) << got->status;
    channel_.Answer("|device|7|back", absl::OkStatus());
    Turns(2);
  }
}

// What is queued on the stream behind it could otherwise read a tensor of which a part is missing.
TEST_P(OddFetchTest, AReceiveOnAStreamEndsWhenItsLastCopyHasBegun) {
  RecvArgs args;
  args.destination = *Tensor::Adopt(into_.data(), DType::kUint8, {kBytes},
                                    MemorySpace{MemorySpace::Kind::kDevice, 0}, nullptr);
  GpuContext::Options options;
  options.complete_on_stream = true;
  args.device_context = *GpuContext::Make(engine_.get(), nullptr, options);
  int ended = 0;
  fetcher_->Fetch(1, Key("t"), args, [&ended](Received&& received) {
    ++ended;
    EXPECT_TRUE(received.status.ok()) << received.status;
  });
  Turns(1);
  DeviceManifest manifest = Staged(kBytes);
  manifest.chunk_bytes = kBytes / 2;
  AnswerWith("|into|", manifest);
  channel_.Answer("|chunk|0", absl::OkStatus(), Bytes(kBytes / 2));
  Turns(100);
  EXPECT_EQ(ended, 0);
  channel_.Answer("|chunk|1", absl::OkStatus(), Bytes(kBytes / 2));
  Turns(100);
  EXPECT_EQ(ended, 1);
}

// It was to be a view, which ends when its user lets go of it; a copy ends now.
TEST_P(OddFetchTest, WhatCannotBeAViewIsCopiedAndDone) {
  const auto got = Fetch("t", nullptr, Deadline::Never(), /*has_destination=*/false,
                         /*by_reference=*/true);
  DeviceManifest manifest = InThisProcess();
  manifest.process = 12345;
  AnswerWith("|device|", manifest);
  channel_.Answer("|device|0|probe", absl::UnavailableError("no probe"));
  Turns(1);
  channel_.Answer("|device|7|chunk|0", absl::OkStatus(), Bytes(kBytes));
  Turns(200);
  EXPECT_EQ(got->ended, 1);
  EXPECT_TRUE(got->status.ok()) << got->status;
  EXPECT_NE(channel_.Asked("|device|7|done"), "");
}

TEST_P(OddFetchTest, ALeaseCountsFromWhenItWasAskedFor) {
  const auto got = Fetch("t", nullptr, Deadline::Never());
  PassSeconds(30);
  AnswerManifest(How::kInPlace);
  Turns(100);
  EXPECT_EQ(got->ended, 0);
  channel_.Answer("|device|7|alive", absl::OkStatus());
  Turns(2);
  EXPECT_EQ(got->ended, 1);
  EXPECT_TRUE(got->status.ok()) << got->status;
}

TEST_P(OddFetchTest, WhoWaitsForASlotEndsInTime) {
  fake_->hold(true);
  for (uint32_t i = 0; i < DeviceEngineOptions().fetch_slots; ++i) {
    const std::string edge = absl::StrCat("k", i, "_");
    Fetch(edge, nullptr, Deadline::Never());
    AnswerWith(absl::StrCat(edge, "|device|"), Staged(kBytes));
    channel_.Answer(absl::StrCat(edge, "|device|7|chunk|0"), absl::OkStatus(), Bytes(kBytes));
    Turns(1);
  }
  const auto late = Fetch("late_", nullptr, InOneSecond());
  AnswerWith("late_|device|", Staged(kBytes));
  const auto cancelled = Fetch("cancelled_", &cancellation_, Deadline::Never());
  AnswerWith("cancelled_|device|", Staged(kBytes));
  Turns(2);
  EXPECT_EQ(channel_.Asked("late_") + channel_.Asked("cancelled_"), "") << "they wait for slots";
  EXPECT_EQ(late->ended + cancelled->ended, 0);
  PassSeconds(2);
  EXPECT_EQ(late->ended, 1);
  EXPECT_EQ(late->status.code(), absl::StatusCode::kDeadlineExceeded) << late->status;
  EXPECT_TRUE(absl::StrContains(late->status.message(), "staging slot")) << late->status;
  cancellation_.StartCancel();
  Turns(2);
  EXPECT_EQ(cancelled->ended, 1);
  EXPECT_EQ(cancelled->status.code(), absl::StatusCode::kCancelled);
  fake_->hold(false);
  Turns(500);
}

TEST_P(OddFetchTest, AStreamThatCapturesAGraphHasNoMoment) {
  fake_->capture(true);
  const auto context = GpuContext::Make(engine_.get(), nullptr);
  EXPECT_EQ(context.status().code(), absl::StatusCode::kFailedPrecondition) << context.status();
  fake_->capture(false);
  EXPECT_TRUE(GpuContext::Make(engine_.get(), nullptr).ok());
}

// Who guesses our process's number could otherwise have us read any address, and end our context.
TEST_P(OddFetchTest, AForgedManifestOfThisProcessIsRefused) {
  engine_->AddPeer(1);
  enum class Forgery { kNoProof, kOtherKey, kOtherAddress, kNone };
  for (const auto forgery :
       {Forgery::kNoProof, Forgery::kOtherKey, Forgery::kOtherAddress, Forgery::kNone}) {
    const auto got = Fetch("f", nullptr, Deadline::Never());
    DeviceManifest manifest = InThisProcess();
    if (forgery != Forgery::kNoProof) {
      ProveProcess(Key(forgery == Forgery::kOtherKey ? "g" : "f"), &manifest);
    }
    if (forgery == Forgery::kOtherAddress) manifest.address += 4096;
    AnswerWith("f|device|", manifest);
    Turns(300);
    EXPECT_EQ(got->ended, 1);
    const bool honest = forgery == Forgery::kNone;
    EXPECT_EQ(got->status.code(), honest ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss)
        << static_cast<int>(forgery) << " " << got->status;
    channel_.Answer(honest ? "|device|7|done" : "|device|7|back", absl::OkStatus());
    Turns(2);
  }
}

// It asks whether the tensor is kept, for a view.
TEST_P(OddFetchTest, AViewOfWhatIsGoneOrNotWantedIsNotMade) {
  engine_->AddPeer(1);
  for (const bool cancelled : {false, true}) {
    Cancellation cancellation;
    auto got = std::make_shared<Got>();
    const TensorKey key = TensorKeyPrefix::Make("/job:worker/replica:0/task:1/device:GPU:0", 1,
                                                "/job:worker/replica:0/task:0/device:GPU:0", "v")
                              ->At(0, 0);
    RecvArgs args;
    args.device_context = *GpuContext::Make(engine_.get(), nullptr);
    args.by_reference = true;
    args.cancellation = &cancellation;
    fetcher_->Fetch(1, key, args, [got](Received&& received) {
      ++got->ended;
      got->status = std::move(received.status);
    });
    Turns(1);
    PassSeconds(30);
    DeviceManifest manifest = InThisProcess();
    ProveProcess(key, &manifest);
    AnswerWith("v|device|", manifest);
    ASSERT_NE(channel_.Asked("|device|7|alive"), "");
    if (cancelled) cancellation.StartCancel();
    Turns(2);
    channel_.Answer("|device|7|alive", cancelled ? absl::OkStatus() : absl::AbortedError("gone"));
    Turns(2);
    EXPECT_EQ(got->ended, 1);
    EXPECT_FALSE(got->status.ok());
    EXPECT_EQ(fetcher_->counters().views, 0u);
    EXPECT_EQ(channel_.Asked("|done"), "") << "the next in line may be reading it";
    channel_.Answer("|device|7|back", absl::OkStatus());
    Turns(2);
  }
}

// A fetch that ends while it asks whether the tensor is kept leaves its mapping to others.
TEST_P(OddFetchTest, AViewThatIsNotMadeUsesNoMapping) {
  Start();
  AnswerManifest(How::kChunks);
  HandOnChunks();
  Turns(200);
  ASSERT_EQ(ended_, 1);
  ASSERT_TRUE(status_.ok()) << status_;
  channel_.Answer("|done", absl::OkStatus());
  for (const bool cancelled : {false, true}) {
    ASSERT_EQ(engine_->mappings()->mapped(), 1u);
    Cancellation cancellation;
    const auto got = Fetch("view", &cancellation, Deadline::Never(), /*has_destination=*/false,
                           /*by_reference=*/true);
    PassSeconds(30);
    AnswerManifest(How::kChunks, "view|device|", "view");
    ASSERT_NE(channel_.Asked("|device|7|alive"), "") << "it is mapped, and may be gone";
    EXPECT_EQ(engine_->mappings()->ForgetAll(), 0u) << "the fetch uses the mapping";
    if (cancelled) cancellation.StartCancel();
    Turns(2);
    channel_.Answer("|device|7|alive", cancelled ? absl::OkStatus() : absl::AbortedError("gone"));
    Turns(2);
    EXPECT_EQ(got->ended, 1);
    EXPECT_FALSE(got->status.ok());
    channel_.Answer("|device|7|back", absl::OkStatus());
    Turns(2);
  }
  EXPECT_EQ(engine_->mappings()->ForgetAll(), 1u) << "nobody uses it";
}

TEST_P(OddFetchTest, AViewUsesItsMappingUntilItIsGone) {
  Start();
  AnswerManifest(How::kChunks);
  HandOnChunks();
  Turns(200);
  ASSERT_TRUE(status_.ok()) << status_;
  channel_.Answer("|done", absl::OkStatus());
  const auto got = Fetch("view", nullptr, Deadline::Never(), /*has_destination=*/false,
                         /*by_reference=*/true);
  PassSeconds(30);
  AnswerManifest(How::kChunks, "view|device|", "view");
  channel_.Answer("|device|7|alive", absl::OkStatus());
  Turns(2);
  ASSERT_EQ(got->ended, 1);
  EXPECT_TRUE(got->status.ok()) << got->status;
  EXPECT_EQ(fetcher_->counters().views, 1u);
  EXPECT_EQ(engine_->mappings()->ForgetAll(), 0u);
  got->tensor = Tensor();
  Turns(2);
  EXPECT_EQ(engine_->mappings()->ForgetAll(), 1u) << "nobody uses it";
  channel_.Answer("|device|7|done", absl::OkStatus());
  PassSeconds(60);
  EXPECT_EQ(channel_.Asked("|alive"), "");
  EXPECT_EQ(poller_.NextTimerNs(), std::numeric_limits<int64_t>::max())
      << "there is nothing to renew";
}

// No kernel of this GPU reaches the other's memory: the driver copies.
TEST_P(OddFetchTest, ACopyFromAGpuOutOfReachIsTheDrivers) {
  for (const bool in_reach : {false, true}) {
    if (in_reach) engine_->AddPeer(1);
    const auto tensor = [](const DeviceMemory& memory, int ordinal) {
      return *Tensor::Adopt(memory.data(), DType::kUint8, {1000},
                            MemorySpace{MemorySpace::Kind::kDevice, ordinal}, nullptr);
    };
    const int copies = fake_->calls("cuMemcpyAsync");
    int ended = 0;
    engine_->StartCopy(tensor(plain_, 1), tensor(into_, 0), nullptr, [&](absl::Status status) {
      ++ended;
      EXPECT_TRUE(status.ok()) << status;
    });
    for (int i = 0; i < 1000 && ended == 0; ++i) Turns(1);
    EXPECT_EQ(ended, 1);
    EXPECT_EQ(fake_->calls("cuMemcpyAsync") - copies, in_reach ? 0 : 1);
  }
}

// A stream that is to run behind all copies to the device runs behind it too.
TEST_P(OddFetchTest, ACopyFromTheHostIsOneOfThoseToTheDevice) {
  const GpuStream behind = *gpu_->MakeStream();
  int ended = 0;
  fake_->hold(true);
  const Tensor into = *Tensor::Adopt(into_.data(), DType::kUint8, {kBytes},
                                     MemorySpace{MemorySpace::Kind::kDevice, 0}, nullptr);
  engine_->StartCopy(Bytes(kBytes), into, nullptr, [&](absl::Status status) {
    ++ended;
    EXPECT_TRUE(status.ok()) << status;
  });
  Turns(1);
  EXPECT_TRUE(*engine_->copier()->JoinStream(Copier::Direction::kToHost, behind.get()));
  EXPECT_TRUE(*gpu_->IsIdle(behind.get())) << "it is none of those to the host";
  EXPECT_TRUE(*engine_->copier()->JoinStream(Copier::Direction::kToDevice, behind.get()));
  EXPECT_FALSE(*gpu_->IsIdle(behind.get()));
  fake_->hold(false);
  for (int i = 0; i < 1000 && ended == 0; ++i) Turns(1);
  EXPECT_EQ(ended, 1);
}

// More of them than there are streams to wait on.
TEST_P(OddFetchTest, ManyThatWaitForTheirDestinationsStreamEndWhenItIsThere) {
  engine_->AddPeer(1);
  constexpr int kFetches = 8;
  auto stream = *gpu_->MakeStream();
  fake_->hold(true);
  ASSERT_TRUE(gpu_->Use().ok());
  ASSERT_EQ(gpu_->calls().cuMemsetD8Async(into_.address(), 0x11, kBytes, stream.get()),
            cuda::kSuccess);
  RecvArgs args;
  args.destination = *Tensor::Adopt(into_.data(), DType::kUint8, {kBytes},
                                    MemorySpace{MemorySpace::Kind::kDevice, 0}, nullptr);
  args.device_context = *GpuContext::Make(engine_.get(), stream.get());
  int ended = 0;
  for (int i = 0; i < kFetches; ++i) {
    const std::string edge = absl::StrCat("k", i, "_");
    fetcher_->Fetch(1, Key(edge), args, [&ended](Received&& received) {
      ++ended;
      EXPECT_TRUE(received.status.ok()) << received.status;
    });
    Turns(1);
    AnswerManifest(How::kInPlace, edge + "|device|", edge.c_str());
  }
  Turns(20);
  EXPECT_EQ(ended, 0) << "the stream still writes there";
  EXPECT_GT(engine_->counters().waited_on_host, 1u);
  fake_->hold(false);
  Turns(1000);
  EXPECT_EQ(ended, kFetches);
  EXPECT_TRUE(engine_->idle());
}

// Between two GPUs of one worker, and on one GPU without a copy.
TEST_P(OddFetchTest, AHandoverWaitsForTheSendersStream) {
  auto theirs = *DeviceEngine::Open(&poller_, other_.get(), DeviceEngineOptions());
  theirs->Attach();
  for (const bool shared : {false, true}) {
    Gpu* const source = shared ? gpu_.get() : other_.get();
    DeviceEngine* const sending = shared ? engine_.get() : theirs.get();
    auto memory = *DeviceMemory::Allocate(source, kBytes);
    const std::vector<uint8_t> old(kBytes, 0x11);
    fake_->poke(memory.address(), old.data(), kBytes);
    auto stream = *source->MakeStream();
    fake_->hold(true);
    ASSERT_TRUE(source->Use().ok());
    ASSERT_EQ(source->calls().cuMemsetD8Async(memory.address(), 0x22, kBytes, stream.get()),
              cuda::kSuccess);
    RecvArgs recv_args;
    auto receiving = *gpu_->MakeStream();
    recv_args.device_context = *GpuContext::Make(engine_.get(), receiving.get());
    const Tensor tensor =
        *Tensor::Adopt(memory.data(), DType::kUint8, {kBytes},
                       MemorySpace{MemorySpace::Kind::kDevice, source->ordinal()}, nullptr);
    const TensorKey key =
        TensorKeyPrefix::Make(
            absl::StrCat("/job:worker/replica:0/task:0/device:GPU:", source->ordinal()), 1,
            "/job:worker/replica:0/task:0/device:GPU:0", "t")
            ->At(0, 0);
    int ended = 0;
    Tensor got;
    CopyToReceiver(key, recv_args, [&](Received&& received) {
      ++ended;
      EXPECT_TRUE(received.status.ok()) << received.status;
      got = std::move(received.tensor);
    })({absl::OkStatus(), tensor, false, *GpuContext::Make(sending, stream.get())});
    Turns(20);
    EXPECT_EQ(ended, 0) << "what fills it has not run";
    fake_->hold(false);
    for (int i = 0; i < 1000 && ended == 0; ++i) Turns(1);
    ASSERT_EQ(ended, 1);
    EXPECT_EQ(got.SharesBytesWith(tensor), shared);
    uint8_t byte = 0;
    fake_->peek(AddressOf(got.data()) + kBytes - 1, &byte, 1);
    EXPECT_EQ(byte, 0x22);
    got = Tensor();
    Turns(10);
  }
  theirs->Detach();
}

INSTANTIATE_TEST_SUITE_P(, OddFetchTest,
                         ::testing::Values(std::make_tuple(How::kInPlace, What::kCancel)));

}  // namespace
}  // namespace tryst
