#include "server/regions/region.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "base/crc32c.h"
#include "base/mutex.h"
#include "rendezvous/answerer.h"
#include "rendezvous/executor.h"
#include "rendezvous/fetch_group.h"
#include "rendezvous/selected.h"
#include "rendezvous/span_digests.h"
#include "server/regions/region_asks.h"
#include "server/regions/region_fetch.h"
#include "tests/doubles/server/testing.h"

namespace tryst {
namespace {

TensorKey KeyOf(const Server& owner, const Server& asker, absl::string_view name,
                uint64_t incarnation = 0) {
  return *TensorKey::Parse(absl::StrFormat(
      "%s/device:CPU:0;%016x;%s/device:CPU:0;%s;0:0", owner.worker(),
      incarnation == 0 ? owner.incarnation() : incarnation, asker.worker(), RegionEdge(name)));
}

Tensor Filled(int64_t bytes, int seed) {
  const Tensor tensor = *Tensor::Allocate(DType::kUint8, {bytes});
  auto* const data = static_cast<uint8_t*>(tensor.mutable_data());
  for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(i * 31 + i / 251 + seed);
  return tensor;
}

absl::Status Fetch(Server* asker, const TensorKey& key, const Selection& wanted, const Tensor& into,
                   const SelectedLanding& landing, RecvArgs args = {}) {
  args.destination = into;
  absl::Notification ended;
  absl::Status status;
  FetchRegion(asker, 7, key, wanted, args, landing, [&](Received&& received) {
    status = received.status;
    EXPECT_EQ(received.status.ok(), received.tensor.SharesBytesWith(into));
    ended.Notify();
  });
  ended.WaitForNotification();
  return status;
}

class RegionTest : public testing::Test {
 protected:
  std::unique_ptr<Server> owner_ = StartTestServer("owner", 0, nullptr);
  std::unique_ptr<Server> asker_ = StartTestServer("asker", 0, owner_.get());
  const Tensor memory_ = Filled(12 << 20, 1);
  const std::vector<ByteSpan> one_{{100, 50}};
  const std::vector<ByteSpan> place_{{7, 50}};
};

TEST_F(RegionTest, WhatIsWantedLandsWhereItIsSaid) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  const TensorKey key = KeyOf(*owner_, *asker_, "l1");
  for (int again = 0; again < 3; ++again) {
    const Tensor into = Filled(200, 2);
    ASSERT_TRUE(
        Fetch(asker_.get(), key, Selection::Spans(one_), into, Selection::Spans(place_)).ok());
    const Tensor before = Filled(200, 2);
    EXPECT_EQ(memcmp(into.data_as<char>(), before.data(), 7), 0);
    EXPECT_EQ(memcmp(into.data_as<char>() + 7, memory_.data_as<char>() + 100, 50), 0);
    EXPECT_EQ(memcmp(into.data_as<char>() + 57, before.data_as<char>() + 57, 143), 0);
  }
  EXPECT_EQ(region->bytes_sent(), 150u);
}

// It is many asks, and its spans are not those of the other end.
TEST_F(RegionTest, ALongListComesInParts) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  std::vector<uint32_t> blocks(120'000);
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i] = static_cast<uint32_t>(i * 7919 % blocks.size());
  }
  const std::vector<ByteRun> landing = {{3, 64'000, 64'001, 120}};
  const Tensor into = *Tensor::Allocate(DType::kUint8, {64'001 * 120 + 3});
  memset(into.mutable_data(), 0x5a, into.bytes());
  ASSERT_TRUE(Fetch(asker_.get(), KeyOf(*owner_, *asker_, "l1"), Selection::Indices(blocks, 64),
                    into, Selection::Runs(landing))
                  .ok());
  const char* got = into.data_as<char>();
  EXPECT_EQ(got[2], 0x5a);
  for (uint64_t i = 0; i < blocks.size(); ++i) {
    const uint64_t at = i * 64 / 64'000 * 64'001 + i * 64 % 64'000 + 3;
    ASSERT_EQ(memcmp(got + at, memory_.data_as<char>() + blocks[i] * 64, 64), 0) << i;
    if (i * 64 % 64'000 == 0) {
      ASSERT_EQ(got[at - 1], 0x5a);
    }
  }
}

TEST_F(RegionTest, ALargeSpanComesInParts) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  const std::vector<ByteSpan> nearly_all = {{1, memory_.bytes() - 1}};
  const Tensor into =
      *Tensor::Allocate(DType::kUint8, TensorShape({static_cast<int64_t>(memory_.bytes() - 1)}));
  ASSERT_TRUE(Fetch(asker_.get(), KeyOf(*owner_, *asker_, "l1"), Selection::Spans(nearly_all), into,
                    Selection())
                  .ok());
  EXPECT_EQ(memcmp(into.data(), memory_.data_as<char>() + 1, into.bytes()), 0);
}

