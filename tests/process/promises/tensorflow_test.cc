// TensorFlow's own test cases for its rendezvous, local and remote, on every path. A runtime that
// moves from TensorFlow's to ours relies on them.
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "rendezvous/derived_status.h"
#include "tests/process/promises/known.h"
#include "tests/process/promises/promise_pair.h"
#include "tests/process/promises/receives.h"

namespace tryst {
namespace {

constexpr absl::Duration kSoon = absl::Seconds(20);
constexpr DType kTypes[] = {
    DType::kFloat,    DType::kDouble,     DType::kInt32,        DType::kUint8, DType::kInt16,
    DType::kInt8,     DType::kString,     DType::kComplex64,    DType::kInt64, DType::kBool,
    DType::kBfloat16, DType::kUint16,     DType::kComplex128,   DType::kHalf,  DType::kUint32,
    DType::kUint64,   DType::kFloat8E5m2, DType::kFloat8E4m3fn, DType::kInt4,  DType::kUint4};
const TensorShape kShapes[] = {{},       {0}, {7}, {2, 0, 4}, {3, 5}, {1, 2, 1, 2, 1, 2, 1, 3},
                               {100'000}};

// Both ends make it alike, for each type and shape.
Tensor Sample(DType type, const TensorShape& shape) {
  Tensor tensor = *Tensor::Allocate(type, shape);
  if (type == DType::kString) {
    absl::Span<std::string> strings = tensor.mutable_strings();
    for (size_t i = 0; i < strings.size(); ++i) {
      strings[i] = i == 3 ? std::string(70'000, '\0') : std::string(i % 5, static_cast<char>(i));
    }
    return tensor;
  }
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_data());
  const uint8_t mask = type == DType::kBool                            ? 1
                       : type == DType::kInt4 || type == DType::kUint4 ? 15
                                                                       : 255;
  for (uint64_t i = 0; i < tensor.bytes(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + 11) & mask;
  return tensor;
}

bool Same(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  if (a.dtype() == DType::kString) return a.strings() == b.strings();
  return a.bytes() == b.bytes() && (a.bytes() == 0 || memcmp(a.data(), b.data(), a.bytes()) == 0);
}

// Runs one command; returns "" or what went wrong.
std::string ObeyOne(const Worker& self, const std::string& text) {
  std::istringstream words(text);
  std::string what, edge;
  int64_t step_id = 0, a = 0, b = 0;
  words >> what >> step_id >> edge >> a >> b;
  if (what == "cleanup") return self.server->steps()->CleanupStep(step_id), "";
  auto started = self.server->steps()->StartStep(step_id);
  if (!started.ok()) return started.status().ToString();
  Rendezvous* step = started->get();
  absl::Status done;
  if (what == "send") {  // send STEP EDGE NUMBER ELEMENTS
    done = step->Send(self.KeyTo(kThisEnd, edge), {}, Numbered(a, b), false);
  } else if (what == "dead") {  // dead STEP EDGE
    done = step->Send(self.KeyTo(kThisEnd, edge), {}, Tensor(), true);
  } else if (what == "sample") {  // sample STEP EDGE TYPE SHAPE
    done = step->Send(self.KeyTo(kThisEnd, edge), {}, Sample(static_cast<DType>(a), kShapes[b]),
                      false);
  } else if (what == "many") {  // many STEP EDGE COUNT ELEMENTS
    for (int64_t i = 0; i < a && done.ok(); ++i) {
      done = step->Send(self.KeyTo(kThisEnd, edge, static_cast<uint64_t>(i)), {}, Numbered(i, b),
                        false);
    }
  } else if (what == "abort") {  // abort STEP MESSAGE
    step->StartAbort(absl::InternalError(edge));
  } else if (what == "pong") {  // pong STEP EDGE ROUNDS INCARNATION: sends back what it receives.
    for (int64_t i = 0; i < a && done.ok(); ++i) {
      auto got = step->Recv(KeyBetween(kThisEnd, static_cast<uint64_t>(b), self.server->worker(),
                                       "ping", static_cast<uint64_t>(i)),
                            {}, kSoon);
      done = got.status();
      if (!done.ok()) break;
      done = step->Send(self.KeyTo(kThisEnd, edge, static_cast<uint64_t>(i)), {}, got->tensor,
                        got->is_dead);
    }
  } else if (what != "start") {
    return absl::StrCat("no such thing: ", text);
  }
  return done.ok() ? "" : done.ToString();
}

int Obey(const Worker& self, const Numbers&, WireLine* line) {
  std::string text;
  while (line->Hear(&text, absl::Minutes(10)) && text != "end") {
    const std::string wrong = ObeyOne(self, text);
    if (!line->Say(wrong.empty() ? "done" : wrong)) return 1;
  }
  return 0;
}

class TensorFlowCases : public testing::TestWithParam<TestedPath> {
 protected:
  void SetUp() override {
    SKIP_IF_KNOWN();
    pair_ = std::make_unique<PromisePair>(GetParam());
    other_ = pair_->Start("obey");
    ASSERT_TRUE(other_->AwaitReady());
    step_ = pair_->self().Step(1);
    // A first transfer, over the path under test.
    Tell("send 1 hello 1 1");
    ASSERT_EQ(Get("hello"), 1);
    ASSERT_TRUE(pair_->CameByThePath()) << server()->Explain("");
  }
  void TearDown() override {
    step_.reset();
    pair_.reset();
  }

  Server* server() { return pair_->self().server; }
  Rendezvous* step() { return step_.get(); }
  TensorKey Key(const std::string& edge, uint64_t iter = 0) { return other_->Key(edge, iter); }
  void Tell(const std::string& what) {
    ASSERT_TRUE(other_->line()->Say(what));
    std::string answer;
    ASSERT_TRUE(other_->line()->Hear(&answer)) << what << other_->words();
    ASSERT_EQ(answer, "done") << what;
  }
  // The number that arrives, or minus the status's code.
  int64_t Get(const std::string& edge, absl::Duration timeout = kSoon) {
    const auto got = step_->Recv(Key(edge), {}, timeout);
    if (!got.ok()) return -static_cast<int64_t>(got.status().code());
    return got->is_dead ? -1000 : NumberOf(got->tensor);
  }

  std::unique_ptr<PromisePair> pair_;
  std::unique_ptr<OtherEnd> other_;
  std::shared_ptr<Rendezvous> step_;
};
INSTANTIATE_TEST_SUITE_P(, TensorFlowCases, testing::ValuesIn(TestedPaths()),
                         [](const auto& info) { return info.param.name; });
constexpr int64_t Minus(absl::StatusCode code) { return -static_cast<int64_t>(code); }

TEST_P(TensorFlowCases, EveryTypeAndShapeComesAsItWasSent) {
  for (DType type : kTypes) {
    for (int shape = 0; shape < 7; ++shape) {
      const std::string edge = absl::StrCat("t", static_cast<int>(type), "s", shape);
      Tell(absl::StrCat("sample 1 ", edge, " ", static_cast<int>(type), " ", shape));
      const auto got = step()->Recv(Key(edge), {}, kSoon);
      ASSERT_TRUE(got.ok()) << DTypeName(type) << got.status();
      EXPECT_FALSE(got->is_dead);
      EXPECT_TRUE(Same(got->tensor, Sample(type, kShapes[shape])))
          << DTypeName(type) << " " << kShapes[shape].ToString();
    }
  }
}

TEST_P(TensorFlowCases, EveryTypeComesIntoADestination) {
  for (DType type : kTypes) {
    if (type == DType::kString) continue;
    const std::string edge = absl::StrCat("d", static_cast<int>(type));
    Tell(absl::StrCat("sample 1 ", edge, " ", static_cast<int>(type), " 6"));
    RecvArgs args;
    args.destination = *Tensor::Allocate(type, kShapes[6]);
    const auto got = step()->Recv(Key(edge), args, kSoon);
    ASSERT_TRUE(got.ok()) << DTypeName(type) << got.status();
    EXPECT_EQ(got->tensor.data(), args.destination.data()) << DTypeName(type);
    EXPECT_TRUE(Same(args.destination, Sample(type, kShapes[6]))) << DTypeName(type);
  }
}

TEST_P(TensorFlowCases, SendsBeforeReceivesAndReceivesBeforeSendsAreOneQueue) {
  for (int i = 0; i < 20; ++i) Tell(absl::StrCat("send 1 e ", i, " 1"));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Get("e"), i);
  Receives receives;
  for (int i = 0; i < 20; ++i) receives.Make(step(), Key("e"));
  for (int i = 0; i < 20; ++i) Tell(absl::StrCat("send 1 e ", i, " 1"));
  ASSERT_TRUE(receives.AwaitAll(kSoon));
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(NumberOf(receives.at(i).tensor), static_cast<int64_t>(i));
  }
}

TEST_P(TensorFlowCases, DeadTensorsComeInTheirTurn) {
  Tell("send 1 e 1 1");
  Tell("dead 1 e");
  Tell("send 1 e 2 30000");
  Tell("dead 1 e");
  EXPECT_EQ(Get("e"), 1);
  const auto dead = step()->Recv(Key("e"), {}, kSoon);
  ASSERT_TRUE(dead.ok()) << dead.status();
  EXPECT_TRUE(dead->is_dead);
  EXPECT_FALSE(dead->tensor.valid());
  EXPECT_EQ(Get("e"), 2);
  EXPECT_EQ(Get("e"), -1000);
}

TEST_P(TensorFlowCases, ShapesChangeFromTensorToTensorOfOneKey) {
  constexpr int64_t kSizes[] = {1, 100'000, 3, 9000, 1, 300'000, 20};
  for (int64_t elements : kSizes) {
    Tell(absl::StrCat("send 1 e 5 ", elements));
    const auto got = step()->Recv(Key("e"), {}, kSoon);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->tensor.shape().elements(), elements);
    EXPECT_EQ(NumberOf(got->tensor), 5);
  }
}

TEST_P(TensorFlowCases, PingPong) {
  constexpr int64_t kRounds = 200;
  ASSERT_TRUE(other_->line()->Say(
      absl::StrCat("pong 1 pong ", kRounds, " ", static_cast<int64_t>(server()->incarnation()))));
  for (int64_t i = 0; i < kRounds; ++i) {
    const TensorKey ping = pair_->self().KeyTo(other_->name(), "ping", static_cast<uint64_t>(i));
    ASSERT_TRUE(step()->Send(ping, {}, Numbered(i, 1 + i * 50), false).ok());
    const auto back = step()->Recv(Key("pong", static_cast<uint64_t>(i)), {}, kSoon);
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_EQ(NumberOf(back->tensor), i);
  }
  std::string answer;
  ASSERT_TRUE(other_->line()->Hear(&answer));
  EXPECT_EQ(answer, "done");
}

TEST_P(TensorFlowCases, ManyReceivesAtOnce) {
  constexpr int64_t kMany = 10'000;
  Tell(absl::StrCat("many 1 m ", kMany, " 2"));
  Receives receives;
  for (uint64_t i = 0; i < kMany; ++i) receives.Make(step(), Key("m", i));
  ASSERT_TRUE(receives.AwaitAll(absl::Seconds(60))) << receives.open();
  for (size_t i = 0; i < kMany; ++i) {
    ASSERT_TRUE(receives.at(i).ok()) << receives.at(i).status;
    ASSERT_EQ(NumberOf(receives.at(i).tensor), static_cast<int64_t>(i));
  }
}

TEST_P(TensorFlowCases, OneReceiveOfManyKeys) {
  Tell("many 1 m 300 2");
  std::vector<TensorKey> keys;
  for (uint64_t i = 0; i < 300; ++i) keys.push_back(Key("m", i));
  struct State {
    Mutex mu;
    CondVar changed;
    int calls ABSL_GUARDED_BY(mu) = 0;
    absl::Status first ABSL_GUARDED_BY(mu);
    std::vector<int64_t> numbers ABSL_GUARDED_BY(mu);
  };
  const auto state = std::make_shared<State>();
  step()->RecvManyAsync(keys, {}, [state](absl::Status first, absl::Span<Received> results) {
    MutexLock lock(&state->mu);
    ++state->calls;
    state->first = std::move(first);
    for (const Received& one : results) state->numbers.push_back(NumberOf(one.tensor));
    state->changed.NotifyAll();
  });
  MutexLock lock(&state->mu);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (state->calls == 0 && !state->changed.WaitUntil(&state->mu, until)) {
  }
  ASSERT_EQ(state->calls, 1);
  ASSERT_TRUE(state->first.ok()) << state->first;
  ASSERT_EQ(state->numbers.size(), 300u);
  for (size_t i = 0; i < 300; ++i) EXPECT_EQ(state->numbers[i], static_cast<int64_t>(i));
}

TEST_P(TensorFlowCases, AnAbortEndsWhatWaitsAndWhatComesLater) {
  Receives receives;
  for (uint64_t i = 0; i < 300; ++i) receives.Make(step(), Key("never", i));
  step()->StartAbort(absl::InternalError("the loss is NaN"));
  receives.Make(step(), Key("later"));
  ASSERT_TRUE(receives.AwaitAll(kSoon)) << receives.open();
  for (size_t i = 0; i < receives.size(); ++i) {
    const absl::Status status = receives.at(i).status;
    ASSERT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "the loss is NaN")) << status;
    EXPECT_TRUE(IsDerived(status)) << status;
  }
  const absl::Status sent =
      step()->Send(pair_->self().KeyTo(other_->name(), "e"), {}, Numbered(1, 1), false);
  EXPECT_TRUE(absl::IsInternal(sent)) << sent;
}

