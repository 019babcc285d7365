// Which fetches are copied under a grant. Both servers are in this process, which the kernel lets
// read itself; grants_test has two.
#include "server/regions/region_grants.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "rendezvous/answerer.h"
#include "rendezvous/fetch_group.h"
#include "server/regions/region.h"
#include "server/regions/region_asks.h"
#include "server/regions/region_fetch.h"
#include "tests/doubles/server/testing.h"

namespace tryst {
namespace {

Tensor Filled(int64_t bytes, int seed) {
  const Tensor tensor = *Tensor::Allocate(DType::kUint8, {bytes});
  auto* const data = static_cast<uint8_t*>(tensor.mutable_data());
  for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(i * 31 + i / 251 + seed);
  return tensor;
}

std::unique_ptr<Server> Start(const std::string& job, const Server* seed,
                              const std::function<void(ServerConfig*)>& change = nullptr) {
  return StartTestServer(job, 0, seed, "", [&](ServerConfig* config) {
    config->protocol = "grpc+verbs";
    config->shm_bytes = 16 << 20;
    if (change) change(config);
  });
}

class RegionGrantsTest : public testing::Test {
 protected:
  TensorKey Key(const std::string& edge = RegionEdge("l1")) {
    return *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;%s;0:0",
                                             owner_->worker(), owner_->incarnation(),
                                             asker_->worker(), edge));
  }
  absl::Status Fetch(const Selection& wanted, SelectedLanding landing, RecvArgs args = {}) {
    const TensorKey key = Key();
    landing.result = &result_;
    args.destination = into_;
    absl::Notification ended;
    absl::Status status;
    FetchRegion(asker_.get(), 7, key, wanted, args, landing, [&](Received&& received) {
      status = received.status;
      EXPECT_EQ(received.status.ok(), received.tensor.SharesBytesWith(into_));
      ended.Notify();
    });
    ended.WaitForNotification();
    return status;
  }
  absl::Status Fetch(const std::vector<ByteSpan>& wanted) {
    uint64_t bytes = 0;
    for (const ByteSpan& span : wanted) bytes += span.bytes;
    const std::vector<ByteSpan> landing = {{7, bytes}};
    memset(into_.mutable_data(), '.', into_.bytes());
    return Fetch(Selection::Spans(wanted), Selection::Spans(landing));
  }
  // Into the beginning of it, from any thread.
  absl::Status FetchInto(const Tensor& into, const std::vector<ByteSpan>& wanted) {
    const std::vector<ByteSpan> landing = {{0, into.bytes()}};
    RecvArgs args;
    args.destination = into;
    absl::Notification ended;
    absl::Status status;
    FetchRegion(asker_.get(), 7, Key(), Selection::Spans(wanted), args, Selection::Spans(landing),
                [&](Received&& received) {
                  status = received.status;
                  ended.Notify();
                });
    ended.WaitForNotification();
    return status;
  }
  // A region is opened, closed and its memory used again, while somebody fetches. `fetched`:
  // whether it was copied under a grant.
  void OpenAndCloseWhile(const Tensor& memory, const std::function<bool()>& fetched) {
    const auto fill = [&memory](int with) { memset(memory.mutable_data(), with, memory.bytes()); };
    fill(1);
    std::atomic<bool> over{false};
    std::atomic<int> granted{0};
    std::thread owner([&] {
      for (int round = 0; round < 100; ++round) {
        auto region = *Region::Open(owner_.get(), "l1", memory, {});
        const int before = granted.load();
        while (granted.load() < before + 3) std::this_thread::yield();
        region->Close(nullptr);
        EXPECT_TRUE(region->AwaitClosed(absl::Seconds(30)));
        fill(2);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        fill(1);
      }
      over.store(true);
    });
    while (!over.load()) granted += fetched();
    owner.join();
  }
  bool FetchOfOnes(const std::vector<ByteSpan>& wanted) {
    const uint64_t before = copied();
    const absl::Status status = Fetch(wanted);
    uint64_t bytes = 0;
    for (const ByteSpan& span : wanted) bytes += span.bytes;
    EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
    if (status.ok()) {
      EXPECT_EQ(memchr(into_.data_as<char>() + 7, 2, bytes), nullptr);
    }
    return copied() > before;
  }
  absl::Status FetchOne() { return Fetch({{100, 50}}); }
  // The answer comes at any time.
  void AwaitGrant() {
    while (asker_->grants()->taken.Explain("").empty()) ASSERT_TRUE(FetchOne().ok());
    ASSERT_TRUE(FetchOne().ok());
  }
  uint64_t copied() { return asker_->grants()->taken.bytes(); }
  void ExpectFilled(int seed, uint64_t from = 100, uint64_t bytes = 50) {
    const Tensor memory = Filled(1 << 20, seed);
    EXPECT_EQ(into_.data_as<char>()[6], '.');
    EXPECT_EQ(memcmp(into_.data_as<char>() + 7, memory.data_as<char>() + from, bytes), 0);
    EXPECT_EQ(into_.data_as<char>()[7 + bytes], '.');
  }
  std::string Explained() { return asker_->Explain(""); }