TEST_F(RegionTest, AWorkerFetchesOfItsOwnRegion) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  const Tensor into = Filled(200, 2);
  ASSERT_TRUE(Fetch(owner_.get(), KeyOf(*owner_, *owner_, "l1"), Selection::Spans(one_), into,
                    Selection::Spans(place_))
                  .ok());
  EXPECT_EQ(memcmp(into.data_as<char>() + 7, memory_.data_as<char>() + 100, 50), 0);
}

TEST_F(RegionTest, WhoHasCancelledGetsNothing) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  const Tensor into = Filled(200, 2);
  Cancellation over;
  over.StartCancel();
  RecvArgs args;
  args.cancellation = &over;
  for (Server* const asker : {asker_.get(), owner_.get()}) {
    const absl::Status cancelled =
        Fetch(asker, KeyOf(*owner_, *asker, "l1"), Selection::Spans(one_), into,
              Selection::Spans(place_), args);
    EXPECT_TRUE(absl::IsCancelled(cancelled)) << cancelled;
  }
  EXPECT_EQ(memcmp(into.data(), Filled(200, 2).data(), 200), 0);
}

TEST_F(RegionTest, WhatDoesNotFitIsRefusedBeforeAnybodyIsAsked) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  const TensorKey key = KeyOf(*owner_, *asker_, "l1");
  const Tensor into = Filled(200, 2);
  const Selection one = Selection::Spans(one_), place = Selection::Spans(place_);
  const std::vector<ByteSpan> more = {{7, 51}}, twice = {{7, 25}, {31, 25}},
                              none = {{7, UINT64_MAX}};
  const absl::Status totals = Fetch(asker_.get(), key, one, into, Selection::Spans(more));
  EXPECT_TRUE(absl::IsInvalidArgument(totals));
  EXPECT_TRUE(absl::StrContains(totals.message(), "50 bytes")) << totals;
  EXPECT_TRUE(absl::StrContains(totals.message(), "51")) << totals;
  EXPECT_TRUE(
      absl::IsInvalidArgument(Fetch(asker_.get(), key, one, into, Selection::Spans(twice))));
  EXPECT_TRUE(absl::IsInvalidArgument(Fetch(asker_.get(), key, one, into, Selection())));
  EXPECT_TRUE(absl::IsInvalidArgument(Fetch(asker_.get(), key, Selection(), into, place)));
  EXPECT_TRUE(
      absl::IsInvalidArgument(Fetch(asker_.get(), key, Selection::Spans(none), into, place)));
  EXPECT_TRUE(absl::IsInvalidArgument(Fetch(asker_.get(), *key.WithEdge("a"), one, into, place)));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Fetch(asker_.get(), *key.WithEdge("|region|l1|AAB"), one, into, place)));
  EXPECT_EQ(memcmp(into.data(), Filled(200, 2).data(), 200), 0);
  EXPECT_EQ(region->bytes_sent(), 0u);
}

TEST_F(RegionTest, WhatLiesBehindItsEndIsRefusedByItsOwner) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  const std::vector<ByteSpan> behind = {{memory_.bytes() - 49, 50}};
  const Tensor into = Filled(200, 2);
  const absl::Status outside = Fetch(asker_.get(), KeyOf(*owner_, *asker_, "l1"),
                                     Selection::Spans(behind), into, Selection::Spans(place_));
  EXPECT_TRUE(absl::IsInvalidArgument(outside)) << outside;
  EXPECT_TRUE(absl::StrContains(outside.message(), absl::StrCat(memory_.bytes()))) << outside;
  EXPECT_EQ(memcmp(into.data(), Filled(200, 2).data(), 200), 0);
}

TEST_F(RegionTest, WhoMayNotReadIsRefused) {
  RegionOptions options;
  options.readers = {"/job:aske", "/job:other/replica:0/task:0"};
  const auto region = *Region::Open(owner_.get(), "l1", memory_, options);
  const Tensor into = Filled(200, 2);
  const absl::Status refused = Fetch(asker_.get(), KeyOf(*owner_, *asker_, "l1"),
                                     Selection::Spans(one_), into, Selection::Spans(place_));
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_EQ(region->bytes_sent(), 0u);
  options.readers.push_back("/job:asker");
  const auto other = *Region::Open(owner_.get(), "l2", memory_, options);
  EXPECT_TRUE(Fetch(asker_.get(), KeyOf(*owner_, *asker_, "l2"), Selection::Spans(one_), into,
                    Selection::Spans(place_))
                  .ok());
}

TEST_F(RegionTest, WhatIsNotOpenIsRefused) {
  const Tensor into = Filled(200, 2);
  const auto fetch = [&](absl::string_view name, uint64_t incarnation = 0) {
    return Fetch(asker_.get(), KeyOf(*owner_, *asker_, name, incarnation), Selection::Spans(one_),
                 into, Selection::Spans(place_));
  };
  EXPECT_TRUE(absl::IsUnavailable(fetch("l1")));
  auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  EXPECT_TRUE(fetch("l1").ok());
  EXPECT_TRUE(absl::IsUnavailable(fetch("l")));
  EXPECT_TRUE(absl::IsAborted(fetch("l1", owner_->incarnation() ^ 1))) << "its former life";
  EXPECT_TRUE(absl::IsAlreadyExists(Region::Open(owner_.get(), "l1", memory_, {}).status()));
  region.reset();
  EXPECT_TRUE(absl::IsUnavailable(fetch("l1")));
  region = *Region::Open(owner_.get(), "l1", memory_, {});
  EXPECT_TRUE(fetch("l1").ok());
}

