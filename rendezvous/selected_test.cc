#include "rendezvous/selected.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/crc32c.h"
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
    FetchedFn done;
    Cancellation::Token token = Cancellation::kNoToken;
  };
  void Fetch(int64_t, const TensorKey& key, const RecvArgs& args, FetchedFn&& done) override {
    auto one = std::make_shared<One>(One{key, args, std::move(done)});
    ones.push_back(one);
    if (args.cancellation == nullptr || !ends_cancelled) return;
    one->token = args.cancellation->Register([one] {
      if (one->done) FailReceive(absl::CancelledError("cancelled"), nullptr, std::move(one->done));
    });
  }
  void FetchMany(int64_t, absl::Span<const TensorKey>, const RecvArgs&, ManyFetchedFn) override {}
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
  std::shared_ptr<Outcome> Land(const TensorKey& key, RecvArgs args,
                                const SelectedLanding& landing) {
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

// The list has more spans than one call may select, and lies in memory that nobody can read.
TEST_F(SelectedTest, AListThatIsRefusedIsNotCopied) {
  constexpr size_t kTooMany = Selection::kMaxSpans + 1;
  constexpr size_t kBytes = kTooMany * sizeof(uint32_t);
  void* const unreadable = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(unreadable, MAP_FAILED);
  const Selection huge =
      Selection::Indices(absl::MakeConstSpan(static_cast<uint32_t*>(unreadable), kTooMany), 4);
  const auto made = SelectedDestination::Make(RemoteKey("a"), pool, huge);
  EXPECT_TRUE(absl::IsInvalidArgument(made.status())) << made.status();
  munmap(unreadable, kBytes);
}

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

// What a send with digests gives to a path, for one that the test then ends.
Tensor SentWithDigests(RoutingRendezvous* step, const Tensor& source, const Selection& selection) {
  SendArgs with;
  with.digests = true;
  EXPECT_TRUE(step->SendSelected(LocalKey("digested"), with, source, selection).ok());
  return Receive(step, LocalKey("digested"))->tensor;
}

struct DigestedTest : SelectedTest {
  // Two spans of 100 bytes.
  DigestedTest() {
    landing.digests = true;
    landing.result = &result;
  }
  std::shared_ptr<Outcome> LandAt(const TensorKey& key, RecvArgs args = {}) {
    args.destination = into;
    auto outcome = std::make_shared<Outcome>();
    step->RecvSelectedAsync(key, args, landing, Into(outcome));
    return outcome;
  }

  const Tensor source =
      Bytes(std::string(100, 'a') + std::string(100, 'b') + std::string(100, 'c'));
  const Tensor into = Bytes(std::string(300, '.'));
  const std::vector<uint32_t> there = {2, 0};
  const Selection sent = Selection::Indices(there, 100);
  const std::vector<ByteSpan> spans = {{0, 150}, {250, 50}};
  GatherResult result;
  SelectedLanding landing{Selection::Spans(spans)};
};

TEST_F(DigestedTest, ComesWithTheDigestOfEachSpan) {
  const auto remote = LandAt(RemoteKey("a"));
  EXPECT_EQ(result.failed, (std::vector<uint32_t>{0, 1})) << "nothing is there so far";
  fetcher.End(0, SentWithDigests(step.get(), source, sent));
  ASSERT_TRUE(remote->ok()) << remote->status;
  EXPECT_EQ(TextOf(into), std::string(100, 'c') + std::string(50, 'a') + std::string(100, '.') +
                              std::string(50, 'a'));
  EXPECT_TRUE(result.failed.empty());
  EXPECT_EQ(result.digests, (std::vector<uint32_t>{Crc32c(0, into.data(), 150),
                                                   Crc32c(0, into.data_as<char>() + 250, 50)}));
  SendArgs with;
  with.digests = true;
  ASSERT_TRUE(step->SendSelected(LocalKey("a"), with, source, sent).ok());
  landing.result = nullptr;
  EXPECT_TRUE(LandAt(LocalKey("a"))->ok());
}

TEST_F(DigestedTest, AWrongSpanIsNamedAndTheOthersAreThere) {
  for (const bool partial : {false, true}) {
    SCOPED_TRACE(partial);
    memset(into.mutable_data(), '.', into.bytes());
    landing.partial = partial;
    const auto remote = LandAt(RemoteKey("a"));
    const Tensor wrong = SentWithDigests(step.get(), source, sent);
    static_cast<char*>(wrong.mutable_data())[199] ^=
        1;  // In the second of its granules, as both spans are.
    fetcher.End(fetcher.ones.size() - 1, wrong);
    EXPECT_EQ(result.failed, (std::vector<uint32_t>{0, 1}));
    EXPECT_EQ(remote->ok(), partial);
    EXPECT_EQ(TextOf(into), std::string(100, 'c') + std::string(200, '.'));
    EXPECT_EQ(absl::IsDataLoss(remote->status), !partial) << remote->status;
    const auto again = LandAt(RemoteKey("a"));
    const Tensor first = SentWithDigests(step.get(), source, sent);
    static_cast<char*>(first.mutable_data())[0] ^= 1;
    fetcher.End(fetcher.ones.size() - 1, first);
    EXPECT_EQ(result.failed, (std::vector<uint32_t>{0}));
    EXPECT_EQ(result.digests[0], 0u);
    EXPECT_EQ(result.digests[1], Crc32c(0, into.data_as<char>() + 250, 50));
    if (partial) {
      EXPECT_TRUE(again->ok());
    } else {
      EXPECT_NE(again->status.message().find("1 spans"), absl::string_view::npos) << again->status;
      EXPECT_FALSE(again->tensor.valid());
    }
  }
}

TEST_F(DigestedTest, OneEndAloneHasThem) {
  const auto without = LandAt(RemoteKey("a"));
  fetcher.End(0, Bytes(std::string(200, 'x')));
  EXPECT_TRUE(absl::IsInvalidArgument(without->status)) << without->status;
  EXPECT_EQ(result.failed.size(), 2u);
  EXPECT_EQ(TextOf(into), std::string(300, '.'));
  landing.digests = false;
  ASSERT_TRUE(LandAt(RemoteKey("a"))->ok()) << "it is there for the next";
  EXPECT_TRUE(result.failed.empty());
  EXPECT_TRUE(result.digests.empty());
  const auto with = LandAt(RemoteKey("a"));
  fetcher.End(1, SentWithDigests(step.get(), source, sent));
  EXPECT_TRUE(absl::IsInvalidArgument(with->status)) << with->status;
  landing.digests = true;
  EXPECT_TRUE(LandAt(RemoteKey("a"))->ok());
}

TEST_F(DigestedTest, WhatFailsHasNoSpan) {
  FetchGroup group(&alarms.clock());
  RecvArgs args;
  args.destination = into;
  auto outcome = std::make_shared<Outcome>();
  result.failed.clear();
  group.RecvSelectedAsync(step.get(), RemoteKey("a"), args, landing, Into(outcome));
  group.StartCancel(nullptr);
  EXPECT_TRUE(absl::IsCancelled(outcome->status));
  EXPECT_EQ(result.failed.size(), 2u);
  result.failed.clear();
  auto late = std::make_shared<Outcome>();
  group.RecvSelectedAsync(step.get(), RemoteKey("a"), args, landing, Into(late));
  EXPECT_TRUE(absl::IsCancelled(late->status));
  EXPECT_EQ(result.failed.size(), 2u);
}

TEST_F(DigestedTest, AWholeTensorHasThemToo) {
  landing.selection = Selection();
  const auto remote = LandAt(RemoteKey("a"));
  fetcher.End(0, SentWithDigests(step.get(), source, Selection()));
  ASSERT_TRUE(remote->ok()) << remote->status;
  EXPECT_EQ(TextOf(into), TextOf(source));
  EXPECT_EQ(result.digests, (std::vector<uint32_t>{Crc32c(0, source.data(), 300)}));
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
  EXPECT_TRUE(fetcher.ones[0]->args.leaves_at_once);
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

// It may be in a landing, for which others wait.
TEST_F(SelectedTest, WhatIsKeptHoldsNothingOfWhereItCame) {
  bool freed = false;
  char bytes[4] = {'1', '1', '1', '1'};
  Land(RemoteKey("a"), {}, blocks);
  fetcher.End(0, *Tensor::Adopt(bytes, DType::kUint8, {4}, MemorySpace(), [&] { freed = true; }));
  EXPECT_TRUE(freed);
  memset(bytes, 'x', sizeof(bytes));
  const std::vector<uint32_t> one = {0};
  ASSERT_TRUE(Land(RemoteKey("a"), {}, Selection::Indices(one, 4))->ok());
  EXPECT_EQ(TextOf(pool), "1111............");
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

TEST_F(SelectedTest, ADeadTensorDoesNotOvertakeWhatIsKept) {
  const std::vector<uint32_t> one = {0};
  const Selection four = Selection::Indices(one, 4);
  const auto a = Land(RemoteKey("a"), {}, blocks);
  const auto b = Land(RemoteKey("a"), {}, four);
  fetcher.End(0, Bytes("1111"));
  fetcher.End(1, {absl::OkStatus(), Tensor(), /*is_dead=*/true});
  EXPECT_FALSE(a->ok());
  ASSERT_TRUE(b->ok()) << b->status;
  EXPECT_FALSE(b->is_dead) << "it was sent behind the other one";
  EXPECT_EQ(TextOf(pool), "1111............");
  const auto third = Land(RemoteKey("a"), {}, four);
  EXPECT_TRUE(third->ok() && third->is_dead) << third->status;
  EXPECT_EQ(fetcher.ones.size(), 2u);
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

TEST_F(FetchGroupTest, ALaterCancelReportsTheSameWait) {
  fetcher.ends_cancelled = false;
  Join(RemoteKey("a"));
  Cancel();
  alarms.AdvanceTo(alarms.clock().NowNs() + 5);
  fetcher.End(0, Received{absl::CancelledError("cancelled")});
  alarms.AdvanceTo(alarms.clock().NowNs() + 70);
  Cancel();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].waited_ns, 5);
  EXPECT_EQ(reports[1].waited_ns, 5);
}

TEST_F(FetchGroupTest, APlainReceiveNamesItsPeer) {
  group->RecvAsync(step.get(), RemoteKey("a"), {}, nullptr);
  Cancel();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].slowest_peer, kWorker1);
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

// Its caller may give up while the receives of a group are being started.
TEST_F(FetchGroupTest, OneThatWasCancelledBeforeItJoinsIsNotFetched) {
  Cancellation cancellation;
  cancellation.StartCancel();
  RecvArgs args;
  args.cancellation = &cancellation;
  const auto late = Join(RemoteKey("a"), args);
  EXPECT_TRUE(absl::IsCancelled(late->status)) << late->status;
  EXPECT_TRUE(fetcher.ones.empty());
  EXPECT_EQ(group->under_way(), 0u);
  const auto other = Join(RemoteKey("b"));
  EXPECT_EQ(other->calls, 0) << "the group goes on";
  Cancel();
  EXPECT_EQ(other->calls, 1);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].cancelled, 2u);
}

