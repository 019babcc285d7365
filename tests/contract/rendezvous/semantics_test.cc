// One test for each rule that an implementation of TensorFlow's rendezvous must keep. Each is named
// after its rule.

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/derived_status.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/step_registry.h"
#include "rendezvous/testing.h"
#include "rendezvous/thread_alarms.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

TensorKey OutKey(absl::string_view edge) {
  return KeyBetween(absl::StrCat(kWorker0, "/device:CPU:0"),
                    absl::StrCat(kWorker1, "/device:CPU:0"), edge);
}

struct Semantics : testing::Test {
  Semantics() {
    StepRegistry::Options options;
    options.worker = kWorker0;
    options.incarnations = {{absl::StrCat(kWorker0, "/device:CPU:0"), 1}};
    registry = *StepRegistry::Make(options, &alarms, nullptr);
  }
  std::shared_ptr<Outcome> Take(int64_t step_id, const TensorKey& key) {
    auto outcome = std::make_shared<Outcome>();
    registry->Take(step_id, key, RecvArgs(), Into(outcome));
    return outcome;
  }
  std::shared_ptr<Rendezvous> Start(int64_t step_id) { return *registry->StartStep(step_id); }
  RecvArgs WithDeadline(absl::Duration after) {
    RecvArgs args;
    args.deadline = Deadline::After(alarms, after);
    return args;
  }

  VirtualAlarms alarms;
  std::unique_ptr<StepRegistry> registry;
  LocalRendezvous local{LocalRendezvous::Options(), &alarms};
};

TEST_F(Semantics, KeyGrammarAndParserErrors) {
  const std::string good =
      "/job:j/replica:0/task:0/device:CPU:0;000000000000000a;"
      "/job:j/replica:0/task:1/device:GPU:3;a/b:0^c;12:34";
  absl::StatusOr<TensorKey> key = TensorKey::Parse(good);
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(key->src_incarnation(), 10u);
  EXPECT_EQ(key->edge(), "a/b:0^c");
  EXPECT_EQ(key->iter(), 34u);
  const absl::Status bad = TensorKey::Parse(good + ";").status();
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(bad.message().find("Invalid  rendezvous key: " + good), 0u) << bad;
}

TEST_F(Semantics, IncarnationCheck) {
  Start(1);
  const TensorKey old = *TensorKey::Parse(
      absl::StrCat(kWorker0, "/device:CPU:0;00000000000000ff;", kWorker1, "/device:CPU:0;e;0:0"));
  const auto outcome = Take(1, old);
  EXPECT_EQ(outcome->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(outcome->status.message(),
            "RecvTensor expects a different device incarnation: 00000000000000ff vs. "
            "0000000000000001. /job:w/replica:0/task:0 was probably restarted");
}

TEST_F(Semantics, StepSeparateFromKey) {
  auto one = Start(1), two = Start(2);
  ASSERT_TRUE(SendNumber(one.get(), OutKey("e"), 1).ok());
  ASSERT_TRUE(SendNumber(two.get(), OutKey("e"), 2).ok());
  EXPECT_EQ(Take(2, OutKey("e"))->number(), 2);
  EXPECT_EQ(Take(1, OutKey("e"))->number(), 1);
}

TEST_F(Semantics, FifoPerKeySendsFirst) {
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(SendNumber(&local, LocalKey("e"), i).ok());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Receive(&local, LocalKey("e"))->number(), i);
}

TEST_F(Semantics, FifoPerKeyReceivesFirst) {
  std::vector<std::shared_ptr<Outcome>> waiting;
  for (int i = 0; i < 5; ++i) waiting.push_back(Receive(&local, LocalKey("e")));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(SendNumber(&local, LocalKey("e"), i).ok());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(waiting[i]->number(), i);
}

TEST_F(Semantics, ExactlyOneDelivery) {
  const auto first = Receive(&local, LocalKey("e"));
  const auto second = Receive(&local, LocalKey("e"));
  ASSERT_TRUE(SendNumber(&local, LocalKey("e"), 1).ok());
  EXPECT_EQ(first->number(), 1);
  EXPECT_EQ(second->calls, 0) << "no broadcast";
  ASSERT_TRUE(SendNumber(&local, LocalKey("e"), 2).ok());
  EXPECT_EQ(second->number(), 2);
  EXPECT_EQ(first->calls, 1);
}