TEST_F(RegionTest, WhatCannotBeARegion) {
  EXPECT_TRUE(absl::IsInvalidArgument(Region::Open(owner_.get(), "a|b", memory_, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Region::Open(owner_.get(), "a", Tensor(), {}).status()));
  RegionOptions options;
  options.readers = {"worker"};
  EXPECT_TRUE(absl::IsInvalidArgument(Region::Open(owner_.get(), "a", memory_, options).status()));
}

// The memory goes when the last answer has read it, and a fetch that has its answer does not.
TEST_F(RegionTest, CloseComesBackWhenNothingReads) {
  bool freed = false;
  const Tensor kept = Filled(1 << 20, 3);
  Tensor lent = *Tensor::Adopt(kept.mutable_data(), DType::kUint8, {1 << 20}, MemorySpace(),
                               [&] { freed = true; });
  auto region = *Region::Open(owner_.get(), "l1", lent, {});
  lent.Reset();
  EXPECT_FALSE(freed);
  const Tensor into = Filled(200, 2);
  EXPECT_TRUE(Fetch(asker_.get(), KeyOf(*owner_, *asker_, "l1"), Selection::Spans(one_), into,
                    Selection::Spans(place_))
                  .ok());
  EXPECT_FALSE(region->AwaitClosed(absl::ZeroDuration())) << "nobody has closed it";
  int closed = 0;
  region->Close([&] { ++closed; });
  EXPECT_TRUE(region->AwaitClosed(absl::Seconds(30)));
  EXPECT_TRUE(freed);
  EXPECT_EQ(closed, 1);
  region->Close([&] { ++closed; });
  EXPECT_EQ(closed, 2);
}

// What a peer asks for without FetchRegion, of this worker itself.
struct RawAsk {
  void Take(Server* owner, absl::string_view list) {
    RecvArgs args;
    args.cancellation = &cancellation;
    const TensorKey key = *TensorKey::Parse(absl::StrCat(
        owner->worker(), "/device:CPU:0;", absl::StrFormat("%016x", owner->incarnation()), ";",
        owner->worker(), "/device:CPU:0;|region|l1|", list, ";0:0"));
    owner->steps()->Take(7, key, args, [this](Received&& got) {
      received = std::move(got);
      ended.Notify();
    });
  }
  bool HasEnded() { return ended.WaitForNotificationWithTimeout(absl::Milliseconds(100)); }

  Cancellation cancellation;
  absl::Notification ended;
  Received received;
};

// Who keeps answers makes others wait, who can leave; the region's end waits for neither.
TEST_F(RegionTest, WhatAnswersHoldIsBoundedAndNoAnswerDelaysTheEnd) {
  RegionOptions options;
  options.answer_bytes = 2 * kMaxAskBytes;
  auto region = *Region::Open(owner_.get(), "l1", memory_, options);
  uint64_t bytes = 0;
  const std::vector<ByteSpan> much = {{0, kMaxAskBytes}};
  const std::string list =
      ListWriter(Selection::Spans(much), 0, kMaxListText).Next(kMaxAskBytes, &bytes);
  ASSERT_EQ(bytes, kMaxAskBytes);
  RawAsk a, b, c, d, e, small;
  a.Take(owner_.get(), list);
  b.Take(owner_.get(), list);
  a.ended.WaitForNotification();
  b.ended.WaitForNotification();
  EXPECT_TRUE(a.received.status.ok() && b.received.status.ok());
  c.Take(owner_.get(), list);
  d.Take(owner_.get(), list);
  e.Take(owner_.get(), list);
  EXPECT_FALSE(c.HasEnded());
  small.Take(owner_.get(), "AAB");
  EXPECT_TRUE(small.HasEnded()) << "a small one does not wait";
  d.cancellation.StartCancel();
  EXPECT_TRUE(d.HasEnded());
  EXPECT_TRUE(absl::IsCancelled(d.received.status)) << d.received.status;
  a.received.tensor.Reset();
  c.ended.WaitForNotification();
  EXPECT_TRUE(c.received.status.ok()) << c.received.status;
  EXPECT_EQ(memcmp(c.received.tensor.data(), memory_.data(), kMaxAskBytes), 0);
  EXPECT_FALSE(e.HasEnded());
  region.reset();  // Answers are kept still.
  EXPECT_TRUE(e.HasEnded());
  EXPECT_TRUE(absl::IsUnavailable(e.received.status)) << e.received.status;
}

// What an embedder's executor has to do delays no answer, and it is not given copies.
TEST_F(RegionTest, AnEmbeddersExecutorCopiesNothing) {
  ThreadPoolExecutor embedders(1, 100);
  absl::Notification go;
  embedders.Run([&go] { go.WaitForNotification(); });
  const auto server = StartTestServer("embedded", 0, nullptr, "", nullptr, &embedders);
  auto region = *Region::Open(server.get(), "l1", memory_, {});
  uint64_t bytes = 0;
  const std::vector<ByteSpan> much = {{0, kMaxAskBytes}};
  RawAsk ask;
  ask.Take(server.get(),
           ListWriter(Selection::Spans(much), 0, kMaxListText).Next(kMaxAskBytes, &bytes));
  EXPECT_TRUE(ask.ended.WaitForNotificationWithTimeout(absl::Seconds(30)));
  go.Notify();
  ask.ended.WaitForNotification();
  EXPECT_TRUE(ask.received.status.ok()) << ask.received.status;
  ask.received.tensor.Reset();
  region.reset();
  EXPECT_TRUE(server->Stop(absl::Seconds(5)).ok());
}

TEST_F(RegionTest, SmallAnswersAreBoundedToo) {
  RegionOptions options;
  options.answer_bytes = options.answer_bytes_of_peer = 1 << 20;
  const auto region = *Region::Open(owner_.get(), "l1", memory_, options);
  const std::vector<ByteSpan> span = {{0, 64 << 10}};
  uint64_t bytes = 0;
  const std::string list =
      ListWriter(Selection::Spans(span), 0, kMaxListText).Next(1 << 20, &bytes);
  std::vector<std::unique_ptr<RawAsk>> asks;
  for (int i = 0; i < 600; ++i) {  // They want 37.5 MiB, and 33 may be held.
    asks.push_back(std::make_unique<RawAsk>());
    asks.back()->Take(owner_.get(), list);
  }
  const auto ended = [&] {
    return std::count_if(asks.begin(), asks.end(),
                         [](const auto& ask) { return ask->ended.HasBeenNotified(); });
  };
  (void)asks.back()->HasEnded();
  EXPECT_GT(ended(), 500);
  EXPECT_LT(ended(), 530);
  for (size_t i = 0; i < asks.size(); ++i) {
    asks[i]->ended.WaitForNotification();
    EXPECT_TRUE(asks[i]->received.status.ok()) << asks[i]->received.status;
    asks[i]->received.tensor.Reset();
  }
}

TEST_F(RegionTest, AHostileAskIsRefused) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  for (const char* const list : {"", "A", "AA", "AAg", "RAB", "AA|B", "Q_____", "AAAAAAAA"}) {
    RawAsk ask;
    ask.Take(owner_.get(), list);
    ASSERT_TRUE(ask.HasEnded());
    const bool wants_nothing = absl::string_view(list) == "A";
    EXPECT_EQ(ask.received.status.ok(), wants_nothing) << list;
  }
  EXPECT_EQ(region->bytes_sent(), 0u);
}

