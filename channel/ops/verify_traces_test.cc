#include "channel/ops/verify_traces.h"

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kProducer[] = "/job:ps/replica:0/task:0";
constexpr char kConsumer[] = "/job:worker/replica:0/task:0";
constexpr uint64_t kIncarnation = 0xabc;
constexpr int64_t kMs = 1'000'000;
constexpr absl::StatusCode kOk = absl::StatusCode::kOk;
constexpr absl::StatusCode kCancelled = absl::StatusCode::kCancelled;

std::string Key() {
  return absl::StrCat(kProducer, "/device:CPU:0;0000000000000abc;", kConsumer,
                      "/device:CPU:0;weights;0:0");
}

using Stamps = std::initializer_list<std::pair<WaitsFor, int64_t>>;

// Both ends' traces. The producer's clock is an hour ahead of the consumer's.
class VerifyTracesTest : public ::testing::Test {
 protected:
  static constexpr int64_t kAheadNs = 3600 * 1000 * kMs;

  VerifyTracesTest() {
    consumer().worker = kConsumer;
    producer().worker = kProducer;
    consumer().incarnation = 0x77;
    producer().incarnation = kIncarnation;
    producer().ahead_ns = kAheadNs;
    producer().ahead_error_ns = kMs;
    consumer().now_ns = 1'000'000 * kMs;
    producer().now_ns = 1'000'000 * kMs + kAheadNs;
    ByPath("rdma/soft");
  }

  TraceDump& consumer() { return dumps_[0]; }
  TraceDump& producer() { return dumps_[1]; }

  void ByPath(const std::string& path) {
    consumer().tracks = {{TraceRole::kFetch, kProducer, path}};
    producer().tracks = {{TraceRole::kServe, kConsumer, path}};
  }

  static TraceRecord Record(uint64_t id, Stamps stamps, int64_t end_ms, absl::StatusCode code,
                            uint64_t bytes, int64_t ahead_ns) {
    TraceRecord record;
    record.id = id;
    record.step = 7;
    record.key = Key();
    for (const auto& [what, at_ms] : stamps) {
      const int64_t at_ns = at_ms * kMs + ahead_ns;
      record.span.count() == 0 ? record.span.Begin(what, at_ns) : record.span.Enter(what, at_ns);
    }
    record.end_ns = end_ms == 0 ? 0 : end_ms * kMs + ahead_ns;
    record.code = code;
    record.bytes = bytes;
    return record;
  }
  TraceRecord& Fetch(uint64_t id, Stamps stamps, int64_t end_ms, absl::StatusCode code = kOk,
                     uint64_t bytes = 100) {
    consumer().records.push_back(Record(id, stamps, end_ms, code, bytes, 0));
    return consumer().records.back();
  }
  TraceRecord& Serve(uint64_t id, Stamps stamps, int64_t end_ms, absl::StatusCode code = kOk,
                     uint64_t bytes = 100) {
    producer().records.push_back(Record(id, stamps, end_ms, code, bytes, kAheadNs));
    return producer().records.back();
  }
  // A fetch that went well, begun at `at_ms`.
  TraceRecord& GoodFetch(uint64_t id, int64_t at_ms) {
    return Fetch(id,
                 {{WaitsFor::kSlot, at_ms},
                  {WaitsFor::kPeerSend, at_ms + 10},
                  {WaitsFor::kExecutor, at_ms + 40}},
                 at_ms + 41);
  }
  TraceRecord& GoodServe(uint64_t id, int64_t at_ms) {
    return Serve(id,
                 {{WaitsFor::kLocalSend, at_ms + 15},
                  {WaitsFor::kWireRoom, at_ms + 25},
                  {WaitsFor::kAcceptance, at_ms + 30}},
                 at_ms + 60);
  }

  TraceVerdict Verify() { return VerifyTraces(dumps_); }
  std::vector<std::string> Breaches() {
    std::vector<std::string> breaches;
    for (const TraceBreach& breach : Verify().breaches) breaches.push_back(breach.what);
    return breaches;
  }
  void Expect(const std::string& breach) {
    EXPECT_THAT(Breaches(), ElementsAre(HasSubstr(breach)));
  }

  std::vector<TraceDump> dumps_{2};
};

