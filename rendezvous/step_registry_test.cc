#include "rendezvous/step_registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "rendezvous/derived_status.h"
#include "rendezvous/testing.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

// What worker 0 produces for worker 1.
TensorKey OutKey(absl::string_view edge) {
  return KeyBetween(absl::StrCat(kWorker0, "/device:CPU:0"),
                    absl::StrCat(kWorker1, "/device:CPU:0"), edge);
}

class CountingFetcher final : public TensorFetcher {
 public:
  void Fetch(int64_t, const TensorKey&, const RecvArgs& args, FetchedFn&& done) override {
    if (keeps) return kept.push_back(std::move(done));
    FailReceive(absl::UnavailableError("no peers here"), args.executor, std::move(done));
  }
  void FetchMany(int64_t, absl::Span<const TensorKey>, const RecvArgs&, ManyFetchedFn) override {}
  void AbortStep(int64_t step_id, const absl::Status&) override { aborted.push_back(step_id); }
  std::vector<int64_t> aborted;
  bool keeps = false;
  std::vector<DoneFn> kept;
};

struct StepRegistryTest : testing::Test {
  StepRegistryTest() {
    options.worker = kWorker0;
    Open();
  }
  void Open() {
    registry.reset();
    absl::StatusOr<std::unique_ptr<StepRegistry>> made =
        StepRegistry::Make(options, &alarms, &fetcher);
    ASSERT_TRUE(made.ok()) << made.status();
    registry = *std::move(made);
  }
  std::shared_ptr<Outcome> Take(int64_t step_id, const TensorKey& key,
                                const RecvArgs& args = RecvArgs()) {
    auto outcome = std::make_shared<Outcome>();
    registry->Take(step_id, key, args, Into(outcome));
    return outcome;
  }

  VirtualAlarms alarms;
  CountingFetcher fetcher;
  StepRegistry::Options options;
  std::unique_ptr<StepRegistry> registry;
};

TEST_F(StepRegistryTest, ATakeMeetsASendOfItsStep) {
  auto step = *registry->StartStep(1);
  auto other = *registry->StartStep(2);
  const auto taken = Take(1, OutKey("a"));
  ASSERT_TRUE(SendNumber(other.get(), OutKey("a"), 2).ok());
  EXPECT_EQ(taken->calls, 0) << "the step is part of the identity";
  ASSERT_TRUE(SendNumber(step.get(), OutKey("a"), 1).ok());
  EXPECT_EQ(taken->number(), 1);
}

TEST_F(StepRegistryTest, ItGoesWhenTheLastAlarmHasRun) {
  std::atomic<bool> runs{false}, may_end{false}, gone{false};
  const auto wait = [](const std::atomic<bool>& until) {
    while (!until) absl::SleepFor(absl::Milliseconds(1));
  };
  registry->Take(1, OutKey("a"), RecvArgs(), [&](Received&& received) {
    EXPECT_FALSE(received.status.ok());
    runs = true;
    wait(may_end);
  });
  std::thread ticks([this] { alarms.AdvanceBy(absl::Hours(1)); });  // Nobody starts the step.
  wait(runs);
  std::thread ends([&] {
    registry.reset();
    gone = true;
  });
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_FALSE(gone);
  may_end = true;
  ticks.join();
  ends.join();
}

TEST_F(StepRegistryTest, WhatATakeGivesBackIsItsSteps) {
  auto step = *registry->StartStep(1);
  ASSERT_TRUE(SendNumber(step.get(), OutKey("a"), 1).ok());
  const auto first = Take(1, OutKey("a"));
  EXPECT_NE(first->turn, 0u);
  registry->GiveBack(1, OutKey("a"), *first);
  EXPECT_EQ(Take(1, OutKey("a"))->number(), 1);
  registry->CleanupStep(1);
  registry->GiveBack(1, OutKey("a"), *first);
  EXPECT_EQ(registry->counters().steps, 0) << "a step that is over does not come back";
}

// Answers with the number of times that it was asked.
class CountingAnswerer final : public Answerer {
 public:
  void Answer(const TensorKey&, const RecvArgs&, DoneFn done) override {
    std::move(done)({absl::OkStatus(), Number(++asked)});
  }
  int64_t asked = 0;
};

