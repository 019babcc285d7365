#include "plugins/tensorflow/asks.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tryst_tensorflow {
namespace {

Ask NewTensor(uint32_t id, int64_t step, uint32_t lane, const std::string& key) {
  Ask ask;
  ask.kind = Ask::kNewTensor;
  ask.id = id;
  ask.step = step;
  ask.lane = lane;
  ask.key = key;
  return ask;
}

TEST(AsksTest, ABatchIsReadAsItWasWritten) {
  const std::string key = "/job:ps/replica:0/task:0/device:CPU:0;1;/job:w;edge;0:0";
  std::string batch;
  AppendAsk(NewTensor(7, -3, 2, key), &batch);
  Ask again;
  again.id = 7;
  again.step = int64_t{1} << 62;
  again.lane = kMaxLanes - 1;
  AppendAsk(again, &batch);
  Ask cancel;
  cancel.kind = Ask::kCancel;
  cancel.step = 11;
  AppendAsk(cancel, &batch);
  Ask forget;
  forget.kind = Ask::kForget;
  AppendAsk(forget, &batch);

  std::vector<Ask> asks;
  ASSERT_TRUE(ReadAsks(batch, &asks));
  ASSERT_EQ(asks.size(), 4u);
  EXPECT_EQ(asks[0].kind, Ask::kNewTensor);
  EXPECT_EQ(asks[0].id, 7u);
  EXPECT_EQ(asks[0].step, -3);
  EXPECT_EQ(asks[0].lane, 2u);
  EXPECT_EQ(asks[0].key, key);
  EXPECT_EQ(asks[1].step, int64_t{1} << 62);
  EXPECT_EQ(asks[1].lane, kMaxLanes - 1);
  EXPECT_EQ(asks[2].kind, Ask::kCancel);
  EXPECT_EQ(asks[2].step, 11);
  EXPECT_EQ(asks[3].kind, Ask::kForget);
}

TEST(AsksTest, WhatIsCutShortIsRefused) {
  std::string batch;
  AppendAsk(NewTensor(1, 2, 3, "key"), &batch);
  std::vector<Ask> asks;
  for (size_t bytes = 1; bytes < batch.size(); ++bytes) {
    EXPECT_FALSE(ReadAsks(batch.substr(0, bytes), &asks)) << bytes;
  }
}

TEST(AsksTest, WhatCouldFillMemoryIsRefused) {
  std::vector<Ask> asks;
  std::string batch;
  AppendAsk(NewTensor(kMaxKeys, 1, 0, "key"), &batch);
  EXPECT_FALSE(ReadAsks(batch, &asks));
  batch.clear();
  AppendAsk(NewTensor(0, 1, kMaxLanes, "key"), &batch);
  EXPECT_FALSE(ReadAsks(batch, &asks));
  batch.clear();
  AppendAsk(NewTensor(0, 1, 0, std::string(5000, 'k')), &batch);
  EXPECT_FALSE(ReadAsks(batch, &asks));
  EXPECT_FALSE(ReadAsks(std::string(1, '\x09'), &asks));
}

TEST(AsksTest, AnAnswerIsReadAsItWasWritten) {
  Answer failed;
  failed.kind = Answer::kFailed;
  failed.code = 10;
  failed.message = "Step 3 was aborted";
  Answer read;
  ASSERT_TRUE(ReadAnswer(WriteAnswer(failed), &read));
  EXPECT_EQ(read.kind, Answer::kFailed);
  EXPECT_EQ(read.code, 10);
  EXPECT_EQ(read.message, "Step 3 was aborted");
  ASSERT_TRUE(ReadAnswer(WriteAnswer(Answer()), &read));
  EXPECT_EQ(read.kind, Answer::kByGrpc);
  EXPECT_FALSE(ReadAnswer("", &read));
  EXPECT_FALSE(ReadAnswer(std::string(5, '\x07'), &read));
}

}  // namespace
}  // namespace tryst_tensorflow