// ---- What may be ----

TEST_F(VerifyTracesTest, WhatIsWellIsClean) {
  for (uint64_t id = 1; id < 20; ++id) {
    GoodFetch(id, static_cast<int64_t>(id) * 50);
    GoodServe(id, static_cast<int64_t>(id) * 50);
  }
  const TraceVerdict verdict = Verify();
  EXPECT_THAT(verdict.breaches, IsEmpty());
  EXPECT_EQ(verdict.operations, 38);
  EXPECT_EQ(verdict.pairs, 19);
  EXPECT_EQ(verdict.alone, 0);
  EXPECT_EQ(verdict.under_way, 0);
}

// The consumer left the path and came back: the producer let go of the first.
TEST_F(VerifyTracesTest, AFetchThatIsServedTwiceIsJudgedByTheLastServe) {
  Fetch(1,
        {{WaitsFor::kSlot, 0},
         {WaitsFor::kPeerSend, 10},
         {WaitsFor::kDrain, 100},
         {WaitsFor::kConnection, 120},
         {WaitsFor::kExecutor, 5000}},
        5001);
  Serve(1, {{WaitsFor::kLocalSend, 15}, {WaitsFor::kWireRoom, 110}, {WaitsFor::kConsumer, 120}},
        200, kCancelled, 0);
  GoodServe(1, 4950);
  EXPECT_THAT(Breaches(), IsEmpty());
  EXPECT_EQ(Verify().pairs, 1);
  EXPECT_EQ(Verify().alone, 1);
}

// A consumer whose process has ended says no more of what it was sent.
TEST_F(VerifyTracesTest, WhatEndsAfterTheConsumersLastWordMayBeLost) {
  Fetch(1, {{WaitsFor::kSlot, 0}, {WaitsFor::kPeerSend, 10}, {WaitsFor::kLastWord, 20}}, 30,
        kCancelled, 0);
  GoodServe(1, 0).end_ns = 2'000'000 * kMs + kAheadNs;
  EXPECT_THAT(Breaches(), IsEmpty());
  consumer().now_ns = 3'000'000 * kMs;
  Expect("it is lost");
}

// Where a turn takes no time, as in the simulator, times are exact.
TEST_F(VerifyTracesTest, TheLengthOfATurnIsTheCallersToSay) {
  GoodFetch(1, 0).end_ns = 500 * kMs;
  GoodServe(1, 600);
  EXPECT_THAT(Breaches(), IsEmpty());
  producer().ahead_error_ns = 0;
  EXPECT_THAT(VerifyTraces(dumps_, 0).breaches, SizeIs(1));
}

TEST_F(VerifyTracesTest, AsMuchTooEarlyAsTheClocksMayErrIsClean) {
  GoodFetch(1, 0);
  Serve(1, {{WaitsFor::kLocalSend, 15}, {WaitsFor::kWireRoom, 25}, {WaitsFor::kAcceptance, 42}},
        60);
  EXPECT_THAT(VerifyTraces(dumps_, 0).breaches, IsEmpty());
  EXPECT_EQ(VerifyTraces(dumps_, -1).breaches.size(), 1u);
}

// Those of one turn have one time.
TEST_F(VerifyTracesTest, WhatWasSentInOneTurnComesInAnyOrder) {
  for (const uint64_t id : {1, 2}) GoodServe(id, 0);
  for (const auto& [id, came_ms] : {std::pair<uint64_t, int64_t>{1, 50}, {2, 40}}) {
    Fetch(id, {{WaitsFor::kSlot, 0}, {WaitsFor::kPeerSend, 10}, {WaitsFor::kExecutor, came_ms}},
          came_ms + 1);
  }
  EXPECT_THAT(Breaches(), IsEmpty());
}

