#include "rendezvous/selected.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "rendezvous/derived_status.h"
#include "rendezvous/fetch_group.h"
#include "rendezvous/routing_rendezvous.h"
#include "rendezvous/testing.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

TensorKey RemoteKey(absl::string_view edge) {
  return KeyBetween(absl::StrCat(kWorker1, "/device:CPU:0"),
                    absl::StrCat(kWorker0, "/device:CPU:0"), edge);
}

Tensor Bytes(absl::string_view bytes) {
  const Tensor tensor =
      *Tensor::Allocate(DType::kUint8, TensorShape({static_cast<int64_t>(bytes.size())}));
  if (!bytes.empty()) memcpy(tensor.mutable_data(), bytes.data(), bytes.size());
  return tensor;
}
std::string TextOf(const Tensor& tensor) {
  return std::string(static_cast<const char*>(tensor.data()), tensor.bytes());
}

// Keeps fetches until the test ends them.
class HeldFetcher final : public TensorFetcher {
 public:
  struct One {
    TensorKey key;
    RecvArgs args;
    DoneFn done;
    Cancellation::Token token = Cancellation::kNoToken;
  };
  void Fetch(int64_t, const TensorKey& key, const RecvArgs& args, DoneFn&& done) override {
    auto one = std::make_shared<One>(One{key, args, std::move(done)});
    ones.push_back(one);
    if (args.cancellation == nullptr || !ends_cancelled) return;
    one->token = args.cancellation->Register([one] {
      if (one->done) FailReceive(absl::CancelledError("cancelled"), nullptr, std::move(one->done));
    });
  }
  void FetchMany(int64_t, absl::Span<const TensorKey>, const RecvArgs&, ManyDoneFn) override {}
  void AbortStep(int64_t, const absl::Status& status) override {
    for (const auto& one : ones) {
      if (one->done) FailReceive(status, nullptr, std::move(one->done));
    }
  }
  void End(size_t i, Tensor tensor) { End(i, {absl::OkStatus(), std::move(tensor)}); }
  void End(size_t i, Received received) {
    One& one = *ones[i];
    EndReceive(one.args.executor, std::move(received), std::exchange(one.done, nullptr));
  }

  bool ends_cancelled = true;
  std::vector<std::shared_ptr<One>> ones;
};

// What it runs waits for the test.
class HeldExecutor final : public Executor {
 public:
  bool TryRun(Work* work) override {
    Run(std::move(*work));
    return true;
  }
  void Run(Work work) override { works.push_back(std::move(work)); }
  void RunAll() {
    std::vector<Work> ready = std::exchange(works, std::vector<Work>());
    for (Work& work : ready) std::move(work)();
  }
  std::vector<Work> works;
};

struct SelectedTest : testing::Test {
  std::shared_ptr<Outcome> Land(const TensorKey& key, RecvArgs args, const Selection& landing) {
    args.destination = pool;
    auto outcome = std::make_shared<Outcome>();
    step->RecvSelectedAsync(key, args, landing, Into(outcome));
    return outcome;
  }

  VirtualAlarms alarms;
  HeldFetcher fetcher;
  std::shared_ptr<RoutingRendezvous> step =
      RoutingRendezvous::Make(kWorker0, 1, {}, &alarms, nullptr, &fetcher);
  const Tensor pool = Bytes("................");
  const std::vector<uint32_t> two = {3, 1};
  const Selection blocks = Selection::Indices(two, 4);
};

TEST_F(SelectedTest, WhatIsSentIsACopyOfTheSelectedBytes) {
  const Tensor source = Bytes("aaaabbbbccccdddd");
  ASSERT_TRUE(step->SendSelected(LocalKey("a"), {}, source, blocks).ok());
  memset(source.mutable_data(), 'x', source.bytes());
  const auto whole = Receive(step.get(), LocalKey("a"));
  ASSERT_TRUE(whole->ok());
  EXPECT_EQ(TextOf(whole->tensor), "ddddbbbb");
  EXPECT_EQ(whole->tensor.dtype(), DType::kUint8);
  EXPECT_EQ(whole->tensor.shape(), TensorShape({8}));
}

TEST_F(SelectedTest, AWholeSelectionIsAPlainSend) {
  const Tensor source = Number(7);
  ASSERT_TRUE(step->SendSelected(LocalKey("a"), {}, source, Selection()).ok());
  const auto whole = Receive(step.get(), LocalKey("a"));
  EXPECT_TRUE(whole->tensor.SharesBytesWith(source));
}

