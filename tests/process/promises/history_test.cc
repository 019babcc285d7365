// The judge finds the breach that is planted in each history.
#include "tests/process/promises/history.h"

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;

SentTensor Sent(int64_t number, uint64_t before, uint64_t after) {
  return {/*key=*/7, number, before, after};
}
MadeReceive Got(int64_t number, uint64_t before, uint64_t after, int64_t ended_ns = 50 * kMs) {
  MadeReceive receive;
  receive.key = 7;
  receive.before = before;
  receive.after = after;
  receive.calls = 1;
  receive.code = absl::StatusCode::kOk;
  receive.number = number;
  receive.ended_ns = ended_ns;
  return receive;
}
// A receive that timed out a millisecond after its deadline.
MadeReceive TimedOut(uint64_t before, uint64_t after, int64_t deadline_ns) {
  MadeReceive receive = Got(-1, before, after, deadline_ns + kMs);
  receive.code = receive.may_fail_with = absl::StatusCode::kDeadlineExceeded;
  receive.fails_from_ns = deadline_ns;
  receive.ends_by_ns = deadline_ns + 5 * kMs;
  return receive;
}

void ExpectOnly(Breach breach, const std::vector<SentTensor>& sent,
                const std::vector<MadeReceive>& made) {
  const Judgement judged = JudgeHistory(sent, made);
  EXPECT_EQ(judged.of(breach), 1u) << judged.ToText();
  EXPECT_EQ(judged.counts.size(), 1u) << judged.ToText();
  EXPECT_EQ(judged.examples.size(), 1u);
}
void ExpectClean(const std::vector<SentTensor>& sent, const std::vector<MadeReceive>& made) {
  const Judgement judged = JudgeHistory(sent, made);
  EXPECT_TRUE(judged.counts.empty()) << judged.ToText();
}

TEST(HistoryTest, StampsRise) {
  const uint64_t first = NextStamp();
  EXPECT_LT(first, NextStamp());
}

TEST(HistoryTest, AQueueIsClean) {
  ExpectClean({Sent(1, 1, 2), Sent(2, 3, 4)}, {Got(1, 1, 2), Got(2, 3, 4)});
}

TEST(HistoryTest, WhatOverlapsHasNoOrder) {
  ExpectClean({Sent(1, 1, 3), Sent(2, 2, 4)}, {Got(2, 1, 2), Got(1, 3, 4)});  // The sends overlap.
  // The receives overlap.
  ExpectClean({Sent(1, 1, 2), Sent(2, 3, 4)}, {Got(2, 1, 3), Got(1, 2, 4)});
}

TEST(HistoryTest, KeysHaveNothingToDoWithEachOther) {
  std::vector<SentTensor> sent = {Sent(1, 1, 2), Sent(2, 3, 4)};
  std::vector<MadeReceive> made = {Got(2, 1, 2), Got(1, 3, 4)};
  sent[1].key = made[0].key = 8;
  ExpectClean(sent, made);
}

TEST(HistoryTest, SeesALostTensor) {
  ExpectOnly(Breach::kLost, {Sent(1, 1, 2), Sent(2, 3, 4)}, {Got(2, 1, 2)});
}

TEST(HistoryTest, SeesATensorThatCameTwice) {
  ExpectOnly(Breach::kDoubled, {Sent(1, 1, 2)}, {Got(1, 1, 2), Got(1, 3, 4)});
}

TEST(HistoryTest, SeesAReceiveThatEndedTwice) {
  std::vector<MadeReceive> made = {Got(1, 1, 2)};
  made[0].calls = 2;
  ExpectOnly(Breach::kDoubled, {Sent(1, 1, 2)}, made);
}

TEST(HistoryTest, SeesATensorThatNobodySent) { ExpectOnly(Breach::kInvented, {}, {Got(1, 1, 2)}); }

TEST(HistoryTest, SeesOtherBytes) {
  std::vector<MadeReceive> made = {Got(1, 1, 2)};
  made[0].whole = false;
  const Judgement judged = JudgeHistory({Sent(1, 1, 2)}, made);
  EXPECT_EQ(judged.of(Breach::kInvented), 1u);
  EXPECT_EQ(judged.of(Breach::kLost), 1u);  // The tensor that was sent is lost, too.
}

