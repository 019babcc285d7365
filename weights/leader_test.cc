#include "weights/leader.h"

#include <gtest/gtest.h>

#include <vector>

#include "weights/stage_table.h"

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr uint64_t kMember = 50, kOwner = 60;

class LeaderTest : public ::testing::Test, public Decider, public Covers {
 protected:
  void Append(uint64_t call, uint64_t length, uint64_t lease, const LogEntry& entry) override {
    calls_.push_back({call, store_.Append(length, lease, entry)});
  }
  void ReadFrom(uint64_t call, uint64_t index) override {
    calls_.push_back({call, store_.ReadFrom(index)});
  }
  void TakeLease(uint64_t call) override { calls_.push_back({call, store_.TakeLease(now_ns_)}); }
  void KeepLease(uint64_t call, uint64_t lease) override {
    calls_.push_back({call, store_.KeepLease(lease, now_ns_)});
  }
  absl::StatusOr<Sealed> Judge(uint64_t, uint64_t, const std::vector<WeightRoot>&) override {
    return judged_;
  }

  // Every answer of the decider comes now.
  void Answers() {
    while (!calls_.empty()) {
      std::pair<uint64_t, DeciderAnswer> first = calls_.front();
      calls_.erase(calls_.begin());
      first.second.call = first.first;
      leader_.OnDecider(first.second, now_ns_);
    }
  }
  // Version 1 is active, and version 2 sealed; a former leader wrote that.
  void Write(const std::vector<uint64_t>& members = {kMember}) {
    LogEntry entry;
    entry.kind = EntryKind::kOwners;
    entry.term = 1;
    entry.incarnations = {kOwner};
    Put(entry);
    entry.kind = EntryKind::kMembers;
    entry.incarnations = members;
    Put(entry);
    entry.kind = EntryKind::kSealed;
    entry.digests.resize(1);
    entry.version = {1, 11};
    Put(entry);
    entry.kind = EntryKind::kActive;
    Put(entry);
    entry.kind = EntryKind::kSealed;
    entry.version = {2, 22};
    Put(entry);
  }
  void Put(const LogEntry& entry) {
    if (lease_ == 0) lease_ = store_.TakeLease(now_ns_).lease;
    ASSERT_EQ(store_.Append(length_++, lease_, entry).outcome, DeciderOutcome::kDone);
  }
  void Lead() {
    leader_.Advance(now_ns_);
    Answers();
    ASSERT_TRUE(leader_.leads(now_ns_));
  }
  void Pass(int64_t ms) {
    for (const int64_t end = now_ns_ + ms * kMs; now_ns_ < end; now_ns_ += 50 * kMs) {
      leader_.Advance(now_ns_);
      Answers();
      Asks(state_, false);
    }
  }
  void Asks(StageState state, bool wish) {
    state_ = state;
    Question question;
    question.incarnation = kMember;
    question.question = ++question_;
    question.log = store_.life();
    question.length = store_.log().state().length;
    question.member = true;
    question.serving = {1, 11};
    if (state != StageState::kNone) question.stage = {2, 22};
    question.stage_state = state;
    if (wish) question.wish = {2, ActivateMode::kBarrier, 10'000 * kMs};
    leader_.OnQuestion(question, now_ns_);
    Answers();
  }
  Question Ask(uint64_t incarnation) {
    Question question;
    question.incarnation = incarnation;
    question.question = ++question_;
    question.log = store_.life();
    question.length = store_.log().state().length;
    return question;
  }
  void Hear(const Question& question) {
    leader_.OnQuestion(question, now_ns_);
    Answers();
  }
  // The owner has these ready, and nothing else to say.
  void HasReady(uint64_t number) {
    Question question = Ask(kOwner);
    question.owner = true;
    question.owners = 1;
    question.term = store_.log().state().term;
    question.ready = {{question.term, number, {}}};
    Hear(question);
  }
  bool IsOpen(uint64_t number) const { return store_.log().state().FindOpen(number) != nullptr; }
  uint64_t active() const { return store_.log().state().active.version.number; }

  int64_t now_ns_ = 10'000 * kMs;
  LogStore store_{7, 1000 * kMs};
  std::vector<std::pair<uint64_t, DeciderAnswer>> calls_;
  std::vector<Answer> said_;
  WeightLeader leader_{WeightLeader::Options(), this, this,
                       [this](const Answer& answer) { said_.push_back(answer); }};
  uint64_t lease_ = 0, length_ = 0, question_ = 0;
  StageState state_ = StageState::kNone;
  absl::StatusOr<Sealed> judged_ = Sealed{1, {}};
};

TEST_F(LeaderTest, TheLeaseRunsFromWhenItWasAskedFor) {
  const int64_t asked = now_ns_;
  leader_.Advance(now_ns_);
  now_ns_ += 150 * kMs;
  Answers();
  EXPECT_TRUE(leader_.leads(asked + 979 * kMs));
  EXPECT_FALSE(leader_.leads(asked + 981 * kMs)) << "the decider's clock may be faster by 1 %";
}

TEST_F(LeaderTest, WithoutALeaseItAnswersNothing) {
  Lead();
  Asks(StageState::kNone, false);
  const size_t said = said_.size();
  EXPECT_GT(said, 0);
  now_ns_ += 1001 * kMs;
  Question question;
  question.incarnation = kMember;
  question.question = ++question_;
  leader_.OnQuestion(question, now_ns_);
  EXPECT_EQ(said_.size(), said);
}

TEST_F(LeaderTest, WithoutALeaseItAppendsNothing) {
  Write();
  now_ns_ += 1000 * kMs;
  Lead();
  now_ns_ += 5000 * kMs;  // It was stopped, and its member has gone.
  leader_.Advance(now_ns_);
  EXPECT_EQ(calls_.size(), 1) << "it asks for its lease alone";
}

TEST_F(LeaderTest, WhoseLeaseIsAnothersLeadsNoLonger) {
  Write();
  now_ns_ += 1000 * kMs;
  Lead();
  ASSERT_EQ(store_.TakeLease(now_ns_ + 2000 * kMs).outcome, DeciderOutcome::kDone);
  HasReady(3);  // It has something to write.
  EXPECT_FALSE(leader_.leads(now_ns_));
}

TEST_F(LeaderTest, WhoHasPartsOfAVersionForOthersIsKnown) {
  const auto has = [&](uint64_t incarnation, const std::vector<WeightVersion>& held,
                       const std::string& worker) {
    Question question = Ask(incarnation);
    question.member = true;
    question.holder = incarnation + 1000;
    question.held = held;
    leader_.OnQuestion(question, now_ns_, worker);
    Answers();
  };
  const WeightVersion active{1, 11}, open{2, 22};
  Write();
  now_ns_ += 1000 * kMs;
  has(51, {active}, "m1");
  EXPECT_TRUE(leader_.HoldersOf(active, 0, now_ns_).empty()) << "it does not lead";
  Lead();
  has(51, {active, open}, "m1");
  has(52, {active}, "m2");
  has(53, {active}, "");
  has(54, {{1, 12}, {3, 33}}, "m4");
  using Holders = std::vector<Holder>;
  EXPECT_EQ(leader_.HoldersOf(active, 40, now_ns_), (Holders{{"m1", 1051}, {"m2", 1052}}));
  // For each that asks they begin elsewhere, and nobody is sent to itself.
  EXPECT_EQ(leader_.HoldersOf(active, 51, now_ns_), (Holders{{"m2", 1052}}));
  has(55, {active}, "m5");
  EXPECT_EQ(leader_.HoldersOf(active, 51, now_ns_), (Holders{{"m2", 1052}, {"m5", 1055}}));
  EXPECT_EQ(leader_.HoldersOf(active, 53, now_ns_),
            (Holders{{"m5", 1055}, {"m1", 1051}, {"m2", 1052}}));
  EXPECT_EQ(leader_.HoldersOf(open, 0, now_ns_), (Holders{{"m1", 1051}}));
  // Versions that the log does not have, or has under another birth.
  EXPECT_TRUE(leader_.HoldersOf({3, 33}, 0, now_ns_).empty());
  EXPECT_TRUE(leader_.HoldersOf({1, 12}, 0, now_ns_).empty());
  EXPECT_TRUE(leader_.HoldersOf({}, 0, now_ns_).empty());
  has(52, {}, "m2");
  EXPECT_EQ(leader_.HoldersOf(active, 51, now_ns_), (Holders{{"m5", 1055}}));
  Pass(1000);
  has(51, {active}, "m1");
  Pass(1000);
  EXPECT_EQ(leader_.HoldersOf(active, 0, now_ns_), (Holders{{"m1", 1051}})) << "m5 is silent";
  // What is too long is not heard.
  has(56, std::vector<WeightVersion>(kMaxHeldVersions + 1, active), "m6");
  has(57, {active}, std::string(kMaxWorkerBytes + 1, 'm'));
  EXPECT_EQ(leader_.HoldersOf(active, 0, now_ns_), (Holders{{"m1", 1051}}));
  now_ns_ += 1000 * kMs;
  EXPECT_TRUE(leader_.HoldersOf(active, 0, now_ns_).empty()) << "its lease is over";
}

TEST_F(LeaderTest, AFewOfManyHoldersAreNamed) {
  Write();
  now_ns_ += 1000 * kMs;
  Lead();
  for (uint64_t i = 0; i < kMaxHolders + 100; ++i) {
    Question question = Ask(1000 + i);
    question.holder = 1;
    question.held = {{1, 11}};
    leader_.OnQuestion(question, now_ns_, "m");
  }
  EXPECT_EQ(leader_.HoldersOf({1, 11}, 1500, now_ns_).size(), kMaxHolders);
}

TEST_F(LeaderTest, WhatAnOwnerHasReadyIsSealedAtOnce) {
  Write();
  now_ns_ += 1000 * kMs;
  Lead();
  HasReady(3);
  EXPECT_TRUE(IsOpen(3));
  HasReady(3);
  HasReady(4);
  EXPECT_TRUE(IsOpen(4)) << "it has as many ready as before, and another one";
}

TEST_F(LeaderTest, AnOwnerThatNamesANumberTwiceSpeaksForItselfAlone) {
  LogEntry owners;
  owners.kind = EntryKind::kOwners;
  owners.term = 1;
  owners.incarnations = {kOwner, kOwner + 1};
  Put(owners);
  now_ns_ += 1000 * kMs;
  Lead();
  const auto says = [&](uint32_t rank, size_t times) {
    Question question = Ask(kOwner + rank);
    question.owner = true;
    question.owners = 2;
    question.rank = rank;
    question.term = 1;
    question.ready.assign(times, {1, 3, {}});
    Hear(question);
  };
  says(0, 0);
  says(1, 2);
  EXPECT_FALSE(IsOpen(3));
  says(0, 1);
  EXPECT_TRUE(IsOpen(3));
}

TEST_F(LeaderTest, WhatCannotBeJudgedYetIsSealedLater) {
  Write();
  now_ns_ += 1000 * kMs;
  Lead();
  judged_ = absl::UnavailableError("the layout is not here yet");
  HasReady(3);
  EXPECT_FALSE(IsOpen(3));
  judged_ = Sealed{1, {}};
  leader_.Advance(now_ns_);
  Answers();
  EXPECT_TRUE(IsOpen(3)) << "it was not dropped";
}

TEST_F(LeaderTest, WhatALostOwnerHadReadyIsDropped) {
  Write();
  now_ns_ += 1000 * kMs;
  Lead();
  judged_ = absl::UnavailableError("another owner's digests are not here");
  HasReady(3);
  Pass(1000);
  EXPECT_EQ(store_.log().state().floor, 2);
  Pass(2000);
  EXPECT_EQ(store_.log().state().floor, 3) << "it will not come";
}

TEST_F(LeaderTest, ANewLeaderWaitsForThePermitsOfTheLast) {
  Write();
  now_ns_ += 1000 * kMs;
  Lead();
  Asks(StageState::kStaged, true);
  Asks(StageState::kHeld, false);
  Pass(900);
  EXPECT_EQ(active(), 1) << "whom the last leader put out may serve still";
  Pass(250);
  EXPECT_EQ(active(), 2);
}

TEST_F(LeaderTest, WhoHoldsHasNoPermitAndIsWaitedFor) {
  Write();
  now_ns_ += 1000 * kMs;
  Lead();
  Pass(1500);
  Asks(StageState::kNone, true);
  EXPECT_TRUE(said_.back().permit);
  Pass(500);
  EXPECT_EQ(active(), 1) << "it has not voted";
  Asks(StageState::kStaged, false);
  EXPECT_TRUE(said_.back().hold);
  EXPECT_FALSE(said_.back().permit);
  Pass(500);
  EXPECT_EQ(active(), 1) << "it has not said that it holds";
  Question holds = Ask(kMember);
  holds.member = true;
  holds.serving = {1, 11};
  holds.stage = {2, 22};
  holds.stage_state = StageState::kHeld;
  leader_.OnQuestion(holds, now_ns_);
  EXPECT_TRUE(said_.back().hold) << "it is not chosen before the decider has answered";
  Answers();
  EXPECT_EQ(active(), 2);
}

TEST_F(LeaderTest, OwnersHearAtOnceThatAllHaveSwitched) {
  Write();
  now_ns_ += 1000 * kMs;
  Lead();
  Question owner;
  owner.incarnation = kOwner;
  owner.question = 1;
  owner.owner = true;
  leader_.OnQuestion(owner, now_ns_);
  Answers();
  EXPECT_EQ(said_.back().settled, 0u) << "the member has said nothing yet";
  said_.clear();
  Asks(StageState::kNone, false);
  bool told = false;
  for (const Answer& answer : said_) told = told || answer.settled == 1;
  EXPECT_TRUE(told);
}

TEST_F(LeaderTest, WhoAsksAgainInASettledFleetIsAnsweredAlone) {
  constexpr uint64_t kOther = 51;
  Write({kMember, kOther});
  now_ns_ += 1000 * kMs;
  Lead();
  const auto serves = [this](uint64_t incarnation) {
    Question question = Ask(incarnation);
    question.member = true;
    question.serving = {1, 11};
    return question;
  };
  Hear(serves(kMember));
  said_.clear();
  Hear(serves(kOther));
  ASSERT_GT(said_.size(), 1u) << "all hear that it is settled";
  said_.clear();
  Hear(serves(kOther));
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_EQ(said_[0].incarnation, kOther);
}

TEST_F(LeaderTest, AFleetThatStartsTakesFewEntries) {
  Lead();
  for (uint64_t question = 1; question <= 3; ++question) {
    for (uint64_t member = 100; member < 150; ++member) {
      Question ask;
      ask.incarnation = member;
      ask.question = question;
      ask.log = store_.life();
      ask.length = store_.log().state().length;
      ask.member = true;
      leader_.OnQuestion(ask, now_ns_);
      Answers();
      now_ns_ += 4 * kMs;
    }
    leader_.Advance(now_ns_);
    Answers();
  }
  EXPECT_EQ(store_.log().state().members.size(), 50);
  EXPECT_LE(store_.log().state().length, 5);
}

// By then it knows whether members hold another version, which goes first.
TEST_F(LeaderTest, ANewLeaderWaitsForAllBeforeItBeginsAnything) {
  Write();
  LogEntry third;
  third.kind = EntryKind::kSealed;
  third.term = 1;
  third.digests.resize(1);
  third.version = {3, 33};
  Put(third);
  now_ns_ += 1000 * kMs;
  Lead();
  Question wish = Ask(kOwner);
  wish.wish = {3, ActivateMode::kRolling, 10'000 * kMs};
  Hear(wish);
  EXPECT_EQ(said_.back().prepare.number, 0);
  Asks(StageState::kHeld, false);
  EXPECT_EQ(said_.back().prepare.number, 2);
  Pass(1200);
  EXPECT_EQ(active(), 2);
  state_ = StageState::kNone;
  wish.question = ++question_;
  wish.log = store_.life();
  Hear(wish);
  EXPECT_EQ(said_.back().prepare.number, 3);
}

TEST_F(LeaderTest, ANewLeaderBeginsWhatWasWishedAsSoonAsItMay) {
  Write();
  now_ns_ += 1000 * kMs;
  Lead();
  const int64_t since_ns = now_ns_;
  Question wish = Ask(kOwner);
  wish.wish = {2, ActivateMode::kRolling, 10'000 * kMs};
  Hear(wish);
  Pass(950);
  EXPECT_EQ(leader_.Advance(now_ns_), since_ns + 1000 * kMs);
  EXPECT_EQ(said_.back().prepare.number, 0);
  now_ns_ = since_ns + 1000 * kMs;
  EXPECT_GT(leader_.Advance(now_ns_), now_ns_);
  EXPECT_EQ(said_.back().prepare.number, 2);
}

TEST_F(LeaderTest, ANewLeaderBeginsNothingWhoseTimeIsOver) {
  Write();
  now_ns_ += 1000 * kMs;
  Lead();
  Question wish = Ask(kOwner);
  wish.wish = {2, ActivateMode::kRolling, 900 * kMs};
  Hear(wish);
  Pass(1500);
  EXPECT_EQ(said_.back().prepare.number, 0);
  EXPECT_TRUE(IsOpen(2));
}

TEST_F(LeaderTest, AHeldFleetIsNotHeldForLong) {
  Write();
  now_ns_ += 1000 * kMs;
  Lead();
  // One member holds, and another never will.
  Asks(StageState::kHeld, false);
  EXPECT_NE(store_.log().state().FindOpen(2), nullptr);
  state_ = StageState::kHolding;
  Pass(11'000);
  EXPECT_EQ(store_.log().state().FindOpen(2), nullptr);
}

// One is late to stage, is put out, and the others still get the time to end what runs.
TEST_F(LeaderTest, UnderABarrierWhoIsLateToStageIsLeftBehind) {
  Write({kMember, kMember + 1});
  now_ns_ += 1000 * kMs;
  Lead();
  Pass(1100);
  Question wish = Ask(kOwner);
  wish.wish = {2, ActivateMode::kBarrier, 500 * kMs};
  Hear(wish);
  const auto turn = [&](StageState first) {
    Question late = Ask(kMember + 1);
    late.member = true;
    late.serving = {1, 11};
    late.stage = {2, 22};
    late.stage_state = StageState::kStaging;
    Hear(late);
    Asks(first, false);
    now_ns_ += 50 * kMs;
    leader_.Advance(now_ns_);
    Answers();
  };
  for (int i = 0; i < 12; ++i) turn(StageState::kStaged);
  EXPECT_EQ(store_.log().state().members, std::vector<uint64_t>{kMember});
  ASSERT_NE(store_.log().state().FindOpen(2), nullptr) << "it is not given up in the same turn";
  for (int i = 0; i < 30; ++i) turn(StageState::kHeld);
  EXPECT_EQ(active(), 2);
}

TEST_F(LeaderTest, AWishNeedsATimeAndMayHaveALongOne) {
  Write();
  now_ns_ += 1000 * kMs;
  Lead();
  Pass(1100);
  Question wish = Ask(kOwner);
  wish.wish = {2, ActivateMode::kRolling, -5};
  Hear(wish);
  EXPECT_EQ(said_.back().prepare.number, 0);
  wish = Ask(kOwner);
  wish.wish = {2, ActivateMode::kRolling, INT64_MAX};
  Hear(wish);
  Pass(1000);
  EXPECT_EQ(said_.back().prepare.number, 2);
  EXPECT_NE(store_.log().state().FindOpen(2), nullptr) << "its time is not over";
}

// A line-up was larger before, and one process of it still asks.
TEST_F(LeaderTest, AProcessOfALargerLineUpKeepsNobodyFromATerm) {
  Lead();
  Pass(1000);
  const auto declare = [&](uint64_t incarnation, uint32_t rank, uint32_t owners) {
    Question question = Ask(incarnation);
    question.owner = true;
    question.rank = rank;
    question.owners = owners;
    Hear(question);
  };
  declare(kOwner + 1, 1, 2);
  EXPECT_EQ(store_.log().state().term, 0);
  EXPECT_NE(leader_.Explain(now_ns_).find("rank 0 has not declared"), std::string::npos);
  declare(kOwner, 0, 3);
  EXPECT_NE(leader_.Explain(now_ns_).find("rank 1"), std::string::npos) << leader_.Explain(now_ns_);
  declare(kOwner, 0, 1);
  leader_.Advance(now_ns_);
  Answers();
  EXPECT_EQ(store_.log().state().owners, std::vector<uint64_t>{kOwner});
}

TEST_F(LeaderTest, OwnersWhoseLayoutsDifferBeginNoTerm) {
  Lead();
  Pass(1000);
  const auto declare = [&](uint64_t incarnation, uint32_t rank, uint8_t layout) {
    Question question = Ask(incarnation);
    question.owner = true;
    question.rank = rank;
    question.owners = 2;
    question.layout[0] = layout;
    Hear(question);
    leader_.Advance(now_ns_);
    Answers();
  };
  declare(kOwner, 0, 77);
  declare(kOwner + 1, 1, 78);
  EXPECT_EQ(store_.log().state().term, 0);
  declare(kOwner + 1, 1, 77);
  EXPECT_EQ(store_.log().state().term, 1);
}

// The log is new because one was lost, and some know a number of that one.
TEST_F(LeaderTest, TheFirstTermOfALogKnowsWhatItsPeersKnow) {
  Lead();
  Question owner = Ask(kOwner);
  owner.owner = true;
  owner.owners = 1;
  owner.layout[0] = 77;
  Hear(owner);
  EXPECT_EQ(store_.log().state().term, 0);
  Question member = Ask(kMember);
  member.log = 5;
  member.floor = 7;
  Hear(member);
  for (int i = 0; i < 20; ++i) {
    now_ns_ += 50 * kMs;
    leader_.Advance(now_ns_);
    Answers();
  }
  EXPECT_EQ(store_.log().state().term, 1);
  EXPECT_EQ(store_.log().state().floor, 7);
  EXPECT_EQ(store_.log().state().layout, owner.layout);
}

TEST_F(LeaderTest, WhoHasGoneIsForgotten) {
  Lead();
  for (uint64_t incarnation = 1000; incarnation < 1500; ++incarnation) Hear(Ask(incarnation));
  EXPECT_EQ(leader_.peers(), 500);
  Pass(5000);
  EXPECT_LE(leader_.peers(), 1) << "who asks still";
}

// Another version was prepared between, and what the member had staged may be gone for that.
TEST_F(LeaderTest, AVoteOfBeforeAnActivationIsNone) {
  constexpr uint64_t kOther = 51;
  constexpr WeightVersion kSecond = {2, 22}, kThird = {3, 33};
  Write({kMember, kOther});
  LogEntry sealed;
  sealed.kind = EntryKind::kSealed;
  sealed.term = 1;
  sealed.digests.resize(1);
  sealed.version = kThird;
  Put(sealed);
  now_ns_ += 1500 * kMs;  // The lease of who wrote that is over.
  Lead();
  const auto asks = [this](uint64_t who, const WeightVersion& stage, StageState state,
                           uint64_t wish = 0) {
    Question question = Ask(who);
    question.member = true;
    question.serving = {1, 11};
    question.stage = stage;
    question.stage_state = state;
    if (wish != 0) question.wish = {wish, ActivateMode::kRolling, 10'000 * kMs};
    Hear(question);
  };
  for (int i = 0; i < 30; ++i, now_ns_ += 50 * kMs) {
    leader_.Advance(now_ns_);
    Answers();
    asks(kMember, kSecond, StageState::kStaged);
    asks(kOther, kSecond, StageState::kStaged);
  }
  asks(kOther, kThird, StageState::kFailed, 3);
  ASSERT_EQ(store_.log().state().FindOpen(3), nullptr) << "one could not have it";
  asks(kOther, kSecond, StageState::kStaged, 2);
  leader_.Advance(now_ns_);
  Answers();
  EXPECT_EQ(store_.log().state().active.version.number, 1);
  asks(kMember, kThird, StageState::kStaging);
  EXPECT_EQ(store_.log().state().active.version.number, 1);
  asks(kMember, kSecond, StageState::kStaged);
  EXPECT_EQ(store_.log().state().active.version.number, 2);
}

TEST_F(LeaderTest, OneNoDropsIt) {
  Write();
  now_ns_ += 1000 * kMs;
  Lead();
  Pass(1100);
  Asks(StageState::kNone, true);
  Asks(StageState::kFailed, false);
  EXPECT_EQ(store_.log().state().FindOpen(2), nullptr);
  EXPECT_EQ(active(), 1);
}

}  // namespace
}  // namespace tryst