TEST_F(SelectedTest, ASendOfWhatIsNotThereIsRefused) {
  const std::vector<ByteSpan> spans = {{12, 5}};
  const Tensor source = Bytes("aaaabbbbccccdddd");
  const absl::Status outside =
      step->SendSelected(LocalKey("a"), {}, source, Selection::Spans(spans));
  EXPECT_TRUE(absl::IsInvalidArgument(outside)) << outside;
  EXPECT_TRUE(absl::IsInvalidArgument(step->SendSelected(LocalKey("a"), {}, Tensor(), blocks)));
  const Tensor strings = *Tensor::FromStrings({"aaaabbbbccccdddd"}, TensorShape());
  EXPECT_TRUE(absl::IsInvalidArgument(step->SendSelected(LocalKey("a"), {}, strings, blocks)));
  MemorySpace device;
  device.kind = MemorySpace::Kind::kDevice;
  char bytes[16];
  const Tensor there = *Tensor::Adopt(bytes, DType::kUint8, {16}, device, [] {});
  EXPECT_TRUE(absl::IsInvalidArgument(step->SendSelected(LocalKey("a"), {}, there, blocks)));
  EXPECT_TRUE(absl::IsInvalidArgument(step->SendSelected(RemoteKey("a"), {}, source, blocks)));
  EXPECT_TRUE(absl::IsInvalidArgument(step->SendSelected(LocalKey("|a"), {}, source, blocks)));
  EXPECT_EQ(step->counters().sends, 0);
}

TEST_F(SelectedTest, LandsInTheSelectionAlone) {
  const auto local = Land(LocalKey("a"), {}, blocks);
  ASSERT_TRUE(step->Send(LocalKey("a"), {}, Bytes("11112222"), false).ok());
  ASSERT_TRUE(local->ok());
  EXPECT_EQ(TextOf(pool), "....2222....1111");
  EXPECT_TRUE(local->tensor.SharesBytesWith(pool));
  EXPECT_EQ(local->tensor.shape(), pool.shape());

  const auto remote = Land(RemoteKey("a"), {}, blocks);
  ASSERT_EQ(fetcher.ones.size(), 1u);
  EXPECT_FALSE(fetcher.ones[0]->args.destination.valid()) << "no path may write there";
  EXPECT_TRUE(fetcher.ones[0]->args.by_reference);
  fetcher.End(0, Number(0x3434343433333333));  // Its type does not count.
  ASSERT_TRUE(remote->ok());
  EXPECT_EQ(TextOf(pool), "....4444....3333");
}

TEST_F(SelectedTest, ADeadTensorLandsNowhere) {
  const auto dead = Land(RemoteKey("a"), {}, blocks);
  Received received;
  received.is_dead = true;
  fetcher.End(0, std::move(received));
  EXPECT_TRUE(dead->ok());
  EXPECT_TRUE(dead->is_dead);
  EXPECT_FALSE(dead->tensor.valid());
  EXPECT_EQ(TextOf(pool), "................");
}

TEST_F(SelectedTest, ADestinationThatCannotBeFilledIsRefusedAtOnce) {
  const std::vector<uint32_t> twice = {1, 3, 1};
  EXPECT_TRUE(
      absl::IsInvalidArgument(Land(RemoteKey("a"), {}, Selection::Indices(twice, 4))->status));
  const std::vector<uint32_t> outside = {4};
  EXPECT_TRUE(
      absl::IsInvalidArgument(Land(RemoteKey("a"), {}, Selection::Indices(outside, 4))->status));
  auto none = std::make_shared<Outcome>();
  step->RecvSelectedAsync(RemoteKey("a"), {}, blocks, Into(none));
  EXPECT_TRUE(absl::IsInvalidArgument(none->status));
  EXPECT_TRUE(fetcher.ones.empty());
}

