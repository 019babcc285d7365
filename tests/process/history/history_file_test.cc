// Histories with one breach each: the lines must say what happened, and the judge must find it.
#include "tests/process/history/history_file.h"

#include <fstream>
#include <iterator>
#include <string>

#include "channel/trace/trace_dump.h"
#include "gtest/gtest.h"
#include "tests/process/history/kept_traces.h"

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;

// A folder with one history, from a producer and a consumer.
class HistoryFileTest : public ::testing::Test {
 protected:
  ~HistoryFileTest() override { RemoveHistoryFolder(folder_); }

  void Sends(int64_t number) {
    SentTensor sent;
    sent.number = number;
    sent.before = ++sends_;
    sent.after = ++sends_;
    producer_.Sent("a/edge", sent);
  }
  MadeReceive Next(int64_t number) {
    MadeReceive receive;
    receive.calls = 1;
    receive.code = absl::StatusCode::kOk;
    receive.number = number;
    receive.before = ++receives_;
    receive.after = ++receives_;
    receive.ends_by_ns = 100 * kMs;
    receive.ended_ns = 50 * kMs;
    return receive;
  }
  void Gets(int64_t number) { consumer_.Received("a/edge", Next(number)); }
  std::string Judged() {
    const auto judged = JudgeFolder(folder_, 3);
    return judged.ok() ? judged->breaches : judged.status().ToString();
  }
  void ExpectBreach(const std::string& name) {
    const std::string text = Judged();
    EXPECT_NE(text.find(name + ": "), std::string::npos) << text;
    EXPECT_NE(text.find(name + " 1"), std::string::npos) << text;
  }

  const std::string folder_ = NewHistoryFolder();
  HistoryFile producer_{folder_ + "/a"};
  HistoryFile consumer_{folder_ + "/b"};
  uint64_t sends_ = 0;
  uint64_t receives_ = 0;
};

TEST_F(HistoryFileTest, WhatCameInOrderIsWell) {
  for (int64_t number = 0; number < 5; ++number) {
    Sends(number);
    Gets(number);
  }
  Sends(5);  // Under way when both processes ended.
  EXPECT_EQ(Judged(), "");
  const auto judged = JudgeFolder(folder_, 3);
  ASSERT_TRUE(judged.ok());
  EXPECT_EQ(judged->sent, 6u);
  EXPECT_EQ(judged->made, 5u);
}

TEST_F(HistoryFileTest, SeesADoubledTensor) {
  Sends(0);
  Gets(0);
  Gets(0);
  ExpectBreach("doubled");
}

TEST_F(HistoryFileTest, SeesALostTensor) {
  for (int64_t number : {0, 1, 2}) Sends(number);
  Gets(0);
  Gets(2);
  ExpectBreach("lost");
}

TEST_F(HistoryFileTest, WhatAFailedReceiveTookAlongIsNotLost) {
  for (int64_t number : {0, 1, 2}) Sends(number);
  Gets(0);
  MadeReceive failed = Next(-1);
  failed.code = failed.may_fail_with = absl::StatusCode::kUnavailable;
  failed.fails_from_ns = 0;
  consumer_.Received("a/edge", failed);
  Gets(2);
  EXPECT_EQ(Judged(), "");
}

TEST_F(HistoryFileTest, SeesTensorsOutOfOrder) {
  for (int64_t number : {0, 1}) Sends(number);
  Gets(1);
  Gets(0);
  ExpectBreach("order");
}

TEST_F(HistoryFileTest, SeesATensorThatCameTooLate) {
  Sends(0);
  MadeReceive late = Next(0);
  late.ended_ns = late.ends_by_ns + 1;
  consumer_.Received("a/edge", late);
  ExpectBreach("late");
}

TEST_F(HistoryFileTest, SeesBytesThatLandedAfterTheEnd) {
  Sends(0);
  Gets(0);
  consumer_.LandedLate("a/edge", 1);
  ExpectBreach("landed late");
}

TEST_F(HistoryFileTest, SeesOtherBytes) {
  Sends(0);
  MadeReceive receive = Next(0);
  receive.whole = false;
  consumer_.Received("a/edge", receive);
  ExpectBreach("invented");
}

TEST_F(HistoryFileTest, SeesAReceiveThatNeverEnded) {
  consumer_.Open("a/edge", 1);
  ExpectBreach("open");
}

TEST_F(HistoryFileTest, SeesAFailureThatNothingExplains) {
  MadeReceive failed = Next(-1);
  failed.code = absl::StatusCode::kInternal;
  consumer_.Received("a/edge", failed);
  ExpectBreach("failed");
}

TEST_F(HistoryFileTest, SaysWhichLineIsNone) {
  std::ofstream(folder_ + "/c") << "r a/edge 1 2\n";
  EXPECT_NE(Judged().find("no line of a history: r a/edge 1 2"), std::string::npos) << Judged();
}

