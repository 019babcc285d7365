// A set's log in etcd, against a server that speaks etcd's protocol and forgets what it is told to.
#include "server/weights/etcd_decider.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "tests/doubles/server/pretended_etcd.h"
#include "weights/leader.h"

namespace tryst {
namespace {

using std::chrono::milliseconds;
constexpr int64_t kSecond = 1'000'000'000;

LogEntry Members(std::vector<uint64_t> members) {
  LogEntry entry;
  entry.kind = EntryKind::kMembers;
  entry.incarnations = std::move(members);
  return entry;
}

bool Await(const std::function<bool()>& what) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!what()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

// Asks, and waits for the answer. What is not answered is asked again, as a leader does.
class Asker {
 public:
  explicit Asker(std::vector<std::string> endpoints) {
    EtcdDecider::Options options;
    options.access.endpoints = std::move(endpoints);
    options.cluster = "train";
    options.set = "policy/7b";
    decider_ = std::make_unique<EtcdDecider>(options, [this](const DeciderAnswer& answer) {
      MutexLock lock(&mu_);
      answers_[answer.call] = answer;
      changed_.NotifyAll();
    });
  }

  DeciderAnswer TakeLease() {
    return Repeat([this](uint64_t call) { decider_->TakeLease(call); });
  }
  DeciderAnswer KeepLease(uint64_t lease) {
    return Repeat([=](uint64_t call) { decider_->KeepLease(call, lease); });
  }
  DeciderAnswer Append(uint64_t length, uint64_t lease, const LogEntry& entry) {
    return Repeat([=](uint64_t call) { decider_->Append(call, length, lease, entry); });
  }
  DeciderAnswer ReadFrom(uint64_t index) {
    return Repeat([=](uint64_t call) { decider_->ReadFrom(call, index); });
  }
  // What a reader that knows nothing makes of the log.
  LogState ReadAll() {
    LogState state;
    const DeciderAnswer answer = ReadFrom(0);
    EXPECT_TRUE(ApplySlice(answer.slice, &state).ok());
    EXPECT_EQ(state.length, answer.length);
    return state;
  }
  uint64_t Lead() {
    DeciderAnswer answer;
    EXPECT_TRUE(Await([&] { return (answer = TakeLease()).outcome == DeciderOutcome::kDone; }));
    ReadFrom(0);
    return answer.lease;
  }
  // Asks once, and finds no answer until the decider says why.
  std::string AskInVain(const std::function<void(uint64_t)>& ask) {
    ask(++calls_);
    EXPECT_TRUE(Await([&] { return !decider_->Trouble().empty(); }));
    MutexLock lock(&mu_);
    EXPECT_EQ(answers_.count(calls_), 0u);
    return decider_->Trouble();
  }
  EtcdDecider* decider() { return decider_.get(); }
  uint64_t calls() const { return calls_; }

 private:
  DeciderAnswer Repeat(const std::function<void(uint64_t)>& ask) {
    for (int i = 0; i < 40; ++i) {
      ask(++calls_);
      const auto until = std::chrono::steady_clock::now() + milliseconds(1500);
      MutexLock lock(&mu_);
      while (answers_.count(calls_) == 0 && !changed_.WaitUntil(&mu_, until)) {
      }
      if (answers_.count(calls_) > 0) return answers_[calls_];
    }
    ADD_FAILURE() << "no answer: " << decider_->Trouble();
    return {};
  }

