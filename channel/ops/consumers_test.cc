#include "channel/ops/consumers.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/turned_clock.h"
#include "channel/ops/farewell.h"
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

// Its links open at once.
class Session final : public ServeSession {
 public:
  Session(Poller* poller, TensorSource* source, const Hello& hello, uint64_t session)
      : ServeSession(poller, source, Named(), Slots(), hello, session) {
    slots_.Make(2);
  }
  void Request() {
    const std::string text = absl::StrCat("/job:p/replica:0/task:0/device:CPU:0;0000000000000001;",
                                          kFetcher, "/device:CPU:0;edge;0:0");
    ASSERT_TRUE(slots_.OnKey(0, text).ok());
    ServeRequest request;
    request.generation = 1;
    ASSERT_TRUE(slots_.OnRequest(request).ok());
  }

 private:
  static ServeSessionOptions Named() {
    ServeSessionOptions options;
    options.path = "test";
    return options;
  }
  static ServeSlotsOptions Slots() {
    ServeSlotsOptions slots;
    slots.max_keys = 4;
    slots.max_key_bytes = 1000;
    slots.max_keys_bytes = 4000;
    return slots;
  }
  bool HasLink() const override { return linked_; }
  void BreakLink(const absl::Status&) override {
    linked_ = false;
    slots_.Disconnect();
    OnLinkGone();
  }
  absl::StatusOr<Hello> OpenLink(const Hello& hello) override {
    linked_ = true;
    OnLinkOpen(hello.epoch);
    return NewAnswer(hello.epoch);
  }
  void ViewLink(PathView*) const override {}
  void Answer(ServeOp*) override {}
  void Forget(ServeOp*) override {}
  bool SayWord(bool, uint16_t, uint32_t) override { return true; }
  bool SayHere(absl::Span<const uint64_t>) override { return true; }
  void FlushSoon() override {}

  bool linked_ = false;
};

class ConsumersTest : public ::testing::Test {
 protected:
  ConsumersTest() {
    context_.poller = &poller_;
    context_.source = &slow_;
    poller_.Turn();  // From here on this is its thread.
  }
  ~ConsumersTest() override {
    consumers_.Close(absl::CancelledError("the test is over"));
    for (size_t i = met_; i < slow_.asked.size(); ++i) slow_.Meet(i);
    poller_.Turn();
    EXPECT_TRUE(consumers_.Drained());
  }
  Hello From(uint64_t incarnation, uint64_t epoch) {
    Hello hello;
    hello.worker = kFetcher;
    hello.incarnation = incarnation;
    hello.epoch = epoch;
    hello.path = "test";
    return hello;
  }
  HelloDone Note() {
    return [this](absl::StatusOr<Hello> answer) { answers_.push_back(answer.status()); };
  }
  void Turn() {
    clock_.now_ns += 2'000'000;
    poller_.Turn();
  }

  TurnedClock clock_;
  Poller poller_{&clock_};
  Slow slow_;
  size_t met_ = 0;
  TransportContext context_;
  Session* last_ = nullptr;
  Consumers consumers_{&context_, 3, [this](const Hello& hello, uint64_t session) {
                         auto made = std::make_unique<Session>(&poller_, &slow_, hello, session);
                         last_ = made.get();
                         return made;
                       }};
  std::vector<absl::Status> answers_;
};

// It could meet a later tensor, before the one that the former take has met is back.
TEST_F(ConsumersTest, AWorkerThatComesAnewWaitsForTheTakesOfItsFormerSession) {
  consumers_.OnHello(From(1, 1), Note());
  ASSERT_EQ(answers_.size(), 1u);
  last_->Request();
  ASSERT_EQ(slow_.asked.size(), 1u);
  consumers_.OnHello(From(2, 1), Note());
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
  consumers_.OnHello(From(1, 1), Note());
  last_->Request();
  consumers_.OnHello(From(2, 1), Note());
  ASSERT_EQ(answers_.size(), 1u);
  slow_.Meet(met_++);
  poller_.Turn();
  consumers_.OnHello(From(3, 1), Note());
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
  consumers_.OnHello(From(1, 1), Note());
  last_->Request();
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
  for (uint64_t life = 1; life <= 100; ++life) consumers_.OnHello(From(life, 1), Note());
  for (const absl::Status& answer : answers_) EXPECT_TRUE(answer.ok()) << answer;
  EXPECT_EQ(answers_.size(), 100u);
  EXPECT_EQ(consumers_.serving().size(), 1u);
  EXPECT_LE(consumers_.closing(), 1u);
}

TEST_F(ConsumersTest, WhoComesAgainInTimeIsNotGivenUp) {
  consumers_.OnHello(From(1, 1), Note());
  consumers_.OnHello(From(1, 2), Note());
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_FALSE(last_->Abandoned());
  clock_.now_ns += 120'000'000'000;
  poller_.Turn();
  EXPECT_FALSE(last_->Abandoned()) << "it has a link";
}

}  // namespace
}  // namespace tryst