TEST_F(SelectedTest, WhatDoesNotFitWaitsForTheNextOfItsKey) {
  const auto too_few = Land(RemoteKey("a"), {}, blocks);
  fetcher.End(0, Bytes("1111"));
  EXPECT_TRUE(absl::IsInvalidArgument(too_few->status)) << too_few->status;
  EXPECT_NE(too_few->status.message().find("has 8 bytes and the tensor has 4"),
            absl::string_view::npos)
      << too_few->status;
  EXPECT_EQ(TextOf(pool), "................");
  EXPECT_TRUE(absl::IsInvalidArgument(Land(RemoteKey("a"), {}, blocks)->status)) << "it is next";

  // What comes meanwhile is behind it.
  const std::vector<uint32_t> one = {0};
  Cancellation over;
  over.StartCancel();
  RecvArgs late;
  late.cancellation = &over;
  EXPECT_TRUE(absl::IsCancelled(Land(RemoteKey("a"), late, Selection::Indices(one, 4))->status));
  const auto first = Land(RemoteKey("a"), {}, Selection::Indices(one, 4));
  ASSERT_TRUE(first->ok()) << "it is here";
  EXPECT_EQ(TextOf(pool), "1111............");
  EXPECT_EQ(fetcher.ones.size(), 1u);
  Land(RemoteKey("a"), {}, blocks);
  EXPECT_EQ(fetcher.ones.size(), 2u) << "and was given away once";
  step->StartAbort(absl::InternalError("the end"));
}

TEST_F(SelectedTest, ATensorThatIsTooLargeDoesNotFitEither) {
  const auto remote = Land(RemoteKey("a"), {}, blocks);
  fetcher.End(0, Bytes("111122223333"));
  EXPECT_TRUE(absl::IsInvalidArgument(remote->status)) << remote->status;
  ASSERT_TRUE(step->Send(LocalKey("a"), {}, Bytes("111122223"), false).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Land(LocalKey("a"), {}, blocks)->status));
  EXPECT_EQ(TextOf(pool), "................");
}

TEST_F(SelectedTest, TensorsThatDoNotFitKeepTheirOrder) {
  const auto a = Land(RemoteKey("a"), {}, blocks);
  const auto b = Land(RemoteKey("a"), {}, blocks);
  fetcher.End(0, Bytes("1111"));      // Does not fit,
  fetcher.End(1, Bytes("22222222"));  // and so is in front of this one.
  EXPECT_FALSE(a->ok());
  EXPECT_FALSE(b->ok());
  const std::vector<uint32_t> one = {0};
  ASSERT_TRUE(Land(RemoteKey("a"), {}, Selection::Indices(one, 4))->ok());
  EXPECT_EQ(TextOf(pool), "1111............");
  ASSERT_TRUE(Land(RemoteKey("a"), {}, blocks)->ok());
  EXPECT_EQ(TextOf(pool), "11112222....2222");
}

TEST_F(SelectedTest, ALocalTensorThatDoesNotFitGoesBackToItsTurn) {
  ASSERT_TRUE(step->Send(LocalKey("a"), {}, Bytes("1111"), false).ok());
  ASSERT_TRUE(step->Send(LocalKey("a"), {}, Bytes("22222222"), false).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Land(LocalKey("a"), {}, blocks)->status));
  EXPECT_EQ(TextOf(pool), "................");
  EXPECT_EQ(TextOf(Receive(step.get(), LocalKey("a"))->tensor), "1111");
  EXPECT_TRUE(Land(LocalKey("a"), {}, blocks)->ok());
  EXPECT_EQ(TextOf(pool), "....2222....2222");
}

TEST_F(SelectedTest, ATensorIsNotCopiedIntoItself) {
  ASSERT_TRUE(step->Send(LocalKey("a"), {}, pool, false).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Land(LocalKey("a"), {}, Selection())->status));
}

TEST_F(SelectedTest, AReceiveThatHasEndedWritesNothing) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  const auto cancelled = Land(RemoteKey("a"), args, blocks);
  cancellation.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(cancelled->status));
  const auto aborted = Land(RemoteKey("b"), {}, blocks);
  step->StartAbort(absl::InternalError("the end"));
  EXPECT_EQ(aborted->calls, 1);
  EXPECT_TRUE(IsDerived(aborted->status)) << aborted->status;
  EXPECT_EQ(TextOf(pool), "................");
}

TEST_F(SelectedTest, CopiesWhereDoneRuns) {
  HeldExecutor executor;
  RecvArgs args;
  args.executor = &executor;
  const auto outcome = Land(RemoteKey("a"), args, blocks);
  fetcher.End(0, Bytes("11112222"));
  EXPECT_EQ(TextOf(pool), "................");
  EXPECT_EQ(outcome->calls, 0);
  executor.RunAll();
  EXPECT_TRUE(outcome->ok());
  EXPECT_EQ(TextOf(pool), "....2222....1111");
}