TEST_F(FetchGroupTest, CountsWhatFailsAndWhatIsNoSelection) {
  RecvArgs args;
  auto plain = std::make_shared<Outcome>();
  group->RecvAsync(step.get(), RemoteKey("a"), args, Into(plain));
  const auto failed = Join(RemoteKey("b"));
  fetcher.End(0, Bytes("123"));
  fetcher.End(1, Received{absl::UnavailableError("gone")});
  args.destination = Bytes("....");
  group->RecvSelectedAsync(step.get(), RemoteKey("c"), args, Selection(), Into(plain));
  fetcher.End(2, Bytes("1234"));
  Cancel();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].ended_ok, 2u);
  EXPECT_EQ(reports[0].failed, 1u);
  EXPECT_EQ(reports[0].bytes_landed, 7u);
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

// ---- Memory of a device ----

// Its memory is the host's, and it scatters when the test says so.
class SelectingDevice final : public DeviceContext, public SelectionCopier {
 public:
  static Tensor Holding(const Tensor& host) {
    MemorySpace space;
    space.kind = MemorySpace::Kind::kDevice;
    return *Tensor::Adopt(host.mutable_data(), host.dtype(), host.shape(), space, [host] {});
  }
  absl::StatusOr<Tensor> Allocate(DType dtype, const TensorShape& shape,
                                  const AllocatorAttributes&) override {
    return Holding(*Tensor::Allocate(dtype, shape));
  }
  void StartCopy(const Tensor& from, const Tensor& into,
                 absl::AnyInvocable<void(absl::Status) &&> done) override {
    memcpy(into.mutable_data(), from.data(), from.bytes());
    std::move(done)(absl::OkStatus());
  }
  SelectionCopier* selection_copier() override { return selects ? this : nullptr; }
  absl::StatusOr<Gathered> Gather(const Tensor& tensor, const Selection& selection,
                                  uint64_t bytes) override {
    if (!refuses.ok()) return refuses;
    const Tensor row = Bytes(std::string(bytes, '.'));
    SelectionPlace place;
    tryst::Gather(selection, tensor.data(), row.mutable_data(), bytes, &place);
    return Gathered{Holding(row), sends_by};
  }
  void StartScatter(const Tensor& dense, const Tensor& into, const Selection& selection,
                    absl::AnyInvocable<void(absl::Status) &&> done) override {
    scatters.push_back([dense, into, selection, done = std::move(done)](absl::Status how) mutable {
      SelectionPlace place;
      if (how.ok()) {
        Scatter(selection, dense.data(), into.mutable_data(), dense.bytes(), &place);
      }
      std::move(done)(std::move(how));
    });
  }
  void EndScatter(absl::Status how = absl::OkStatus()) {
    auto scatter = std::move(scatters.front());
    scatters.erase(scatters.begin());
    std::move(scatter)(std::move(how));
  }