TEST(HistoryTest, SeesAReceiveThatNeverEnds) {
  std::vector<MadeReceive> made = {Got(1, 1, 2), Got(0, 3, 4)};
  made[1].calls = 0;
  ExpectOnly(Breach::kOpen, {Sent(1, 1, 2)}, made);
}

TEST(HistoryTest, SeesAFailureThatMayNotBe) {
  std::vector<MadeReceive> made = {Got(-1, 1, 2)};
  made[0].code = absl::StatusCode::kUnavailable;
  ExpectOnly(Breach::kFailed, {}, made);
}

TEST(HistoryTest, SeesADeadlineThatCameEarly) {
  std::vector<MadeReceive> made = {TimedOut(1, 2, 10 * kMs)};
  ExpectClean({}, made);
  made[0].ended_ns = 10 * kMs - 1;
  ExpectOnly(Breach::kFailed, {}, made);
}

TEST(HistoryTest, SeesADeadlineThatCameLate) {
  std::vector<MadeReceive> made = {TimedOut(1, 2, 10 * kMs)};
  made[0].ended_ns = 15 * kMs + 1;
  ExpectOnly(Breach::kLate, {}, made);
}

TEST(HistoryTest, SeesTwoTensorsInTheWrongOrder) {
  ExpectOnly(Breach::kOrder, {Sent(1, 1, 2), Sent(2, 3, 4)}, {Got(2, 1, 2), Got(1, 3, 4)});
}

// A tensor that was given back, and landed behind the next one.
TEST(HistoryTest, SeesATensorThatFellBack) {
  ExpectOnly(Breach::kOrder, {Sent(1, 1, 2), Sent(2, 3, 4), Sent(3, 5, 6), Sent(4, 7, 8)},
             {TimedOut(1, 2, 10 * kMs), Got(2, 3, 4), Got(3, 5, 6), Got(1, 7, 8), Got(4, 9, 10)});
}

TEST(HistoryTest, SeesAReceiveThatWasOvertaken) {
  ExpectClean({Sent(1, 1, 2)}, {TimedOut(1, 2, 10 * kMs), Got(1, 3, 4, 12 * kMs)});
  ExpectOnly(Breach::kOvertaken, {Sent(1, 1, 2)},
             {TimedOut(1, 2, 10 * kMs), Got(1, 3, 4, 9 * kMs)});
  // A receive that was made at the same time may come first.
  ExpectClean({Sent(1, 1, 2)}, {TimedOut(1, 4, 10 * kMs), Got(1, 3, 5, 9 * kMs)});
}

// A queue with a lock, whose receives time out, is clean in any order of calls. When two of its
// tensors are exchanged, the judge sees it.
TEST(HistoryTest, JudgesRandomQueuesAsTheyAre) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<SentTensor> sent;
    std::vector<MadeReceive> made;
    size_t met = 0;
    uint64_t stamp = 1;
    for (int i = 0; i < 60; ++i, stamp += 2) {
      if (random() % 2 == 0) {
        sent.push_back(Sent(static_cast<int64_t>(sent.size()), stamp, stamp + 1));
      } else if (met < sent.size()) {
        const auto now = static_cast<int64_t>(stamp) * kMs;
        made.push_back(Got(sent[met++].number, stamp, stamp + 1, now));
      } else {
        made.push_back(TimedOut(stamp, stamp + 1, static_cast<int64_t>(stamp) * kMs));
      }
    }
    for (; met < sent.size(); stamp += 2) {
      const auto now = static_cast<int64_t>(stamp) * kMs;
      made.push_back(Got(sent[met++].number, stamp, stamp + 1, now));
    }
    ExpectClean(sent, made);
    std::vector<MadeReceive*> got;
    for (MadeReceive& receive : made) {
      if (receive.code == absl::StatusCode::kOk) got.push_back(&receive);
    }
    if (got.size() < 2) continue;
    const size_t first = random() % (got.size() - 1);
    std::swap(got[first]->number, got[first + 1]->number);
    EXPECT_EQ(JudgeHistory(sent, made).of(Breach::kOrder), 1u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tryst