  std::unique_ptr<Server> owner_ = Start("owner", nullptr);
  std::unique_ptr<Server> asker_ = Start("asker", owner_.get());
  const Tensor memory_ = Filled(1 << 20, 1);
  const Tensor into_ = Filled(1 << 20, 2);
  GatherResult result_;
};

TEST_F(RegionGrantsTest, LittleIsCopiedByWhoAsks) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  AwaitGrant();
  const uint64_t before = copied(), sent = region->bytes_sent();
  ASSERT_TRUE(FetchOne().ok());
  ExpectFilled(1);
  EXPECT_TRUE(result_.failed.empty());
  EXPECT_EQ(copied(), before + 50);
  EXPECT_EQ(region->bytes_sent(), sent);
  EXPECT_EQ(asker_->Stats().at("region_bytes_copied"), static_cast<int64_t>(before) + 50);
  EXPECT_TRUE(absl::StrContains(Explained(), absl::StrCat("regions of ", owner_->worker(),
                                                          " are copied by this worker itself")))
      << Explained();
}

TEST_F(RegionGrantsTest, MuchIsAskedFor) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  AwaitGrant();
  const uint64_t before = copied();
  ASSERT_TRUE(Fetch({{5, (64 << 10) + 1}}).ok());
  ExpectFilled(1, 5, (64 << 10) + 1);
  std::vector<ByteSpan> many;
  for (uint64_t i = 0; i < 65; ++i) many.push_back({i * 16'000, 10});
  ASSERT_TRUE(Fetch(many).ok());
  EXPECT_EQ(copied(), before);
  many.pop_back();
  ASSERT_TRUE(Fetch(many).ok());
  EXPECT_EQ(copied(), before + 640);
}

// By one call of the kernel with what lies between, so that none is too many.
TEST_F(RegionGrantsTest, SpansNearEachOtherAreCopiedByWhoAsks) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  AwaitGrant();
  const auto fetch = [&](size_t count, uint64_t bytes, uint64_t stride) {
    std::vector<ByteSpan> spans;
    uint64_t all = 0;
    for (uint64_t i = 0; i < count; ++i) {
      spans.push_back({5 + i * 7919 % count * stride, bytes + i % 2});  // In no order.
      all += spans.back().bytes;
    }
    memset(into_.mutable_data(), '.', into_.bytes());
    ASSERT_TRUE(Fetch(spans).ok());
    const char *from = memory_.data_as<char>(), *at = into_.data_as<char>() + 7;
    for (const ByteSpan& span : spans) {
      ASSERT_EQ(memcmp(at, from + span.offset, span.bytes), 0) << span.offset;
      at += span.bytes;
    }
    EXPECT_EQ(*at, '.');
    EXPECT_EQ(*(into_.data_as<char>() + 6), '.');
    EXPECT_EQ(at - into_.data_as<char>() - 7, static_cast<ptrdiff_t>(all));
  };
  uint64_t before = copied();
  fetch(1000, 60, 256);
  EXPECT_EQ(copied(), before + 60'500);
  fetch(20, 100, 4000);
  EXPECT_EQ(copied(), before + 60'500 + 2010);
  fetch(20, 100, 8000);  // One by one.
  EXPECT_EQ(copied(), before + 60'500 + 4020);
  before = copied();
  fetch(100, 10, 2700);  // Too far from each other for that.
  fetch(1025, 10, 200);  // Too many.
  fetch(1000, 66, 200);  // Too much.
  EXPECT_EQ(copied(), before);
  // An empty span lies nowhere.
  std::vector<ByteSpan> spans(100, ByteSpan{1 << 20, 0});
  spans.push_back({100, 50});
  ASSERT_TRUE(Fetch(spans).ok());
  ExpectFilled(1, 100, 50);
  EXPECT_EQ(copied(), before + 50);
}

TEST(GrantRoomTest, OneThreadHasItAtATime) {
  GrantTable table(true);
  {
    const GrantTable::Room room(&table);
    ASSERT_NE(room.data(), nullptr);
    memset(room.data(), 1, GrantTable::Room::kBytes);
    EXPECT_EQ(GrantTable::Room(&table).data(), nullptr);
    EXPECT_EQ(GrantTable::Room(&table).data(), nullptr) << "who had none gives none back";
  }
  EXPECT_NE(GrantTable::Room(&table).data(), nullptr);
}

TEST_F(RegionGrantsTest, ThreadsThatCopyAtOnceGetWhatTheyWant) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  AwaitGrant();
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const Tensor into = Filled(64'000, 3);
      std::vector<ByteSpan> spans;
      for (uint64_t i = 0; i < 1000; ++i) spans.push_back({thread + i * 256, 64});
      for (int turn = 0; turn < 50; ++turn) {
        ASSERT_TRUE(FetchInto(into, spans).ok());
        for (size_t i = 0; i < spans.size(); ++i) {
          ASSERT_EQ(
              memcmp(into.data_as<char>() + i * 64, memory_.data_as<char>() + spans[i].offset, 64),
              0);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(RegionGrantsTest, WhatIsCheckedIsAskedFor) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  AwaitGrant();
  const uint64_t before = copied();
  const std::vector<ByteSpan> wanted = {{100, 50}}, place = {{7, 50}};
  SelectedLanding landing = Selection::Spans(place);
  landing.digests = true;
  ASSERT_TRUE(Fetch(Selection::Spans(wanted), landing).ok());
  EXPECT_EQ(result_.digests.size(), 1u);
  EXPECT_EQ(copied(), before);
}

// The owner says what there is to say: the same as without grants.
TEST_F(RegionGrantsTest, WhatCannotBeCopiedIsAskedFor) {
  auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  AwaitGrant();
  EXPECT_TRUE(absl::IsInvalidArgument(Fetch({{memory_.bytes() - 49, 50}})));
  EXPECT_EQ(result_.failed, std::vector<uint32_t>{0});
  region.reset();
  EXPECT_TRUE(absl::IsUnavailable(FetchOne()));
  EXPECT_EQ(result_.failed, std::vector<uint32_t>{0});
  // At another address, under the same name.
  const Tensor other = Filled(2 << 20, 9);
  region = *Region::Open(owner_.get(), "l1", other, {});
  ASSERT_TRUE(FetchOne().ok());
  ExpectFilled(9);
  const uint64_t before = copied();
  while (copied() == before) {
    ASSERT_TRUE(FetchOne().ok());
    ExpectFilled(9);
  }
}

TEST_F(RegionGrantsTest, WhoHasCancelledOrIsLateGetsNothing) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  AwaitGrant();
  const uint64_t before = copied();
  const std::vector<ByteSpan> wanted = {{100, 50}}, place = {{7, 50}};
  memset(into_.mutable_data(), '.', into_.bytes());
  Cancellation over;
  over.StartCancel();
  RecvArgs args;
  args.cancellation = &over;
  EXPECT_TRUE(absl::IsCancelled(Fetch(Selection::Spans(wanted), Selection::Spans(place), args)));
  RecvArgs late;
  late.deadline = Deadline::AtNs(1);
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(Fetch(Selection::Spans(wanted), Selection::Spans(place), late)));
  EXPECT_EQ(copied(), before);
  EXPECT_EQ(into_.data_as<char>()[7], '.');
}

TEST_F(RegionGrantsTest, AServerThatHasStoppedIsNotRead) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  AwaitGrant();
  const uint64_t before = copied();
  ASSERT_TRUE(owner_->Stop(absl::Seconds(5)).ok());
  RecvArgs args;
  args.deadline = Deadline::After(SteadyClock(), absl::Milliseconds(200));
  const std::vector<ByteSpan> wanted = {{100, 50}}, place = {{7, 50}};
  EXPECT_FALSE(Fetch(Selection::Spans(wanted), Selection::Spans(place), args).ok());
  EXPECT_EQ(copied(), before);
}

// A server with an executor of the test's, which has one thread.
struct EmbeddedFetchTest : RegionGrantsTest {
  EmbeddedFetchTest() {
    ServerConfig config = asker_->config();
    config.job = "embedded";
    config.listen = "127.0.0.1:0";
    config.join = absl::StrCat(owner_->worker(), "@", owner_->address());
    asker_.reset();
    asker_ = *ServerBuilder().SetEnvironment({}).SetExecutor(&threads_).Build(config);
    EXPECT_TRUE(asker_->Start().ok());
  }
  // A callback destroys the server, and what a fetch has put behind it comes too late for that.
  absl::Status FetchWhileItIsDestroyed(const Selection& wanted, Executor* executor) {
    absl::Notification begun, gone;
    threads_.Run([&] {
      begun.WaitForNotification();
      asker_.reset();
      gone.Notify();
    });
    const TensorKey key = Key();
    RecvArgs args;
    args.executor = executor;
    args.destination = into_;
    args.deadline = Deadline::After(SteadyClock(), absl::Hours(1));
    absl::Notification ended;
    absl::Status status;
    FetchRegion(asker_.get(), 7, key, wanted, args, {Selection()}, [&](Received&& received) {
      status = received.status;
      ended.Notify();
    });
    begun.Notify();
    gone.WaitForNotification();
    ended.WaitForNotification();
    return status;
  }

  ThreadPoolExecutor threads_{1, 1024};
  const std::vector<ByteSpan> all_ = {{0, 1 << 20}};
};

// Has asks, and never answers.
class Waits final : public Answerer {
 public:
  void Answer(const TensorKey& /*key*/, const RecvArgs& /*args*/, DoneFn done) override {
    MutexLock lock(&mu_);
    asks_.push_back(std::move(done));
  }
  ~Waits() override {
    MutexLock lock(&mu_);
    for (DoneFn& ask : asks_) FailReceive(absl::UnavailableError("over"), nullptr, std::move(ask));
  }

 private:
  Mutex mu_;
  std::vector<DoneFn> asks_ ABSL_GUARDED_BY(mu_);
};

TEST_F(EmbeddedFetchTest, ACallbackMayDestroyTheServerWhileAFetchIsOut) {
  auto waits = std::make_shared<Waits>();
  owner_->steps()->AddAnswerer(RegionEdge("l1"), waits);
  const absl::Status aborted = FetchWhileItIsDestroyed(Selection::Spans(all_), &threads_);
  EXPECT_TRUE(absl::IsAborted(aborted)) << aborted;
  owner_->steps()->RemoveAnswerer(RegionEdge("l1"), waits.get());
}

TEST_F(EmbeddedFetchTest, ACallbackMayDestroyTheServerWhileItCopies) {
  const Tensor shared = *owner_->allocator()->AllocateTensor(DType::kUint8, {1 << 20});
  memcpy(shared.mutable_data(), memory_.data(), memory_.bytes());
  const auto region = *Region::Open(owner_.get(), "l1", shared, {});
  AwaitGrant();
  ASSERT_GT(asker_->grants()->taken.segments()->bytes(), 0u);
  const absl::Status ended = FetchWhileItIsDestroyed(Selection::Spans(all_), nullptr);
  EXPECT_TRUE(ended.ok() || absl::IsAborted(ended)) << ended;
  if (ended.ok()) {
    EXPECT_EQ(memcmp(into_.data(), memory_.data(), into_.bytes()), 0);
  }
}

// Callbacks on other threads of the server's may not destroy it.
TEST_F(EmbeddedFetchTest, WithoutAnExecutorACallbackRunsOnThatOfTheServer) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  std::thread::id thread, ended_on;
  absl::Notification told, ended;
  threads_.Run([&] {
    thread = std::this_thread::get_id();
    told.Notify();
  });
  told.WaitForNotification();
  RecvArgs args;
  args.destination = into_;
  FetchRegion(asker_.get(), 7, Key(), Selection::Spans(all_), args, {Selection()},
              [&](Received&& received) {
                EXPECT_TRUE(received.status.ok()) << received.status;
                ended_on = std::this_thread::get_id();
                ended.Notify();
              });
  ended.WaitForNotification();
  EXPECT_EQ(ended_on, thread);
}

// ---- Memory of the arena ----

struct MappedRegionTest : RegionGrantsTest {
  MappedRegionTest() {
    memcpy(shared_.mutable_data(), memory_.data(), memory_.bytes());
    for (uint64_t i = 0; i < 200; ++i) many_.push_back({(i * 77 % 200) * 5000 + 3, 4000});
  }
  uint64_t mapped() { return asker_->grants()->taken.segments()->bytes(); }
  void ExpectMany(int seed) {
    const Tensor memory = Filled(1 << 20, seed);
    const char* at = into_.data_as<char>() + 7;
    for (const ByteSpan& span : many_) {
      ASSERT_EQ(memcmp(at, memory.data_as<char>() + span.offset, span.bytes), 0) << span.offset;
      at += span.bytes;
    }
    EXPECT_EQ(at[0], '.');
    EXPECT_EQ(into_.data_as<char>()[6], '.');
  }

  const Tensor shared_ = *owner_->allocator()->AllocateTensor(DType::kUint8, {1 << 20});
  std::vector<ByteSpan> many_;
};

TEST_F(MappedRegionTest, MuchIsCopiedByWhoAsks) {
  const auto region = *Region::Open(owner_.get(), "l1", shared_, {});
  AwaitGrant();
  EXPECT_GE(mapped(), uint64_t{1} << 20);
  const uint64_t before = copied(), sent = region->bytes_sent();
  ASSERT_TRUE(Fetch(many_).ok());
  ExpectMany(1);
  EXPECT_TRUE(result_.failed.empty());
  EXPECT_EQ(copied(), before + 800'000);
  many_.resize(65);
  for (ByteSpan& span : many_) span.bytes = 100;
  ASSERT_TRUE(Fetch(many_).ok());
  ExpectMany(1);
  EXPECT_EQ(copied(), before + 806'500);
  EXPECT_EQ(region->bytes_sent(), sent);
}

TEST_F(MappedRegionTest, WhoHasCancelledOrIsLateGetsNothing) {
  const auto region = *Region::Open(owner_.get(), "l1", shared_, {});
  AwaitGrant();
  const uint64_t before = copied();
  const std::vector<ByteSpan> place = {{7, 800'000}};
  const Selection wanted = Selection::Spans(many_), landing = Selection::Spans(place);
  memset(into_.mutable_data(), '.', into_.bytes());
  for (int round = 0; round < 20; ++round) {
    Cancellation over;
    over.StartCancel();
    RecvArgs args, late;
    args.cancellation = &over;
    late.deadline = Deadline::AtNs(1);
    for (Executor* const executor : {static_cast<Executor*>(nullptr), asker_->executor()}) {
      args.executor = late.executor = executor;
      EXPECT_TRUE(absl::IsCancelled(Fetch(wanted, landing, args)));
      EXPECT_TRUE(absl::IsDeadlineExceeded(Fetch(wanted, landing, late)));
    }
  }
  EXPECT_EQ(copied(), before);
  EXPECT_EQ(into_.data_as<char>()[7], '.');
}

// A region that is opened for one fetch is not asked for a grant.
TEST_F(MappedRegionTest, AFirstLargeFetchAsksForNoGrant) {
  const auto region = *Region::Open(owner_.get(), "l1", shared_, {});
  ASSERT_TRUE(Fetch(many_).ok());
  const TensorKey key = Key();
  GrantTable* const taken = &asker_->grants()->taken;
  EXPECT_TRUE(taken->Find(key, /*at_first=*/false).asks) << "nobody has asked";
  EXPECT_FALSE(taken->Find(key, /*at_first=*/false).asks) << "we are to ask";
  EXPECT_FALSE(taken->Find(key).asks);
}

TEST_F(MappedRegionTest, WhatLiesOutsideIsRefusedByTheOwner) {
  const auto region = *Region::Open(owner_.get(), "l1", shared_, {});
  AwaitGrant();
  const absl::Status outside = Fetch({{100, 900'000}, {(1 << 20) - 49, 50}});
  EXPECT_TRUE(absl::IsInvalidArgument(outside)) << outside;
  EXPECT_EQ(std::count(into_.data_as<char>(), into_.data_as<char>() + into_.bytes(), '.'),
            static_cast<ptrdiff_t>(into_.bytes()));
}

// It is asked for, of the next opening, of which there is no grant yet.
TEST_F(MappedRegionTest, WhatIsClosedIsAskedFor) {
  auto region = *Region::Open(owner_.get(), "l1", shared_, {});
  AwaitGrant();
  region.reset();
  EXPECT_TRUE(absl::IsUnavailable(Fetch(many_)));
  memcpy(shared_.mutable_data(), Filled(1 << 20, 9).data(), 1 << 20);
  region = *Region::Open(owner_.get(), "l1", shared_, {});
  AwaitGrant();
  region.reset();
  memcpy(shared_.mutable_data(), Filled(1 << 20, 4).data(), 1 << 20);
  region = *Region::Open(owner_.get(), "l1", shared_, {});
  ASSERT_TRUE(Fetch(many_).ok());
  ExpectMany(4);
}

TEST_F(MappedRegionTest, AFetchOfAnAbortedStepFailsAsTheStep) {
  const auto region = *Region::Open(owner_.get(), "l1", shared_, {});
  AwaitGrant();
  const uint64_t before = copied();
  // It waits for a thread of the executor while its step is aborted.
  const auto go = std::make_shared<absl::Notification>();
  for (int i = 0; i < 64; ++i) {
    asker_->own_executor()->RunWithoutWaiting([go] { go->WaitForNotification(); });
  }
  const std::vector<ByteSpan> place = {{7, 800'000}};
  RecvArgs args;
  args.destination = into_;
  absl::Notification ended;
  absl::Status status;
  FetchRegion(asker_.get(), 7, Key(), Selection::Spans(many_), args, Selection::Spans(place),
              [&](Received&& received) {
                status = received.status;
                ended.Notify();
              });
  asker_->steps()->AbortStep(7, absl::InternalError("the step is over"));
  go->Notify();
  ended.WaitForNotification();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  // Neither is a fetch that begins later.
  EXPECT_TRUE(absl::IsInternal(Fetch(many_)));
  EXPECT_TRUE(absl::IsInternal(FetchOne()));
  EXPECT_EQ(into_.data_as<char>()[7], '.');
  EXPECT_EQ(copied(), before);
}

TEST_F(MappedRegionTest, WhatWasOpenedLargerIsMappedAgain) {
  auto region = *Region::Open(owner_.get(), "l1", shared_, {});
  AwaitGrant();
  region.reset();
  const Tensor larger = *owner_->allocator()->AllocateTensor(DType::kUint8, {3 << 20});
  memcpy(larger.mutable_data(), Filled(3 << 20, 5).data(), larger.bytes());
  region = *Region::Open(owner_.get(), "l1", larger, {});
  const uint64_t before = copied();
  while (copied() == before) ASSERT_TRUE(Fetch({{2 << 20, 800'000}}).ok());
  EXPECT_EQ(memcmp(into_.data_as<char>() + 7, larger.data_as<char>() + (2 << 20), 800'000), 0);
}

TEST_F(MappedRegionTest, WhatIsIdleIsUnmapped) {
  const auto region = *Region::Open(owner_.get(), "l1", shared_, {});
  AwaitGrant();
  GrantTable* const taken = &asker_->grants()->taken;
  EXPECT_TRUE(taken->Sweep().empty()) << "it was used";
  EXPECT_GT(mapped(), 0u);
  EXPECT_EQ(taken->Sweep().size(), 1u);
  EXPECT_EQ(mapped(), 0u);
  // Little is still copied, and does not map it.
  uint64_t before = copied();
  ASSERT_TRUE(FetchOne().ok());
  ExpectFilled(1);
  EXPECT_EQ(copied(), before + 50);
  EXPECT_FALSE(taken->Find(Key(), /*at_first=*/true).asks);
  ASSERT_TRUE(Fetch(many_).ok());
  ExpectMany(1);
  before = copied();
  while (copied() == before) ASSERT_TRUE(Fetch(many_).ok());
  ExpectMany(1);
  EXPECT_GT(mapped(), 0u);
}

TEST_F(MappedRegionTest, LittleAsksForNoGrantOfWhatWasIdle) {
  const auto region = *Region::Open(owner_.get(), "l1", shared_, {});
  AwaitGrant();
  GrantTable* const taken = &asker_->grants()->taken;
  for (int i = 0; i < 2; ++i) (void)taken->Sweep();
  ASSERT_TRUE(FetchOne().ok());
  EXPECT_TRUE(taken->Find(Key(), /*at_first=*/false).asks) << "nobody has asked";
}

TEST_F(MappedRegionTest, SpansNearEachOtherMapAgainWhatWasIdle) {
  const auto region = *Region::Open(owner_.get(), "l1", shared_, {});
  AwaitGrant();
  GrantTable* const taken = &asker_->grants()->taken;
  for (int i = 0; i < 2; ++i) (void)taken->Sweep();
  EXPECT_EQ(mapped(), 0u);
  std::vector<ByteSpan> near;
  for (uint64_t i = 0; i < 100; ++i) near.push_back({i * 100, 10});
  for (int i = 0; i < 5000 && mapped() == 0; ++i) {
    ASSERT_TRUE(Fetch(near).ok());
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_GT(mapped(), 0u);
}

TEST_F(MappedRegionTest, AServerThatHasStoppedMapsNothing) {
  const auto region = *Region::Open(owner_.get(), "l1", shared_, {});
  AwaitGrant();
  EXPECT_GT(mapped(), 0u);
  GrantTable* const taken = &asker_->grants()->taken;
  const auto memory = taken->Find(Key()).memory;
  ASSERT_TRUE(asker_->Stop(absl::Seconds(5)).ok());
  EXPECT_EQ(memory.use_count(), 1);
  EXPECT_FALSE(taken->Find(Key()).asks);
  taken->Set(Key(), memory);  // An answer may come late.
  EXPECT_EQ(memory.use_count(), 1);
}

TEST_F(MappedRegionTest, AnOldFailureLeavesANewGrant) {
  const auto region = *Region::Open(owner_.get(), "l1", shared_, {});
  AwaitGrant();
  GrantTable* const taken = &asker_->grants()->taken;
  const auto old = taken->Find(Key()).memory;
  const auto unmapped = old->Unmapped();
  taken->Set(Key(), unmapped);
  taken->Failed(Key(), old.get(), absl::UnavailableError("closed"));
  EXPECT_EQ(taken->Find(Key()).memory, unmapped);
  taken->Failed(Key(), unmapped.get(), absl::UnavailableError("closed"));
  EXPECT_EQ(taken->Find(Key()).memory, nullptr);
}

// A region of each request, fetched from once.
TEST_F(MappedRegionTest, RegionsOfOneFetchLeaveTheOthersGrants) {
  const auto region = *Region::Open(owner_.get(), "l1", shared_, {});
  AwaitGrant();
  GrantTable* const taken = &asker_->grants()->taken;
  for (int i = 0; i < 10'000; ++i) {
    const TensorKey once = Key(RegionEdge(absl::StrCat("once", i)));
    ASSERT_FALSE(taken->Find(once, /*at_first=*/false).asks);
  }
  EXPECT_NE(taken->Find(Key()).memory, nullptr);
  const TensorKey last = Key(RegionEdge("once9999"));
  EXPECT_TRUE(taken->Sweep().empty());
  EXPECT_TRUE(taken->Find(Key()).memory->mapped());
  EXPECT_TRUE(taken->Sweep().empty());
  EXPECT_TRUE(taken->Find(Key()).memory->mapped());
  EXPECT_FALSE(taken->Find(last, /*at_first=*/false).asks) << "they were forgotten";
}

TEST_F(MappedRegionTest, NothingFromBehindTheEndIsDelivered) {
  OpenAndCloseWhile(shared_, [&] { return FetchOfOnes({{100, 1'000'000}}); });
}

// The fence of a group, at any moment of such a copy.
TEST_F(MappedRegionTest, NothingLandsBehindACancel) {
  const auto region = *Region::Open(owner_.get(), "l1", shared_, {});
  AwaitGrant();
  const TensorKey key = Key();
  const std::vector<ByteSpan> all = {{0, shared_.bytes()}};
  const SteadyClock clock;
  int ended_ok = 0, cancelled = 0;
  for (int round = 0; round < 300; ++round) {
    memset(into_.mutable_data(), '.', into_.bytes());
    FetchGroup group(&clock);
    RecvArgs args;
    args.destination = into_;
    int calls = 0;
    absl::Status status;
    group.Start(
        owner_->worker(), into_.bytes(), args,
        [&](Received&& received) {
          status = received.status;
          ++calls;
        },
        [&](const RecvArgs& own, DoneFn done) {
          SelectedLanding landing{Selection()};
          landing.result = &result_;
          FetchRegion(asker_.get(), 7, key, Selection::Spans(all), own, landing, std::move(done));
        });
    const int64_t until_ns = clock.NowNs() + round * 1000;
    while (clock.NowNs() < until_ns) {
    }
    absl::Notification fenced;
    group.StartCancel([&](const FenceReport&) { fenced.Notify(); });
    fenced.WaitForNotification();
    ASSERT_EQ(calls, 1);
    ASSERT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
    ASSERT_EQ(status.ok(), result_.failed.empty());
    ++(status.ok() ? ended_ok : cancelled);
    if (status.ok()) {
      ASSERT_EQ(memcmp(into_.data(), memory_.data(), into_.bytes()), 0);
    }
    memset(into_.mutable_data(), '#', into_.bytes());
    for (int turn = 0; turn < 2; ++turn) {
      ASSERT_EQ(std::count(into_.data_as<char>(), into_.data_as<char>() + into_.bytes(), '#'),
                static_cast<ptrdiff_t>(into_.bytes()));
    }
  }
  EXPECT_GT(cancelled, 0);
}

TEST_F(RegionGrantsTest, NothingFromBehindTheEndIsDelivered) {
  OpenAndCloseWhile(memory_, [&] { return FetchOfOnes({{100, 60'000}}); });
}

TEST_F(RegionGrantsTest, NothingFromBehindTheEndOfARangeIsDelivered) {
  std::vector<ByteSpan> spans;
  for (uint64_t i = 0; i < 1000; ++i) spans.push_back({i * 256, 60});
  OpenAndCloseWhile(memory_, [&] { return FetchOfOnes(spans); });
}

TEST_F(RegionGrantsTest, WhoMayNotReadGetsNoGrant) {
  RegionOptions options;
  options.readers = {"/job:other"};
  const auto region = *Region::Open(owner_.get(), "l1", memory_, options);
  absl::Notification ended;
  absl::Status status;
  const TensorKey key = *TensorKey::Parse(
      absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;%s?;0:0", owner_->worker(),
                      owner_->incarnation(), asker_->worker(), RegionEdge("l1")));
  (*asker_->steps()->StartStep(7))->RecvAsync(key, {}, [&](Received&& received) {
    status = received.status;
    ended.Notify();
  });
  ended.WaitForNotification();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_TRUE(absl::IsPermissionDenied(FetchOne()));
}

// Counts what it is asked for, and is of a release without grants.
class OldAnswers final : public Answerer {
 public:
  explicit OldAnswers(Tensor memory) : memory_(std::move(memory)) {}
  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override {
    if (absl::EndsWith(key.edge(), kGrantList)) {
      ++asked;
      return FailReceive(absl::InvalidArgumentError("cannot be read"), args.executor,
                         std::move(done));
    }
    const Tensor answer = *Tensor::Allocate(DType::kUint8, {50});
    memcpy(answer.mutable_data(), memory_.data_as<char>() + 100, 50);
    EndReceive(args.executor, {absl::OkStatus(), answer}, std::move(done));
  }
  std::atomic<int> asked{0};

 private:
  const Tensor memory_;
};

TEST_F(RegionGrantsTest, WhoGivesNoneIsAskedOnceInItsLife) {
  const auto answers = std::make_shared<OldAnswers>(memory_);
  owner_->steps()->AddAnswerer(RegionEdge("l1"), answers);
  AwaitGrant();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(FetchOne().ok());
    ExpectFilled(1);
  }
  owner_->steps()->RemoveAnswerer(RegionEdge("l1"), answers.get());
  // Nor for any other region of it.
  const TensorKey other = *TensorKey::Parse(
      absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;%s;0:0", owner_->worker(),
                      owner_->incarnation(), asker_->worker(), RegionEdge("l2")));
  EXPECT_FALSE(asker_->grants()->taken.Find(other).asks);
  EXPECT_EQ(answers->asked.load(), 1);
  EXPECT_EQ(copied(), 0u);
  EXPECT_TRUE(absl::StrContains(Explained(), "are copied by it: cannot be read")) << Explained();
}

TEST_F(RegionGrantsTest, SettingsTurnThemOff) {
  const struct {
    std::function<void(ServerConfig*)> change;
    const char* why;
  } cases[] = {{[](ServerConfig* config) { config->allow = "/job:asker=/job:owner"; }, "allow"},
               {[](ServerConfig* config) { config->shm = "no_grants"; }, "shm"},
               {[](ServerConfig* config) { config->shm = "off"; }, "shm"}};
  for (const auto& each : cases) {
    SCOPED_TRACE(each.why);
    asker_.reset();
    owner_ = Start("owner", nullptr, each.change);
    asker_ = Start("asker", owner_.get());
    const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
    AwaitGrant();
    EXPECT_EQ(copied(), 0u);
    EXPECT_TRUE(absl::StrContains(Explained(), each.why)) << Explained();
  }
  // At the asker's end nobody is asked.
  asker_.reset();
  owner_ = Start("owner", nullptr);
  asker_ = Start("asker", owner_.get(), cases[1].change);
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(FetchOne().ok());
  EXPECT_EQ(copied(), 0u);
  EXPECT_EQ(asker_->grants()->taken.Explain(""), "");
}

}  // namespace
}  // namespace tryst