TEST_F(VerifyTracesTest, WhateverTheTablesAllowIsClean) {
  // Broken, asked again, found room, came in parts.
  Fetch(1,
        {{WaitsFor::kConnection, 0},
         {WaitsFor::kPeerSend, 10},
         {WaitsFor::kDrain, 20},
         {WaitsFor::kConnection, 30},
         {WaitsFor::kPeerSend, 40},
         {WaitsFor::kLandingRoom, 50},
         {WaitsFor::kPeerSend, 60},
         {WaitsFor::kExecutor, 80}},
        90);
  Serve(1,
        {{WaitsFor::kLocalSend, 15},
         {WaitsFor::kWireRoom, 18},
         {WaitsFor::kConsumer, 20},
         {WaitsFor::kWireRoom, 45},
         {WaitsFor::kDestination, 46},
         {WaitsFor::kWireRoom, 65},
         {WaitsFor::kAcceptance, 70}},
        95);
  // Its link ended while its bytes were copied for it.
  Fetch(5,
        {{WaitsFor::kSlot, 300},
         {WaitsFor::kPeerSend, 300},
         {WaitsFor::kDrain, 320},
         {WaitsFor::kConnection, 330},
         {WaitsFor::kPeerSend, 340},
         {WaitsFor::kExecutor, 380}},
        390);
  Serve(5,
        {{WaitsFor::kLocalSend, 305},
         {WaitsFor::kWireRoom, 308},
         {WaitsFor::kCopy, 310},
         {WaitsFor::kConsumer, 322},
         {WaitsFor::kWireRoom, 345},
         {WaitsFor::kAcceptance, 370}},
        395);
  // Cancelled while it was on its way, and given back.
  Fetch(2,
        {{WaitsFor::kSlot, 100},
         {WaitsFor::kPeerSend, 100},
         {WaitsFor::kLastWord, 120},
         {WaitsFor::kExecutor, 121}},
        125, kCancelled, 0);
  Serve(2, {{WaitsFor::kLocalSend, 105}, {WaitsFor::kWireRoom, 110}, {WaitsFor::kAcceptance, 110}},
        122, kCancelled);
  // Parked, and here.
  Fetch(3,
        {{WaitsFor::kSlot, 200},
         {WaitsFor::kPeerSend, 210},
         {WaitsFor::kSlot, 300},
         {WaitsFor::kPeerSend, 310},
         {WaitsFor::kParts, 320},
         {WaitsFor::kExecutor, 330}},
        330);
  // It took over what an earlier fetch of its key had asked for, and waits.
  Fetch(4, {{WaitsFor::kConnection, 400}, {WaitsFor::kLandingRoom, 410}}, 0);
  producer().counts.overwritten = 1;  // The third has one end here.
  const TraceVerdict verdict = Verify();
  EXPECT_THAT(Breaches(), IsEmpty());
  EXPECT_EQ(verdict.pairs, 3);
  EXPECT_EQ(verdict.alone, 2);
  EXPECT_EQ(verdict.under_way, 1);
}

TEST_F(VerifyTracesTest, WhatWasAskedForAheadMayBeServedBeforeItsFetch) {
  GoodServe(1, 0);
  Fetch(1, {{WaitsFor::kPeerSend, 50}, {WaitsFor::kExecutor, 51}}, 52);
  EXPECT_THAT(Breaches(), IsEmpty());
}

TEST_F(VerifyTracesTest, OverGrpcTheStatesAreOthers) {
  ByPath("grpc");
  Fetch(1,
        {{WaitsFor::kSlot, 0},
         {WaitsFor::kPeerSend, 5},
         {WaitsFor::kRetry, 9},
         {WaitsFor::kPeerSend, 20}},
        40);
  Serve(1, {{WaitsFor::kLocalSend, 25}, {WaitsFor::kAcceptance, 26}, {WaitsFor::kConsumer, 30}},
        60);
  EXPECT_THAT(Breaches(), IsEmpty());
  Fetch(2, {{WaitsFor::kSlot, 0}, {WaitsFor::kDrain, 5}}, 9, absl::StatusCode::kUnavailable);
  Expect("a broken queue pair to drain after");
}

TEST_F(VerifyTracesTest, ARecordThatWasReadTwiceCountsOnce) {
  GoodFetch(1, 0);
  GoodServe(1, 0);
  dumps_.push_back(dumps_[0]);
  dumps_.back().clock = 1;
  for (TraceRecord& record : dumps_.back().records) {
    TraceRecord later =
        Record(1, {{WaitsFor::kSlot, 500}, {WaitsFor::kPeerSend, 510}, {WaitsFor::kExecutor, 540}},
               541, kOk, 100, 0);
    record = later;  // Another reader's clock shows the same record.
  }
  const TraceVerdict verdict = Verify();
  EXPECT_THAT(verdict.breaches, IsEmpty());
  EXPECT_EQ(verdict.operations, 2);
  EXPECT_EQ(verdict.pairs, 1);
}

