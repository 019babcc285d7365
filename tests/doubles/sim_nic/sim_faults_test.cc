// Every fault, one at a time, on request.

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/doubles/sim_nic/sim_ends.h"

namespace tryst {
namespace {

constexpr uint64_t kBytes = 1 << 17;  // Four chunks.
constexpr int64_t kLong = 10'000'000'000;

std::vector<NicEvent::Kind> Events(SimNic* nic) {
  std::vector<NicEvent::Kind> kinds;
  while (const absl::optional<NicEvent> event = nic->NextEvent()) kinds.push_back(event->kind);
  return kinds;
}

// Two NICs, and one queue pair between them.
struct Link {
  explicit Link(uint64_t seed, const SimOptions& options = SimOptions())
      : world(seed, options), a(&world, 0, kBytes), b(&world, 1, kBytes) {
    Rejoin();
    std::fill(a.memory.begin(), a.memory.end(), 1);
  }

  void Rejoin() {
    a.pairs.clear();
    b.pairs.clear();
    left = a.AddQueuePair();
    right = b.AddQueuePair();
    Join(left, right);
  }

  // Posts a write with immediate over all the memory, and the receive that it takes.
  void Write(uint64_t id) {
    EXPECT_TRUE(b.PostReceive(right, id).ok());
    SendWork work = a.WriteTo(b, id, 0);
    work.op = SendOp::kWriteWithImmediate;
    work.immediate = static_cast<uint32_t>(id);
    EXPECT_TRUE(a.Post(left, work, 0, kBytes).ok());
  }

  // One such write, and then a long pause: how it ended on each side.
  struct Ends {
    std::vector<Completion> sent;
    std::vector<Completion> received;
    int64_t landed;
  };
  Ends Run() {
    Write(1);
    world.RunFor(kLong);
    return {a.Poll(), b.Poll(), std::count(b.memory.begin(), b.memory.end(), 1)};
  }