  bool selects = true;
  absl::Status refuses;
  std::shared_ptr<DeviceContext> sends_by;
  std::vector<absl::AnyInvocable<void(absl::Status) &&>> scatters;
};

struct OnDeviceTest : SelectedTest {
  OnDeviceTest() {
    recv.device_context = device;
    recv.destination = there;
    send.device_context = device;
    device->sends_by = std::make_shared<SelectingDevice>();
  }
  std::shared_ptr<Outcome> LandThere(const TensorKey& key, const SelectedLanding& landing) {
    auto outcome = std::make_shared<Outcome>();
    step->RecvSelectedAsync(key, recv, landing, Into(outcome));
    return outcome;
  }

  const std::shared_ptr<SelectingDevice> device = std::make_shared<SelectingDevice>();
  const Tensor there = SelectingDevice::Holding(pool);
  RecvArgs recv;
  SendArgs send;
};

TEST_F(OnDeviceTest, TheDeviceGathersAndSaysByWhatItIsSent) {
  const Tensor source = SelectingDevice::Holding(Bytes("aaaabbbbccccdddd"));
  ASSERT_TRUE(step->SendSelected(LocalKey("a"), send, source, blocks).ok());
  const auto whole = Receive(step.get(), LocalKey("a"));
  ASSERT_TRUE(whole->ok());
  EXPECT_FALSE(whole->tensor.on_host());
  EXPECT_EQ(TextOf(whole->tensor), "ddddbbbb");
  EXPECT_EQ(whole->send_context, device->sends_by);
}