// One reader saw it under way, and another had seen its end before: the end counts.
TEST_F(VerifyTracesTest, ARecordThatWasReadAtItsEndAndUnderWayHasEnded) {
  GoodFetch(1, 0).bytes = 99;
  GoodServe(1, 0);
  dumps_.push_back(dumps_[0]);
  dumps_.back().records[0].end_ns = 0;
  const TraceVerdict verdict = Verify();
  EXPECT_EQ(verdict.operations, 2);
  EXPECT_EQ(verdict.under_way, 0);
  Expect("it has got 99 bytes of 100");
}

// They take as long, and overlap only if times of two clocks are compared.
TEST_F(VerifyTracesTest, RecordsOfTwoReadersThatDifferInOneTimeAreTwo) {
  GoodFetch(1, 0);
  GoodServe(1, 0);
  dumps_.push_back(dumps_[0]);
  dumps_.back().clock = 1;
  dumps_.back().records[0] =
      Record(1, {{WaitsFor::kSlot, 5}, {WaitsFor::kPeerSend, 16}, {WaitsFor::kExecutor, 45}}, 46,
             kOk, 100, 0);
  const TraceVerdict verdict = Verify();
  EXPECT_THAT(verdict.breaches, IsEmpty());
  EXPECT_EQ(verdict.operations, 3);
  EXPECT_EQ(verdict.alone, 1);
}