TEST_P(TensorFlowCases, TheFirstAbortWins) {
  Receives receives;
  receives.Make(step(), Key("never"));
  step()->StartAbort(absl::InternalError("first"));
  step()->StartAbort(absl::InternalError("second"));
  receives.Make(step(), Key("never"));
  ASSERT_TRUE(receives.AwaitAll(kSoon));
  EXPECT_EQ(receives.at(0).status.message(), "first");
  EXPECT_EQ(receives.at(1).status.message(), "first");
}

TEST_P(TensorFlowCases, TheProducersAbortComesWithItsCause) {
  Receives receives;
  for (uint64_t i = 0; i < 100; ++i) receives.Make(step(), Key("never", i));
  Tell("abort 1 exploded");
  receives.Make(step(), Key("later"));
  ASSERT_TRUE(receives.AwaitAll(kSoon)) << receives.open();
  for (size_t i = 0; i < receives.size(); ++i) {
    const absl::Status status = receives.at(i).status;
    ASSERT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "exploded")) << status;
  }
}

// TensorFlow's CancelMultiple: of four receives the first and the third are cancelled.
TEST_P(TensorFlowCases, ACancelledReceiveLeavesItsNeighboursInOrder) {
  Cancellation first, third;
  RecvArgs args[4];
  args[0].cancellation = &first;
  args[2].cancellation = &third;
  Receives receives;
  for (const RecvArgs& one : args) receives.Make(step(), Key("e"), one);
  absl::SleepFor(absl::Milliseconds(50));  // By now they may have been requested.
  first.StartCancel();
  third.StartCancel();
  ASSERT_TRUE(receives.Await(0, kSoon));
  ASSERT_TRUE(receives.Await(2, kSoon));
  EXPECT_TRUE(absl::IsCancelled(receives.at(0).status)) << receives.at(0).status;
  EXPECT_TRUE(absl::IsCancelled(receives.at(2).status)) << receives.at(2).status;
  Tell("send 1 e 1 1");
  Tell("send 1 e 2 1");
  ASSERT_TRUE(receives.AwaitAll(kSoon));
  EXPECT_EQ(NumberOf(receives.at(1).tensor), 1);
  EXPECT_EQ(NumberOf(receives.at(3).tensor), 2);
}