TEST_F(OnDeviceTest, ASendThatTheDeviceCannotGatherIsRefused) {
  const Tensor source = SelectingDevice::Holding(Bytes("aaaabbbbccccdddd"));
  const std::vector<uint32_t> outside = {4};
  const auto refused = [&](const Selection& selection) {
    const absl::Status sent = step->SendSelected(LocalKey("a"), send, source, selection);
    EXPECT_TRUE(absl::IsInvalidArgument(sent)) << sent;
  };
  refused(Selection::Indices(outside, 4));
  send.digests = true;
  refused(blocks);
  refused(Selection());
  send.digests = false;
  device->selects = false;
  refused(blocks);
  send.device_context = nullptr;
  refused(blocks);
  send.device_context = device;
  device->selects = true;
  device->refuses = absl::ResourceExhaustedError("full");
  EXPECT_TRUE(absl::IsResourceExhausted(step->SendSelected(LocalKey("a"), send, source, blocks)));
  EXPECT_EQ(step->counters().sends, 0);
}

TEST_F(OnDeviceTest, WhatComesIsScatteredByTheDevice) {
  GatherResult result;
  SelectedLanding landing(blocks);
  landing.result = &result;
  HeldExecutor executor;
  recv.executor = &executor;
  const auto remote = LandThere(RemoteKey("a"), landing);
  const RecvArgs& asked = fetcher.ones.at(0)->args;
  EXPECT_FALSE(asked.destination.valid()) << "no path may write there";
  EXPECT_TRUE(asked.on_device && asked.device_context == device);
  EXPECT_FALSE(asked.alloc_attrs.on_host || asked.by_reference);
  fetcher.End(0, SelectingDevice::Holding(Bytes("11112222")));
  ASSERT_EQ(device->scatters.size(), 1u);
  EXPECT_EQ(result.failed.size(), 2u) << "nothing is there so far";
  device->EndScatter();
  EXPECT_EQ(remote->calls, 0) << "it has an executor";
  executor.RunAll();
  ASSERT_TRUE(remote->ok()) << remote->status;
  EXPECT_EQ(TextOf(pool), "....2222....1111");
  EXPECT_TRUE(remote->tensor.SharesBytesWith(there));
  EXPECT_TRUE(result.failed.empty());

  recv.executor = nullptr;
  const auto local = LandThere(LocalKey("a"), blocks);
  ASSERT_TRUE(step->Send(LocalKey("a"), {}, Bytes("33334444"), false).ok());
  device->EndScatter();
  ASSERT_TRUE(local->ok()) << local->status;
  EXPECT_EQ(TextOf(pool), "....4444....3333");
}

