#include "server/cli/trace_file.h"

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "channel/ops/verify_traces.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kKey[] =
    "/job:ps/replica:0/task:0/device:CPU:0;00000000000000ab;/job:w/replica:0/task:0/"
    "device:CPU:0;\"a\" edge;0:0";

std::vector<TraceDump> Dumps() {
  std::vector<TraceDump> dumps(2);
  dumps[0].worker = "/job:w/replica:0/task:0";
  dumps[1].worker = "/job:ps/replica:0/task:0";
  dumps[0].tracks = {{TraceRole::kFetch, dumps[1].worker, "shm"}};
  dumps[1].tracks = {{TraceRole::kServe, dumps[0].worker, "shm"}};
  for (TraceDump& dump : dumps) {
    dump.incarnation = 0xab;
    dump.now_ns = 9'000'000'123;
    TraceRecord record;
    record.id = 0xfedcba9876543210;
    record.step = int64_t{1} << 62 | 3;
    record.key = kKey;
    record.bytes = uint64_t{1} << 60;
    record.end_ns = 5'000'000'007;
    dump.records.push_back(record);
  }
  TraceSpan& fetch = dumps[0].records[0].span;
  fetch.Begin(WaitsFor::kSlot, 4'000'000'001);
  fetch.Enter(WaitsFor::kPeerSend, 4'000'000'003);
  fetch.Enter(WaitsFor::kExecutor, 5'000'000'000);
  TraceSpan& serve = dumps[1].records[0].span;
  serve.Begin(WaitsFor::kLocalSend, 4'000'000'004);
  serve.Enter(WaitsFor::kWireRoom, 4'000'000'004);
  serve.Enter(WaitsFor::kAcceptance, 4'000'000'005);
  dumps[1].counts = {7, 3, 2, 1};
  dumps[1].ahead_ns = -2;
  dumps[1].ahead_error_ns = 77;
  TraceRecord live = dumps[0].records[0];
  live.id = 5;
  live.end_ns = 0;
  dumps[0].records.push_back(live);
  return dumps;
}

absl::StatusOr<std::vector<TraceDump>> Read(const std::string& text) {
  std::istringstream in(text);
  return ReadTraceFile(&in);
}

// One that is to ask again over another link, while its producer has what it asked before.
TEST(TraceFileTest, AFetchThatDoesNotWaitForItsProducerHasNoArrowToIt) {
  std::vector<TraceDump> dumps = Dumps();
  EXPECT_THAT(ChromeTrace(dumps), HasSubstr("-request"));
  dumps[0].records[0].span.Begin(WaitsFor::kConnection, 4'000'000'001);
  const std::string text = ChromeTrace(dumps);
  EXPECT_THAT(text, Not(HasSubstr("-request")));
  const auto read = Read(text);
  EXPECT_TRUE(read.ok()) << read.status();
}

TEST(TraceFileTest, WhatIsWrittenIsReadAgain) {
  const std::vector<TraceDump> dumps = Dumps();
  const auto read = Read(ChromeTrace(dumps));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 2);
  for (size_t i = 0; i < 2; ++i) {
    const TraceDump& dump = (*read)[i];
    EXPECT_EQ(dump.worker, dumps[i].worker);
    EXPECT_EQ(dump.incarnation, 0xab);
    EXPECT_EQ(dump.ahead_error_ns, dumps[i].ahead_error_ns);
    EXPECT_EQ(dump.counts.ended, dumps[i].counts.ended);
    EXPECT_EQ(dump.counts.overwritten, dumps[i].counts.overwritten);
    EXPECT_EQ(dump.counts.passed_over, dumps[i].counts.passed_over);
    ASSERT_EQ(dump.records.size(), dumps[i].records.size());
    for (size_t k = 0; k < dump.records.size(); ++k) {
      const TraceRecord& was = dumps[i].records[k];
      const TraceRecord& is = dump.records[k];
      EXPECT_EQ(is.id, was.id);
      EXPECT_EQ(is.step, was.step);
      EXPECT_EQ(is.key, was.key);
      EXPECT_EQ(is.bytes, was.bytes);
      EXPECT_EQ(is.code, was.code);
      EXPECT_EQ(is.end_ns != 0, was.end_ns != 0);
      EXPECT_EQ(dump.tracks[is.track].peer, dumps[i].tracks[was.track].peer);
      EXPECT_EQ(dump.tracks[is.track].role, dumps[i].tracks[was.track].role);
      ASSERT_EQ(is.span.count(), was.span.count());
      for (size_t s = 0; s < is.span.count(); ++s) {
        EXPECT_EQ(is.span.stamp(s).what, was.span.stamp(s).what);
        EXPECT_EQ(is.span.stamp(s).at_ns - is.span.began_ns(),
                  was.span.stamp(s).at_ns - was.span.began_ns());
      }
    }
  }
  // One clock: the earliest event is at 0, and the producer's begin 5 ns after it.
  EXPECT_EQ((*read)[0].records[0].span.began_ns(), 0);
  EXPECT_EQ((*read)[1].records[0].span.began_ns(), 5);
  EXPECT_EQ((*read)[0].now_ns, 5'000'000'122);
}

TEST(TraceFileTest, WhatIsReadIsVerified) {
  const std::string text = ChromeTrace(Dumps());
  EXPECT_TRUE(VerifyTraces(*Read(text)).breaches.empty());
  EXPECT_EQ(VerifyTraces(*Read(text)).pairs, 1);
  const auto changed =
      Read(absl::StrReplaceAll(text, {{"slot 0 peer_send 2 executor", "slot 0 executor 2 copy"}}));
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_FALSE(VerifyTraces(*changed).breaches.empty());
}

TEST(TraceFileTest, WhatIsNoTraceIsRefused) {
  const std::string text = ChromeTrace(Dumps());
  EXPECT_THAT(Read("").status().message(), HasSubstr("the end of the file is missing"));
  EXPECT_THAT(Read("# A text.\n").status().message(), HasSubstr("line 1"));
  EXPECT_THAT(Read(text.substr(0, text.find("],"))).status().message(),
              HasSubstr("the end of the file is missing"));
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"role\":\"fetch\"", "\"role\":\"other\""},
           {"slot 0", "slott 0"},
           {"slot 0", "slot -1"},
           {"slot 0", "slot"},
           {"\"status\":\"OK\"", "\"status\":\"FINE\""},
           {"fedcba9876543210", "fedcba987654321x"},
           {"\"ts\":0.000", "\"ts\":-1"},
           {"\"ts\":0.000", "\"ts\":1e30"},
           {"\"otherData\":{", "\"otherDatum\":{"},
           {"\"incarnation\":\"00000000000000ab\"", "\"incarnation\":\"none\""}}) {
    ASSERT_NE(text.find(from), std::string::npos) << from;
    EXPECT_FALSE(Read(absl::StrReplaceAll(text, {{from, to}})).ok()) << to;
  }
}

}  // namespace
}  // namespace tryst