TEST_F(SelectedTest, StepsOfOtherKindsSayThatTheyCannot) {
  LocalRendezvous local({}, &alarms);
  Rendezvous* const other = &local;
  EXPECT_TRUE(absl::IsUnimplemented(other->SendSelected(LocalKey("a"), {}, pool, blocks)));
  auto outcome = std::make_shared<Outcome>();
  other->RecvSelectedAsync(LocalKey("a"), {}, blocks, Into(outcome));
  EXPECT_TRUE(absl::IsUnimplemented(outcome->status));
}

// ---- Groups ----

struct FetchGroupTest : SelectedTest {
  std::shared_ptr<Outcome> Join(const TensorKey& key, RecvArgs args = {}) {
    args.destination = pool;
    auto outcome = std::make_shared<Outcome>();
    group->RecvSelectedAsync(step.get(), key, args, blocks, Into(outcome));
    return outcome;
  }
  void Cancel() {
    group->StartCancel([this](const FenceReport& report) { reports.push_back(report); });
  }

  std::unique_ptr<FetchGroup> group = std::make_unique<FetchGroup>(&alarms.clock());
  std::vector<FenceReport> reports;
};

TEST_F(FetchGroupTest, TheFenceComesWhenTheLastHasEnded) {
  fetcher.ends_cancelled = false;  // The peer has the last word.
  const auto a = Join(RemoteKey("a"));
  const auto b = Join(RemoteKey("b"));
  const auto c = Join(RemoteKey("c"));
  fetcher.End(2, Bytes("11112222"));
  EXPECT_EQ(group->under_way(), 2u);
  Cancel();
  EXPECT_TRUE(reports.empty());
  alarms.clock();
  fetcher.End(0, Bytes("33334444"));  // It had come already.
  EXPECT_TRUE(reports.empty());
  EXPECT_TRUE(a->ok());
  fetcher.End(1, Received{absl::CancelledError("cancelled")});
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].ended_ok, 2u);
  EXPECT_EQ(reports[0].cancelled, 1u);
  EXPECT_EQ(reports[0].failed, 0u);
  EXPECT_EQ(reports[0].bytes_landed, 16u);
  EXPECT_EQ(reports[0].slowest_peer, kWorker1);
  EXPECT_EQ(group->under_way(), 0u);
}

TEST_F(FetchGroupTest, TheFenceIsBehindTheLastCallback) {
  bool done = false;
  RecvArgs args;
  args.destination = pool;
  group->RecvSelectedAsync(step.get(), RemoteKey("a"), args, blocks, [&](Received&& received) {
    EXPECT_TRUE(absl::IsCancelled(received.status));
    EXPECT_TRUE(reports.empty());
    done = true;
  });
  Cancel();
  EXPECT_TRUE(done);
  EXPECT_EQ(reports.size(), 1u);
}

TEST_F(FetchGroupTest, WhoComesLaterIsRefused) {
  ASSERT_TRUE(step->Send(LocalKey("a"), {}, Bytes("11112222"), false).ok());
  Cancel();
  ASSERT_EQ(reports.size(), 1u);
  const auto late = Join(LocalKey("a"));  // It is here, and would be delivered.
  EXPECT_TRUE(absl::IsCancelled(late->status)) << late->status;
  EXPECT_EQ(TextOf(pool), "................");
  const auto remote = Join(RemoteKey("a"));
  EXPECT_TRUE(absl::IsCancelled(remote->status));
  EXPECT_TRUE(fetcher.ones.empty());
  EXPECT_EQ(reports.size(), 1u);
}

TEST_F(FetchGroupTest, EachCancelHearsOfTheFenceOnce) {
  fetcher.ends_cancelled = false;
  Join(RemoteKey("a"));
  Cancel();
  Cancel();
  EXPECT_TRUE(reports.empty());
  fetcher.End(0, Received{absl::CancelledError("cancelled")});
  EXPECT_EQ(reports.size(), 2u);
  Cancel();
  EXPECT_EQ(reports.size(), 3u);
  EXPECT_EQ(reports[2].cancelled, 1u);
}

TEST_F(FetchGroupTest, AGroupMayGoBeforeItsReceives) {
  fetcher.ends_cancelled = false;
  const auto a = Join(RemoteKey("a"));
  Cancel();
  group.reset();
  fetcher.End(0, Received{absl::CancelledError("cancelled")});
  EXPECT_EQ(a->calls, 1);
  EXPECT_EQ(reports.size(), 1u);

  group = std::make_unique<FetchGroup>(&alarms.clock());
  fetcher.ends_cancelled = true;
  const auto b = Join(RemoteKey("b"));
  group.reset();
  EXPECT_TRUE(absl::IsCancelled(b->status)) << "it goes with the group";
}

