// Histories with one breach each: the lines must say what happened, and the judge must find it.
#include "tests/process/history/history_file.h"

#include <fstream>
#include <string>

#include "gtest/gtest.h"

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

}  // namespace
}  // namespace tryst