TEST_F(StepRegistryTest, AnswerersMakeWhatPeersTakeOfThem) {
  EXPECT_EQ(Take(7, OutKey("|set|a"))->status.code(), absl::StatusCode::kUnavailable);
  const auto answerer = std::make_shared<CountingAnswerer>();
  const auto other = std::make_shared<CountingAnswerer>();
  registry->SetAnswerer("|set|", answerer);
  registry->SetAnswerer("|settee|", other);
  EXPECT_EQ(Take(7, OutKey("|set|a"))->number(), 1);
  const auto again = Take(7, OutKey("|set|a"));
  EXPECT_EQ(again->number(), 2);
  EXPECT_EQ(Take(7, OutKey("|settee|a"))->number(), 1);
  registry->SetAnswerer("|settee|a|", answerer);  // The shorter name comes first.
  EXPECT_EQ(Take(7, OutKey("|settee|a|b"))->number(), 2);
  registry->SetAnswerer("|settee|a|", nullptr);
  EXPECT_EQ(Take(7, OutKey("|se|a"))->status.code(), absl::StatusCode::kUnavailable);
  // What is given back is dropped, and no step has come of it.
  registry->GiveBack(7, OutKey("|set|a"), *again);
  EXPECT_EQ(registry->counters().steps, 0);
  auto step = *registry->StartStep(7);
  registry->GiveBack(7, OutKey("|set|a"), *again);
  EXPECT_EQ(registry->counters().waiting_sends, 0);
  EXPECT_EQ(registry->counters().given_back, 0);
  EXPECT_EQ(Take(7, OutKey("|set|a"))->number(), 3);
  // Nothing is sent under such a name.
  const absl::Status refused = SendNumber(step.get(), OutKey("|set|b"), 9);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("begins with '|'"), absl::string_view::npos) << refused;
  SendItem items[] = {{OutKey("a"), Number(1), false}, {OutKey("|b"), Number(2), false}};
  EXPECT_EQ(step->SendMany(absl::MakeSpan(items), {}).code(), absl::StatusCode::kInvalidArgument);
  TensorSource::Place place;
  Received taken;
  TensorKey named = OutKey("|set|b");
  EXPECT_FALSE(registry->TakeHere(7, &named, &place, &taken));
  // The registry refuses a key of another device before it asks an answerer.
  EXPECT_EQ(Take(7, KeyBetween(absl::StrCat(kWorker1, "/device:CPU:0"),
                               absl::StrCat(kWorker1, "/device:CPU:0"), "|set|a"))
                ->status.code(),
            absl::StatusCode::kInvalidArgument);
  // An answerer that goes does not take the answers of another along.
  registry->RemoveAnswerer("|set|", other.get());
  EXPECT_EQ(Take(7, OutKey("|set|a"))->number(), 4);
  registry->RemoveAnswerer("|set|", answerer.get());
  registry->RemoveAnswerer("|set|", answerer.get());
  EXPECT_EQ(answerer.use_count(), 1);
  EXPECT_EQ(Take(7, OutKey("|set|a"))->status.code(), absl::StatusCode::kUnavailable);
  registry->Close(absl::AbortedError("over"));
  EXPECT_EQ(Take(7, OutKey("|settee|a"))->status.code(), absl::StatusCode::kAborted);
}

TEST_F(StepRegistryTest, WhatIsHereIsTakenAtOnce) {
  options.step.check_immutable = false;  // Off, as in builds that ship.
  Open();
  auto step = *registry->StartStep(1);
  const TensorKey sent = OutKey("a");
  ASSERT_TRUE(step->Send(sent, SendArgs(), Number(1), false).ok());
  ASSERT_TRUE(step->Send(sent, SendArgs(), Number(2), false).ok());
  TensorKey asked = OutKey("a");
  TensorSource::Place place;
  Received taken;
  ASSERT_TRUE(registry->MayTake(asked));
  ASSERT_TRUE(registry->TakeHere(1, &asked, &place, &taken));
  EXPECT_EQ(*taken.tensor.data_as<int64_t>(), 1);
  EXPECT_TRUE(asked.SharesTextWith(sent));
  // The tensor goes back to its place, before one that was sent later.
  registry->GiveBack(1, asked, std::move(taken));
  for (const int value : {1, 2}) {
    ASSERT_TRUE(registry->TakeHere(1, &asked, &place, &taken));
    EXPECT_EQ(*taken.tensor.data_as<int64_t>(), value);
  }
  EXPECT_EQ(registry->counters().takes, 3);
  EXPECT_EQ(registry->counters().waiting_sends, 0);
  EXPECT_FALSE(registry->TakeHere(1, &asked, &place, &taken));
  EXPECT_EQ(registry->counters().takes, 3);
  EXPECT_EQ(place.step, step) << "it goes on, and need not be looked up again";

  // The take that waits gets the next tensor.
  auto waits = Take(1, asked);
  ASSERT_TRUE(step->Send(sent, SendArgs(), Tensor(), true).ok());
  EXPECT_TRUE(waits->is_dead);
  ASSERT_TRUE(step->Send(sent, SendArgs(), Tensor(), true).ok());
  ASSERT_TRUE(registry->TakeHere(1, &asked, &place, &taken));
  EXPECT_TRUE(taken.is_dead);
}

