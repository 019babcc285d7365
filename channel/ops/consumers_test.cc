#include "channel/ops/consumers.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/turned_clock.h"
#include "channel/ops/farewell.h"
#include "channel/ops/session_options.h"
#include "channel/ops/slot_watch.h"
#include "channel/poller/poller.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr char kFetcher[] = "/job:c/replica:0/task:0";

// Each take ends when the test says so, and does not hear of cancels.
class Slow final : public TensorSource {
 public:
  void Take(int64_t, const TensorKey&, const RecvArgs&, DoneFn done) override {
    asked.push_back(std::move(done));
  }
  bool TakeHere(int64_t, TensorKey*, Place*, Received*) override { return false; }
  bool MayTake(const TensorKey&) const override { return true; }
  void GiveBack(int64_t, const TensorKey&, Received) override { ++back; }
  void Meet(size_t which) {
    std::move(asked[which])({absl::OkStatus(), *Tensor::Allocate(DType::kInt64, {})});
  }
  std::vector<DoneFn> asked;
  int back = 0;
};

// Opens at once, and ends at once unless it drains.
class Link final : public ServeLink {
 public:
  Link(ServeSession* session, int* ends) : session_(session), ends_(ends) {}
  ~Link() override {
    if (on_end) on_end();
  }
  void Drain() {
    linked_ = false;
    session_->OnLinkGone();
  }
  bool drains = false;
  bool answers = false;
  std::function<void()> on_end;  // With its session.

  bool Exists() const override { return linked_; }

 private:
  void Break(const absl::Status& why) override {
    session_->OnLinkBroken(why);
    if (!drains) Drain();
  }
  absl::Status Open(const Hello& hello, Hello*) override {
    linked_ = true;
    session_->OnLinkOpen(hello.epoch);
    return absl::OkStatus();
  }
  void View(PathView*) const override {}
  ServeEvent EndFormer() override {
    ++*ends_;
    return ServeEvent::kLeft;
  }
  void Answer(ServeOp* op) override {
    if (answers) session_->slots()->Said(op);
  }
  void Forget(ServeOp*) override {}
  size_t tickets_a_word() const override { return 1; }
  bool SayWord(bool, uint16_t, uint32_t) override { return true; }
  bool SayHere(absl::Span<const uint64_t>) override { return true; }
  void FlushSoon() override {}

  ServeSession* const session_;
  int* const ends_;
  bool linked_ = false;
};

// What the end of a session tells of its slots.
class Ends final : public SlotWatch {
 public:
  void OnFetchEvent(const void*, const FetchAsk&, FetchState, FetchEvent) override {}
  void OnSlotFreed(const void*, uint16_t) override {}
  void OnServeEvent(const void*, uint16_t slot, ServeState from, ServeEvent event) override {
    if (is_gone)
      said.push_back(absl::StrCat(slot, " ", ServeStateName(from), ": ", ServeEventName(event)));
  }
  void OnServeEpoch(const void*) override {}
  void OnServeFarewell(const void*) override {}
  void OnEndGone(const void*) override { is_gone = true; }
  bool is_gone = false;
  std::vector<std::string> said;
};

class ConsumersTest : public ::testing::Test {
 protected:
  ConsumersTest() {
    kind_.path = "test";
    other_.path = "other";
    kind_.make = other_.make = [this](ServeSession* session) {
      last_ = session;
      session->slots()->Make(2);
      return std::make_unique<Link>(session, &former_ends_);
    };
    poller_.Turn();  // From here on this is its thread.
  }
  ~ConsumersTest() override {
    consumers_.Close(absl::CancelledError("the test is over"));
    for (size_t i = met_; i < slow_.asked.size(); ++i) slow_.Meet(i);
    poller_.Turn();
    EXPECT_TRUE(consumers_.Drained());
  }
  static ServeSessionOptions Options() {
    ServeSessionOptions options;
    options.max_keys = 4;
    return options;
  }
  Hello From(uint64_t incarnation, uint64_t epoch, const std::string& worker = kFetcher) {
    Hello hello;
    hello.worker = worker;
    hello.incarnation = incarnation;
    hello.epoch = epoch;
    hello.path = "test";
    return hello;
  }
  HelloDone Note() {
    return [this](absl::StatusOr<Hello> answer) { answers_.push_back(answer.status()); };
  }
  static std::string KeyTextOf(const ServeSession& session) {
    return absl::StrCat("/job:p/replica:0/task:0/device:CPU:0;0000000000000001;",
                        session.consumer(), "/device:CPU:0;edge;0:0");
  }
  static void Request(ServeSession* session) {
    ASSERT_TRUE(session->slots()->OnKey(0, KeyTextOf(*session)).ok());
    ServeRequest request;
    request.generation = 1;
    ASSERT_TRUE(session->slots()->OnRequest(request).ok());
  }
  void Turn() {
    clock_.now_ns += 2'000'000;
    poller_.Turn();
  }

