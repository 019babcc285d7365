#include "weights/member.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/turned_clock.h"
#include "weights/decider.h"

namespace tryst {
namespace {

constexpr uint64_t kSelf = 50, kLog = 9;

LogEntry Entry(EntryKind kind, WeightVersion version, std::vector<uint64_t> incarnations = {}) {
  LogEntry entry;
  entry.kind = kind;
  entry.version = version;
  entry.incarnations = std::move(incarnations);
  entry.term = 1;
  if (kind == EntryKind::kSealed) entry.digests.resize(1);
  return entry;
}

class MemberTest : public ::testing::Test, public GroupMember::Port {
 protected:
  void Ask(const Question& question) override { asked_ = question; }
  void Stage(const LogEntry& version) override { Did("stage", version.version); }
  void Hold(const WeightVersion& version) override { Did("hold", version); }
  void Switch(const WeightVersion& version) override { Did("switch", version); }
  void Drop(const WeightVersion& version) override { Did("drop", version); }
  void Did(const std::string& what, const WeightVersion& version) {
    did_ += what + " " + std::to_string(version.number) + " ";
  }
  std::string Did() { return std::exchange(did_, ""); }

  void Chosen(const LogEntry& entry) {
    const absl::Status done = log_.Append(entry);
    ASSERT_TRUE(done.ok()) << done;
  }
  // Answers the member's last question.
  Answer Reply() {
    Answer answer;
    answer.incarnation = kSelf;
    answer.question = asked_.question;
    answer.log = kLog;
    answer.slice = log_.ReadFrom(asked_.log == kLog ? asked_.length : 0, 8);
    answer.length = log_.state().length;
    return answer;
  }
  void Tell(bool permit = true) {
    Answer answer = Reply();
    answer.permit = permit;
    member_.OnAnswer(answer, clock_.now_ns);
  }
  uint64_t Served() { return permit_.Serve(clock_).number; }
  // A member that serves version 1, of a log with version 2 sealed.
  void Begin() {
    Chosen(Entry(EntryKind::kOwners, {}, {60}));
    Chosen(Entry(EntryKind::kMembers, {}, {kSelf}));
    Chosen(Entry(EntryKind::kSealed, {1, 11}));
    Chosen(Entry(EntryKind::kActive, {1, 11}));
    Chosen(Entry(EntryKind::kSealed, {2, 22}));
    member_.Advance(clock_.now_ns);
    Tell();
    EXPECT_EQ(Did(), "stage 1 ");
    EXPECT_EQ(Served(), 0) << "it has nothing yet";
    member_.Staged({1, 11}, true, clock_.now_ns);
    EXPECT_EQ(Did(), "switch 1 ");
    member_.Switched({1, 11}, clock_.now_ns);
    EXPECT_EQ(Served(), 0) << "its permit comes with the next answer";
    Tell();
    EXPECT_EQ(Served(), 1);
  }
  Answer Prepare(bool hold) {
    Answer answer = Reply();
    answer.prepare = {2, 22};
    answer.hold = hold;
    answer.permit = true;
    return answer;
  }