TEST_F(StepRegistryTest, AStepThatIsOverHasNothingHere) {
  options.step.check_immutable = false;  // The setting that users have.
  Open();
  auto first = *registry->StartStep(1);
  auto second = *registry->StartStep(2);
  TensorKey key = OutKey("a");
  TensorSource::Place place;
  Received taken;
  // TakeHere() does not take from a step that was not started, either.
  EXPECT_FALSE(registry->TakeHere(3, &key, &place, &taken));
  EXPECT_EQ(registry->counters().steps, 2);
  for (const int copy : {1, 2}) {
    ASSERT_TRUE(first->Send(key, SendArgs(), Number(copy), false).ok());
    ASSERT_TRUE(second->Send(key, SendArgs(), Number(10 + copy), false).ok());
  }
  ASSERT_TRUE(registry->TakeHere(1, &key, &place, &taken));
  EXPECT_EQ(*taken.tensor.data_as<int64_t>(), 1);
  ASSERT_TRUE(registry->TakeHere(2, &key, &place, &taken));
  EXPECT_EQ(*taken.tensor.data_as<int64_t>(), 11);
  ASSERT_TRUE(registry->TakeHere(1, &key, &place, &taken));
  registry->CleanupStep(1);
  EXPECT_FALSE(registry->TakeHere(1, &key, &place, &taken));
  EXPECT_EQ(place.step, nullptr);
  ASSERT_TRUE(registry->TakeHere(2, &key, &place, &taken));
  EXPECT_EQ(*taken.tensor.data_as<int64_t>(), 12);
}

TEST_F(StepRegistryTest, WhatMustBeReadAgainIsNotTakenAtOnce) {
  options.step.check_immutable = true;
  Open();
  auto step = *registry->StartStep(1);
  TensorKey key = OutKey("a");
  ASSERT_TRUE(step->Send(key, SendArgs(), Number(1), false).ok());
  TensorSource::Place place;
  Received taken;
  EXPECT_FALSE(registry->TakeHere(1, &key, &place, &taken));
  EXPECT_EQ(Take(1, key)->number(), 1);
}

TEST_F(StepRegistryTest, MayTakeSaysWhatATakeIsRefusedFor) {
  options.incarnations[absl::StrCat(kWorker0, "/device:CPU:0")] = 7;
  Open();
  EXPECT_FALSE(registry->MayTake(OutKey("a")));  // It names another incarnation.
  EXPECT_FALSE(registry->MayTake(TensorKey()));
  EXPECT_FALSE(registry->MayTake(KeyBetween(absl::StrCat(kWorker1, "/device:CPU:0"),
                                            absl::StrCat(kWorker0, "/device:CPU:0"), "a")));
}

TEST_F(StepRegistryTest, StartingTwiceIsTheSameStep) {
  auto a = *registry->StartStep(1);
  EXPECT_EQ(a, *registry->StartStep(1));
  EXPECT_EQ(a, registry->FindStep(1));
  EXPECT_EQ(registry->FindStep(2), nullptr);
  EXPECT_EQ(registry->counters().steps_started, 1);
}