  TurnedClock clock_;
  Poller poller_{&clock_};
  Slow slow_;
  size_t met_ = 0;
  ServeSession* last_ = nullptr;
  int former_ends_ = 0;  // How often a kind was asked what its last link says.
  ServeKind kind_, other_;
  Consumers consumers_{&poller_, &slow_, Options(), 3, 0};
  std::vector<absl::Status> answers_;
};

TEST(SessionOptionsTest, SoManyMayWaitWithoutASlotAtBothEnds) {
  SessionOptions options;
  options.max_waiting = 7;
  const TransportContext context;
  EXPECT_EQ(ServeOptionsFrom(options, context).max_parked, 7u);
  EXPECT_EQ(FetchOptionsFrom(options, context, kFetcher, /*has_another=*/false).max_parked, 7u);
}

// It could meet a later tensor, before the one that the former take has met is back.
TEST_F(ConsumersTest, AWorkerThatComesAnewWaitsForTheTakesOfItsFormerSession) {
  consumers_.OnHello(From(1, 1), &kind_, Note());
  ASSERT_EQ(answers_.size(), 1u);
  Request(last_);
  ASSERT_EQ(slow_.asked.size(), 1u);
  consumers_.OnHello(From(2, 1), &kind_, Note());
  Turn();
  ASSERT_EQ(answers_.size(), 1u) << "a take of its former session is under way";
  slow_.Meet(met_++);
  Turn();
  EXPECT_EQ(slow_.back, 1);
  Turn();
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_TRUE(answers_[1].ok()) << answers_[1];
}