// Regions are closed, and their memory is scribbled over, while peers fetch.
TEST_F(RegionTest, NothingIsReadBehindTheFence) {
  std::vector<uint32_t> blocks(3000);
  std::iota(blocks.begin(), blocks.end(), 0);
  for (int round = 0; round < 20; ++round) {
    const Tensor memory = *Tensor::Allocate(DType::kUint8, {3000 * 2048});
    memset(memory.mutable_data(), 1, memory.bytes());
    auto region = *Region::Open(owner_.get(), "l1", memory, {});
    const Tensor into = *Tensor::Allocate(DType::kUint8, {3000 * 2048});
    memset(into.mutable_data(), 1, into.bytes());
    absl::Notification ended;
    RecvArgs args;
    args.destination = into;
    absl::Status status;
    FetchRegion(asker_.get(), 7, KeyOf(*owner_, *asker_, "l1"), Selection::Indices(blocks, 2048),
                args, Selection(), [&](Received&& received) {
                  status = received.status;
                  ended.Notify();
                });
    std::this_thread::sleep_for(std::chrono::microseconds(round * 300));
    region.reset();
    memset(memory.mutable_data(), 2, memory.bytes());
    ended.WaitForNotification();
    EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
    EXPECT_EQ(memchr(into.data(), 2, into.bytes()), nullptr);
  }
}

TEST_F(RegionTest, AGroupCancelsAFetchOfManyAsks) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  const std::vector<ByteSpan> all = {{0, memory_.bytes()}};
  const SteadyClock clock;
  for (Server* const asker : {asker_.get(), owner_.get()}) {
    const Tensor into = *Tensor::Allocate(DType::kUint8, memory_.shape());
    for (int round = 0; round < 20; ++round) {
      memset(into.mutable_data(), 0, into.bytes());
      FetchGroup group(&clock);
      RecvArgs args;
      args.destination = into;
      int calls = 0;
      absl::Status status;
      group.Start(
          owner_->worker(), into.bytes(), args,
          [&](Received&& received) {
            status = received.status;
            ++calls;
          },
          [&](const RecvArgs& own, DoneFn done) {
            FetchRegion(asker, 7, KeyOf(*owner_, *asker, "l1"), Selection::Spans(all), own,
                        Selection(), std::move(done));
          });
      std::this_thread::sleep_for(std::chrono::microseconds(round * 100));
      absl::Notification fenced;
      FenceReport report;
      group.StartCancel([&](const FenceReport& told) {
        report = told;
        fenced.Notify();
      });
      fenced.WaitForNotification();
      EXPECT_EQ(calls, 1);
      EXPECT_EQ(report.ended_ok + report.cancelled, 1u);
      EXPECT_EQ(status.ok(), report.ended_ok == 1) << status;
      memset(into.mutable_data(), 0x77, into.bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      for (uint64_t i = 0; i < into.bytes(); ++i) ASSERT_EQ(into.data_as<uint8_t>()[i], 0x77);
    }
  }
}