  Mutex mu_;
  CondVar changed_;
  std::map<uint64_t, DeciderAnswer> answers_ ABSL_GUARDED_BY(mu_);
  uint64_t calls_ = 0;
  std::unique_ptr<EtcdDecider> decider_;
};

class EtcdDeciderTest : public ::testing::Test {
 protected:
  const std::string prefix_ = EtcdDecider::Prefix("train", "policy/7b");
  PretendedEtcd etcd_;
};

TEST_F(EtcdDeciderTest, TheLogOutlivesItsLeader) {
  uint64_t life = 0;
  {
    Asker first({etcd_.address()});
    const uint64_t lease = first.Lead();
    EXPECT_EQ(first.Append(0, lease, Members({1})).outcome, DeciderOutcome::kDone);
    const DeciderAnswer second = first.Append(1, lease, Members({1, 2}));
    EXPECT_EQ(second.outcome, DeciderOutcome::kDone);
    EXPECT_EQ(second.length, 2u);
    life = second.log;
  }
  EXPECT_EQ(etcd_.Get(prefix_ + "leader"), "") << "who closes gives the lease back";
  Asker next({etcd_.address()});
  const DeciderAnswer taken = next.TakeLease();
  EXPECT_EQ(taken.outcome, DeciderOutcome::kDone) << "at once";
  EXPECT_EQ(taken.log, life);
  EXPECT_NE(life, 0u);
  const LogState state = next.ReadAll();
  EXPECT_EQ(state.length, 2u);
  EXPECT_EQ(state.members, (std::vector<uint64_t>{1, 2}));
}

TEST_F(EtcdDeciderTest, OneLeadsAtATime) {
  Asker first({etcd_.address()}), second({etcd_.address()});
  const uint64_t lease = first.Lead();
  EXPECT_EQ(second.TakeLease().outcome, DeciderOutcome::kNoLease);
  EXPECT_EQ(first.KeepLease(lease).outcome, DeciderOutcome::kDone);
  EXPECT_EQ(first.KeepLease(lease + 1).outcome, DeciderOutcome::kNoLease);

  etcd_.LoseLease(etcd_.LeaseOf(prefix_ + "leader"));
  const uint64_t newer = second.Lead();
  // The first one does not know yet.
  EXPECT_EQ(first.Append(0, lease, Members({1})).outcome, DeciderOutcome::kNoLease);
  EXPECT_EQ(first.KeepLease(lease).outcome, DeciderOutcome::kNoLease);
  EXPECT_EQ(second.ReadAll().length, 0u);
  EXPECT_EQ(second.Append(0, newer, Members({2})).outcome, DeciderOutcome::kDone);
}

TEST_F(EtcdDeciderTest, ALeaseThatIsNotKeptEnds) {
  Asker first({etcd_.address()}), second({etcd_.address()});
  const uint64_t lease = first.Lead();
  const uint64_t renewals = etcd_.renewals();
  EXPECT_EQ(first.KeepLease(lease).outcome, DeciderOutcome::kDone);
  EXPECT_EQ(etcd_.renewals(), renewals + 1);
  EXPECT_NE(second.Lead(), lease);
  EXPECT_EQ(etcd_.expired(), 1u);
  EXPECT_EQ(first.KeepLease(lease).outcome, DeciderOutcome::kNoLease);
}

// Not even where a former life of this leader has it: an append of then may be on its way.
TEST_F(EtcdDeciderTest, ALeaseIsNotTakenTwice) {
  Asker leader({etcd_.address()});
  const uint64_t lease = leader.Lead();
  const std::string key = etcd_.Get(prefix_ + "leader");
  const DeciderAnswer again = leader.TakeLease();
  EXPECT_EQ(again.outcome, DeciderOutcome::kDone);
  EXPECT_NE(again.lease, lease);
  EXPECT_NE(etcd_.Get(prefix_ + "leader"), key);
  EXPECT_EQ(leader.Append(0, lease, Members({1})).outcome, DeciderOutcome::kNoLease);
}

TEST_F(EtcdDeciderTest, AnAppendWhoseAnswerWasLostIsDoneOnce) {
  Asker leader({etcd_.address()});
  const uint64_t lease = leader.Lead();
  etcd_.LoseNextAnswer();
  const std::string trouble = leader.AskInVain(
      [&](uint64_t call) { leader.decider()->Append(call, 0, lease, Members({1})); });
  EXPECT_TRUE(absl::StrContains(trouble, "the answer was lost")) << trouble;
  EXPECT_EQ(leader.Append(0, lease, Members({1})).outcome, DeciderOutcome::kOtherLength);
  EXPECT_EQ(leader.ReadAll().length, 1u);
  EXPECT_EQ(leader.Append(1, lease, Members({2})).outcome, DeciderOutcome::kDone);
  EXPECT_EQ(leader.decider()->Trouble(), "");
}

TEST_F(EtcdDeciderTest, ALeaseWhoseAnswerWasLostIsTakenAgain) {
  Asker leader({etcd_.address()});
  etcd_.LoseNextAnswer();
  leader.AskInVain([&](uint64_t call) { leader.decider()->TakeLease(call); });
  EXPECT_NE(etcd_.Get(prefix_ + "leader"), "");
  EXPECT_EQ(leader.TakeLease().outcome, DeciderOutcome::kDone);
}

// However long it is, and wherever a reader begins, it is the log that memory would hold.
TEST_F(EtcdDeciderTest, ALongLogIsReadAsItWas) {
  Asker leader({etcd_.address()});
  const uint64_t lease = leader.Lead();
  WeightLog log;
  LogEntry owners;
  owners.kind = EntryKind::kOwners;
  owners.term = 1;
  owners.incarnations = {77};
  for (uint64_t length = 0; length < 3 * kKeptEntries + 5; ++length) {
    const LogEntry entry = length == 0 ? owners : Members({length, length + 1000});
    ASSERT_EQ(leader.Append(length, lease, entry).outcome, DeciderOutcome::kDone) << length;
    ASSERT_TRUE(log.Append(entry).ok());
    if (length % 8 != 7 && length % kKeptEntries > 1) continue;
    Asker reader({etcd_.address()});
    EXPECT_EQ(EncodeState(reader.ReadAll()), EncodeState(log.state())) << length;
    for (const uint64_t behind : {0, 1, 40, 64, 65}) {
      if (behind > log.state().length) continue;
      const uint64_t from = log.state().length - behind;
      const LogSlice slice = leader.ReadFrom(from).slice;
      const uint64_t end = slice.first + slice.entries.size();
      EXPECT_EQ(end, log.state().length);
      EXPECT_TRUE(slice.first <= from || slice.base.has_value()) << length << ", from " << from;
    }
  }
  EXPECT_LE(etcd_.All().size(), kKeptEntries + 3);
}

TEST_F(EtcdDeciderTest, AnotherLogBeginsWhereOneIsDeleted) {
  Asker leader({etcd_.address()});
  const uint64_t lease = leader.Lead();
  for (uint64_t i = 0; i < kKeptEntries / 2; ++i) leader.Append(i, lease, Members({i + 1}));
  const uint64_t life = leader.ReadFrom(0).log;
  etcd_.Erase(prefix_ + "head");  // The rest is left.
  const DeciderAnswer refused = leader.Append(kKeptEntries / 2, lease, Members({9}));
  EXPECT_NE(refused.outcome, DeciderOutcome::kDone);
  EXPECT_NE(refused.log, life) << "by which the leader knows that it leads no more";

  Asker next({etcd_.address()});
  leader.TakeLease();
  const uint64_t newer = leader.Lead();
  EXPECT_EQ(leader.ReadAll().length, 0u);
  EXPECT_EQ(leader.Append(0, newer, Members({5})).outcome, DeciderOutcome::kDone);
  EXPECT_EQ(next.ReadAll().members, (std::vector<uint64_t>{5}));
  EXPECT_NE(next.ReadFrom(0).log, life);
}

TEST_F(EtcdDeciderTest, ALogThatWasSetBackIsNotFollowed) {
  Asker leader({etcd_.address()});
  const uint64_t lease = leader.Lead();
  leader.Append(0, lease, Members({1}));
  const std::string earlier = etcd_.Get(prefix_ + "head");
  leader.Append(1, lease, Members({2}));
  etcd_.Put(prefix_ + "head", earlier);
  const std::string trouble =
      leader.AskInVain([&](uint64_t call) { leader.decider()->ReadFrom(call, 0); });
  EXPECT_TRUE(absl::StrContains(trouble, "set back")) << trouble;
  EXPECT_TRUE(absl::StrContains(trouble, prefix_)) << trouble;
  EXPECT_TRUE(absl::StrContains(leader.AskInVain([&](uint64_t call) {
    leader.decider()->Append(call, 2, lease, Members({3}));
  }),
                                "set back"));
}

TEST_F(EtcdDeciderTest, WhatSomebodyElseWroteThereIsNoLog) {
  Asker leader({etcd_.address()});
  const uint64_t lease = leader.Lead();
  leader.Append(0, lease, Members({1}));
  etcd_.Put(prefix_ + "entry/00", etcd_.Get(prefix_ + "head") + "not an entry");
  Asker reader({etcd_.address()});
  EXPECT_TRUE(absl::StrContains(
      reader.AskInVain([&](uint64_t call) { reader.decider()->ReadFrom(call, 0); }),
      "lacks entry 0"));
  etcd_.Put(prefix_ + "head", "mine");
  Asker last({etcd_.address()});
  EXPECT_TRUE(
      absl::StrContains(last.AskInVain([&](uint64_t call) { last.decider()->ReadFrom(call, 0); }),
                        "somebody else has written"));
}

TEST_F(EtcdDeciderTest, GoesOnToAServerThatAnswers) {
  Asker leader({"127.0.0.1:1", etcd_.address()});
  const uint64_t lease = leader.Lead();
  EXPECT_EQ(leader.Append(0, lease, Members({1})).outcome, DeciderOutcome::kDone);
  etcd_.SetAnswers(false);
  leader.AskInVain([&](uint64_t call) { leader.decider()->Append(call, 1, lease, Members({2})); });
  etcd_.SetAnswers(true);
  EXPECT_EQ(leader.Append(1, lease, Members({2})).outcome, DeciderOutcome::kDone);
}

// A leader of its own, with the clock and the thread that a server would give it.
class LiveLeader : public Covers {
 public:
  explicit LiveLeader(const std::string& endpoint) {
    WeightLeader::Options options;
    options.times.lease_ns = 2 * kSecond;
    options.times.retry_ns = EtcdDecider::kRetryNs;
    EtcdDecider::Options etcd;
    etcd.access.endpoints = {endpoint};
    etcd.cluster = "train";
    etcd.set = "policy/7b";
    etcd.lease_ns = options.times.lease_ns;
    decider_ = std::make_unique<EtcdDecider>(etcd, [this](const DeciderAnswer& answer) {
      MutexLock lock(&mu_);
      leader_->OnDecider(answer, clock_.NowNs());
    });
    MutexLock lock(&mu_);
    leader_ = std::make_unique<WeightLeader>(options, decider_.get(), this,
                                             [this](const Answer& answer) { life_ = answer.log; });
  }
  ~LiveLeader() override { decider_.reset(); }
  absl::StatusOr<Sealed> Judge(uint64_t, uint64_t, const std::vector<WeightRoot>&) override {
    return Sealed{99, WeightRoot{4, 2}};
  }
  // Asks an owner's question again and again until `what` holds of the log.
  bool AskUntil(Question question, const std::function<bool(const LogState&)>& what) {
    return Await([&] {
      MutexLock lock(&mu_);
      leader_->Advance(clock_.NowNs());
      question.question = ++question_;
      question.log = life_;
      question.length = leader_->state().length;
      leader_->OnQuestion(question, clock_.NowNs());
      return leader_->leads(clock_.NowNs()) && what(leader_->state());
    });
  }