  SimWorld world;
  SimEnd a;
  SimEnd b;
  QueuePair* left = nullptr;
  QueuePair* right = nullptr;
};

TEST(SimFaultsTest, EveryStatusAtEveryPoint) {
  for (int s = 1; s < kCompletionStatusCount; ++s) {
    for (const FaultPoint point :
         {FaultPoint::kTaken, FaultPoint::kHalfSent, FaultPoint::kSent, FaultPoint::kArrived,
          FaultPoint::kHalfLanded, FaultPoint::kLanded, FaultPoint::kAcknowledged}) {
      const auto status = static_cast<CompletionStatus>(s);
      SCOPED_TRACE(absl::StrCat(CompletionStatusName(status), " at ", static_cast<int>(point)));
      Link link(1);
      WorkFault fault;
      fault.action = FaultAction::kFail;
      fault.point = point;
      fault.status = status;
      link.world.Inject(*link.left, 0, fault);
      const Link::Ends ends = link.Run();
      ASSERT_EQ(ends.sent.size(), 1u);
      EXPECT_EQ(ends.sent[0].status, status);
      EXPECT_EQ(link.left->state(), QueuePairState::kDrained);
      EXPECT_EQ(link.world.faults_done(), 1u);
      if (point == FaultPoint::kTaken || point == FaultPoint::kArrived) {
        EXPECT_EQ(ends.landed, 0);
      }
      if (point == FaultPoint::kLanded || point == FaultPoint::kAcknowledged) {
        EXPECT_EQ(ends.landed, static_cast<int64_t>(kBytes));
      }
      if (point == FaultPoint::kAcknowledged) {
        ASSERT_EQ(ends.received.size(), 1u);
        EXPECT_EQ(ends.received[0].status, CompletionStatus::kOk);
      }
    }
  }
}

TEST(SimFaultsTest, AFlippedBitLandsAndNobodySaysSo) {
  for (const bool allowed : {true, false}) {
    Link link(1);
    FaultPlan plan;
    plan.may_flip = [allowed](SendOp op, uint32_t immediate) {
      return allowed && op == SendOp::kWriteWithImmediate && immediate == 1;
    };
    link.world.SetFaultPlan(plan);
    WorkFault fault;
    fault.action = FaultAction::kFlip;
    fault.point = FaultPoint::kArrived;
    fault.delay_ns = 12345;
    link.world.Inject(*link.left, 0, fault);
    const Link::Ends ends = link.Run();
    ASSERT_EQ(ends.sent.size(), 1u);
    EXPECT_EQ(ends.sent[0].status, CompletionStatus::kOk);
    ASSERT_EQ(ends.received.size(), 1u);
    EXPECT_EQ(ends.received[0].status, CompletionStatus::kOk);
    EXPECT_EQ(ends.landed, static_cast<int64_t>(kBytes) - (allowed ? 1 : 0));
    EXPECT_EQ(link.world.faults_done(), allowed ? 1u : 0u);
  }
}

TEST(SimFaultsTest, EveryStatusOfAReceive) {
  for (int s = 1; s < kCompletionStatusCount; ++s) {
    const auto status = static_cast<CompletionStatus>(s);
    Link link(1);
    WorkFault fault;
    fault.action = FaultAction::kFailReceive;
    fault.point = FaultPoint::kLanded;
    fault.status = status;
    link.world.Inject(*link.left, 0, fault);
    const Link::Ends ends = link.Run();
    ASSERT_EQ(ends.received.size(), 1u);
    EXPECT_EQ(ends.received[0].status, status);
    ASSERT_EQ(ends.sent.size(), 1u);
    EXPECT_EQ(ends.sent[0].status, CompletionStatus::kRemoteOperation);
    EXPECT_EQ(link.right->state(), QueuePairState::kDrained);
    EXPECT_EQ(Events(link.b.nic.get()),
              std::vector<NicEvent::Kind>{NicEvent::Kind::kQueuePairFatal});
  }
}

// What a break at each point leaves: how much has landed, and how each side's work ends.
TEST(SimFaultsTest, BreakAtEveryPointOnEitherSide) {
  const auto kOk = CompletionStatus::kOk;
  const auto kFlushed = CompletionStatus::kFlushed;
  const auto kRetry = CompletionStatus::kRetryExceeded;
  enum Landed { kNone, kSome, kAll };
  struct {
    FaultPoint point;
    FaultAction action;
    Landed landed;
    CompletionStatus sent;
    CompletionStatus received;  // Flushed when the test breaks the healthy side at the end.
  } const kCases[] = {
      {FaultPoint::kTaken, FaultAction::kBreakRequester, kNone, kFlushed, kFlushed},
      {FaultPoint::kTaken, FaultAction::kBreakResponder, kNone, kRetry, kFlushed},
      {FaultPoint::kHalfSent, FaultAction::kBreakRequester, kSome, kFlushed, kFlushed},
      {FaultPoint::kHalfSent, FaultAction::kBreakResponder, kNone, kRetry, kFlushed},
      {FaultPoint::kSent, FaultAction::kBreakRequester, kAll, kFlushed, kOk},
      {FaultPoint::kSent, FaultAction::kBreakResponder, kSome, kRetry, kFlushed},
      {FaultPoint::kArrived, FaultAction::kBreakRequester, kSome, kFlushed, kFlushed},
      {FaultPoint::kArrived, FaultAction::kBreakResponder, kNone, kRetry, kFlushed},
      {FaultPoint::kHalfLanded, FaultAction::kBreakRequester, kSome, kFlushed, kFlushed},
      {FaultPoint::kHalfLanded, FaultAction::kBreakResponder, kSome, kRetry, kFlushed},
      {FaultPoint::kLanded, FaultAction::kBreakRequester, kAll, kFlushed, kOk},
      {FaultPoint::kLanded, FaultAction::kBreakResponder, kAll, kRetry, kFlushed},
      {FaultPoint::kReceived, FaultAction::kBreakRequester, kAll, kFlushed, kOk},
      {FaultPoint::kReceived, FaultAction::kBreakResponder, kAll, kOk, kOk},
      {FaultPoint::kAcknowledged, FaultAction::kBreakRequester, kAll, kFlushed, kOk},
      {FaultPoint::kAcknowledged, FaultAction::kBreakResponder, kAll, kOk, kOk},
      {FaultPoint::kCompleted, FaultAction::kBreakRequester, kAll, kOk, kOk},
      {FaultPoint::kCompleted, FaultAction::kBreakResponder, kAll, kOk, kOk},
  };
  ASSERT_EQ(std::size(kCases), 2u * kFaultPointCount);
  SimOptions options;
  options.break_ns_max = 0;  // A break stops at once, so that it is known what has landed.
  options.completion_ns_max = 0;
  options.link.bytes_per_second = 1'000'000'000;  // A chunk takes longer than the latency.
  for (const auto& c : kCases) {
    SCOPED_TRACE(
        absl::StrCat("point ", static_cast<int>(c.point), ", action ", static_cast<int>(c.action)));
    Link link(1, options);
    WorkFault fault;
    fault.action = c.action;
    fault.point = c.point;
    link.world.Inject(*link.left, 0, fault);
    Link::Ends ends = link.Run();
    const bool requester = c.action == FaultAction::kBreakRequester;
    QueuePair* const broken = requester ? link.left : link.right;
    EXPECT_EQ(broken->state(), QueuePairState::kDrained);
    link.left->Break();
    link.right->Break();
    link.world.RunFor(kLong);
    for (const Completion& more : link.b.Poll()) ends.received.push_back(more);
    EXPECT_TRUE(link.a.Poll().empty());
    ASSERT_EQ(ends.sent.size(), 1u);
    EXPECT_EQ(ends.sent[0].status, c.sent);
    ASSERT_EQ(ends.received.size(), 1u);
    EXPECT_EQ(ends.received[0].status, c.received);
    if (c.landed == kNone) {
      EXPECT_EQ(ends.landed, 0);
    }
    if (c.landed == kAll) {
      EXPECT_EQ(ends.landed, static_cast<int64_t>(kBytes));
    }
    if (c.landed == kSome) {
      EXPECT_GT(ends.landed, 0);
      EXPECT_LT(ends.landed, static_cast<int64_t>(kBytes));
    }
    EXPECT_EQ(link.world.violations(), std::vector<std::string>());
  }
}

class CompletionFaultTest : public testing::TestWithParam<FaultPoint> {
 protected:
  // The completions on the side that suffers the fault.
  std::vector<Completion> Poll() {
    return GetParam() == FaultPoint::kCompleted ? link_.a.Poll() : link_.b.Poll();
  }
  QueuePair* pair() const {
    return GetParam() == FaultPoint::kCompleted ? link_.left : link_.right;
  }
  void Inject(FaultAction action, int64_t delay_ns) {
    WorkFault fault;
    fault.action = action;
    fault.point = GetParam();
    fault.delay_ns = delay_ns;
    link_.world.Inject(*link_.left, 0, fault);
    link_.Write(1);
    link_.Write(2);
  }

