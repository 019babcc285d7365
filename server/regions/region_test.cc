#include "server/regions/region.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "rendezvous/fetch_group.h"
#include "server/regions/region_asks.h"
#include "server/regions/region_fetch.h"
#include "server/testing.h"

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
                   const Selection& landing, RecvArgs args = {}) {
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
      ListWriter(Selection::Spans(much), kMaxListText).Next(kMaxAskBytes, &bytes);
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

TEST_F(RegionTest, SmallAnswersAreBoundedToo) {
  RegionOptions options;
  options.answer_bytes = options.answer_bytes_of_peer = 1 << 20;
  const auto region = *Region::Open(owner_.get(), "l1", memory_, options);
  const std::vector<ByteSpan> span = {{0, 64 << 10}};
  uint64_t bytes = 0;
  const std::string list = ListWriter(Selection::Spans(span), kMaxListText).Next(1 << 20, &bytes);
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

}  // namespace
}  // namespace tryst