// ---- Cancels ----

// Keeps what it is asked until it is told to answer.
class KeptAsks final : public Answerer {
 public:
  void Answer(const TensorKey& /*key*/, const RecvArgs& args, DoneFn done) override {
    MutexLock lock(&mu_);
    asks_.push_back({args.executor, std::move(done)});
    changed_.NotifyAll();
  }
  void Await(size_t asks) {
    MutexLock lock(&mu_);
    while (asks_.size() < asks) changed_.Wait(&mu_);
  }
  // Returns when the memory of each answer has been freed.
  void AnswerAll(int64_t bytes) {
    std::vector<Ask> asks;
    {
      MutexLock lock(&mu_);
      asks.swap(asks_);
    }
    for (Ask& ask : asks) {
      const Tensor memory = Filled(bytes, 5);
      absl::Notification freed;
      Tensor answer = *Tensor::Adopt(memory.mutable_data(), DType::kUint8, memory.shape(),
                                     MemorySpace(), [&] { freed.Notify(); });
      EndReceive(ask.executor, {absl::OkStatus(), std::move(answer)}, std::move(ask.done));
      freed.WaitForNotification();
    }
  }

 private:
  struct Ask {
    Executor* executor;
    DoneFn done;
  };
  Mutex mu_;
  CondVar changed_;
  std::vector<Ask> asks_ ABSL_GUARDED_BY(mu_);
};

TEST_F(RegionTest, ACancelWaitsForNoAnswerAndALateOneIsDropped) {
  const auto kept = std::make_shared<KeptAsks>();
  owner_->steps()->AddAnswerer(RegionEdge("kept"), kept);
  constexpr int64_t kAsk = kMaxAskBytes;
  const std::vector<ByteSpan> wanted = {{0, 6 * kAsk}};  // Four of the asks are out.
  for (Server* const asker : {asker_.get(), owner_.get()}) {
    const Tensor into = *Tensor::Allocate(DType::kUint8, {6 * kAsk});
    memset(into.mutable_data(), '.', into.bytes());
    const SteadyClock clock;
    FetchGroup group(&clock);
    GatherResult result;
    RecvArgs args;
    args.destination = into;
    int calls = 0, fences = 0;
    absl::Status status;
    group.Start(
        owner_->worker(), into.bytes(), args,
        [&](Received&& received) {
          status = received.status;
          ++calls;
        },
        [&](const RecvArgs& own, DoneFn done) {
          SelectedLanding landing{Selection()};
          landing.result = &result;
          FetchRegion(asker, 7, KeyOf(*owner_, *asker, "kept"), Selection::Spans(wanted), own,
                      landing, std::move(done));
        });
    kept->Await(4);
    EXPECT_EQ(calls, 0);
    group.StartCancel([&](const FenceReport& report) {
      EXPECT_EQ(report.cancelled, 1u);
      ++fences;
    });
    EXPECT_EQ(calls, 1) << "the cancel itself ends it";
    EXPECT_EQ(fences, 1);
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    EXPECT_EQ(result.failed, std::vector<uint32_t>{0});
    kept->AnswerAll(kAsk);
    EXPECT_EQ(calls, 1);
    for (uint64_t i = 0; i < into.bytes(); ++i) ASSERT_EQ(into.data_as<char>()[i], '.') << i;
  }
  owner_->steps()->RemoveAnswerer(RegionEdge("kept"), kept.get());
}

TEST_F(RegionTest, WhatHasFailedHoldsItsDestinationNoLonger) {
  const auto kept = std::make_shared<KeptAsks>();
  owner_->steps()->AddAnswerer(RegionEdge("kept"), kept);
  const Tensor memory = Filled(50, 2);
  bool freed = false;
  Cancellation over;
  RecvArgs args;
  args.cancellation = &over;
  args.destination = *Tensor::Adopt(memory.mutable_data(), DType::kUint8, memory.shape(),
                                    MemorySpace(), [&] { freed = true; });
  bool ended = false;
  FetchRegion(asker_.get(), 7, KeyOf(*owner_, *asker_, "kept"), Selection::Spans(one_), args,
              {Selection()}, [&](Received&& received) {
                EXPECT_TRUE(absl::IsCancelled(received.status)) << received.status;
                EXPECT_TRUE(freed) << "its caller may give the memory to somebody else";
                ended = true;
              });
  args.destination.Reset();
  kept->Await(1);
  EXPECT_FALSE(freed) << "it may still be written";
  over.StartCancel();
  EXPECT_TRUE(ended) << "the cancel itself ends it";
  kept->AnswerAll(50);
  owner_->steps()->RemoveAnswerer(RegionEdge("kept"), kept.get());
}

