// What a `done` may do that runs on the thread which brought the tensor, not on an executor.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "rendezvous/delivering.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/routing_rendezvous.h"
#include "rendezvous/testing.h"
#include "rendezvous/thread_alarms.h"

namespace tryst {
namespace {

absl::StatusCode RecvHere(Rendezvous* rendezvous, const TensorKey& key) {
  return rendezvous->Recv(key, RecvArgs(), absl::Milliseconds(20)).status().code();
}

TEST(DeliveringScope, Nests) {
  EXPECT_FALSE(DeliversForOthers());
  {
    const DeliveringScope outer;
    { const DeliveringScope inner; }
    EXPECT_TRUE(DeliversForOthers());
    std::thread([] { EXPECT_FALSE(DeliversForOthers()); }).join();
  }
  EXPECT_FALSE(DeliversForOthers());
}

TEST(RecvInPlace, GivesWhatIsHereAndNeverWaits) {
  ThreadAlarms alarms;
  LocalRendezvous rendezvous(LocalRendezvous::Options(), &alarms);
  ASSERT_TRUE(SendNumber(&rendezvous, LocalKey("here"), 7).ok());
  const DeliveringScope delivering;
  const auto got = rendezvous.Recv(LocalKey("here"), RecvArgs(), absl::InfiniteDuration());
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(*got->tensor.data_as<int64_t>(), 7);
  const absl::Status refused =
      rendezvous.Recv(LocalKey("away"), RecvArgs(), absl::InfiniteDuration()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("use RecvAsync"), absl::string_view::npos) << refused;
  EXPECT_NE(refused.message().find("away"), absl::string_view::npos) << refused;
  EXPECT_EQ(rendezvous.counters().waiting_receives, 0) << "it has left the line";
  EXPECT_EQ(RecvHere(&rendezvous, TensorKey()), absl::StatusCode::kInvalidArgument);
  rendezvous.StartAbort(absl::InternalError("over"));
  EXPECT_EQ(RecvHere(&rendezvous, LocalKey("away")), absl::StatusCode::kInternal);
}

// If Recv() waited on the alarms' thread, it would wait for a timeout that only this thread can
// deliver.
TEST(RecvInPlace, OfALateReceiveDoesNotHang) {
  ThreadAlarms alarms;
  LocalRendezvous rendezvous(LocalRendezvous::Options(), &alarms);
  const std::thread::id here = std::this_thread::get_id();
  // On a slow machine the deadline may pass before the call: then `done` runs on this thread.
  for (bool on_the_alarms_thread = false; !on_the_alarms_thread;) {
    RecvArgs late;
    late.deadline = Deadline::After(alarms.clock(), absl::Milliseconds(5));
    std::atomic<bool> elsewhere{false};
    std::atomic<int> code{-1};
    rendezvous.RecvAsync(LocalKey("a"), late, [&](Received&&) {
      elsewhere = std::this_thread::get_id() != here;
      code = static_cast<int>(RecvHere(&rendezvous, LocalKey("b")));
    });
    for (int i = 0; i < 1000 && code < 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    TRYST_CHECK(code >= 0) << "Recv hangs";
    on_the_alarms_thread = elsewhere;
    EXPECT_EQ(
        static_cast<absl::StatusCode>(code.load()),
        elsewhere ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kDeadlineExceeded);
  }
}

// A callback receives another key whose shard the abort has not reached yet. It must not wait
// there.
TEST(RecvInPlace, OfAnAbortedReceiveEndsWithTheAbort) {
  ThreadAlarms alarms;
  LocalRendezvous rendezvous(LocalRendezvous::Options(), &alarms);
  int ended = 0;
  for (int i = 0; i < 32; ++i) {
    rendezvous.RecvAsync(LocalKey(absl::StrCat(i)), RecvArgs(), [&, i](Received&&) {
      ++ended;
      for (int j = 0; j < 32; ++j) {
        EXPECT_EQ(RecvHere(&rendezvous, LocalKey(absl::StrCat(i, "/", j))),
                  absl::StatusCode::kInternal);
      }
    });
  }
  rendezvous.StartAbort(absl::InternalError("over"));
  EXPECT_EQ(ended, 32);
}

TEST(RecvInPlace, OnAThreadOfAnExecutorMayWait) {
  ThreadAlarms alarms;
  LocalRendezvous rendezvous(LocalRendezvous::Options(), &alarms);
  ThreadPoolExecutor executor(1, 4);
  RecvArgs args;
  args.executor = &executor;
  std::atomic<int64_t> got{-1};
  rendezvous.RecvAsync(LocalKey("a"), args, [&](Received&&) {
    const auto second = rendezvous.Recv(LocalKey("b"), RecvArgs(), absl::InfiniteDuration());
    got = *second->tensor.data_as<int64_t>();
  });
  ASSERT_TRUE(SendNumber(&rendezvous, LocalKey("a"), 1).ok());
  ASSERT_TRUE(SendNumber(&rendezvous, LocalKey("b"), 2).ok());
  while (got < 0) std::this_thread::yield();
  EXPECT_EQ(got, 2);
}

// Keeps what it is asked for, as a channel whose poller is busy in a callback does.
struct SilentFetcher final : TensorFetcher {
  void Fetch(int64_t, const TensorKey&, const RecvArgs&, FetchedFn&&) override { ++fetches; }
  void FetchMany(int64_t, absl::Span<const TensorKey>, const RecvArgs&, ManyFetchedFn) override {}
  void AbortStep(int64_t, const absl::Status&) override {}
  int fetches = 0;
};

TEST(RecvInPlace, OfARemoteTensorIsRefusedBeforeItIsAskedFor) {
  ThreadAlarms alarms;
  SilentFetcher fetcher;
  const auto rendezvous =
      RoutingRendezvous::Make(kWorker0, 1, LocalRendezvous::Options(), &alarms, nullptr, &fetcher);
  const TensorKey remote = KeyBetween(absl::StrCat(kWorker1, "/device:CPU:0"),
                                      absl::StrCat(kWorker0, "/device:CPU:0"), "e");
  const DeliveringScope delivering;
  EXPECT_EQ(RecvHere(rendezvous.get(), remote), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(fetcher.fetches, 0);
  EXPECT_EQ(RecvHere(rendezvous.get(), LocalKey("away")), absl::StatusCode::kFailedPrecondition);
  rendezvous->StartAbort(absl::InternalError("over"));
  EXPECT_EQ(RecvHere(rendezvous.get(), remote), absl::StatusCode::kInternal);
}

TEST(RecvInPlace, OfALocalTensorBetweenCpusIsGiven) {
  ThreadAlarms alarms;
  const auto rendezvous =
      RoutingRendezvous::Make(kWorker0, 1, LocalRendezvous::Options(), &alarms, nullptr, nullptr);
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("here"), 7).ok());
  const DeliveringScope delivering;
  const auto got = rendezvous->Recv(LocalKey("here"), RecvArgs(), absl::InfiniteDuration());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got->tensor.data_as<int64_t>(), 7);
}

// A receive whose Cancellation goes first ends with it; so it does when a send is about to
// end it on another thread.
TEST(CancellationThatEndsFirst, CancelsTheReceive) {
  ThreadAlarms alarms;
  LocalRendezvous rendezvous(LocalRendezvous::Options(), &alarms);
  std::shared_ptr<Outcome> waiting;
  {
    Cancellation cancellation;
    RecvArgs args;
    args.cancellation = &cancellation;
    waiting = Receive(&rendezvous, LocalKey("a"), args);
    EXPECT_EQ(waiting->calls, 0);
  }
  EXPECT_EQ(waiting->code(), absl::StatusCode::kCancelled);
  int64_t sent = 0;
  int64_t got = 0;
  for (int round = 0; round < 2000; ++round) {
    auto cancellation = std::make_unique<Cancellation>();
    RecvArgs args;
    args.cancellation = cancellation.get();
    const auto outcome = Receive(&rendezvous, LocalKey("b"), args);
    std::thread sender([&] { ASSERT_TRUE(SendNumber(&rendezvous, LocalKey("b"), sent++).ok()); });
    cancellation.reset();
    sender.join();
    ASSERT_EQ(outcome->calls, 1);
    const auto tensor = outcome->ok() ? outcome : Receive(&rendezvous, LocalKey("b"));
    ASSERT_EQ(tensor->number(), got++);
  }
}

}  // namespace
}  // namespace tryst