// The traces of two lives in which one fetch went well.
class KeptTracesTest : public HistoryFileTest {
 protected:
  KeptTracesTest() {
    consumer_traces_.worker = "/job:w/replica:0/task:0";
    producer_traces_.worker = "/job:ps/replica:0/task:0";
    consumer_traces_.incarnation = 7;
    producer_traces_.incarnation = 8;
    consumer_traces_.tracks = {{TraceRole::kFetch, "", "rdma/storm"},
                               {TraceRole::kFetch, producer_traces_.worker, "rdma/storm"}};
    producer_traces_.tracks = {{TraceRole::kServe, consumer_traces_.worker, "rdma/storm"}};
    for (TraceDump* dump : {&consumer_traces_, &producer_traces_}) {
      dump->now_ns = 100 * kMs;
      dump->counts.ended = dump->counts.kept = 1;
    }
    TraceRecord& fetch = Record(&consumer_traces_, 1);
    fetch.span.Begin(WaitsFor::kSlot, kMs);
    fetch.span.Enter(WaitsFor::kPeerSend, 2 * kMs);
    fetch.span.Enter(WaitsFor::kExecutor, 6 * kMs);
    TraceRecord& serve = Record(&producer_traces_, 0);
    serve.span.Begin(WaitsFor::kLocalSend, 3 * kMs);
    serve.span.Enter(WaitsFor::kWireRoom, 4 * kMs);
    serve.span.Enter(WaitsFor::kAcceptance, 5 * kMs);
  }
  static TraceRecord& Record(TraceDump* dump, uint16_t track) {
    TraceRecord record;
    record.id = 0xfedcba9876543210;
    record.step = -3;
    record.key = "/job:ps/replica:0/task:0/device:CPU:0;8;/job:w/replica:0/task:0;an edge;0:0";
    record.track = track;
    record.end_ns = 8 * kMs;
    record.bytes = 100;
    dump->records.push_back(record);
    return dump->records.back();
  }
  TraceRecord& fetch() { return consumer_traces_.records[0]; }
  TraceRecord& serve() { return producer_traces_.records[0]; }
  std::string JudgedTraces() {
    KeepTraces(folder_ + "/a", producer_traces_);
    KeepTraces(folder_ + "/b", consumer_traces_);
    return Judged();
  }
  void ExpectInTraces(const std::string& what) {
    const std::string text = JudgedTraces();
    EXPECT_NE(text.find(what), std::string::npos) << text;
  }

  TraceDump consumer_traces_;
  TraceDump producer_traces_;
};

TEST_F(KeptTracesTest, WhatBothEndsTracedIsWell) {
  Sends(0);
  Gets(0);
  EXPECT_EQ(JudgedTraces(), "");
  const auto judged = JudgeFolder(folder_, 3);
  ASSERT_TRUE(judged.ok());
  EXPECT_EQ(judged->traced, 2u);
  EXPECT_EQ(judged->traced_pairs, 1u);
  EXPECT_EQ(judged->made, 1u);
}

TEST_F(KeptTracesTest, TheyAreReadAsTheyWereWritten) {
  fetch().span.set_lost(3);
  fetch().code = absl::StatusCode::kUnavailable;
  consumer_traces_.counts.overwritten = 5;
  consumer_traces_.counts.passed_over = 6;
  KeepTraces(folder_ + "/b", consumer_traces_);
  std::ifstream in(folder_ + "/b.traces");
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto read = ReadKeptTraces(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ChromeTrace({*read}), ChromeTrace({consumer_traces_}));
  EXPECT_EQ(read->incarnation, 7u);
  EXPECT_EQ(read->records[0].span.lost(), 3);
  EXPECT_EQ(read->records[0].end_ns, 8 * kMs);
  EXPECT_EQ(read->counts.ended, 1u);
  EXPECT_EQ(read->counts.overwritten, 5u);
  EXPECT_EQ(read->counts.passed_over, 6u);
}

TEST_F(KeptTracesTest, SeesAFaultOfTheConsumer) {
  fetch().span.Begin(WaitsFor::kSlot, kMs);
  fetch().span.Enter(WaitsFor::kAcceptance, 2 * kMs);
  fetch().span.Enter(WaitsFor::kExecutor, 6 * kMs);
  ExpectInTraces("which no table allows");
}

TEST_F(KeptTracesTest, SeesAFaultOfTheProducer) {
  serve().code = absl::StatusCode::kCancelled;
  ExpectInTraces("the next fetch may get it once more");
}

// Lives of one host have one clock. A turn may take ten seconds where a process is stopped.
TEST_F(KeptTracesTest, SeesATensorThatCameBeforeItWasSent) {
  serve().span.Begin(WaitsFor::kLocalSend, 3 * kMs);
  serve().span.Enter(WaitsFor::kWireRoom, 4 * kMs);
  serve().span.Enter(WaitsFor::kAcceptance, 10'000 * kMs);
  serve().end_ns = 10'001 * kMs;
  EXPECT_EQ(JudgedTraces(), "");
  serve().span.Begin(WaitsFor::kLocalSend, 3 * kMs);
  serve().span.Enter(WaitsFor::kWireRoom, 4 * kMs);
  serve().span.Enter(WaitsFor::kAcceptance, 10'009 * kMs);
  serve().end_ns = 10'010 * kMs;
  ExpectInTraces("before that was sent");
}

TEST_F(KeptTracesTest, SaysWhichLineIsNone) {
  std::ofstream(folder_ + "/c.traces") << "o 1 2 0\n";
  EXPECT_NE(Judged().find("no line of a trace: o 1 2 0"), std::string::npos) << Judged();
}

}  // namespace
}  // namespace tryst
