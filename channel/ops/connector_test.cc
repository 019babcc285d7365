#include "channel/ops/connector.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

class FixedClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns; }
  int64_t now_ns = 5'000'000'000;
};

// Keeps the hellos, which the test answers.
class KeptHellos final : public Bootstrap {
 public:
  void Exchange(const std::string&, const Hello& hello, Deadline deadline,
                HelloDone done) override {
    asked.push_back(hello);
    deadlines.push_back(deadline);
    answers.push_back(std::move(done));
  }
  std::vector<Hello> asked;
  std::vector<Deadline> deadlines;
  std::vector<HelloDone> answers;
};

class ConnectorTest : public testing::Test {
 protected:
  static constexpr int64_t kMs = 1'000'000;

  static ConnectorOptions Options() {
    ConnectorOptions options;
    options.path = "path";
    options.self = "self";
    options.self_incarnation = 3;
    options.peer = "peer";
    options.give_up_ms = 2000;
    options.hello_timeout_ms = 5000;
    options.backoff_ms = 10;
    options.backoff_ms_most = 1000;
    return options;
  }
  void Say() {
    connector_.Say(connector_.NewHello(),
                   [this](absl::StatusOr<Hello> answer) { heard_.push_back(std::move(answer)); });
  }
  void Answer(size_t which) {
    Hello answer = hellos_.asked[which];
    answer.incarnation = 9;
    std::move(hellos_.answers[which])(std::move(answer));
    poller_.Turn();
  }

  FixedClock clock_;
  Poller poller_{&clock_};
  KeptHellos hellos_;
  int fired_ = 0;
  std::vector<absl::StatusOr<Hello>> heard_;
  Connector connector_{&poller_, &hellos_, Options(), [this] { ++fired_; }};
};

TEST_F(ConnectorTest, APathIsUnusableWhenItHasFailedForGiveUpMs) {
  poller_.Turn();
  EXPECT_FALSE(connector_.Unusable()) << "it was not tried";
  const int64_t began_ns = poller_.now_ns();
  connector_.NoteFailing(began_ns);
  clock_.now_ns = began_ns + 2000 * kMs - 1;
  poller_.Turn();
  connector_.NoteFailing(poller_.now_ns());  // Again, which does not begin anew.
  EXPECT_FALSE(connector_.Unusable());
  clock_.now_ns = began_ns + 2000 * kMs;
  poller_.Turn();
  EXPECT_TRUE(connector_.Unusable());
  connector_.NoteWorking();
  EXPECT_FALSE(connector_.Unusable());
}

TEST_F(ConnectorTest, AClockMayBeginWithZero) {
  connector_.NoteFailing(0);
  poller_.Turn();
  EXPECT_TRUE(connector_.Unusable());
}

TEST_F(ConnectorTest, AnAnswerBelongsToItsAttempt) {
  connector_.Begin(Connector::State::kHello);
  Say();
  EXPECT_EQ(hellos_.asked[0].epoch, 1u);
  connector_.Begin(Connector::State::kHello);
  Say();
  Answer(0);
  EXPECT_TRUE(heard_.empty()) << "it is of the attempt before";
  EXPECT_TRUE(connector_.hello_out());
  Answer(1);
  ASSERT_EQ(heard_.size(), 1u);
  EXPECT_TRUE(connector_.CheckAnswer(*heard_[0]).ok());
  EXPECT_FALSE(connector_.hello_out());
  Say();
  connector_.SetState(Connector::State::kClosed);
  Answer(2);
  EXPECT_EQ(heard_.size(), 1u) << "it is closed";
}

TEST_F(ConnectorTest, AHelloIsAnsweredInTime) {
  connector_.Begin(Connector::State::kHello);
  Say();
  EXPECT_EQ(hellos_.deadlines[0].at_ns(), clock_.now_ns + 5000 * kMs);
  Answer(0);
}