// The first failure ends it as well.
TEST_F(RegionTest, AFailureWaitsForNoOtherAnswer) {
  class OneIsRefused final : public Answerer {
   public:
    void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override {
      if (asked_.fetch_add(1) != 2) return kept.Answer(key, args, std::move(done));
      FailReceive(absl::UnavailableError("it is gone"), args.executor, std::move(done));
    }
    KeptAsks kept;

   private:
    std::atomic<int> asked_{0};
  };
  const auto answers = std::make_shared<OneIsRefused>();
  owner_->steps()->AddAnswerer(RegionEdge("kept"), answers);
  const Tensor into = Filled(12 << 20, 2);
  const std::vector<ByteSpan> all = {{0, into.bytes()}};
  const absl::Status status = Fetch(asker_.get(), KeyOf(*owner_, *asker_, "kept"),
                                    Selection::Spans(all), into, Selection());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  answers->kept.AnswerAll(kMaxAskBytes);
  EXPECT_EQ(memcmp(into.data(), Filled(12 << 20, 2).data(), into.bytes()), 0);
  owner_->steps()->RemoveAnswerer(RegionEdge("kept"), answers.get());
}

// An answerer of our own worker hears of no deadline.
TEST_F(RegionTest, ADeadlineWaitsForNoAnswer) {
  const auto kept = std::make_shared<KeptAsks>();
  owner_->steps()->AddAnswerer(RegionEdge("kept"), kept);
  for (Server* const asker : {asker_.get(), owner_.get()}) {
    const Tensor into = Filled(200, 2);
    RecvArgs args;
    args.deadline = Deadline::After(SteadyClock(), absl::Milliseconds(100));
    const absl::Status status = Fetch(asker, KeyOf(*owner_, *asker, "kept"), Selection::Spans(one_),
                                      into, Selection::Spans(place_), args);
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    kept->AnswerAll(50);
    EXPECT_EQ(memcmp(into.data(), Filled(200, 2).data(), 200), 0);
  }
  owner_->steps()->RemoveAnswerer(RegionEdge("kept"), kept.get());
}

// A page whose first writer stands still until it is let go.
class Trap {
 public:
  Trap(void* page, size_t bytes) {
    page_ = page;
    bytes_ = bytes;
    reached_ = open_ = false;
    struct sigaction action = {};
    action.sa_sigaction = Hold;
    action.sa_flags = SA_SIGINFO;
    EXPECT_EQ(sigaction(SIGSEGV, &action, &before_), 0);
    EXPECT_EQ(mprotect(page, bytes, PROT_NONE), 0);
  }
  ~Trap() { sigaction(SIGSEGV, &before_, nullptr); }
  static void Await() {
    while (!reached_) std::this_thread::yield();
  }
  static void LetGo() { open_ = true; }

 private:
  static void Hold(int /*signal*/, siginfo_t* info, void* /*context*/) {
    const char* const at = static_cast<char*>(info->si_addr);
    const char* const begin = static_cast<char*>(page_);
    if (at < begin || at >= begin + bytes_) abort();
    reached_ = true;
    while (!open_) sched_yield();
    mprotect(page_, bytes_, PROT_READ | PROT_WRITE);
  }

  static inline void* page_ = nullptr;
  static inline size_t bytes_ = 0;
  static inline std::atomic<bool> reached_{false}, open_{false};
  struct sigaction before_ = {};
};

TEST_F(RegionTest, ACopyUnderWayEndsWhatWasCancelled) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  constexpr size_t kBytes = 4 << 20, kAt = 1 << 20, kUntil = kAt + (64 << 10);
  char* const memory = static_cast<char*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (Server* const asker : {asker_.get(), owner_.get()}) {
    memset(memory, '.', kBytes);
    Trap trap(memory + kAt, 4096);
    Cancellation over;
    RecvArgs args;
    args.destination =
        *Tensor::Adopt(memory, DType::kUint8, {int64_t{kBytes}}, MemorySpace(), [] {});
    args.cancellation = &over;
    const std::vector<ByteSpan> wanted = {{0, kBytes}};
    absl::Notification ended;
    absl::Status status;
    FetchRegion(asker, 7, KeyOf(*owner_, *asker, "l1"), Selection::Spans(wanted), args, Selection(),
                [&](Received&& received) {
                  status = received.status;
                  ended.Notify();
                });
    Trap::Await();
    over.StartCancel();
    EXPECT_FALSE(ended.HasBeenNotified()) << "it is being written";
    Trap::LetGo();
    ended.WaitForNotification();
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    EXPECT_EQ(memcmp(memory, memory_.data(), kUntil), 0);
    EXPECT_EQ(std::count(memory + kUntil, memory + kBytes, '.'), kBytes - kUntil);
  }
  munmap(memory, kBytes);
}