  Link link_{5};
};

TEST_P(CompletionFaultTest, LateOnesHoldUpWhatIsBehindThem) {
  Inject(FaultAction::kDelay, 5'000'000);
  link_.world.RunFor(4'000'000);
  EXPECT_TRUE(Poll().empty());
  link_.world.RunFor(kLong);
  const std::vector<Completion> done = Poll();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].id, 1u);
  EXPECT_EQ(done[1].id, 2u);
}

TEST_P(CompletionFaultTest, LostOnesComeBackWhenTheQueuePairBreaks) {
  Inject(FaultAction::kLose, 0);
  link_.world.RunFor(kLong);
  std::vector<Completion> done = Poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, 2u);
  pair()->Break();
  link_.world.RunFor(kLong);
  EXPECT_EQ(pair()->state(), QueuePairState::kBroken);
  done = Poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, 1u);
  EXPECT_EQ(done[0].status, CompletionStatus::kFlushed);
  EXPECT_EQ(pair()->state(), QueuePairState::kDrained);
}

TEST_P(CompletionFaultTest, LostForEverNeverDrains) {
  Inject(FaultAction::kLoseForEver, 0);
  link_.world.RunFor(kLong);
  pair()->Break();
  link_.world.RunFor(kLong);
  ASSERT_EQ(Poll().size(), 1u);
  EXPECT_EQ(pair()->state(), QueuePairState::kBroken);
}