  TurnedClock clock_;
  Permit permit_{false};
  GroupMember member_{kSelf, GroupTimes(), this, &permit_};
  WeightLog log_;
  Question asked_;
  std::string did_;
};

TEST_F(MemberTest, APermitRunsFromItsQuestion) {
  Begin();
  const int64_t asked = clock_.now_ns;
  member_.Advance(asked + 400'000'000);
  clock_.now_ns = asked + 900'000'000;
  Tell();
  EXPECT_EQ(permit_.until_ns(), asked + 1'400'000'000);
  EXPECT_EQ(Served(), 1);
  clock_.now_ns = asked + 1'400'000'000;
  EXPECT_EQ(Served(), 0);
}

// A leader whose log was lost begins above it.
TEST_F(MemberTest, ItsQuestionsSayTheHighestNumberThatItHasSeenSealed) {
  Begin();
  member_.Advance(clock_.now_ns += 500'000'000);
  EXPECT_EQ(asked_.floor, 2u);
  Chosen(Entry(EntryKind::kSealed, {7, 77}));
  Tell();
  member_.Advance(clock_.now_ns += 500'000'000);
  EXPECT_EQ(asked_.floor, 7u);
}

TEST_F(MemberTest, AnAnswerToAnotherQuestionGivesItsOwnTimeOrNone) {
  Begin();
  Answer late = Reply();
  late.permit = true;
  for (int i = 0; i < 8; ++i) member_.Advance(clock_.now_ns += 500'000'000);
  EXPECT_EQ(Served(), 0);
  member_.OnAnswer(late, clock_.now_ns);
  EXPECT_EQ(Served(), 0);
  member_.Advance(clock_.now_ns += 500'000'000);
  late.question = asked_.question - 1;
  member_.OnAnswer(late, clock_.now_ns);
  EXPECT_EQ(permit_.until_ns(), clock_.now_ns + 500'000'000) << "it has been under way for a while";
  permit_.End();
  late.question = asked_.question + 1;
  member_.OnAnswer(late, clock_.now_ns);
  EXPECT_EQ(Served(), 0) << "it has not been asked";
  late.question = asked_.question;
  late.incarnation = kSelf + 1;
  member_.OnAnswer(late, clock_.now_ns);
  EXPECT_EQ(Served(), 0) << "it is for a former life";
}

// Where its questions follow each other quickly, each of the places in which it notes when it asked
// has a time that would do.
TEST_F(MemberTest, AnAnswerBeforeItsQuestionGivesNone) {
  Begin();
  for (int i = 0; i < 8; ++i) {
    Answer more = Reply();
    ++more.length;  // There is more to ask for.
    const uint64_t before = asked_.question;
    member_.OnAnswer(more, clock_.now_ns);
    ASSERT_EQ(asked_.question, before + 1);
  }
  permit_.End();
  Answer early = Reply();
  early.permit = true;
  early.question = asked_.question + 1;
  member_.OnAnswer(early, clock_.now_ns);
  EXPECT_EQ(Served(), 0);
  early.question = asked_.question;
  member_.OnAnswer(early, clock_.now_ns);
  EXPECT_EQ(Served(), 1);
}

TEST_F(MemberTest, WhoHoldsTakesNoPermitUntilItIsDecided) {
  Begin();
  member_.OnAnswer(Prepare(false), clock_.now_ns);
  EXPECT_EQ(Did(), "stage 2 ");
  member_.OnAnswer(Prepare(true), clock_.now_ns);
  EXPECT_EQ(Did(), "") << "half a stage holds for nothing";
  member_.Staged({2, 22}, true, clock_.now_ns);
  EXPECT_EQ(asked_.stage_state, StageState::kStaged);
  EXPECT_EQ(Served(), 1);
  member_.OnAnswer(Prepare(true), clock_.now_ns);
  EXPECT_EQ(Did(), "hold 2 ");
  EXPECT_EQ(Served(), 0);
  Tell();
  EXPECT_EQ(Served(), 0);
  member_.Quiet({2, 22}, clock_.now_ns);
  EXPECT_EQ(asked_.stage_state, StageState::kHeld);
  Tell();
  EXPECT_EQ(Served(), 0);
  Chosen(Entry(EntryKind::kDropped, {2, 22}));
  Tell();
  EXPECT_EQ(Did(), "drop 2 ");
  EXPECT_EQ(Served(), 1) << "what is active stays active";
}

TEST_F(MemberTest, ChosenIsTheDecision) {
  Begin();
  member_.OnAnswer(Prepare(false), clock_.now_ns);
  member_.Staged({2, 22}, true, clock_.now_ns);
  EXPECT_EQ(Did(), "stage 2 ");
  Chosen(Entry(EntryKind::kActive, {2, 22}));
  Tell();
  EXPECT_EQ(Did(), "switch 2 ");
  EXPECT_EQ(Served(), 0);
  member_.Switched({2, 22}, clock_.now_ns);
  Tell();
  EXPECT_EQ(Served(), 2);
}

TEST_F(MemberTest, AVoteIsNoWhereTheStageFailed) {
  Begin();
  member_.OnAnswer(Prepare(false), clock_.now_ns);
  member_.Staged({2, 22}, false, clock_.now_ns);
  EXPECT_EQ(asked_.stage_state, StageState::kFailed);
  EXPECT_EQ(Did(), "stage 2 ");
  Chosen(Entry(EntryKind::kActive, {2, 22}));
  Tell();
  EXPECT_EQ(Did(), "stage 2 ") << "the others went on: it has to have it now";
  EXPECT_EQ(Served(), 0);
}

TEST_F(MemberTest, WhoIsPutOutServesNothing) {
  Begin();
  Chosen(Entry(EntryKind::kMembers, {}, {kSelf + 1}));
  Tell();
  EXPECT_EQ(Served(), 0);
}

TEST_F(MemberTest, APermitOfAShorterLogIsNone) {
  Begin();
  Answer old = Reply();
  old.permit = true;
  Chosen(Entry(EntryKind::kSealed, {3, 33}));
  Tell(false);
  permit_.End();
  member_.OnAnswer(old, clock_.now_ns);
  EXPECT_EQ(Served(), 0);
}

TEST_F(MemberTest, AnotherLogIsBegunAnew) {
  Begin();
  Answer other = Reply();
  other.log = kLog + 1;
  other.slice = {};
  other.length = 0;
  other.permit = true;
  other.question = asked_.question - 1;
  member_.OnAnswer(other, clock_.now_ns);
  EXPECT_EQ(member_.state().length, 5) << "only the newest question says who leads";
  other.question = asked_.question;
  member_.OnAnswer(other, clock_.now_ns);
  EXPECT_EQ(member_.state().length, 0);
  EXPECT_EQ(Served(), 0);
  Tell();
  EXPECT_EQ(member_.log(), kLog + 1) << "there is no way back";
}

// Its leader is gone, and with it whoever wanted version 2.
TEST_F(MemberTest, WhatNobodyWantsAnyMoreIsStagedNoLonger) {
  Begin();
  Chosen(Entry(EntryKind::kSealed, {3, 33}));
  member_.OnAnswer(Prepare(false), clock_.now_ns);
  EXPECT_EQ(Did(), "stage 2 ");
  member_.Staged({2, 22}, true, clock_.now_ns);
  Answer old = Reply();
  old.question -= 1;
  old.prepare = {3, 33};
  member_.OnAnswer(old, clock_.now_ns);
  EXPECT_EQ(Did(), "") << "an older answer may be of an older leader";
  Answer other = Reply();
  other.prepare = {3, 33};
  member_.OnAnswer(other, clock_.now_ns);
  EXPECT_EQ(Did(), "drop 2 stage 3 ");
  member_.Staged({3, 33}, true, clock_.now_ns);
  other = Reply();
  other.prepare = {3, 33};
  other.hold = true;
  member_.OnAnswer(other, clock_.now_ns);
  EXPECT_EQ(Did(), "hold 3 ");
  member_.OnAnswer(Prepare(false), clock_.now_ns);
  EXPECT_EQ(Did(), "") << "what it holds for may be chosen already";
}

// The others serve it, and this member cannot get it: it asks as often as ever.
TEST_F(MemberTest, WhatCannotBeStagedIsTriedAgainNowAndThen) {
  Begin();
  Chosen(Entry(EntryKind::kActive, {2, 22}));
  Tell();
  EXPECT_EQ(Did(), "stage 2 ");
  int staged = 0;
  for (int ms = 0; ms < 10'000; ++ms) {
    clock_.now_ns += 1'000'000;
    if (member_.stage_state() == StageState::kStaging) {
      member_.Staged({2, 22}, false, clock_.now_ns);
      EXPECT_EQ(member_.stage_state(), StageState::kFailed);
    }
    member_.Advance(clock_.now_ns);
    staged += Did() == "stage 2 ";
  }
  EXPECT_GE(staged, 25);
  EXPECT_LE(staged, 35) << "three times in a permit";
}

TEST(StageTableTest, PrintsEveryRow) {
  const std::string table = StageTable();
  EXPECT_NE(table.find("| holds | ACTIVE | is switched to | switches |"), std::string::npos);
  EXPECT_FALSE(FindStageRow(StageState::kStaging, StageEvent::kHold).exists);
  EXPECT_FALSE(FindStageRow(StageState::kStaging, StageEvent::kChosen).exists);
}

}  // namespace
}  // namespace tryst