// ---- Digests ----

// Answers as a region would, but for what the test does to its answers.
class HarmedAnswers final : public Answerer {
 public:
  explicit HarmedAnswers(Tensor memory) : memory_(std::move(memory)) {}
  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override {
    const std::string list(key.edge().substr(RegionEdge("harmed").size()));
    const auto wanted = *ParseList(list, memory_.bytes());
    absl::Status status;
    Tensor answer = *GatherChecked(memory_, Selection::Spans(wanted.spans), wanted.bytes,
                                   wanted.granule, nullptr);
    {
      MutexLock lock(&mu_);
      status = harm_(asked_++, static_cast<char*>(answer.mutable_data()), wanted);
    }
    if (!status.ok()) return FailReceive(status, args.executor, std::move(done));
    EndReceive(args.executor, {absl::OkStatus(), std::move(answer)}, std::move(done));
  }
  // Called with the number of the ask and its answer, which it may change; or it fails.
  using Harm = std::function<absl::Status(int ask, char* answer, const WantedSpans& wanted)>;
  void Set(Harm harm) {
    MutexLock lock(&mu_);
    harm_ = std::move(harm);
    asked_ = 0;
  }
  int asked() {
    MutexLock lock(&mu_);
    return asked_;
  }

 private:
  const Tensor memory_;
  Mutex mu_;
  Harm harm_ ABSL_GUARDED_BY(mu_);
  int asked_ ABSL_GUARDED_BY(mu_) = 0;
};

// 3000 blocks of 2000 bytes, at both ends in another order: three asks or more.
struct RegionDigestsTest : RegionTest {
  static constexpr uint64_t kBytes = 2000;
  static constexpr size_t kBlocks = 3000;

  RegionDigestsTest() {
    for (size_t i = 0; i < kBlocks; ++i) {
      from_.push_back(static_cast<uint32_t>(i * 7 % kBlocks));
      to_.push_back(static_cast<uint32_t>(kBlocks - 1 - i));
    }
    memset(into_.mutable_data(), '.', into_.bytes());
    landing_.digests = true;
    landing_.result = &result_;
    owner_->steps()->AddAnswerer(RegionEdge("harmed"), answers_);
  }
  ~RegionDigestsTest() override {
    owner_->steps()->RemoveAnswerer(RegionEdge("harmed"), answers_.get());
  }
  absl::Status FetchAll(absl::string_view name, Server* asker) {
    return Fetch(asker, KeyOf(*owner_, *asker, name), Selection::Indices(from_, kBytes), into_,
                 landing_);
  }
  bool IsThere(size_t i) const {
    return memcmp(into_.data_as<char>() + to_[i] * kBytes,
                  memory_.data_as<char>() + from_[i] * kBytes, kBytes) == 0;
  }
  // What is there is as it was sent, and has its digest; what has failed has none.
  void CheckSpans() const {
    const std::set<uint32_t> failed(result_.failed.begin(), result_.failed.end());
    ASSERT_EQ(result_.digests.size(), kBlocks);
    for (size_t i = 0; i < kBlocks; ++i) {
      const bool there = failed.count(static_cast<uint32_t>(i)) == 0;
      if (there) {
        ASSERT_TRUE(IsThere(i)) << i;
      }
      const uint32_t digest = Crc32c(0, memory_.data_as<char>() + from_[i] * kBytes, kBytes);
      ASSERT_EQ(result_.digests[i], there ? digest : 0) << i;
    }
  }

  std::vector<uint32_t> from_, to_;
  const Tensor into_ = *Tensor::Allocate(DType::kUint8, {kBytes * kBlocks});
  const std::shared_ptr<HarmedAnswers> answers_ = std::make_shared<HarmedAnswers>(memory_);
  GatherResult result_;
  SelectedLanding landing_{Selection::Indices(to_, kBytes)};
};

TEST_F(RegionDigestsTest, EachSpanHasItsDigest) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  landing_.selection = Selection::Indices(to_, kBytes);
  for (Server* const asker : {asker_.get(), owner_.get()}) {
    memset(into_.mutable_data(), '.', into_.bytes());
    const absl::Status status = FetchAll("l1", asker);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(result_.failed.empty());
    CheckSpans();
  }
  // Spans that are cut by asks and agree with nothing of the other end.
  const std::vector<ByteRun> runs = {{0, 1'999'999, 2'000'000, 2}, {4'000'000, 2'000'000, 1, 1}};
  const Tensor wide = *Tensor::Allocate(DType::kUint8, {8'000'000});
  landing_.selection = Selection::Runs(runs);
  std::vector<ByteSpan> wanted = {{7, 5'999'998}};
  ASSERT_TRUE(
      Fetch(asker_.get(), KeyOf(*owner_, *asker_, "l1"), Selection::Spans(wanted), wide, landing_)
          .ok());
  const char* const at = memory_.data_as<char>() + 7;
  EXPECT_EQ(result_.digests,
            (std::vector<uint32_t>{Crc32c(0, at, 1'999'999), Crc32c(0, at + 1'999'999, 1'999'999),
                                   Crc32c(0, at + 3'999'998, 2'000'000)}));
}