TEST_F(Semantics, DeadValuesInOrder) {
  ASSERT_TRUE(SendNumber(&local, LocalKey("e"), 1).ok());
  ASSERT_TRUE(local.Send(LocalKey("e"), SendArgs(), Number(9), true).ok());
  ASSERT_TRUE(SendNumber(&local, LocalKey("e"), 3).ok());
  EXPECT_EQ(Receive(&local, LocalKey("e"))->number(), 1);
  const auto dead = Receive(&local, LocalKey("e"));
  EXPECT_TRUE(dead->ok());
  EXPECT_TRUE(dead->is_dead);
  EXPECT_FALSE(dead->tensor.valid()) << "a placeholder";
  EXPECT_EQ(Receive(&local, LocalKey("e"))->number(), 3);
  EXPECT_EQ(local.counters().dead, 1);
}

// One receive for each way to end. Into() fails the test unless each ends exactly once.
TEST_F(Semantics, DoneExactlyOnceInEveryPath) {
  Cancellation cancellation;
  RecvArgs cancelled;
  cancelled.cancellation = &cancellation;
  auto rendezvous = std::make_unique<LocalRendezvous>(LocalRendezvous::Options(), &alarms);
  const auto data = Receive(rendezvous.get(), LocalKey("data"));
  const auto error = Receive(rendezvous.get(), TensorKey());
  const auto cancel = Receive(rendezvous.get(), LocalKey("cancel"), cancelled);
  const auto deadline =
      Receive(rendezvous.get(), LocalKey("deadline"), WithDeadline(absl::Seconds(1)));
  LocalRendezvous aborted({}, &alarms);
  const auto abort = Receive(&aborted, LocalKey("abort"), WithDeadline(absl::Seconds(1)));
  const auto shutdown = Receive(rendezvous.get(), LocalKey("shutdown"), cancelled);
  const auto taken = Take(7, OutKey("shutdown of the registry"));
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("data"), 1).ok());
  alarms.AdvanceBy(absl::Milliseconds(500));
  aborted.StartAbort(absl::InternalError("cause"));
  alarms.AdvanceBy(absl::Milliseconds(500));
  EXPECT_EQ(shutdown->calls, 0);
  rendezvous.reset();
  cancellation.StartCancel();
  registry.reset();
  EXPECT_EQ(data->code(), absl::StatusCode::kOk);
  EXPECT_EQ(error->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(deadline->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(abort->code(), absl::StatusCode::kInternal);
  EXPECT_EQ(shutdown->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(taken->code(), absl::StatusCode::kAborted);
  for (const auto& outcome : {data, error, cancel, deadline, abort, shutdown, taken}) {
    EXPECT_EQ(outcome->calls, 1);
  }
}

TEST_F(Semantics, PeerLossEndsTheReceive) {
  class LostPeer final : public TensorFetcher {
   public:
    void Fetch(int64_t, const TensorKey&, const RecvArgs& args, FetchedFn&& done) override {
      FailReceive(absl::UnavailableError("peer lost"), args.executor, std::move(done));
    }
    void FetchMany(int64_t, absl::Span<const TensorKey> keys, const RecvArgs&,
                   ManyFetchedFn done) override {
      std::vector<Received> results(keys.size());
      for (Received& result : results) result.status = absl::UnavailableError("peer lost");
      std::move(done)(absl::UnavailableError("peer lost"), absl::MakeSpan(results));
    }
    void AbortStep(int64_t, const absl::Status&) override {}
  } fetcher;
  StepRegistry::Options options;
  options.worker = kWorker1;
  auto consumer = *StepRegistry::Make(options, &alarms, &fetcher);
  auto step = *consumer->StartStep(1);
  EXPECT_EQ(Receive(step.get(), OutKey("e"))->code(), absl::StatusCode::kUnavailable);
}

TEST_F(Semantics, RequestBeforeStepStartIsDeferredNotFailed) {
  const auto early = Take(1, OutKey("e"));
  EXPECT_EQ(early->calls, 0);
  auto step = Start(1);
  EXPECT_EQ(early->calls, 0);
  ASSERT_TRUE(SendNumber(step.get(), OutKey("e"), 1).ok());
  EXPECT_EQ(early->number(), 1);
  EXPECT_EQ(registry->counters().deferred, 1);
}

TEST_F(Semantics, RequestsAfterCleanupGetADefiniteAnswer) {
  Start(1);
  const auto waiting = Take(1, OutKey("e"));
  registry->CleanupStep(1);
  EXPECT_EQ(waiting->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(waiting->status.message(), "step 1 was cleaned up");
  const auto late = Take(1, OutKey("e"));
  EXPECT_EQ(late->code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(IsDerived(late->status));
  EXPECT_EQ(registry->counters().tombstone_hits, 1);
}

TEST_F(Semantics, FirstAbortStatusWins) {
  local.StartAbort(absl::InternalError("first"));
  local.StartAbort(absl::AbortedError("second"));
  EXPECT_EQ(local.abort_cause().message(), "first");
  EXPECT_EQ(Receive(&local, LocalKey("e"))->status.message(), "first");
  EXPECT_EQ(SendNumber(&local, LocalKey("e"), 1).message(), "first");
}

TEST_F(Semantics, ConsequencesAreMarkedDerived) {
  const auto waiting = Receive(&local, LocalKey("e"));
  local.StartAbort(absl::InternalError("cause"));
  EXPECT_TRUE(IsDerived(waiting->status));
  EXPECT_EQ(waiting->code(), absl::StatusCode::kInternal) << "the code stays";
  EXPECT_TRUE(IsDerived(SendNumber(&local, LocalKey("e"), 1)));
  EXPECT_FALSE(IsDerived(local.abort_cause()));
  absl::Status of_the_job;
  KeepCause(&of_the_job, waiting->status);
  KeepCause(&of_the_job, absl::InternalError("cause"));
  EXPECT_FALSE(IsDerived(of_the_job));
}

TEST_F(Semantics, LateRegistrationsAreAborted) {
  local.StartAbort(absl::InternalError("cause"));
  Cancellation cancellation;
  RecvArgs args = WithDeadline(absl::Seconds(1));
  args.cancellation = &cancellation;
  EXPECT_EQ(Receive(&local, LocalKey("e"), args)->code(), absl::StatusCode::kInternal);
  EXPECT_EQ(alarms.size(), 0u);
  bool called = false;
  local.RecvManyAsync({LocalKey("e")}, args, [&](absl::Status status, absl::Span<Received>) {
    called = true;
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  });
  EXPECT_TRUE(called);
}

TEST_F(Semantics, CancellingReceivesConsumesNothingAndKeepsOrder) {
  std::vector<Cancellation> cancellations(4);
  std::vector<std::shared_ptr<Outcome>> outcomes;
  for (Cancellation& cancellation : cancellations) {
    RecvArgs args;
    args.cancellation = &cancellation;
    outcomes.push_back(Receive(&local, LocalKey("e"), args));
  }
  cancellations[1].StartCancel();
  cancellations[3].StartCancel();
  ASSERT_TRUE(SendNumber(&local, LocalKey("e"), 10).ok());
  ASSERT_TRUE(SendNumber(&local, LocalKey("e"), 20).ok());
  EXPECT_EQ(outcomes[0]->number(), 10);
  EXPECT_EQ(outcomes[2]->number(), 20);
  for (const int i : {1, 3}) {
    EXPECT_EQ(outcomes[i]->code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(outcomes[i]->status.message(), "RecvAsync is cancelled.");
    EXPECT_TRUE(IsDerived(outcomes[i]->status));
  }
  // The receive was cancelled before: a tensor that is here is delivered, as in TensorFlow, but it
  // does not wait for one.
  ASSERT_TRUE(SendNumber(&local, LocalKey("e"), 30).ok());
  RecvArgs args;
  args.cancellation = &cancellations[1];
  EXPECT_EQ(Receive(&local, LocalKey("e"), args)->number(), 30);
  EXPECT_EQ(Receive(&local, LocalKey("e"), args)->code(), absl::StatusCode::kCancelled);
}

TEST_F(Semantics, SameProcessSharesTheBuffer) {
  auto step = Start(1);
  const Tensor tensor = Number(1);
  ASSERT_TRUE(step->Send(LocalKey("e"), SendArgs(), tensor, false).ok());
  EXPECT_TRUE(Receive(step.get(), LocalKey("e"))->tensor.SharesBytesWith(tensor));
}

TEST_F(Semantics, OnHostTensorsOfAGpuAreShared) {
  auto step = Start(1);
  const TensorKey key = KeyBetween(absl::StrCat(kWorker0, "/device:GPU:0"),
                                   absl::StrCat(kWorker0, "/device:GPU:1"), "e");
  SendArgs sends;
  RecvArgs args;
  args.alloc_attrs.on_host = sends.alloc_attrs.on_host = true;
  const Tensor tensor = Number(1);
  ASSERT_TRUE(step->Send(key, sends, tensor, false).ok());
  EXPECT_TRUE(Receive(step.get(), key, args)->tensor.SharesBytesWith(tensor));
}

TEST_F(Semantics, TensorTakenFromTheTableOnce) {
  auto step = Start(1);
  ASSERT_TRUE(SendNumber(step.get(), OutKey("e"), 1).ok());
  EXPECT_EQ(Take(1, OutKey("e"))->number(), 1);
  const auto second = Take(1, OutKey("e"));
  EXPECT_EQ(second->calls, 0) << "waits for the next send";
  ASSERT_TRUE(SendNumber(step.get(), OutKey("e"), 2).ok());
  EXPECT_EQ(second->number(), 2);
}

TEST_F(Semantics, SenderKeepsTheBytesAliveUntilTheTakerLetsGo) {
  auto step = Start(1);
  int deleted = 0;
  int64_t memory = 5;
  ASSERT_TRUE(step->Send(OutKey("e"), SendArgs(),
                         *Tensor::Adopt(&memory, DType::kInt64, {}, {}, [&] { ++deleted; }), false)
                  .ok());
  auto taken = Take(1, OutKey("e"));
  registry->CleanupStep(1);
  EXPECT_EQ(deleted, 0) << "a DMA may still read them";
  EXPECT_EQ(taken->number(), 5);
  taken->tensor = Tensor();
  EXPECT_EQ(deleted, 1);
}

TEST_F(Semantics, StringsZeroSizeAndChangedShapes) {
  const Tensor strings = *Tensor::FromStrings({"a", std::string(1000, 'b')}, {2});
  ASSERT_TRUE(local.Send(LocalKey("e"), SendArgs(), strings, false).ok());
  ASSERT_TRUE(
      local.Send(LocalKey("e"), SendArgs(), *Tensor::Allocate(DType::kFloat, {0, 7}), false).ok());
  ASSERT_TRUE(
      local.Send(LocalKey("e"), SendArgs(), *Tensor::Allocate(DType::kHalf, {3}), false).ok());
  EXPECT_EQ(Receive(&local, LocalKey("e"))->tensor.strings()[1].size(), 1000u);
  EXPECT_EQ(Receive(&local, LocalKey("e"))->tensor.shape(), TensorShape({0, 7}));
  EXPECT_EQ(Receive(&local, LocalKey("e"))->tensor.dtype(), DType::kHalf);
}

TEST_F(Semantics, TensorsOverAGibibyte) {
  static char byte;  // It is never read: its address stands for 3 GiB of foreign memory.
  const TensorShape shape = {3, 1 << 30};
  const Tensor tensor = *Tensor::Adopt(&byte, DType::kUint8, shape, {}, nullptr);
  LocalRendezvous::Options options;
  options.check_immutable = false;
  LocalRendezvous unchecked(options, &alarms);
  ASSERT_TRUE(unchecked.Send(LocalKey("e"), SendArgs(), tensor, false).ok());
  EXPECT_EQ(unchecked.counters().held_bytes, int64_t{3} << 30);
  const auto got = Receive(&unchecked, LocalKey("e"));
  EXPECT_EQ(got->tensor.bytes(), uint64_t{3} << 30);
}

TEST_F(Semantics, ATimedOutRecvOwnsItsStateAndConsumesNothing) {
  ThreadAlarms real;
  LocalRendezvous rendezvous({}, &real);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(rendezvous.Recv(LocalKey("e"), RecvArgs(), absl::Microseconds(200)).status().code(),
              absl::StatusCode::kDeadlineExceeded);
  }
  ASSERT_TRUE(SendNumber(&rendezvous, LocalKey("e"), 1).ok());
  absl::StatusOr<Received> got = rendezvous.Recv(LocalKey("e"), RecvArgs(), absl::Seconds(10));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(*got->tensor.data_as<int64_t>(), 1);
}

TEST_F(Semantics, SendNeverBlocksAndDoneNeverRunsUnderALock) {
  // Each callback uses the same key of a one-shard table: if the lock were held, it would deadlock.
  LocalRendezvous::Options options;
  options.shards = 1;
  LocalRendezvous one(options, &alarms);
  int depth = 0;
  std::function<void()> next = [&] {
    one.RecvAsync(LocalKey("e"), RecvArgs(), [&](Received&& received) {
      if (received.status.ok() && ++depth < 10) next();
    });
    if (depth < 10) {
      ASSERT_TRUE(SendNumber(&one, LocalKey("e"), depth).ok());
    }
  };
  next();
  EXPECT_EQ(depth, 10);
  one.RecvAsync(LocalKey("x"), RecvArgs(),
                [&](Received&&) { EXPECT_FALSE(SendNumber(&one, LocalKey("x"), 1).ok()); });
  one.StartAbort(absl::AbortedError("over"));
}

}  // namespace
}  // namespace tryst