TEST_F(FetchGroupTest, ACallbackMayDestroyTheGroup) {
  RecvArgs args;
  args.destination = pool;
  group->RecvSelectedAsync(step.get(), RemoteKey("a"), args, blocks,
                           [&](Received&&) { group.reset(); });
  const auto b = Join(RemoteKey("b"));
  Cancel();
  EXPECT_EQ(b->calls, 1);
  EXPECT_EQ(reports.size(), 1u);
}

TEST_F(FetchGroupTest, OneMayBeCancelledAlone) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  const auto a = Join(RemoteKey("a"), args);
  const auto b = Join(RemoteKey("b"));
  cancellation.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(a->status));
  EXPECT_EQ(b->calls, 0);
  EXPECT_EQ(group->under_way(), 1u);
  Cancel();
  EXPECT_EQ(b->calls, 1);
  EXPECT_EQ(reports.size(), 1u);
}

TEST_F(FetchGroupTest, CountsWhatFailsAndWhatIsNoSelection) {
  RecvArgs args;
  auto plain = std::make_shared<Outcome>();
  group->RecvAsync(step.get(), RemoteKey("a"), args, Into(plain));
  const auto failed = Join(RemoteKey("b"));
  fetcher.End(0, Bytes("123"));
  fetcher.End(1, Received{absl::UnavailableError("gone")});
  Cancel();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].ended_ok, 1u);
  EXPECT_EQ(reports[0].failed, 1u);
  EXPECT_EQ(reports[0].bytes_landed, 3u);
  EXPECT_EQ(reports[0].slowest_peer, "");
}

// Threads join, and are served, while the group is cancelled.
TEST_F(FetchGroupTest, WhoJoinsDuringTheCancelHasEndedBehindTheFenceOrIsRefused) {
  constexpr int kThreads = 3, kEach = 60;
  for (int round = 0; round < 50; ++round) {
    group = std::make_unique<FetchGroup>(&alarms.clock());
    std::vector<Tensor> pools;
    for (int i = 0; i < kThreads * kEach; ++i) pools.push_back(Bytes("........"));
    std::atomic<int> ended{0}, ok{0}, fences{0};
    std::atomic<bool> fenced{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = t * kEach; i < (t + 1) * kEach; ++i) {
          const TensorKey key = LocalKey(absl::StrCat(round, ".", i));
          const bool is_there = i % 3 == 0, comes = i % 3 == 1;
          bool sent = !is_there || step->Send(key, {}, Bytes("11112222"), false).ok();
          RecvArgs args;
          args.destination = pools[i];
          group->RecvSelectedAsync(step.get(), key, args, Selection(), [&](Received&& received) {
            // What ends behind the fence was refused.
            EXPECT_TRUE(!fenced.load() || absl::IsCancelled(received.status));
            ok += received.status.ok();
            ++ended;
          });
          sent &= !comes || step->Send(key, {}, Bytes("33334444"), false).ok();
          EXPECT_TRUE(sent);
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::microseconds(round * 10));
    FenceReport report;
    std::thread cancels([&] {
      group->StartCancel([&](const FenceReport& told) {
        report = told;
        fenced = true;
        ++fences;
      });
    });
    for (std::thread& thread : threads) thread.join();
    cancels.join();
    ASSERT_EQ(fences, 1);
    ASSERT_EQ(ended, kThreads * kEach);
    ASSERT_EQ(report.ended_ok, static_cast<size_t>(ok.load()));
    ASSERT_EQ(group->under_way(), 0u);
    int filled = 0;
    for (const Tensor& pool : pools) filled += TextOf(pool) != "........";
    ASSERT_EQ(filled, ok);
  }
}

TEST_F(FetchGroupTest, ADoneThatThrowsHasEnded) {
  RecvArgs args;
  args.destination = pool;
  group->RecvSelectedAsync(step.get(), RemoteKey("a"), args, blocks, [](Received&&) { throw 1; });
  EXPECT_THROW(fetcher.End(0, Bytes("11112222")), int);
  Cancel();
  EXPECT_EQ(reports.size(), 1u);
}

}  // namespace
}  // namespace tryst