TEST_F(VerifyTracesTest, AGenerationThatBeginsAnewIsAnotherOperation) {
  for (int64_t at_ms : {0, 100'000}) {
    GoodFetch(1, at_ms);
    GoodServe(1, at_ms);
  }
  EXPECT_THAT(Breaches(), IsEmpty());
  EXPECT_EQ(Verify().pairs, 2);
}

TEST_F(VerifyTracesTest, TimesOfTwoReadersAreNotCompared) {
  GoodFetch(1, 0);
  GoodServe(1, 5000);
  EXPECT_FALSE(Breaches().empty());
  producer().clock = 1;
  EXPECT_THAT(Breaches(), IsEmpty());
}

TEST_F(VerifyTracesTest, AnIncompleteTraceMayLackTheOtherEnd) {
  GoodFetch(1, 0);
  producer().counts.passed_over = 1;
  EXPECT_THAT(Breaches(), IsEmpty());
  producer().counts.passed_over = 0;
  producer().counts.ended = 5;
  EXPECT_THAT(Breaches(), IsEmpty());
}

// ---- Faults in the consumer's trace ----

TEST_F(VerifyTracesTest, AnOrderThatNoTableAllows) {
  GoodServe(1, 0);
  Fetch(1,
        {{WaitsFor::kSlot, 0},
         {WaitsFor::kPeerSend, 10},
         {WaitsFor::kLandingRoom, 32},
         {WaitsFor::kCopy, 35},
         {WaitsFor::kExecutor, 40}},
        41);
  Expect("after landing room, which no table allows");
}

TEST_F(VerifyTracesTest, AWordOfTheOtherEnd) {
  Fetch(1, {{WaitsFor::kSlot, 0}, {WaitsFor::kWireRoom, 10}, {WaitsFor::kExecutor, 12}}, 41);
  EXPECT_FALSE(Breaches().empty());
  consumer().records.clear();
  Fetch(1, {{WaitsFor::kLocalSend, 0}}, 41, kCancelled);
  Expect("it begins to wait for");
}

TEST_F(VerifyTracesTest, ATimeThatGoesBack) {
  TraceRecord& fetch = GoodFetch(1, 50);
  GoodServe(1, 50);
  fetch.end_ns = 80 * kMs;
  Expect("it ends before it has waited for the last thing");
}

TEST_F(VerifyTracesTest, AFetchThatEndsWellInTheMiddle) {
  GoodServe(1, 0);
  Fetch(1, {{WaitsFor::kSlot, 0}, {WaitsFor::kPeerSend, 10}}, 41);
  Expect("it ends well while it waits for");
}

TEST_F(VerifyTracesTest, OverGrpcAFetchThatEndsWellBeforeItHasAsked) {
  ByPath("grpc");
  Serve(1, {{WaitsFor::kLocalSend, 15}, {WaitsFor::kAcceptance, 26}}, 60);
  Fetch(1, {{WaitsFor::kSlot, 0}}, 41);
  Expect("it ends well while it waits for");
}

TEST_F(VerifyTracesTest, AFetchThatEndsTwice) {
  GoodFetch(1, 0);
  GoodFetch(1, 20);
  GoodServe(1, 0);
  const std::vector<std::string> breaches = Breaches();
  ASSERT_FALSE(breaches.empty());
  EXPECT_THAT(breaches, ::testing::Contains(HasSubstr("it has ended twice")));
}

TEST_F(VerifyTracesTest, FewerBytesThanWereSent) {
  GoodFetch(1, 0).bytes = 99;
  GoodServe(1, 0);
  Expect("it has got 99 bytes of 100");
}

TEST_F(VerifyTracesTest, ATensorThatCameBeforeItWasSent) {
  GoodServe(1, 2000);
  Fetch(1, {{WaitsFor::kSlot, 0}, {WaitsFor::kPeerSend, 10}, {WaitsFor::kExecutor, 20}}, 21);
  Expect("before that was sent");
}

TEST_F(VerifyTracesTest, ATensorThatNobodyServed) {
  GoodFetch(1, 0);
  Expect("its producer has never served");
}

TEST_F(VerifyTracesTest, ALaterTensorThatComesFirst) {
  GoodServe(1, 0);
  GoodServe(2, 5);
  Fetch(1, {{WaitsFor::kSlot, 0}, {WaitsFor::kPeerSend, 10}, {WaitsFor::kExecutor, 55}}, 56);
  Fetch(2, {{WaitsFor::kSlot, 0}, {WaitsFor::kPeerSend, 10}, {WaitsFor::kExecutor, 50}}, 51);
  Expect("it has come before a tensor that was sent earlier");
}

// Which of its stamps are gone nobody knows: it may have been sent again in between.
TEST_F(VerifyTracesTest, TheOrderOfAFetchWhoseStampsAreGoneIsNotJudged) {
  GoodServe(1, 0);
  GoodServe(2, 5);
  Fetch(1,
        {{WaitsFor::kConnection, 0},
         {WaitsFor::kPeerSend, 10},
         {WaitsFor::kDrain, 11},
         {WaitsFor::kConnection, 12},
         {WaitsFor::kPeerSend, 13},
         {WaitsFor::kDrain, 14},
         {WaitsFor::kConnection, 15},
         {WaitsFor::kPeerSend, 16},
         {WaitsFor::kExecutor, 55}},
        56);
  Fetch(2, {{WaitsFor::kSlot, 0}, {WaitsFor::kPeerSend, 10}, {WaitsFor::kExecutor, 50}}, 51);
  EXPECT_EQ(consumer().records[0].span.lost(), 1);
  EXPECT_THAT(Breaches(), IsEmpty());
}

// ---- Faults in the producer's trace ----

TEST_F(VerifyTracesTest, AServeThatNoTableAllows) {
  GoodFetch(1, 0);
  Serve(1, {{WaitsFor::kLocalSend, 15}, {WaitsFor::kAcceptance, 30}}, 60);
  Expect("which no table allows");
}

TEST_F(VerifyTracesTest, AServeThatEndsTwice) {
  GoodFetch(1, 0);
  GoodServe(1, 0);
  GoodServe(1, 20);
  EXPECT_THAT(Breaches(), ::testing::Contains(HasSubstr("it has ended twice")));
}

TEST_F(VerifyTracesTest, ADeliveredTensorThatGoesBack) {
  GoodFetch(1, 0);
  GoodServe(1, 0).code = kCancelled;
  Expect("the next fetch may get it once more");
}

TEST_F(VerifyTracesTest, AnAcceptedTensorThatNobodyGot) {
  for (absl::StatusCode code : {kCancelled, absl::StatusCode::kDeadlineExceeded}) {
    consumer().records.clear();
    producer().records.clear();
    GoodFetch(1, 0).code = code;
    GoodServe(1, 0);
    Expect("it is lost");
  }
}

TEST_F(VerifyTracesTest, AFailureThatIsToldOtherwise) {
  GoodFetch(1, 0).code = absl::StatusCode::kNotFound;
  GoodServe(1, 0).code = absl::StatusCode::kInternal;
  Expect("its producer says INTERNAL, and it ends with NOT_FOUND");
  consumer().records[0].code = absl::StatusCode::kInternal;
  EXPECT_THAT(Breaches(), IsEmpty());
  consumer().records[0].code = absl::StatusCode::kDataLoss;  // What came was broken.
  EXPECT_THAT(Breaches(), IsEmpty());
}

TEST_F(VerifyTracesTest, AcceptedBeforeItCame) {
  GoodServe(1, 0).end_ns = 35 * kMs + kAheadNs;
  Fetch(1, {{WaitsFor::kSlot, 0}, {WaitsFor::kPeerSend, 10}, {WaitsFor::kExecutor, 1537}}, 1540);
  Expect("it is accepted 1502.000 ms before it came");
}

// A fetch by a call has come when the call ends, and not when it began to wait for the peer.
TEST_F(VerifyTracesTest, OverGrpcAcceptedBeforeItCame) {
  ByPath("grpc");
  Serve(1, {{WaitsFor::kLocalSend, 15}, {WaitsFor::kAcceptance, 26}}, 35);
  Fetch(1, {{WaitsFor::kSlot, 0}, {WaitsFor::kPeerSend, 10}}, 1537);
  Expect("it is accepted 1502.000 ms before it came");
}

TEST_F(VerifyTracesTest, AnotherKeyOrStep) {
  GoodFetch(1, 0);
  GoodServe(1, 0).step = 8;
  Expect("the producer serves step 8");
  producer().records[0].step = 7;
  producer().records[0].key = "another";
  Expect("another");
}

TEST_F(VerifyTracesTest, AnotherWorker) {
  GoodFetch(1, 0);
  GoodServe(1, 0);
  producer().tracks[0].peer = "/job:worker/replica:0/task:9";
  Expect("says that it serves this to /job:worker/replica:0/task:9");
}

TEST_F(VerifyTracesTest, AServeThatEndsWellUnsent) {
  GoodFetch(1, 0);
  Serve(1, {{WaitsFor::kLocalSend, 15}, {WaitsFor::kWireRoom, 25}}, 60);
  Expect("it ends well while it waits for");
}

// ---- The table ----

TEST_F(VerifyTracesTest, TheTableLeadsWhereStatesLead) {
  using W = WaitsFor;
  EXPECT_TRUE(MayFollow(W::kSlot, W::kPeerSend));
  EXPECT_TRUE(MayFollow(W::kPeerSend, W::kParts));
  EXPECT_TRUE(MayFollow(W::kPeerSend, W::kDrain));
  EXPECT_TRUE(MayFollow(W::kDrain, W::kConnection));
  EXPECT_TRUE(MayFollow(W::kCopy, W::kConnection));
  EXPECT_TRUE(MayFollow(W::kExecutor, W::kDrain)) << "the caller was answered before the drain";
  // What has found room is asked for again before anything comes of it.
  EXPECT_FALSE(MayFollow(W::kLandingRoom, W::kParts));
  EXPECT_FALSE(MayFollow(W::kParts, W::kCopy));
  EXPECT_FALSE(MayFollow(W::kLastWord, W::kPeerSend));
  EXPECT_FALSE(MayFollow(W::kLastWord, W::kParts)) << "what was given up waits for its last word";
  EXPECT_FALSE(MayFollow(W::kDrain, W::kParts));
  EXPECT_FALSE(MayFollow(W::kExecutor, W::kPeerSend));
  EXPECT_FALSE(MayFollow(W::kSlot, W::kRetry));
  int allowed = 0;
  for (size_t a = 0; a < kWaitsForCount; ++a) {
    for (size_t b = 0; b < kWaitsForCount; ++b) {
      allowed += MayFollow(static_cast<W>(a), static_cast<W>(b));
    }
  }
  EXPECT_LT(allowed, 80) << "of 289: a table that allows all says nothing";
}

}  // namespace
}  // namespace tryst