TEST_F(RegionDigestsTest, AWrongAnswerIsAskedForOnceMore) {
  landing_.selection = Selection::Indices(to_, kBytes);
  answers_->Set([](int ask, char* answer, const WantedSpans&) {
    if (ask == 0) answer[5] ^= 1;
    return absl::OkStatus();
  });
  const absl::Status status = FetchAll("harmed", asker_.get());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(result_.failed.empty());
  CheckSpans();
  const int again = answers_->asked();
  answers_->Set([](int, char*, const WantedSpans&) { return absl::OkStatus(); });
  ASSERT_TRUE(FetchAll("harmed", asker_.get()).ok());
  EXPECT_EQ(again, answers_->asked() + 1);
}

TEST_F(RegionDigestsTest, ASpanThatStaysWrongIsNamed) {
  landing_.selection = Selection::Indices(to_, kBytes);
  // Its memory is bad: block 14, which is the third that is wanted.
  answers_->Set([](int, char* answer, const WantedSpans& wanted) {
    uint64_t at = 0;
    for (const ByteSpan& span : wanted.spans) {
      if (span.offset == 14 * kBytes) answer[at + 1234] ^= 0x40;
      at += span.bytes;
    }
    return absl::OkStatus();
  });
  landing_.partial = true;
  absl::Status status = FetchAll("harmed", asker_.get());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(result_.failed, std::vector<uint32_t>{2});
  CheckSpans();
  landing_.partial = false;
  status = FetchAll("harmed", asker_.get());
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "wrong digests")) << status;
  EXPECT_TRUE(std::count(result_.failed.begin(), result_.failed.end(), 2u) == 1);
  CheckSpans();
}

TEST_F(RegionDigestsTest, OfAFetchThatFailsItIsKnownWhatIsThere) {
  landing_.selection = Selection::Indices(to_, kBytes);
  for (const bool digests : {true, false}) {
    landing_.digests = digests;
    memset(into_.mutable_data(), '.', into_.bytes());
    // Four are asked for at once, and so one has landed before a fifth is.
    answers_->Set([](int ask, char*, const WantedSpans&) {
      return ask < 4 ? absl::OkStatus() : absl::UnavailableError("it is gone");
    });
    const absl::Status status = FetchAll("harmed", asker_.get());
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_FALSE(result_.failed.empty());
    EXPECT_LT(result_.failed.size(), kBlocks);
    const std::set<uint32_t> failed(result_.failed.begin(), result_.failed.end());
    for (size_t i = 0; i < kBlocks; ++i) {
      EXPECT_EQ(IsThere(i), failed.count(static_cast<uint32_t>(i)) == 0) << i;
    }
    if (digests) CheckSpans();
  }
}

// Also of a part that is being copied when somebody cancels.
TEST_F(RegionDigestsTest, WhoCancelsKnowsWhatIsThere) {
  const auto region = *Region::Open(owner_.get(), "l1", memory_, {});
  landing_.selection = Selection::Indices(to_, kBytes);
  std::mt19937 random(1);
  size_t cancelled = 0;
  for (int round = 0; round < 200; ++round) {
    landing_.digests = round % 2 == 0;
    memset(into_.mutable_data(), '.', into_.bytes());
    Cancellation cancellation;
    RecvArgs args;
    args.cancellation = &cancellation;
    std::thread canceller([&, after_us = random() % 3000] {
      std::this_thread::sleep_for(std::chrono::microseconds(after_us));
      cancellation.StartCancel();
    });
    const absl::Status status = Fetch(asker_.get(), KeyOf(*owner_, *asker_, "l1"),
                                      Selection::Indices(from_, kBytes), into_, landing_, args);
    canceller.join();
    ASSERT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
    EXPECT_EQ(status.ok(), result_.failed.empty());
    cancelled += !status.ok();
    const std::set<uint32_t> failed(result_.failed.begin(), result_.failed.end());
    for (size_t i = 0; i < kBlocks; ++i) {
      if (failed.count(static_cast<uint32_t>(i)) == 0) {
        ASSERT_TRUE(IsThere(i)) << round << ", " << i;
      }
    }
    if (landing_.digests) CheckSpans();
  }
  EXPECT_GT(cancelled, 0u);
}

TEST_F(RegionDigestsTest, AnAnswerWithoutATrailerIsRefused) {
  landing_.selection = Selection::Indices(to_, kBytes);
  answers_->Set([](int, char* answer, const WantedSpans& wanted) {
    answer[wanted.bytes + TrailerBytes(wanted.bytes, wanted.granule) - 8] ^= 1;  // Its granule.
    return absl::OkStatus();
  });
  const absl::Status status = FetchAll("harmed", asker_.get());
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(result_.failed.size(), kBlocks);
}

}  // namespace
}  // namespace tryst