TEST_P(TensorFlowCases, ACancelledReceiveTakesNothing) {
  for (int i = 0; i < 20; ++i) {
    Cancellation cancellation;
    RecvArgs args;
    args.cancellation = &cancellation;
    Receives receives;
    receives.Make(step(), Key("e"), args);
    if (i % 2 == 0) absl::SleepFor(absl::Milliseconds(5));
    cancellation.StartCancel();
    ASSERT_TRUE(receives.AwaitAll(kSoon));
    EXPECT_TRUE(absl::IsCancelled(receives.at(0).status)) << receives.at(0).status;
    Tell(absl::StrCat("send 1 e ", i, " 1"));
    ASSERT_EQ(Get("e"), i);
  }
}

TEST_P(TensorFlowCases, CancellingWhatHasBeenReceivedDoesNothing) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  Tell("send 1 e 1 1");
  Receives receives;
  receives.Make(step(), Key("e"), args);
  ASSERT_TRUE(receives.AwaitAll(kSoon));
  cancellation.StartCancel();
  EXPECT_EQ(receives.at(0).calls, 1);
  EXPECT_EQ(NumberOf(receives.at(0).tensor), 1);
}

TEST_P(TensorFlowCases, CancelledBeforeItIsMade) {
  Cancellation cancellation;
  cancellation.StartCancel();
  RecvArgs args;
  args.cancellation = &cancellation;
  Receives receives;
  receives.Make(step(), Key("never"), args);
  ASSERT_TRUE(receives.AwaitAll(kSoon));
  EXPECT_TRUE(absl::IsCancelled(receives.at(0).status)) << receives.at(0).status;
}