TEST_F(ConnectorTest, PausesDoubleUpToTheLongest) {
  int64_t longest_ms = 10;
  for (int i = 0; i < 12; ++i, longest_ms = std::min<int64_t>(2 * longest_ms, 1000)) {
    connector_.Pause();
    const int64_t pause_ns = poller_.NextTimerNs() - poller_.now_ns();
    EXPECT_GE(pause_ns, longest_ms * kMs / 2);
    EXPECT_LE(pause_ns, longest_ms * kMs);
    clock_.now_ns = poller_.NextTimerNs();
    poller_.Turn();
    EXPECT_EQ(fired_, i + 1);
  }
  connector_.back_off()->Reset();
  connector_.Pause();
  EXPECT_LE(poller_.NextTimerNs() - poller_.now_ns(), 10 * kMs);
  connector_.StopWaiting();
  clock_.now_ns += 5000 * kMs;
  poller_.Turn();
  EXPECT_EQ(fired_, 12);
}

TEST_F(ConnectorTest, AnAnswerIsExaminedForItsLifeItsEpochAndItsPath) {
  connector_.Begin(Connector::State::kHello);
  Hello good = connector_.NewHello();
  EXPECT_EQ(good.worker, "self");
  EXPECT_EQ(good.incarnation, 3u);
  EXPECT_EQ(good.path, "path");
  good.incarnation = 1;
  EXPECT_TRUE(connector_.CheckAnswer(good).ok());
  Hello bad = good;
  bad.incarnation = 0;
  EXPECT_TRUE(absl::IsDataLoss(connector_.CheckAnswer(bad)));
  bad = good;
  bad.epoch = 2;
  EXPECT_TRUE(absl::IsDataLoss(connector_.CheckAnswer(bad)));
  bad = good;
  bad.path = "another";
  EXPECT_TRUE(absl::IsDataLoss(connector_.CheckAnswer(bad)));
}

TEST_F(ConnectorTest, AWaitEndsToTheNanosecond) {
  connector_.WaitFor(7);
  EXPECT_EQ(poller_.NextTimerNs(), poller_.now_ns() + 7 * kMs);
  clock_.now_ns = poller_.NextTimerNs();
  poller_.Turn();
  EXPECT_EQ(fired_, 1);
}

TEST_F(ConnectorTest, PeopleSeeWhatItDoesAndSinceWhen) {
  using State = Connector::State;
  const std::vector<std::pair<State, PathHealth>> healths = {
      {State::kIdle, PathHealth::kIdle},        {State::kHello, PathHealth::kOpening},
      {State::kJoining, PathHealth::kOpening},  {State::kOpen, PathHealth::kWorking},
      {State::kDraining, PathHealth::kFailing}, {State::kBackoff, PathHealth::kFailing},
      {State::kAsking, PathHealth::kFailing},   {State::kClosed, PathHealth::kIdle}};
  uint64_t epoch = 0;
  for (const auto& [state, health] : healths) {
    poller_.Turn();
    const int64_t since_ns = poller_.now_ns();
    connector_.Begin(state);
    clock_.now_ns += 12 * kMs;
    poller_.Turn();
    PathView view;
    connector_.View(&view);
    EXPECT_EQ(view.health, health) << connector_.StateText();
    EXPECT_EQ(view.state, connector_.StateText());
    EXPECT_EQ(view.since_ns, since_ns);
    EXPECT_EQ(view.epoch, ++epoch);
    EXPECT_EQ(connector_.Explain(),
              "peer over path: " + view.state + " since 12 ms, epoch " + std::to_string(epoch));
  }
  connector_.why = absl::UnavailableError("refused");
  for (const State state : {State::kHello, State::kJoining}) {
    connector_.SetState(state);
    EXPECT_EQ(connector_.Health(), PathHealth::kFailing) << "an attempt has failed";
  }
  PathView view;
  connector_.View(&view);
  EXPECT_EQ(view.why, "refused");
}

}  // namespace
}  // namespace tryst