TEST_P(CompletionFaultTest, DuplicatesComeAgainAndTakeNoRoom) {
  Inject(FaultAction::kDuplicate, 1'000'000);
  link_.world.RunFor(kLong);
  const std::vector<Completion> done = Poll();
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].id, 1u);
  EXPECT_EQ(done[1].id, 2u);
  EXPECT_EQ(done[2].id, 1u);
  EXPECT_EQ(pair()->send_room(), 128u);
  EXPECT_EQ(pair()->receive_room(), 128u);
}

INSTANTIATE_TEST_SUITE_P(BothSides, CompletionFaultTest,
                         testing::Values(FaultPoint::kCompleted, FaultPoint::kReceived));

// Statuses that need no injected fault: the rules of the wire produce them.
TEST(SimFaultsTest, LengthsAndKeysAreCheckedOnBothSides) {
  struct {
    bool good_local_key;
    bool good_receive_key;
    uint64_t room;
    CompletionStatus sent;
    CompletionStatus received;
  } const kCases[] = {
      {true, true, 99, CompletionStatus::kRemoteInvalidRequest, CompletionStatus::kLocalLength},
      {true, false, 100, CompletionStatus::kRemoteOperation, CompletionStatus::kLocalProtection},
      {false, true, 100, CompletionStatus::kLocalProtection, CompletionStatus::kFlushed},
      {true, true, 100, CompletionStatus::kOk, CompletionStatus::kOk},
  };
  for (const auto& c : kCases) {
    Link link(1);
    const Entry into{link.b.region->address(), c.room,
                     c.good_receive_key ? link.b.region->local_key() : 1};
    ReceiveWork receive;
    receive.entries = absl::MakeConstSpan(&into, 1);
    ASSERT_TRUE(link.right->PostReceive(absl::MakeConstSpan(&receive, 1)).ok());
    const Entry from{link.a.region->address(), 100,
                     c.good_local_key ? link.a.region->local_key() : 1};
    SendWork send;
    send.op = SendOp::kSend;
    send.entries = absl::MakeConstSpan(&from, 1);
    ASSERT_TRUE(link.left->PostSend(absl::MakeConstSpan(&send, 1)).ok());
    link.world.RunFor(kLong);
    link.right->Break();
    link.world.RunFor(kLong);
    ASSERT_EQ(link.a.Poll().front().status, c.sent);
    ASSERT_EQ(link.b.Poll().front().status, c.received);
  }
}

TEST(SimFaultsTest, LocalErrorWaitsForWhatWasPostedBefore) {
  Link link(1);
  ASSERT_TRUE(link.a.Post(link.left, link.a.WriteTo(link.b, 1, 0), 0, kBytes).ok());
  SendWork bad = link.a.WriteTo(link.b, 2, 0);
  const Entry nowhere{link.a.region->address(), 8, 12345};
  bad.entries = absl::MakeConstSpan(&nowhere, 1);
  ASSERT_TRUE(link.left->PostSend(absl::MakeConstSpan(&bad, 1)).ok());
  ASSERT_TRUE(link.a.Post(link.left, link.a.WriteTo(link.b, 3, 0), 0, 8).ok());
  link.world.RunFor(kLong);
  const std::vector<Completion> done = link.a.Poll();
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].status, CompletionStatus::kOk);
  EXPECT_EQ(done[1].status, CompletionStatus::kLocalProtection);
  EXPECT_EQ(done[2].status, CompletionStatus::kFlushed);
}

TEST(SimFaultsTest, SilentPeerExhaustsTheRetriesAtTheirTime) {
  Link link(1);
  link.world.SetSilent(1, true);
  link.Write(1);
  const QueuePairOptions options;
  const int64_t attempt_ns = int64_t{4096} << options.ack_timeout;
  link.world.RunFor(attempt_ns * (options.retry_count + 1) - 1'000'000);
  EXPECT_TRUE(link.a.Poll().empty());
  link.world.RunFor(2'000'000);
  ASSERT_EQ(link.a.Poll().front().status, CompletionStatus::kRetryExceeded);
  EXPECT_EQ(std::count(link.b.memory.begin(), link.b.memory.end(), 1), 0);
}