TEST_P(TensorFlowCases, AReceiveThatTimesOutTakesNothing) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Get("e", absl::Milliseconds(i)), Minus(absl::StatusCode::kDeadlineExceeded));
    Tell(absl::StrCat("send 1 e ", i, " 1"));
    ASSERT_EQ(Get("e"), i);
  }
}

TEST_P(TensorFlowCases, AReceiveBeforeTheProducersStepBeginsWaitsForIt) {
  auto later = pair_->self().Step(2);
  Receives receives;
  for (uint64_t i = 0; i < 50; ++i) receives.Make(later.get(), Key("m", i));
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_EQ(receives.open(), 50u);
  Tell("many 2 m 50 1");
  ASSERT_TRUE(receives.AwaitAll(kSoon)) << receives.open();
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(NumberOf(receives.at(i).tensor), static_cast<int64_t>(i)) << receives.at(i).status;
  }
}

TEST_P(TensorFlowCases, AStepThatIsOverThereGivesADefiniteAnswer) {
  Receives receives;
  for (uint64_t i = 0; i < 50; ++i) receives.Make(step(), Key("before", i));
  absl::SleepFor(absl::Milliseconds(50));
  Tell("cleanup 1");
  for (uint64_t i = 0; i < 50; ++i) receives.Make(step(), Key("after", i));
  ASSERT_TRUE(receives.AwaitAll(kSoon)) << receives.open();
  for (size_t i = 0; i < receives.size(); ++i) {
    EXPECT_TRUE(absl::IsAborted(receives.at(i).status)) << receives.at(i).status;
  }
}

