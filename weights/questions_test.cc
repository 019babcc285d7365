#include "weights/questions.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/weights_log.pb.h"
#include "weights/stage_table.h"

namespace tryst {
namespace {

Question LongestQuestion() {
  Question question;
  question.incarnation = question.question = question.log = question.length = question.floor =
      UINT64_MAX;
  question.wish = {UINT64_MAX, ActivateMode::kBarrier, kMaxWishNs};
  question.member = question.owner = true;
  question.serving = question.stage = {UINT64_MAX, UINT64_MAX};
  question.stage_state = StageState::kSwitching;
  question.rank = kMaxOwners - 1;
  question.owners = kMaxOwners;
  question.term = UINT64_MAX;
  question.layout.fill(255);
  for (size_t i = 0; i < kMaxReady; ++i) {
    question.ready.push_back({UINT64_MAX, UINT64_MAX - i, question.layout});
  }
  question.holder = UINT64_MAX;
  for (size_t i = 0; i < kMaxHeldVersions; ++i) {
    question.held.push_back({UINT64_MAX - i, UINT64_MAX});
  }
  return question;
}

TEST(QuestionsTest, AQuestionArrivesAsItWas) {
  const Question sent = LongestQuestion();
  const std::string bytes = EncodeQuestion(sent);
  EXPECT_LE(bytes.size(), kMaxQuestionBytes);
  const auto came = DecodeQuestion(bytes);
  ASSERT_TRUE(came.ok()) << came.status();
  EXPECT_EQ(EncodeQuestion(*came), bytes);
  EXPECT_EQ(came->wish.timeout_ns, kMaxWishNs);
  EXPECT_EQ(came->wish.mode, ActivateMode::kBarrier);
  EXPECT_EQ(came->stage_state, StageState::kSwitching);
  EXPECT_EQ(came->serving, sent.serving);
  EXPECT_EQ(came->rank, sent.rank);
  ASSERT_EQ(came->ready.size(), kMaxReady);
  EXPECT_EQ(came->ready[3].number, UINT64_MAX - 3);
  EXPECT_EQ(came->ready[3].digest, sent.layout);
  EXPECT_EQ(came->holder, UINT64_MAX);
  EXPECT_EQ(came->held, sent.held);
}

TEST(QuestionsTest, AnAnswerArrivesAsItWas) {
  Answer sent;
  sent.incarnation = 1;
  sent.question = 2;
  sent.log = 3;
  sent.slice.base.emplace();
  sent.slice.base->length = 4;
  sent.slice.base->members = {5, 6};
  sent.slice.first = 4;
  LogEntry entry;
  entry.kind = EntryKind::kMembers;
  entry.incarnations = {7};
  sent.slice.entries = {entry, entry};
  sent.length = 6;
  sent.prepare = {8, 9};
  sent.hold = sent.permit = true;
  sent.settled = 10;
  const auto came = DecodeAnswer(EncodeAnswer(sent));
  ASSERT_TRUE(came.ok()) << came.status();
  EXPECT_EQ(EncodeAnswer(*came), EncodeAnswer(sent));
  ASSERT_TRUE(came->slice.base.has_value());
  EXPECT_EQ(came->slice.base->members, (std::vector<uint64_t>{5, 6}));
  ASSERT_EQ(came->slice.entries.size(), 2u);
  EXPECT_EQ(came->slice.entries[1].incarnations, entry.incarnations);
  EXPECT_EQ(came->prepare, sent.prepare);
  EXPECT_TRUE(came->hold && came->permit);
  EXPECT_EQ(came->settled, 10u);
}

TEST(QuestionsTest, WhatIsForOneKeepsItsOrder) {
  std::vector<Answer> answers;
  for (uint64_t i = 0; i < 40; ++i) {
    Answer answer;
    answer.incarnation = 1 + i * 7 % 3;
    answer.length = i;
    answers.push_back(answer);
  }
  const std::vector<Answer> own = TakeFor(2, &answers);
  EXPECT_EQ(own.size(), 13u);
  EXPECT_EQ(answers.size(), 27u);
  for (const std::vector<Answer>& all : {own, answers}) {
    for (size_t i = 1; i < all.size(); ++i) {
      EXPECT_EQ(all[i].incarnation == 2, all.size() == own.size());
      EXPECT_GT(all[i].length, all[i - 1].length);
    }
  }
  EXPECT_TRUE(TakeFor(9, &answers).empty());
  EXPECT_EQ(answers.size(), 27u);
}

TEST(QuestionsTest, WhatIsOutOfBoundsIsRefused) {
  const auto refused = [](auto change) {
    rpc::WeightQuestion message;
    EXPECT_TRUE(message.ParseFromString(EncodeQuestion(Question())));
    change(&message);
    return DecodeQuestion(message.SerializeAsString()).status().code() ==
           absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](auto*) {}));
  EXPECT_TRUE(refused([](auto* m) { m->set_wish_timeout_ns(-1); }));
  EXPECT_TRUE(refused([](auto* m) { m->set_wish_timeout_ns(kMaxWishNs + 1); }));
  EXPECT_TRUE(refused([](auto* m) { m->set_wish_mode(2); }));
  EXPECT_TRUE(refused([](auto* m) { m->set_stage_state(kStageStateCount); }));
  EXPECT_TRUE(refused([](auto* m) { m->set_rank(kMaxOwners); }));
  EXPECT_TRUE(refused([](auto* m) { m->set_owners(kMaxOwners + 1); }));
  EXPECT_TRUE(refused([](auto* m) { m->set_layout("short"); }));
  EXPECT_TRUE(refused([](auto* m) { m->add_ready(); }));
  EXPECT_TRUE(refused([](auto* m) {
    for (size_t i = 0; i <= kMaxReady; ++i) m->add_ready()->set_digest(std::string(16, 'd'));
  }));
  EXPECT_TRUE(refused([](auto* m) { m->add_held(5); }));
  EXPECT_TRUE(refused([](auto* m) {
    for (size_t i = 0; i <= kMaxHeldVersions; ++i) m->add_held(5), m->add_held_births(6);
  }));
  EXPECT_FALSE(DecodeQuestion(std::string(kMaxQuestionBytes + 1, '\0')).ok());
  EXPECT_FALSE(DecodeAnswer("\xff").ok());
  rpc::WeightAnswer answer;
  for (size_t i = 0; i <= kEntriesInAnswer; ++i) answer.add_entries();
  EXPECT_FALSE(DecodeAnswer(answer.SerializeAsString()).ok());
  answer.clear_entries();
  answer.add_entries("\xff");
  EXPECT_FALSE(DecodeAnswer(answer.SerializeAsString()).ok());
  answer.clear_entries();
  answer.set_base("\xff");
  EXPECT_FALSE(DecodeAnswer(answer.SerializeAsString()).ok());
}

}  // namespace
}  // namespace tryst