TEST(SimFaultsTest, ShortOutagesAreHealedByRetries) {
  for (const int how : {0, 1, 2}) {
    Link link(1);
    const auto set = [&link, how](bool on) {
      if (how == 0) link.world.SetSilent(1, on);
      if (how == 1) link.world.SetPort(0, 1, !on);
      if (how == 2) link.world.SetCut(0, 1, on);
    };
    link.Write(1);
    link.world.RunFor(5'000);  // In the middle of the transfer.
    set(true);
    link.world.RunFor(100'000'000);
    EXPECT_TRUE(link.a.Poll().empty());
    set(false);
    link.world.RunFor(kLong);
    ASSERT_EQ(link.a.Poll().front().status, CompletionStatus::kOk);
    ASSERT_EQ(link.b.Poll().size(), 1u);
    EXPECT_EQ(link.b.memory, link.a.memory);
    const std::vector<NicEvent::Kind> events = Events(link.a.nic.get());
    if (how == 1) {
      EXPECT_EQ(events,
                (std::vector<NicEvent::Kind>{NicEvent::Kind::kPortDown, NicEvent::Kind::kPortUp}));
    } else {
      EXPECT_TRUE(events.empty());
    }
  }
}

TEST(SimFaultsTest, LossyLinksDeliverOnceAndInOrder) {
  LinkModel lossy;
  lossy.loss_ppm = 100'000;
  Link link(9);
  link.world.SetLink(0, 1, lossy);
  link.world.SetLink(1, 0, lossy);
  for (uint32_t i = 0; i < 100; ++i) link.Write(i);
  link.world.RunFor(100 * kLong);
  EXPECT_GT(link.world.fabric().packets_dropped(), 20u);
  const std::vector<Completion> received = link.b.Poll();
  ASSERT_EQ(received.size(), 100u);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(received[i].immediate, i);
  EXPECT_EQ(link.a.Poll().size(), 100u);
}

TEST(SimFaultsTest, ReadsSurviveLoss) {
  LinkModel lossy;
  lossy.loss_ppm = 100'000;
  Link link(9);
  link.world.SetLink(0, 1, lossy);
  link.world.SetLink(1, 0, lossy);
  std::fill(link.a.memory.begin(), link.a.memory.end(), 0);
  for (uint64_t i = 0; i < kBytes; ++i) link.b.memory[i] = static_cast<uint8_t>(i * 7);
  for (uint64_t i = 0; i < 32; ++i) {
    SendWork read = link.a.WriteTo(link.b, i, i * 4096);
    read.op = SendOp::kRead;
    ASSERT_TRUE(link.a.Post(link.left, read, i * 4096, 4096).ok());
    // A write behind each, which must be acknowledged before the READ is over.
    ASSERT_TRUE(link.a.Post(link.left, link.a.WriteTo(link.b, 100 + i, 0), 0, 0).ok());
  }
  link.world.RunFor(100 * kLong);
  const std::vector<Completion> done = link.a.Poll();
  ASSERT_EQ(done.size(), 64u);
  for (const Completion& c : done) EXPECT_EQ(c.status, CompletionStatus::kOk);
  EXPECT_EQ(link.a.memory, link.b.memory);
}

TEST(SimFaultsTest, ChangedAddressNeedsANewConnection) {
  Link link(1);
  link.world.ChangeAddress(1);
  EXPECT_EQ(Events(link.b.nic.get()), std::vector<NicEvent::Kind>{NicEvent::Kind::kAddressChanged});
  EXPECT_EQ(link.Run().sent.front().status, CompletionStatus::kRetryExceeded);
  link.Rejoin();
  EXPECT_EQ(link.Run().sent.front().status, CompletionStatus::kOk);
}

TEST(SimFaultsTest, FatalDeviceLosesEverything) {
  Link link(1);
  link.Write(1);
  link.world.RunFor(5'000);
  link.world.DeviceFatal(1);
  const auto landed = std::count(link.b.memory.begin(), link.b.memory.end(), 1);
  link.world.RunFor(kLong);
  EXPECT_EQ(Events(link.b.nic.get()), std::vector<NicEvent::Kind>{NicEvent::Kind::kDeviceFatal});
  Completion one;
  EXPECT_EQ(link.b.completions->Poll(absl::MakeSpan(&one, 1)).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(link.right->state(), QueuePairState::kBroken);
  EXPECT_EQ(link.b.nic->RegisterRegion(&one, 1, 0).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(link.b.nic->Ports()[0].state, PortState::kDown);
  EXPECT_EQ(std::count(link.b.memory.begin(), link.b.memory.end(), 1), landed);
  EXPECT_EQ(link.a.Poll().front().status, CompletionStatus::kRetryExceeded);
  // A new one, beside what is left of the old one.
  SimEnd again(&link.world, 1, kBytes);
  QueuePair* const left = link.a.AddQueuePair();
  Join(left, again.AddQueuePair());
  ASSERT_TRUE(link.a.Post(left, link.a.WriteTo(again, 1, 0), 0, 8).ok());
  link.world.RunFor(kLong);
  EXPECT_EQ(link.a.Poll().front().status, CompletionStatus::kOk);
}

TEST(SimFaultsTest, KilledPeerAnswersNobodyAndMayComeBack) {
  SimWorld world(1);
  SimEnd a(&world, 0, kBytes);
  auto b = std::make_unique<SimEnd>(&world, 1, kBytes);
  QueuePair* const left = a.AddQueuePair();
  Join(left, b->AddQueuePair());
  ASSERT_TRUE(a.Post(left, a.WriteTo(*b, 1, 0), 0, kBytes).ok());
  const SendWork late = a.WriteTo(*b, 2, 0);
  world.RunFor(5'000);
  world.Kill(1);
  b.reset();
  SimEnd again(&world, 1, kBytes);
  QueuePair* const new_right = again.AddQueuePair();
  EXPECT_EQ(new_right->number(), 1u) << "a new NIC begins to count anew, as hardware does";
  ASSERT_TRUE(a.Post(left, late, 0, 8).ok());
  world.RunFor(kLong);
  const std::vector<Completion> done = a.Poll();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, CompletionStatus::kRetryExceeded);
  EXPECT_EQ(done[1].status, CompletionStatus::kFlushed);
  EXPECT_EQ(std::count(again.memory.begin(), again.memory.end(), 0), static_cast<int64_t>(kBytes));
  EXPECT_EQ(world.violations(), std::vector<std::string>());
}

TEST(SimFaultsTest, OverrunLosesTheQueueAndItsQueuePairs) {
  Link link(1);
  link.Write(1);
  link.world.RunFor(kLong);
  link.world.Overrun(*link.b.completions);
  EXPECT_EQ(Events(link.b.nic.get()),
            std::vector<NicEvent::Kind>{NicEvent::Kind::kCompletionQueueFatal});
  Completion one;
  EXPECT_FALSE(link.b.completions->Poll(absl::MakeSpan(&one, 1)).ok());
  link.world.RunFor(kLong);
  EXPECT_EQ(link.right->state(), QueuePairState::kBroken);
  QueuePairOptions options;
  options.completions = link.b.completions.get();
  EXPECT_EQ(link.b.nic->CreateQueuePair(options).status().code(), absl::StatusCode::kUnavailable);
}

TEST(SimFaultsTest, QueuePairBrokenByItsNicSaysSo) {
  Link link(1);
  link.world.BreakByError(*link.right);
  const absl::optional<NicEvent> event = link.b.nic->NextEvent();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, NicEvent::Kind::kQueuePairFatal);
  EXPECT_EQ(event->id, link.right->number());
}

TEST(SimFaultsTest, RegistrationsFailWhenAskedOrFull) {
  SimWorld world(1);
  SimNicOptions options;
  options.max_regions = 3;
  options.max_region_bytes = kBytes + 100;
  SimEnd a(&world, 0, kBytes, options);
  uint8_t bytes[128] = {};
  EXPECT_EQ(a.nic->RegisterRegion(bytes, 101, 0).status().code(),
            absl::StatusCode::kResourceExhausted);
  world.FailRegistrations(0, 1);
  EXPECT_EQ(a.nic->RegisterRegion(bytes, 1, 0).status().code(),
            absl::StatusCode::kResourceExhausted);
  auto one = a.nic->RegisterRegion(bytes, 1, 0);
  auto two = a.nic->RegisterRegion(bytes, 1, 0);
  EXPECT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(a.nic->RegisterRegion(bytes, 1, 0).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(SimFaultsTest, JumpedClockMakesEverythingLate) {
  Link link(1);
  link.Write(1);
  const int64_t before = link.world.NowNs();
  link.world.Jump(1'000'000'000);
  EXPECT_EQ(link.world.NowNs(), before + 1'000'000'000);
  link.world.RunFor(100'000);
  EXPECT_EQ(link.a.Poll().front().status, CompletionStatus::kOk);
}

TEST(SimFaultsTest, ThePlanReachesEveryActionAndOutage) {
  FaultPlan plan;
  plan.break_ppm = plan.fail_ppm = plan.delay_ppm = 10'000;
  plan.lose_ppm = plan.lose_for_ever_ppm = plan.duplicate_ppm = plan.flip_ppm = 10'000;
  WorkFaults faults((SimRandom(1)));
  faults.set_plan(plan);
  std::map<FaultAction, int> actions;
  std::map<CompletionStatus, int> statuses;
  std::map<FaultPoint, int> points;
  for (uint64_t i = 0; i < 100'000; ++i) {
    const WorkFault fault = faults.Of(0, i);
    ++actions[fault.action];
    if (fault.action == FaultAction::kFail) ++statuses[fault.status];
    if (fault.action == FaultAction::kBreakRequester) ++points[fault.point];
  }
  EXPECT_EQ(actions.size(), static_cast<size_t>(kFaultActionCount));
  EXPECT_EQ(statuses.size(), static_cast<size_t>(kCompletionStatusCount - 1));
  EXPECT_EQ(points.size(), static_cast<size_t>(kFaultPointCount));
  EXPECT_NEAR(actions[FaultAction::kNone], 94'000, 1'000);

  SimWorld world(1);
  SimEnd a(&world, 0, 64);
  plan = FaultPlan();
  plan.port_flap_ns = plan.address_change_ns = plan.silence_ns = plan.slow_link_ns = 1'000'000;
  plan.lossy_link_ns = plan.jump_ns = 1'000'000;
  world.SetFaultPlan(plan);
  world.RunFor(1'000'000'000);
  const std::vector<NicEvent::Kind> seen = Events(a.nic.get());
  for (const NicEvent::Kind kind :
       {NicEvent::Kind::kPortDown, NicEvent::Kind::kPortUp, NicEvent::Kind::kAddressChanged}) {
    EXPECT_GT(std::count(seen.begin(), seen.end(), kind), 10);
  }
  world.SetFaultPlan(FaultPlan());
  world.RunFor(1'000'000'000);
  Events(a.nic.get());
  plan = FaultPlan();
  plan.overrun_ns = 1'000'000;
  world.SetFaultPlan(plan);
  world.RunFor(10'000'000);
  plan = FaultPlan();
  plan.device_fatal_ns = 1'000'000;
  world.SetFaultPlan(plan);
  world.RunFor(10'000'000);
  EXPECT_EQ(Events(a.nic.get()), (std::vector<NicEvent::Kind>{NicEvent::Kind::kCompletionQueueFatal,
                                                              NicEvent::Kind::kDeviceFatal}));
  world.SetFaultPlan(FaultPlan());
  world.RunFor(1'000'000'000);
  EXPECT_EQ(world.next_ns(), std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(world.fabric().port_up(0, 1));
}

}  // namespace
}  // namespace tryst