TEST_F(OnDeviceTest, AReceiveThatItCannotScatterIsRefusedAtOnce) {
  const std::vector<uint32_t> twice = {1, 1};
  const auto refused = [&](const SelectedLanding& landing) {
    const auto outcome = LandThere(RemoteKey("a"), landing);
    EXPECT_TRUE(absl::IsInvalidArgument(outcome->status)) << outcome->status;
  };
  refused(Selection::Indices(twice, 4));
  SelectedLanding digested(blocks);
  digested.digests = true;
  refused(digested);
  device->selects = false;
  refused(blocks);
  recv.device_context = nullptr;
  refused(blocks);
  EXPECT_TRUE(fetcher.ones.empty());
}

TEST_F(OnDeviceTest, ACancelDuringTheScatterComesTooLateAndTheFenceWaits) {
  FetchGroup group(&alarms.clock());
  auto outcome = std::make_shared<Outcome>();
  group.RecvSelectedAsync(step.get(), RemoteKey("a"), recv, blocks, Into(outcome));
  fetcher.End(0, Bytes("11112222"));
  bool fenced = false;
  group.StartCancel([&fenced](const FenceReport& report) {
    fenced = true;
    EXPECT_EQ(report.ended_ok, 1u);
  });
  EXPECT_FALSE(fenced);
  EXPECT_EQ(outcome->calls, 0);
  device->EndScatter();
  EXPECT_TRUE(fenced);
  EXPECT_TRUE(outcome->ok());
}

TEST_F(OnDeviceTest, WhatDoesNotFitOrCannotBeScatteredIsThereForTheNext) {
  const std::vector<uint32_t> one = {2};
  for (const bool remote : {true, false}) {
    const TensorKey key = remote ? RemoteKey("a") : LocalKey("a");
    const auto small = LandThere(key, Selection::Indices(one, 4));
    const Tensor sent = SelectingDevice::Holding(Bytes("11112222"));
    if (remote) {
      fetcher.End(0, sent);
    } else {
      ASSERT_TRUE(step->Send(key, send, sent, false).ok());
    }
    EXPECT_TRUE(absl::IsInvalidArgument(small->status)) << small->status;
    const auto fails = LandThere(key, blocks);
    device->EndScatter(absl::ResourceExhaustedError("no list"));
    EXPECT_TRUE(absl::IsResourceExhausted(fails->status)) << fails->status;
    EXPECT_FALSE(fails->tensor.valid());
    if (remote) {
      const auto on_host = Land(key, {}, blocks);
      EXPECT_TRUE(absl::IsInvalidArgument(on_host->status)) << on_host->status;
    }
    memset(pool.mutable_data(), '.', pool.bytes());
    const auto next = LandThere(key, blocks);
    ASSERT_EQ(device->scatters.size(), 1u) << "it is asked for no second time";
    device->EndScatter();
    ASSERT_TRUE(next->ok()) << next->status;
    EXPECT_EQ(TextOf(pool), "....2222....1111");
  }
  EXPECT_EQ(fetcher.ones.size(), 1u);
}

TEST_F(OnDeviceTest, WhatWasKeptOnTheHostIsScatteredByTheDevice) {
  const std::vector<uint32_t> one = {2};
  const auto small = Land(RemoteKey("a"), {}, Selection::Indices(one, 4));
  fetcher.End(0, Bytes("11112222"));
  EXPECT_TRUE(absl::IsInvalidArgument(small->status)) << small->status;
  const auto next = LandThere(RemoteKey("a"), blocks);
  device->EndScatter();
  ASSERT_TRUE(next->ok()) << next->status;
  EXPECT_EQ(TextOf(pool), "....2222....1111");
}

}  // namespace
}  // namespace tryst