TEST_P(TensorFlowCases, CleanupHereEndsWhatWaitsAndTheNextStepGoesOn) {
  Receives receives;
  for (uint64_t i = 0; i < 200; ++i) receives.Make(step(), Key("never", i));
  server()->steps()->CleanupStep(1);
  ASSERT_TRUE(receives.AwaitAll(kSoon)) << receives.open();
  EXPECT_TRUE(absl::IsAborted(receives.at(0).status)) << receives.at(0).status;
  step_ = pair_->self().Step(2);
  Tell("send 2 e 7 1");
  EXPECT_EQ(Get("e"), 7);
}

TEST_P(TensorFlowCases, AnotherIncarnationOfTheProducerIsAborted) {
  const TensorKey key = KeyBetween(other_->name(), other_->incarnation() ^ 1, kThisEnd, "e");
  const auto got = step()->Recv(key, {}, kSoon);
  EXPECT_TRUE(absl::IsAborted(got.status())) << got.status();
}

TEST_P(TensorFlowCases, OthersTensorsAreNotReceivedHere) {
  const auto got = step()->Recv(
      KeyBetween(other_->name(), other_->incarnation(), "/job:worker/replica:0/task:1", "e"), {},
      kSoon);
  EXPECT_TRUE(absl::IsInvalidArgument(got.status())) << got.status();
  EXPECT_TRUE(absl::IsInvalidArgument(step()->Send(Key("e"), {}, Numbered(1, 1), false)));
}

TEST_P(TensorFlowCases, WithinOneProcessTheBytesAreShared) {
  const TensorKey key = pair_->self().KeyTo(kThisEnd, "e");
  const Tensor tensor = Numbered(3, 1000);
  ASSERT_TRUE(step()->Send(key, {}, tensor, false).ok());
  const auto got = step()->Recv(key, {}, kSoon);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(got->tensor.SharesBytesWith(tensor));
}

TEST_P(TensorFlowCases, ATensorLivesUntilItHasCome) {
  // The producer sends and drops tensors of many sizes before anything is fetched.
  Tell("many 1 m 30 200000");
  for (uint64_t i = 0; i < 30; ++i) {
    const auto got = step()->Recv(Key("m", i), {}, kSoon);
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_EQ(NumberOf(got->tensor), static_cast<int64_t>(i));
  }
}

TEST_P(TensorFlowCases, WhatWasReceivedOutlivesTheStepAndTheProducer) {
  Tell("many 1 m 5 100000");
  Receives receives;
  for (uint64_t i = 0; i < 5; ++i) receives.Make(step(), Key("m", i));
  ASSERT_TRUE(receives.AwaitAll(kSoon));
  server()->steps()->CleanupStep(1);
  other_->Kill();
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(NumberOf(receives.at(i).tensor), static_cast<int64_t>(i));
  }
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) { return tryst::RunPromises(argc, argv, {{"obey", &tryst::Obey}}); }