 private:
  const SteadyClock clock_;
  Mutex mu_;
  std::unique_ptr<WeightLeader> leader_ ABSL_GUARDED_BY(mu_);
  uint64_t question_ = 0;
  uint64_t life_ = 0;
  std::unique_ptr<EtcdDecider> decider_;
};

TEST_F(EtcdDeciderTest, TheNextLeaderFindsWhatWasSealed) {
  Question owner;
  owner.incarnation = 60;
  owner.owner = true;
  owner.owners = 1;
  auto first = std::make_unique<LiveLeader>(etcd_.address());
  ASSERT_TRUE(first->AskUntil(owner, [](const LogState& log) { return log.term == 1; }));
  owner.term = 1;
  owner.ready = {{1, 7, WeightRoot{1}}};
  ASSERT_TRUE(first->AskUntil(owner, [](const LogState& log) { return log.floor == 7; }));
  LiveLeader second(etcd_.address());
  etcd_.SetAnswers(false);  // The first cannot keep its lease, nor give it back.
  std::this_thread::sleep_for(milliseconds(2500));
  first.reset();
  etcd_.SetAnswers(true);
  owner.ready.clear();
  EXPECT_TRUE(second.AskUntil(owner, [](const LogState& log) {
    return log.open.size() == 1 && log.open[0].version == WeightVersion{7, 99} &&
           log.open[0].root == WeightRoot{4, 2};
  }));
}

}  // namespace
}  // namespace tryst
