#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "weights/owner.h"

namespace tryst {
namespace {

constexpr uint64_t kSelf = 60, kOther = 61, kLog = 9, kLost = 8;
constexpr int64_t kEnd = 1'000'000'000'000;

class OwnerRulesTest : public ::testing::Test {
 protected:
  void Chosen(EntryKind kind, WeightVersion version, std::vector<uint64_t> incarnations = {}) {
    LogEntry entry;
    entry.kind = kind;
    entry.version = version;
    entry.term = kind == EntryKind::kOwners ? log_.state().term + 1 : log_.state().term;
    entry.incarnations = std::move(incarnations);
    if (kind == EntryKind::kSealed) entry.digests.resize(1);
    const absl::Status done = log_.Append(entry);
    ASSERT_TRUE(done.ok()) << done;
  }
  Answer Reply(uint64_t log = kLog) {
    Answer answer;
    answer.incarnation = kSelf;
    answer.question = asked_.question;
    answer.log = log;
    answer.slice = log_.ReadFrom(asked_.log == log ? asked_.length : 0, 8);
    answer.length = log_.state().length;
    return answer;
  }
  void Tell(uint64_t log = kLog) { owner_->OnAnswer(Reply(log), 0); }
  void Ask() {
    owner_->AskSoon();
    owner_->Advance(0);
  }
  void Begin() {
    Chosen(EntryKind::kOwners, {}, {kSelf});
    Ask();
    Tell();
    ASSERT_TRUE(owner_->in_term());
  }
  void Seal(uint64_t number) {
    owner_->Seal(number, {}, kEnd,
                 [this](absl::StatusOr<LogEntry> sealed) { ended_.push_back(sealed.status()); });
  }
  std::string Last() { return ended_.empty() ? "nothing" : ended_.back().ToString(); }

  WeightLog log_;
  Question asked_;
  std::vector<absl::Status> ended_;
  std::unique_ptr<GroupOwner> owner_ =
      std::make_unique<GroupOwner>(GroupOwner::Self{kSelf, 0, 1, {}}, GroupTimes(),
                                   [this](const Question& question) { asked_ = question; });
};

TEST_F(OwnerRulesTest, AVersionThatWasReplacedAtOnceWasSealedAllTheSame) {
  Begin();
  Seal(1);
  Ask();
  Chosen(EntryKind::kSealed, {1, 11});
  Chosen(EntryKind::kActive, {1, 11});
  Chosen(EntryKind::kSealed, {2, 22});
  Chosen(EntryKind::kActive, {2, 22});
  Tell();
  ASSERT_EQ(ended_.size(), 1);
  EXPECT_TRUE(ended_[0].ok()) << Last();
}

TEST_F(OwnerRulesTest, ActivatingWhatIsOverFails) {
  Begin();
  for (const uint64_t number : {1, 2}) {
    Chosen(EntryKind::kSealed, {number, number * 11});
    Chosen(EntryKind::kActive, {number, number * 11});
  }
  Ask();
  Tell();
  absl::Status ended;
  owner_->Activate(1, ActivateMode::kRolling, kEnd,
                   [&](const absl::Status& status) { ended = status; });
  Ask();
  Answer settled = Reply();
  settled.settled = 2;
  owner_->OnAnswer(settled, 0);
  EXPECT_EQ(ended.code(), absl::StatusCode::kAborted) << "all serve 2, which is not 1";
  ended = absl::UnknownError("");
  owner_->Activate(2, ActivateMode::kRolling, kEnd,
                   [&](const absl::Status& status) { ended = status; });
  Ask();
  settled = Reply();
  settled.settled = 2;
  owner_->OnAnswer(settled, 0);
  EXPECT_TRUE(ended.ok()) << ended;
}

TEST_F(OwnerRulesTest, AnActivationThatIsLateMayStillComeAbout) {
  Begin();
  absl::Status ended;
  owner_->Activate(1, ActivateMode::kRolling, 5,
                   [&](const absl::Status& status) { ended = status; });
  owner_->Advance(6);
  EXPECT_EQ(ended.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(absl::StrContains(ended.message(), "may still become active")) << ended;
}

// What a program does about a seal that was aborted is to seal again.
TEST_F(OwnerRulesTest, WhoSealsAgainWhenASealEndsIsNotEndedForEver) {
  Begin();
  int tries = 0;
  absl::AnyInvocable<void(absl::StatusOr<LogEntry>)> again;
  const auto seal = [&, owner = owner_.get()] {
    owner->Seal(1, {}, kEnd, [&](absl::StatusOr<LogEntry> sealed) { again(std::move(sealed)); });
  };
  again = [&](const absl::StatusOr<LogEntry>& sealed) {
    ended_.push_back(sealed.status());
    if (++tries < 10) seal();
  };
  seal();
  Ask();
  log_ = WeightLog();
  Tell(kLog + 1);  // Another log.
  EXPECT_EQ(tries, 1);
  EXPECT_TRUE(absl::IsAborted(ended_[0])) << Last();
  owner_.reset();
  EXPECT_EQ(tries, 10) << "each is refused, and does not wait to be ended";
  EXPECT_TRUE(absl::IsCancelled(ended_.back())) << Last();
}

TEST_F(OwnerRulesTest, ALostLogIsNotGoneBackTo) {
  Ask();
  Tell(kLost);
  Chosen(EntryKind::kOwners, {}, {kSelf});
  Ask();
  Tell(kLog);
  ASSERT_TRUE(owner_->in_term());
  Seal(1);
  Ask();
  Tell(kLost);  // By a leader that does not know of the loss.
  EXPECT_EQ(Last(), "nothing");
  EXPECT_TRUE(owner_->in_term());
}

TEST_F(OwnerRulesTest, WhoWasReplacedSealsNothing) {
  Begin();
  Seal(1);
  Ask();
  Chosen(EntryKind::kOwners, {}, {kOther});
  Tell();
  EXPECT_TRUE(owner_->superseded());
  EXPECT_EQ(ended_.size(), 1) << "at once";
  Seal(2);
  ASSERT_EQ(ended_.size(), 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(ended_[1])) << Last();
  EXPECT_TRUE(absl::StrContains(Last(), "rank 0")) << Last();
}

TEST_F(OwnerRulesTest, ANumberIsSealedOnceAtATime) {
  Begin();
  Seal(1);
  Seal(1);
  EXPECT_TRUE(absl::IsAlreadyExists(ended_.at(0))) << Last();
  for (uint64_t number = 2; number <= kMaxReady; ++number) Seal(number);
  EXPECT_EQ(ended_.size(), 1);
  Seal(kMaxReady + 1);
  EXPECT_TRUE(absl::IsResourceExhausted(ended_.at(1))) << Last();
}

}  // namespace
}  // namespace tryst
