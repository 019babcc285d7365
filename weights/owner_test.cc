#include "weights/owner.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr uint64_t kSelf = 60, kLog = 7;

class OwnerTest : public ::testing::Test {
 protected:
  // The leader's answer to the last question: all of a log of that life with these entries.
  void Answers(uint64_t log, const std::vector<LogEntry>& entries) {
    Answer answer;
    answer.incarnation = kSelf;
    answer.question = asked_.back().question;
    answer.log = log;
    answer.slice.entries = entries;
    answer.length = entries.size();
    owner_.OnAnswer(answer, now_ns_);
    owner_.Advance(now_ns_);
  }
  static LogEntry Owners() {
    LogEntry entry;
    entry.kind = EntryKind::kOwners;
    entry.term = 1;
    entry.incarnations = {kSelf};
    return entry;
  }
  static LogEntry Sealed(uint64_t number) {
    LogEntry entry;
    entry.kind = EntryKind::kSealed;
    entry.version = {number, 9};
    entry.term = 1;
    entry.digests.resize(1);
    return entry;
  }
  // The status of the seal of that number, once it has ended.
  void Seal(uint64_t number) {
    sealed_ = absl::UnknownError("it goes on");
    owner_.Seal(number, {}, now_ns_ + 10'000 * kMs,
                [this](absl::StatusOr<LogEntry> entry) { sealed_ = entry.status(); });
    owner_.Advance(now_ns_);
  }
  absl::Status Activate(uint64_t number) {
    absl::Status activated = absl::UnknownError("it goes on");
    owner_.Activate(number, ActivateMode::kRolling, now_ns_ + 10'000 * kMs,
                    [&](absl::Status status) { activated = std::move(status); });
    owner_.WithdrawActivate();
    return activated;
  }

  int64_t now_ns_ = 10'000 * kMs;
  std::vector<Question> asked_;
  absl::Status sealed_;
  GroupOwner owner_{{kSelf, 0, 1, {}}, GroupTimes(), [this](const Question& question) {
                      asked_.push_back(question);
                    }};
};

TEST_F(OwnerTest, ASealBeforeTheFirstAnswerWaitsForIt) {
  Seal(5);
  Answers(kLog, {});
  EXPECT_EQ(sealed_.code(), absl::StatusCode::kUnknown) << "no log was lost";
  // It asks again at once, so that it is known to know the log.
  EXPECT_EQ(asked_.back().log, kLog);
  Answers(kLog, {Owners()});
  ASSERT_EQ(asked_.back().ready.size(), 1u);
  Answers(kLog, {Owners(), Sealed(5)});
  EXPECT_TRUE(sealed_.ok()) << sealed_;
}

TEST_F(OwnerTest, AnAnswerToAFormerLifeIsPassedOver) {
  owner_.Advance(now_ns_);
  Answer answer;
  answer.incarnation = kSelf - 1;
  answer.question = asked_.back().question;
  answer.log = kLog;
  owner_.OnAnswer(answer, now_ns_);
  owner_.Advance(now_ns_);
  EXPECT_EQ(asked_.size(), 1u) << "it asks again at once when it has heard of a log";
  Answers(kLog, {});
  EXPECT_EQ(asked_.back().log, kLog);
}

TEST_F(OwnerTest, ALostLogEndsSeals) {
  owner_.Advance(now_ns_);
  Answers(kLog, {Owners()});
  Seal(5);
  Answers(kLog + 1, {});
  EXPECT_EQ(sealed_.code(), absl::StatusCode::kAborted) << sealed_;
}

TEST_F(OwnerTest, WhatIsWithdrawnIsNotReady) {
  owner_.Advance(now_ns_);
  Answers(kLog, {Owners()});
  Seal(5);
  ASSERT_EQ(asked_.back().ready.size(), 1u);
  owner_.Withdraw(5);
  EXPECT_EQ(sealed_.code(), absl::StatusCode::kCancelled);
  owner_.Advance(now_ns_);
  EXPECT_TRUE(asked_.back().ready.empty());
}

// The leader may have heard that it was ready, and who waited for that may have gone.
TEST_F(OwnerTest, WhatWasWithdrawnMayBeSealedLate) {
  owner_.Advance(now_ns_);
  Answers(kLog, {Owners()});
  Seal(5);
  owner_.Withdraw(5);
  EXPECT_EQ(sealed_.code(), absl::StatusCode::kCancelled);
  Answers(kLog, {Owners(), Sealed(5)});
  ASSERT_NE(owner_.state().FindOpen(5), nullptr);
  EXPECT_EQ(sealed_.code(), absl::StatusCode::kCancelled) << "it ended once";
  Seal(5);
  EXPECT_TRUE(sealed_.ok()) << "who asks again hears of it: " << sealed_;
  owner_.Seal(5, {1}, now_ns_ + 10'000 * kMs,
              [this](absl::StatusOr<LogEntry> entry) { sealed_ = entry.status(); });
  EXPECT_EQ(sealed_.code(), absl::StatusCode::kAlreadyExists) << "of other bytes: " << sealed_;
}

TEST_F(OwnerTest, WhatWasWithdrawnIsReadyAgain) {
  owner_.Advance(now_ns_);
  Answers(kLog, {Owners()});
  Seal(5);
  owner_.Withdraw(5);
  Seal(5);
  ASSERT_EQ(asked_.back().ready.size(), 1u);
  Answers(kLog, {Owners(), Sealed(5)});
  EXPECT_TRUE(sealed_.ok()) << sealed_;
}

// Else the version may be sealed although nobody waits for that here.
TEST_F(OwnerTest, WhoseDeadlineIsOverIsNotReady) {
  owner_.Advance(now_ns_);
  Answers(kLog, {Owners()});
  Seal(5);
  now_ns_ += 10'000 * kMs - 1;
  owner_.Advance(now_ns_);
  ASSERT_EQ(asked_.back().ready.size(), 1u);
  const size_t asked = asked_.size();
  now_ns_ += 1;
  owner_.Advance(now_ns_);
  EXPECT_EQ(sealed_.code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(asked_.size(), asked + 1);
  EXPECT_TRUE(asked_.back().ready.empty());
}

// The number itself was dropped, and no later one is there: its seal ends all the same.
TEST_F(OwnerTest, ASealOfTheLastNumberThatWasDroppedEnds) {
  owner_.Advance(now_ns_);
  Answers(kLog, {Owners()});
  Seal(5);
  LogEntry dropped;
  dropped.kind = EntryKind::kDropped;
  dropped.version = {5, 0};
  Answers(kLog, {Owners(), dropped});
  EXPECT_EQ(sealed_.code(), absl::StatusCode::kAborted) << sealed_;
}

// 0 stands for none, and none is active.
TEST_F(OwnerTest, NothingIsNotActivated) {
  owner_.Advance(now_ns_);
  Answers(kLog, {Owners()});
  EXPECT_EQ(Activate(0).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(OwnerTest, AVersionThatIsOverIsNotActivated) {
  owner_.Advance(now_ns_);
  LogEntry dropped;
  dropped.kind = EntryKind::kDropped;
  dropped.version = {5, 9};
  Answers(kLog, {Owners(), Sealed(5), dropped, Sealed(6)});
  EXPECT_EQ(Activate(5).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Activate(6).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace tryst