TEST_F(StepRegistryTest, DeferredTakesAreBounded) {
  options.max_unstarted_steps = 2;
  options.max_deferred_per_step = 2;
  Open();
  std::vector<std::shared_ptr<Outcome>> waiting = {Take(1, OutKey("a")), Take(1, OutKey("b")),
                                                   Take(2, OutKey("a"))};
  EXPECT_EQ(Take(1, OutKey("c"))->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Take(3, OutKey("a"))->code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(registry->StartStep(1).ok());
  waiting.push_back(Take(1, OutKey("c")));
  waiting.push_back(Take(3, OutKey("a")));
  for (const auto& outcome : waiting) EXPECT_EQ(outcome->calls, 0);
  EXPECT_EQ(registry->counters().deferred, 4);
  registry.reset();
  for (const auto& outcome : waiting) {
    EXPECT_EQ(outcome->code(), absl::StatusCode::kAborted);
    EXPECT_EQ(outcome->status.message(), "this worker is stopping");
  }
}

TEST_F(StepRegistryTest, AConsumerHasAShareOfStepsThatHaveNotStarted) {
  options.max_unstarted_steps = 8;
  options.max_unstarted_of_consumer = 3;
  Open();
  const auto key_to = [](const std::string& consumer) {
    return KeyBetween(absl::StrCat(kWorker0, "/device:CPU:0"),
                      absl::StrCat(consumer, "/device:CPU:0"), "e");
  };
  const TensorKey greedy = key_to("/job:greedy/replica:0/task:0");
  const TensorKey other = key_to("/job:other/replica:0/task:0");
  Cancellation gone;
  RecvArgs args;
  args.cancellation = &gone;
  std::vector<std::shared_ptr<Outcome>> waiting;
  for (int64_t step = 1; step <= 3; ++step) waiting.push_back(Take(step, greedy, args));
  EXPECT_EQ(Take(4, greedy)->code(), absl::StatusCode::kResourceExhausted);
  const auto honest = Take(5, other);
  EXPECT_EQ(honest->calls, 0);
  // A step that starts counts in no peer's share any more. Neither does one in which no request
  // waits.
  ASSERT_TRUE(registry->StartStep(1).ok());
  const auto fourth = Take(4, greedy);
  EXPECT_EQ(fourth->calls, 0);
  EXPECT_EQ(Take(6, greedy)->code(), absl::StatusCode::kResourceExhausted);
  gone.StartCancel();
  for (const auto& outcome : waiting) EXPECT_EQ(outcome->code(), absl::StatusCode::kCancelled);
  alarms.AdvanceBy(absl::Milliseconds(1));  // It was looked for such steps a moment ago.
  const auto after = Take(6, greedy);
  EXPECT_EQ(after->calls, 0);
  registry.reset();
}

TEST_F(StepRegistryTest, PeersBeginSoManyStepsAndNoMore) {
  options.max_begun_by_peers = 2;
  Open();
  EXPECT_TRUE(registry->BeginStep(1).ok());
  EXPECT_TRUE(registry->BeginStep(2).ok());
  EXPECT_TRUE(registry->BeginStep(2).ok());  // The step exists already.
  EXPECT_TRUE(absl::IsResourceExhausted(registry->BeginStep(3)));
  EXPECT_TRUE(registry->StartStep(3).ok());  // Its own worker may start it.
  registry->CleanupStep(1);
  EXPECT_TRUE(absl::IsResourceExhausted(registry->BeginStep(4)));
  registry->CleanupStep(2);
  EXPECT_TRUE(registry->BeginStep(4).ok());
}

TEST_F(StepRegistryTest, AStepThatNeverStartsAnswersInTheEnd) {
  options.unstarted_ttl = absl::Seconds(60);
  options.max_unstarted_steps = 1;
  Open();
  const auto taken = Take(1, OutKey("a"));
  TensorKey key = OutKey("a");
  TensorSource::Place place;
  Received none;
  EXPECT_FALSE(registry->TakeHere(1, &key, &place, &none));
  EXPECT_EQ(place.step, nullptr) << "it has not started";
  alarms.AdvanceBy(absl::Seconds(59));
  EXPECT_EQ(taken->calls, 0);
  alarms.AdvanceBy(absl::Seconds(1));
  EXPECT_EQ(taken->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(registry->counters().steps_expired, 1);
  EXPECT_EQ(registry->counters().receives, 1) << "what it counted stays";
  EXPECT_EQ(registry->counters().aborted_receives, 1) << "and what its end has counted";
  const auto another = Take(7, OutKey("a"));
  EXPECT_EQ(another->calls, 0) << "its place is free";
  registry->CleanupStep(7);
  EXPECT_TRUE(registry->StartStep(1).ok()) << "it may still come";
  const auto late = Take(1, OutKey("a"));
  alarms.AdvanceBy(absl::Hours(1));
  EXPECT_EQ(late->calls, 0) << "a started step does not expire";
  registry.reset();
}

TEST_F(StepRegistryTest, ACancelledOrLateDeferredTakeEnds) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  const auto cancelled = Take(1, OutKey("a"), args);
  args.cancellation = nullptr;
  args.deadline = Deadline::After(alarms, absl::Seconds(1));
  const auto late = Take(1, OutKey("a"), args);
  const auto stays = Take(1, OutKey("a"));
  cancellation.StartCancel();
  EXPECT_EQ(cancelled->code(), absl::StatusCode::kCancelled);
  alarms.AdvanceBy(absl::Seconds(1));
  EXPECT_EQ(late->code(), absl::StatusCode::kDeadlineExceeded);
  auto step = *registry->StartStep(1);
  ASSERT_TRUE(SendNumber(step.get(), OutKey("a"), 1).ok());
  EXPECT_EQ(stays->number(), 1) << "neither of them consumed anything";
}

TEST_F(StepRegistryTest, TombstonesAreBoundedAndExpire) {
  options.max_tombstones = 2;
  options.tombstone_ttl = absl::Seconds(100);
  Open();
  for (int64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(registry->StartStep(id).ok());
    registry->CleanupStep(id);
  }
  EXPECT_EQ(registry->counters().tombstones, 2);
  EXPECT_EQ(Take(3, OutKey("a"))->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Take(2, OutKey("a"))->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(registry->StartStep(2).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(registry->counters().tombstone_hits, 2);
  const auto forgotten = Take(1, OutKey("a"));
  EXPECT_EQ(forgotten->calls, 0) << "deferred like that of an unknown step, and so bounded";
  alarms.AdvanceBy(absl::Seconds(100));
  const auto expired = Take(3, OutKey("a"));
  EXPECT_EQ(expired->calls, 0);
  alarms.AdvanceBy(options.unstarted_ttl);
  EXPECT_EQ(forgotten->calls, 1);
  EXPECT_EQ(expired->calls, 1);
}

TEST_F(StepRegistryTest, ADerivedFailureWaitsForItsCause) {
  auto step = *registry->StartStep(1);
  const auto taken = Take(1, OutKey("a"));
  registry->AbortStep(1, MarkDerived(absl::AbortedError("a peer gave up")));
  EXPECT_EQ(taken->calls, 0);
  alarms.AdvanceBy(absl::Milliseconds(500));
  registry->AbortStep(1, absl::InternalError("the cause"));
  EXPECT_EQ(taken->status.message(), "the cause");
  alarms.AdvanceBy(absl::Seconds(10));
  EXPECT_EQ(SendNumber(step.get(), OutKey("b"), 1).message(), "the cause");
  registry->CleanupStep(1);
  EXPECT_EQ(Take(1, OutKey("b"))->status.message(), "the cause");
}

TEST_F(StepRegistryTest, WithoutACauseTheFirstDerivedFailureStands) {
  ASSERT_TRUE(registry->StartStep(1).ok());
  const auto taken = Take(1, OutKey("a"));
  registry->AbortStep(1, MarkDerived(absl::AbortedError("first")));
  registry->AbortStep(1, MarkDerived(absl::AbortedError("second")));
  alarms.AdvanceBy(absl::Seconds(1));
  EXPECT_EQ(taken->status.message(), "first");
  EXPECT_EQ(fetcher.aborted, std::vector<int64_t>{1});
  // The step is cleaned up before the grace is over.
  ASSERT_TRUE(registry->StartStep(2).ok());
  const auto another = Take(2, OutKey("a"));
  registry->AbortStep(2, MarkDerived(absl::AbortedError("third")));
  registry->CleanupStep(2);
  EXPECT_EQ(another->status.message(), "third");
  alarms.AdvanceBy(absl::Seconds(10));
}

TEST_F(StepRegistryTest, AnAbortBeforeTheStartIsRemembered) {
  registry->AbortStep(1, absl::InternalError("early"));
  EXPECT_EQ(registry->StartStep(1).status().message(), "early");
  EXPECT_EQ(Take(1, OutKey("a"))->status.message(), "early");
  registry->AbortStep(9, absl::OkStatus());
  EXPECT_EQ(registry->StartStep(9).status().code(), absl::StatusCode::kAborted);
  const auto deferred = Take(2, OutKey("a"));
  registry->AbortStep(2, absl::InternalError("early"));
  EXPECT_EQ(deferred->status.message(), "early");
  EXPECT_TRUE(IsDerived(deferred->status));
}

TEST_F(StepRegistryTest, CleanupEndsAStepOnce) {
  ASSERT_TRUE(registry->StartStep(1).ok());
  registry->CleanupStep(1);
  registry->CleanupStep(1);
  EXPECT_EQ(registry->counters().steps, 0);
  ASSERT_TRUE(registry->StartStep(2).ok());
  ASSERT_TRUE(registry->StartStep(3).ok());
  EXPECT_EQ(registry->counters().steps, 2);
  registry->CleanupAll();
  EXPECT_EQ(registry->counters().steps, 0);
}

TEST_F(StepRegistryTest, NothingBeginsOnceItIsClosed) {
  auto step = *registry->StartStep(1);
  const auto waiting = Take(1, OutKey("a"));
  const auto deferred = Take(2, OutKey("a"));
  registry->Close(absl::AbortedError("is stopping"));
  EXPECT_EQ(waiting->status.message(), "is stopping");
  EXPECT_EQ(deferred->status.message(), "is stopping");
  registry->Close(absl::AbortedError("again"));
  for (const int64_t id : {1, 2, 3}) {
    EXPECT_EQ(registry->StartStep(id).status().message(), "is stopping") << id;
    EXPECT_EQ(Take(id, OutKey("a"))->status.message(), "is stopping") << id;
  }
  EXPECT_FALSE(SendNumber(step.get(), OutKey("a"), 1).ok());
  EXPECT_EQ(registry->FindStep(1), nullptr);
  EXPECT_EQ(registry->counters().steps, 0);
  registry->AbortStep(4, absl::DataLossError("late"));
  registry->CleanupStep(1);
}

TEST_F(StepRegistryTest, RefusedTakesConsumeNothing) {
  options.incarnations = {{absl::StrCat(kWorker0, "/device:CPU:0"), 1}};
  Open();
  auto step = *registry->StartStep(1);
  ASSERT_TRUE(SendNumber(step.get(), OutKey("a"), 7).ok());
  EXPECT_EQ(Take(1, TensorKey())->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Take(1, KeyBetween(absl::StrCat(kWorker1, "/device:CPU:0"),
                               absl::StrCat(kWorker0, "/device:CPU:0"), "a"))
                ->code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Take(1, KeyBetween("", absl::StrCat(kWorker0, "/device:CPU:0"), "a"))->code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Take(1, KeyBetween(absl::StrCat(kWorker0, "/device:GPU:0"),
                               absl::StrCat(kWorker1, "/device:CPU:0"), "a"))
                ->code(),
            absl::StatusCode::kInvalidArgument);
  registry->Take(1, OutKey("none"), RecvArgs(), nullptr);
  EXPECT_EQ(Take(1, OutKey("a"))->number(), 7);
}

TEST_F(StepRegistryTest, BadOptionsAreRefused) {
  const auto make = [this] {
    return StepRegistry::Make(options, &alarms, nullptr).status().code();
  };
  options.worker = "worker0";
  EXPECT_EQ(make(), absl::StatusCode::kInvalidArgument);
  options.worker = kWorker0;
  options.max_held_bytes = 10;
  options.step.max_held_bytes = 20;
  EXPECT_EQ(make(), absl::StatusCode::kInvalidArgument);
  options.max_held_bytes = -1;
  EXPECT_EQ(make(), absl::StatusCode::kInvalidArgument);
  options.max_held_bytes = 30;
  options.step.max_held_bytes = -1;
  EXPECT_EQ(make(), absl::StatusCode::kInvalidArgument);
  options.step.max_held_bytes = 30;
  options.step.shards = 0;
  EXPECT_EQ(make(), absl::StatusCode::kInvalidArgument);
  options.step.shards = 1025;
  EXPECT_EQ(make(), absl::StatusCode::kInvalidArgument);
  // Those at the bounds are good.
  for (const int shards : {1, 1024}) {
    options.step.shards = shards;
    EXPECT_EQ(make(), absl::StatusCode::kOk) << shards;
  }
  options.max_held_bytes = 1;
  options.step.max_held_bytes = 2;
  EXPECT_EQ(make(), absl::StatusCode::kInvalidArgument);
  options.max_held_bytes = 0;  // No cap of the process.
  EXPECT_EQ(make(), absl::StatusCode::kOk);
}

TEST_F(StepRegistryTest, AStepMayBeHeldLongerThanTheRegistry) {
  options.max_held_bytes = 4096;
  Open();
  auto step = *registry->StartStep(1);
  registry.reset();
  EXPECT_EQ(SendNumber(step.get(), OutKey("a"), 1).message(), "this worker is stopping");
  SendItem items[] = {{OutKey("a"), Number(1), false}};
  EXPECT_EQ(step->SendMany(absl::MakeSpan(items), SendArgs()).message(), "this worker is stopping");
}

TEST_F(StepRegistryTest, CountersOutliveTheirSteps) {
  auto step = *registry->StartStep(1);
  ASSERT_TRUE(SendNumber(step.get(), OutKey("a"), 1).ok());
  ASSERT_TRUE(SendNumber(step.get(), OutKey("b"), 1).ok());
  EXPECT_TRUE(Take(1, OutKey("a"))->ok());
  EXPECT_EQ(registry->counters().waiting_sends, 1);
  registry->CleanupStep(1);
  const RendezvousCounters counters = registry->counters();
  EXPECT_EQ(counters.sends, 2);
  EXPECT_EQ(counters.delivered, 1);
  EXPECT_EQ(counters.takes, 1);
  EXPECT_EQ(counters.aborted_sends, 1);
  EXPECT_EQ(counters.waiting_sends, 0);
  EXPECT_EQ(counters.held_bytes, 0);
}

TEST_F(StepRegistryTest, DumpsWhoWaitsInEveryStep) {
  auto step = *registry->StartStep(1);
  ASSERT_TRUE(SendNumber(step.get(), OutKey("sent"), 1).ok());
  alarms.AdvanceBy(absl::Milliseconds(2));
  const auto deferred = Take(2, OutKey("asked"));
  const std::string text = registry->DumpWaitingText();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_LT(text.find("step 1: send of"), text.find("step 2: receive of")) << text;
  const std::string json = registry->DumpWaitingJson(1);
  EXPECT_EQ(std::count(json.begin(), json.end(), '{'), 2) << json;
  EXPECT_TRUE(absl::StrContains(json, "\"step\":1,")) << json;
  EXPECT_TRUE(absl::EndsWith(json, "\"waiting_left_out\":1}")) << json;
  const std::string of_step_2 = registry->DumpWaitingText(1, 2);
  EXPECT_TRUE(absl::StartsWith(of_step_2, "step 2: receive of")) << of_step_2;
  EXPECT_EQ(std::count(of_step_2.begin(), of_step_2.end(), '\n'), 1) << of_step_2;
  EXPECT_EQ(registry->DumpWaitingText(1, 3), "");
  registry.reset();
}

// Its requests have been told, and nothing waits in it. Whoever asks later must hear the cause too.
TEST_F(StepRegistryTest, AStepThatMakesRoomIsRememberedWithItsCause) {
  options.max_unstarted_steps = 2;
  Open();
  const auto first = Take(1, OutKey("a"));
  registry->AbortStep(1, absl::InternalError("early"));
  EXPECT_EQ(first->status.message(), "early");
  const auto second = Take(2, OutKey("a"));
  const auto third = Take(3, OutKey("a"));
  EXPECT_EQ(second->calls + third->calls, 0) << "they wait";
  EXPECT_EQ(registry->counters().steps, 2);
  const auto again = Take(1, OutKey("a"));
  EXPECT_EQ(again->status.message(), "early");
  EXPECT_TRUE(IsDerived(again->status));
  EXPECT_EQ(registry->StartStep(1).status().message(), "early");
  registry.reset();
}

TEST_F(StepRegistryTest, NoAlarmOutlivesItsReason) {
  (void)Take(1, OutKey("a"));
  EXPECT_EQ(alarms.size(), 1u) << "for a step that does not start";
  ASSERT_TRUE(registry->StartStep(1).ok());
  EXPECT_EQ(alarms.size(), 0u);
  registry->AbortStep(1, MarkDerived(absl::AbortedError("a peer gave up")));
  EXPECT_EQ(alarms.size(), 1u) << "for the cause";
  registry->AbortStep(1, absl::InternalError("the cause"));
  EXPECT_EQ(alarms.size(), 0u);
  (void)Take(2, OutKey("a"));
  registry->AbortStep(2, MarkDerived(absl::AbortedError("a peer gave up")));
  EXPECT_EQ(alarms.size(), 2u);
  registry->CleanupStep(2);
  EXPECT_EQ(alarms.size(), 0u);
}

TEST_F(StepRegistryTest, AStepThatHasNotStartedIsNotFound) {
  const auto taken = Take(1, OutKey("a"));
  EXPECT_EQ(registry->FindStep(1), nullptr);
  ASSERT_TRUE(registry->StartStep(1).ok());
  EXPECT_NE(registry->FindStep(1), nullptr);
  EXPECT_EQ(taken->calls, 0);
}

TEST_F(StepRegistryTest, AStepInWhichNobodyWaitsIsDroppedOnRequest) {
  Cancellation gone;
  RecvArgs args;
  args.cancellation = &gone;
  (void)Take(1, OutKey("a"), args);
  const auto waits = Take(2, OutKey("a"));
  ASSERT_TRUE(registry->StartStep(3).ok());
  gone.StartCancel();
  EXPECT_EQ(registry->counters().steps, 3);
  registry->DropAbandonedSteps();
  EXPECT_EQ(registry->counters().steps, 2);
  EXPECT_NE(registry->FindStep(3), nullptr) << "it has started";
  EXPECT_EQ(alarms.size(), 1u) << "of the one that is waited for";
  EXPECT_EQ(registry->counters().tombstones, 0) << "it may still start";
  EXPECT_EQ(waits->calls, 0);
  EXPECT_TRUE(registry->StartStep(1).ok());
}

// To look takes a walk through all steps, so who is refused does not have it made each time.
TEST_F(StepRegistryTest, WhetherStepsWereAbandonedIsLookedForOnceInAMillisecond) {
  options.max_unstarted_of_consumer = 1;
  Open();
  Cancellation gone;
  RecvArgs args;
  args.cancellation = &gone;
  (void)Take(1, OutKey("a"), args);
  EXPECT_TRUE(absl::IsResourceExhausted(Take(2, OutKey("a"))->status)) << "a look in vain";
  gone.StartCancel();
  alarms.AdvanceBy(absl::Microseconds(999));
  EXPECT_TRUE(absl::IsResourceExhausted(Take(2, OutKey("a"))->status)) << "it is not looked again";
  alarms.AdvanceBy(absl::Microseconds(1));
  Cancellation also_gone;
  args.cancellation = &also_gone;
  EXPECT_EQ(Take(2, OutKey("a"), args)->calls, 0);
  also_gone.StartCancel();
  EXPECT_EQ(Take(3, OutKey("a"))->calls, 0) << "the last look had found one";
}

TEST_F(StepRegistryTest, WhoAsksAgainAsksTheSameStep) {
  Cancellation gone;
  RecvArgs args;
  args.cancellation = &gone;
  (void)Take(1, OutKey("a"), args);
  gone.StartCancel();
  const auto again = Take(1, OutKey("a"));
  ASSERT_TRUE(SendNumber(registry->StartStep(1)->get(), OutKey("a"), 1).ok());
  EXPECT_EQ(again->number(), 1) << "nothing was dropped while there is room";
}

// Whoever starts it later hears of the failure, although its cause had not been heard of.
TEST_F(StepRegistryTest, AStepThatIsForgottenBeforeItsGraceIsOverHasFailed) {
  const absl::Status failed = MarkDerived(absl::AbortedError("a peer gave up"));
  Cancellation gone;
  RecvArgs args;
  args.cancellation = &gone;
  (void)Take(1, OutKey("a"), args);
  registry->AbortStep(1, failed);
  gone.StartCancel();
  registry->DropAbandonedSteps();
  EXPECT_EQ(registry->counters().steps, 0);
  EXPECT_EQ(registry->StartStep(1).status().message(), "a peer gave up");
  options.abort_grace = absl::Hours(1);
  Open();
  const auto taken = Take(2, OutKey("a"));
  registry->AbortStep(2, failed);
  alarms.AdvanceBy(options.unstarted_ttl);
  EXPECT_EQ(taken->calls, 1);
  EXPECT_EQ(registry->StartStep(2).status().message(), "a peer gave up");
  (void)Take(3, OutKey("a"));
  registry->AbortStep(3, absl::InternalError("the cause"));
  alarms.AdvanceBy(options.unstarted_ttl);
  EXPECT_EQ(registry->StartStep(3).status().message(), "the cause");
}

// A cleaned-up step gives its consumer's share back, whether it had started or not.
TEST_F(StepRegistryTest, ACleanedUpStepCountsInNoShare) {
  options.max_unstarted_of_consumer = 1;
  Open();
  for (int64_t step = 1; step <= 3; ++step) {
    const auto taken = Take(step, OutKey("a"));
    EXPECT_EQ(taken->calls, 0) << step;
    if (step == 2) {
      EXPECT_TRUE(registry->StartStep(step).ok());
    }
    registry->CleanupStep(step);
    EXPECT_EQ(taken->calls, 1);
  }
}

// What is counted while it lasts must not be kept with what was counted once.
TEST_F(StepRegistryTest, AFetchThatOutlivesItsStepIsNotCountedForEver) {
  fetcher.keeps = true;
  auto step = *registry->StartStep(1);
  const auto outcome = std::make_shared<Outcome>();
  step->RecvAsync(KeyBetween(absl::StrCat(kWorker1, "/device:CPU:0"),
                             absl::StrCat(kWorker0, "/device:CPU:0"), "a"),
                  RecvArgs(), Into(outcome));
  EXPECT_EQ(registry->counters().waiting_fetches, 1);
  registry->CleanupStep(1);
  EXPECT_EQ(registry->counters().waiting_fetches, 0);
  EXPECT_EQ(registry->counters().fetches, 1);
  ASSERT_EQ(fetcher.kept.size(), 1u);
  std::move(fetcher.kept[0])({absl::AbortedError("over")});
  EXPECT_EQ(outcome->calls, 1);
}

// Alarms that are about to run when they are cancelled, and run when the test says so.
class LateAlarms final : public Alarms {
 public:
  Token Set(Deadline, Callback callback) override {
    set.push_back(std::move(callback));
    return set.size();
  }
  bool Cancel(Token) override { return false; }
  const Clock& clock() const override { return time; }
  void RunAll() {
    for (Callback& callback : std::exchange(set, {})) std::move(callback)();
  }
  VirtualAlarms time;
  std::vector<Callback> set;
};

TEST(StepRegistryRaceTest, AnAlarmThatRunsLateEndsNothing) {
  LateAlarms late;
  StepRegistry::Options options;
  options.worker = kWorker0;
  auto registry = *StepRegistry::Make(options, &late, nullptr);
  const auto take = [&](int64_t step) {
    auto outcome = std::make_shared<Outcome>();
    registry->Take(step, OutKey("a"), RecvArgs(), Into(outcome));
    return outcome;
  };
  const auto started = take(1);
  const auto over = take(2);
  const auto graced = take(3);
  registry->AbortStep(3, MarkDerived(absl::AbortedError("a peer gave up")));
  ASSERT_EQ(late.set.size(), 4u);
  ASSERT_TRUE(registry->StartStep(1).ok());
  registry->CleanupStep(2);
  registry->CleanupStep(3);
  EXPECT_EQ(over->calls, 1);
  EXPECT_EQ(graced->calls, 1);
  late.RunAll();
  EXPECT_EQ(started->calls, 0) << "its step has started";
  EXPECT_NE(registry->FindStep(1), nullptr);
  EXPECT_EQ(registry->counters().steps_expired, 0);
  registry.reset();
  EXPECT_EQ(started->calls, 1);
}

}  // namespace
}  // namespace tryst