// What waits is of a process that has ended meanwhile, and would end its successor's session.
TEST_F(ConsumersTest, AHelloThatWaitsEndsWhenAnotherProcessSaysHello) {
  consumers_.OnHello(From(1, 1), &kind_, Note());
  Request(last_);
  consumers_.OnHello(From(2, 1), &kind_, Note());
  ASSERT_EQ(answers_.size(), 1u);
  slow_.Meet(met_++);
  poller_.Turn();
  consumers_.OnHello(From(3, 1), &kind_, Note());
  ASSERT_EQ(answers_.size(), 3u);
  EXPECT_EQ(answers_[1].code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(answers_[2].ok()) << answers_[2];
  Turn();
  Turn();
  EXPECT_EQ(answers_.size(), 3u);
  EXPECT_FALSE(last_->closed());
  EXPECT_EQ(last_->consumer_incarnation(), 3u);
}

// Nor may another path be told that nothing is kept.
TEST_F(ConsumersTest, AFarewellToAFormerSessionWaitsToo) {
  consumers_.OnHello(From(1, 1), &kind_, Note());
  Request(last_);
  consumers_.OnFarewell(From(2, 1), EncodeFarewell({7, {}}), Note());
  consumers_.OnFarewell(From(2, 2), EncodeFarewell({7, {}}), Note());
  ASSERT_EQ(answers_.size(), 2u) << "one of each worker waits";
  EXPECT_EQ(answers_[1].code(), absl::StatusCode::kAborted);
  Turn();
  ASSERT_EQ(answers_.size(), 2u);
  slow_.Meet(met_++);
  Turn();
  Turn();
  ASSERT_EQ(answers_.size(), 3u);
  EXPECT_TRUE(answers_[2].ok()) << answers_[2];
}

// A worker that starts anew again and again, without a look in between.
TEST_F(ConsumersTest, SessionsThatAreOverDoNotPileUp) {
  for (uint64_t life = 1; life <= 100; ++life) consumers_.OnHello(From(life, 1), &kind_, Note());
  for (const absl::Status& answer : answers_) EXPECT_TRUE(answer.ok()) << answer;
  EXPECT_EQ(answers_.size(), 100u);
  EXPECT_EQ(consumers_.serving().size(), 1u);
  EXPECT_LE(consumers_.closing(), 1u);
}

TEST_F(ConsumersTest, AHelloThatWaitsForTheDrainEndsWithAFarewell) {
  consumers_.OnHello(From(1, 1), &kind_, Note());
  Link* const link = static_cast<Link*>(last_->link());
  link->drains = true;
  consumers_.OnHello(From(1, 2), &kind_, Note());
  ASSERT_EQ(answers_.size(), 1u);
  consumers_.OnFarewell(From(1, 3), EncodeFarewell({1, {}}), Note());
  ASSERT_EQ(answers_.size(), 3u);
  EXPECT_EQ(answers_[1].code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(answers_[2].ok()) << answers_[2];
  link->drains = false;
  link->Drain();
  EXPECT_EQ(answers_.size(), 3u);
  EXPECT_FALSE(link->Exists()) << "the hello is over";
}

TEST_F(ConsumersTest, AHelloThatWaitsIsItsOwnWorkersToReplace) {
  consumers_.OnHello(From(1, 1), &kind_, Note());
  Request(last_);
  consumers_.OnHello(From(2, 1), &kind_, Note());
  ASSERT_EQ(answers_.size(), 1u) << "a take of its former session is under way";
  consumers_.OnHello(From(7, 1, "/job:c/replica:0/task:1"), &kind_, Note());
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_TRUE(answers_.back().ok()) << answers_.back();
  slow_.Meet(met_++);
  for (int i = 0; i < 2; ++i) Turn();
  ASSERT_EQ(answers_.size(), 3u);
  EXPECT_TRUE(answers_.back().ok()) << answers_.back();
}

// Whoever hears the answer asks for it elsewhere.
TEST_F(ConsumersTest, WhatGoesBackIsThereWhenAFarewellIsAnswered) {
  consumers_.OnHello(From(1, 1), &kind_, Note());
  Request(last_);
  slow_.Meet(met_++);
  Turn();
  ASSERT_EQ(last_->slots()->at(0)->state, ServeState::kReady);
  int back = -1;
  consumers_.OnFarewell(From(1, 2), EncodeFarewell({1, {}}),
                        [&](absl::StatusOr<Hello>) { back = slow_.back; });
  EXPECT_EQ(back, 1);
}

// It was said before the one that waits.
TEST_F(ConsumersTest, AnOlderHelloDoesNotReplaceOneThatWaits) {
  consumers_.OnHello(From(1, 1), &kind_, Note());
  Link* const link = static_cast<Link*>(last_->link());
  link->drains = true;
  consumers_.OnHello(From(1, 3), &kind_, Note());
  consumers_.OnHello(From(1, 2), &kind_, Note());
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_EQ(answers_.back().code(), absl::StatusCode::kAborted);
  link->drains = false;
  link->Drain();
  ASSERT_EQ(answers_.size(), 3u);
  EXPECT_TRUE(answers_.back().ok()) << answers_.back();
  EXPECT_EQ(last_->epoch(), 3u);
}

TEST_F(ConsumersTest, WhoComesAgainInTimeIsNotGivenUp) {
  consumers_.OnHello(From(1, 1), &kind_, Note());
  consumers_.OnHello(From(1, 2), &kind_, Note());
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_FALSE(last_->Abandoned());
  clock_.now_ns += 120'000'000'000;
  poller_.Turn();
  EXPECT_FALSE(last_->Abandoned()) << "it has a link";
}

// Those that have ended count, too, as long as what they took is under way.
TEST_F(ConsumersTest, NoMoreAreServedOrEndingThanMayBe) {
  const auto from = [this](int worker) {
    return From(1, 1, absl::StrCat("/job:c/replica:0/task:", worker));
  };
  std::vector<ServeSession*> sessions;
  for (int i = 0; i < 3; ++i) {
    consumers_.OnHello(from(i), &kind_, Note());
    ASSERT_TRUE(answers_.back().ok()) << answers_.back();
    Request(last_);
    sessions.push_back(last_);
  }
  consumers_.OnHello(from(3), &kind_, Note());
  EXPECT_EQ(answers_.back().code(), absl::StatusCode::kResourceExhausted);
  for (ServeSession* session : sessions) session->Close(absl::CancelledError("it goes"));
  consumers_.OnHello(from(3), &kind_, Note());
  EXPECT_EQ(answers_.back().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(consumers_.closing(), 3u);
  while (met_ < 3) slow_.Meet(met_++);
  Turn();
  consumers_.OnHello(from(3), &kind_, Note());
  EXPECT_TRUE(answers_.back().ok()) << answers_.back();
}

// A consumer takes 0 for no session at all.
TEST_F(ConsumersTest, NoSessionHasTheNumberZero) {
  Consumers consumers(&poller_, &slow_, Options(), 1, UINT64_MAX);
  consumers.OnHello(From(1, 1), &kind_, Note());
  EXPECT_EQ(last_->number(), 1u);
  consumers.Close(absl::CancelledError("over"));
}

// Whoever is told gives memory back to the system, which a session has until it is gone.
TEST_F(ConsumersTest, ABurstIsOverWhenItsSessionIsGone) {
  ServeSessionOptions options = Options();
  options.max_keys = Poller::kLargeBurst;
  Consumers consumers(&poller_, &slow_, options, 1, 0);
  consumers.OnHello(From(1, 1), &kind_, Note());
  ASSERT_TRUE(last_->slots()->OnKey(Poller::kLargeBurst - 1, KeyTextOf(*last_)).ok());
  const uint64_t before = poller_.bursts_over();
  uint64_t at_end = before + 99;
  static_cast<Link*>(last_->link())->on_end = [&] { at_end = poller_.bursts_over(); };
  consumers.Close(absl::CancelledError("over"));
  consumers.Reap();
  EXPECT_EQ(at_end, before);
  EXPECT_EQ(poller_.bursts_over(), before + 1);
}

// What was taken for it stays where it is.
TEST_F(ConsumersTest, AHelloForAnotherKindOfLinkGoesOnWithTheSession) {
  consumers_.OnHello(From(1, 1), &kind_, Note());
  ServeSession* const session = last_;
  Request(session);
  Link* const link = static_cast<Link*>(session->link());
  link->drains = true;
  consumers_.OnHello(From(1, 2), &other_, Note());
  ASSERT_EQ(answers_.size(), 1u) << "the former link drains";
  EXPECT_EQ(session->path(), "test");
  slow_.Meet(met_++);
  Turn();
  link->drains = false;
  link->Drain();
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_TRUE(answers_.back().ok()) << answers_.back();
  EXPECT_EQ(session->path(), "other");
  EXPECT_EQ(former_ends_, 1) << "what was lent by the former link is lent no more";
  EXPECT_EQ(consumers_.serving().size(), 1u);
  EXPECT_EQ(session->slots()->at(0)->state, ServeState::kReady);
  EXPECT_EQ(slow_.back, 0);
  static_cast<Link*>(session->link())->answers = true;
  ServeRequest request;
  request.generation = 1;
  request.again = true;
  ASSERT_TRUE(session->slots()->OnKey(0, KeyTextOf(*session)).ok());
  ASSERT_TRUE(session->slots()->OnRequest(request).ok());
  EXPECT_EQ(session->slots()->at(0)->state, ServeState::kSent);
}

// It would end what the consumer is answered over the path in use.
TEST_F(ConsumersTest, AHelloThatOnlyProbesHasASessionOfItsOwn) {
  consumers_.OnHello(From(1, 1), &kind_, Note());
  ServeSession* const session = last_;
  Hello probe = From(1, 1);
  probe.probes = true;
  consumers_.OnHello(probe, &other_, Note());
  EXPECT_TRUE(answers_.back().ok()) << answers_.back();
  ASSERT_EQ(consumers_.serving().size(), 2u);
  EXPECT_NE(last_, session);
  EXPECT_TRUE(static_cast<Link*>(session->link())->Exists());
  EXPECT_FALSE(last_->Abandoned());
  last_->link()->Break(absl::UnavailableError("it has seen enough"));
  EXPECT_TRUE(last_->Abandoned()) << "nothing is kept for it";
  consumers_.Maintain();
  EXPECT_EQ(consumers_.serving().size(), 1u);
  EXPECT_FALSE(session->closed());
}

TEST_F(ConsumersTest, ASessionThatIsClosedAnswersWhoWaitsForIt) {
  const absl::Status why = absl::CancelledError("it is closed");
  consumers_.OnHello(From(1, 1), &kind_, Note());
  Link* const link = static_cast<Link*>(last_->link());
  link->drains = true;
  consumers_.OnHello(From(1, 2), &kind_, Note());
  ASSERT_EQ(answers_.size(), 1u) << "the former link drains";
  last_->Close(why);
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_EQ(answers_.back(), why);
  link->Drain();
  consumers_.OnHello(From(2, 1), &kind_, Note());
  ASSERT_TRUE(answers_.back().ok()) << answers_.back();
  Request(last_);
  consumers_.OnFarewell(From(2, 2), EncodeFarewell({1, {}}), Note());
  ASSERT_EQ(answers_.size(), 3u) << "a take is under way";
  last_->Close(why);
  ASSERT_EQ(answers_.size(), 4u);
  EXPECT_EQ(answers_.back(), why);
}

TEST_F(ConsumersTest, AWatchHearsHowTheSlotsOfAClosedSessionEnd) {
  Ends ends;
  ServeSessionOptions options = Options();
  options.watch = &ends;
  Slow slow;
  {
    Consumers consumers(&poller_, &slow, options, 3, 0);
    consumers.OnHello(From(1, 1), &kind_, Note());
    Request(last_);
    ServeRequest other;
    other.slot = 1;
    other.generation = 1;
    ASSERT_TRUE(last_->slots()->OnRequest(other).ok());
    slow.Meet(0);
    poller_.Turn();
    EXPECT_FALSE(ends.is_gone);
    consumers.Close(absl::CancelledError("it is closed"));
    slow.Meet(1);
    poller_.Turn();
  }
  const std::string left = ServeEventName(ServeEvent::kLeft);
  EXPECT_EQ(ends.said, (std::vector<std::string>{
                           absl::StrCat("1 ", ServeStateName(ServeState::kTaking), ": ", left),
                           absl::StrCat("0 ", ServeStateName(ServeState::kReady), ": ", left)}));
}

// Else a worker that stops begins to serve it, and its stop has no end.
TEST_F(ConsumersTest, AHelloThatWaitsWhenAllIsClosedIsAnsweredAndNotServed) {
  const absl::Status why = absl::CancelledError("the worker stops");
  consumers_.OnHello(From(1, 1), &kind_, Note());
  Request(last_);
  consumers_.OnHello(From(2, 1), &kind_, Note());
  ASSERT_EQ(answers_.size(), 1u) << "a take of its former session is under way";
  consumers_.Close(why);
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_EQ(answers_.back(), why);
  slow_.Meet(met_++);
  for (int i = 0; i < 2; ++i) Turn();
  EXPECT_EQ(answers_.size(), 2u);
  EXPECT_TRUE(consumers_.serving().empty());
  EXPECT_TRUE(consumers_.Drained());
}

TEST_F(ConsumersTest, AViewCountsWhatHasNotEnded) {
  consumers_.OnHello(From(1, 1), &kind_, Note());
  EXPECT_EQ(last_->View().under_way, 0u);
  Request(last_);
  EXPECT_EQ(last_->View().under_way, 1u);
}

// A consumer that stops when it has all breaks its link, too.
TEST_F(ConsumersTest, OnlyTheLossOfALinkThatIsInUseIsLogged) {
  static int logged = 0;
  logged = 0;
  SetLogSink([](LogSeverity, const char*, int, absl::string_view) { ++logged; });
  consumers_.OnHello(From(1, 1), &kind_, Note());
  Link* const link = static_cast<Link*>(last_->link());
  link->answers = true;
  Request(last_);
  slow_.Meet(met_++);
  Turn();
  ASSERT_EQ(last_->slots()->at(0)->state, ServeState::kSent);
  const absl::Status why = absl::UnavailableError("the cable is out");
  last_->OnLinkBroken(why);
  EXPECT_EQ(logged, 0) << "nothing waits for it";
  last_->OnLinkBroken(absl::DataLossError("nonsense"));
  EXPECT_EQ(logged, 1);
  consumers_.OnHello(From(2, 1), &kind_, Note());
  Request(last_);
  last_->OnLinkBroken(why);
  EXPECT_EQ(logged, 2);
  SetLogSink(nullptr);
}

}  // namespace
}  // namespace tryst
