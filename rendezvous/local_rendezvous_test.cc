#include "rendezvous/local_rendezvous.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "rendezvous/derived_status.h"
#include "rendezvous/testing.h"
#include "rendezvous/thread_alarms.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

struct LocalRendezvousTest : testing::Test {
  void Open(LocalRendezvous::Options options = {}, std::shared_ptr<HeldBytes> process = nullptr) {
    options.shards = 4;
    rendezvous = std::make_unique<LocalRendezvous>(options, &alarms, std::move(process));
  }
  LocalRendezvousTest() { Open(); }

  VirtualAlarms alarms;
  std::unique_ptr<LocalRendezvous> rendezvous;
};

TEST_F(LocalRendezvousTest, SharesTheBytes) {
  const Tensor tensor = Number(5);
  SendArgs send_args;
  send_args.alloc_attrs.on_host = true;
  ASSERT_TRUE(rendezvous->Send(LocalKey("a"), send_args, tensor, false).ok());
  const auto got = Receive(rendezvous.get(), LocalKey("a"));
  ASSERT_TRUE(got->ok());
  EXPECT_TRUE(got->tensor.SharesBytesWith(tensor));
  EXPECT_TRUE(got->send_attrs.on_host);
  const RendezvousCounters counters = rendezvous->counters();
  EXPECT_EQ(counters.delivered, 1);
  EXPECT_EQ(counters.delivered_bytes, 8);
  EXPECT_EQ(counters.waiting_sends, 0);
  EXPECT_EQ(counters.held_bytes, 0);
}

TEST_F(LocalRendezvousTest, NothingIsLeftOfItWithItsLastUser) {
  const auto process = std::make_shared<HeldBytes>(1000);
  Open({}, process);
  ASSERT_TRUE(rendezvous->Send(LocalKey("a"), SendArgs(), Number(5), false).ok());
  const auto waiting = Receive(rendezvous.get(), LocalKey("b"));
  EXPECT_GT(process.use_count(), 1);
  rendezvous.reset();
  EXPECT_EQ(process.use_count(), 1);
}

TEST_F(LocalRendezvousTest, WhatMeetsAWaitingReceiveIsCountedToo) {
  const auto waiting = Receive(rendezvous.get(), LocalKey("a"));
  EXPECT_EQ(rendezvous->counters().waiting_receives, 1);
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 5).ok());
  EXPECT_EQ(waiting->number(), 5);
  const RendezvousCounters counters = rendezvous->counters();
  EXPECT_EQ(counters.sends, 1);
  EXPECT_EQ(counters.delivered, 1);
  EXPECT_EQ(counters.delivered_bytes, 8);
  EXPECT_EQ(counters.waiting_receives, 0);
  EXPECT_EQ(counters.waiting_sends, 0);
}

TEST_F(LocalRendezvousTest, KeysAreComparedInFull) {
  // One shard and far more keys than buckets at first: chains are long.
  LocalRendezvous::Options options;
  options.shards = 1;
  LocalRendezvous one(options, &alarms);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(SendNumber(&one, LocalKey(absl::StrCat(i)), i).ok());
  for (int i = 999; i >= 0; --i) {
    EXPECT_EQ(Receive(&one, LocalKey(absl::StrCat(i)))->number(), i);
  }
}

TEST_F(LocalRendezvousTest, AQueueKeepsItsEndWhenItsFirstLeaves) {
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), i).ok());
  }
  EXPECT_EQ(Receive(rendezvous.get(), LocalKey("a"))->number(), 1);
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 4).ok());
  for (int i = 2; i <= 4; ++i) {
    EXPECT_EQ(Receive(rendezvous.get(), LocalKey("a"))->number(), i);
  }
}

TEST_F(LocalRendezvousTest, AQueueKeepsItsEndWhenItsLastLeaves) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  const auto first = Receive(rendezvous.get(), LocalKey("a"));
  const auto last = Receive(rendezvous.get(), LocalKey("a"), args);
  cancellation.StartCancel();
  EXPECT_EQ(last->code(), absl::StatusCode::kCancelled);
  const auto next = Receive(rendezvous.get(), LocalKey("a"));
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 1).ok());
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 2).ok());
  EXPECT_EQ(first->number(), 1);
  EXPECT_EQ(next->number(), 2);
}

TEST_F(LocalRendezvousTest, AReceiveThatIsLateAlreadyEndsAtOnce) {
  RecvArgs args;
  args.deadline = Deadline::After(alarms, absl::Seconds(1));
  alarms.AdvanceBy(absl::Seconds(2));
  const auto late = Receive(rendezvous.get(), LocalKey("a"), args);
  EXPECT_EQ(late->calls, 1);
  EXPECT_EQ(late->code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 1).ok());
  EXPECT_EQ(Receive(rendezvous.get(), LocalKey("a"))->number(), 1);
}

TEST_F(LocalRendezvousTest, BadInputIsRefusedAndNothingIsLost) {
  EXPECT_EQ(rendezvous->Send(TensorKey(), SendArgs(), Number(1), false).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rendezvous->Send(LocalKey("a"), SendArgs(), Tensor(), false).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Receive(rendezvous.get(), TensorKey())->code(), absl::StatusCode::kInvalidArgument);
  SendItem items[] = {{LocalKey("a"), Number(1), false}, {TensorKey(), Number(2), false}};
  EXPECT_EQ(rendezvous->SendMany(absl::MakeSpan(items), SendArgs()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(items[0].tensor.valid()) << "refused as a whole";
  EXPECT_EQ(rendezvous->counters().sends, 0);
}

TEST_F(LocalRendezvousTest, ANullDoneThrowsTheTensorAway) {
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 1).ok());
  rendezvous->RecvAsync(LocalKey("a"), RecvArgs(), nullptr);
  rendezvous->RecvAsync(LocalKey("a"), RecvArgs(), nullptr);
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 2).ok());
  rendezvous->RecvManyAsync({LocalKey("a")}, RecvArgs(), nullptr);
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 3).ok());
  EXPECT_EQ(rendezvous->counters().delivered, 3);
}

TEST_F(LocalRendezvousTest, AnAbortWithoutACauseIsStillAnAbort) {
  rendezvous->StartAbort(absl::OkStatus());
  EXPECT_EQ(SendNumber(rendezvous.get(), LocalKey("a"), 1).code(), absl::StatusCode::kAborted);
}

TEST_F(LocalRendezvousTest, DoneMayDropTheRendezvousAndCallIntoIt) {
  auto outcome = std::make_shared<Outcome>();
  rendezvous->RecvAsync(LocalKey("a"), RecvArgs(), [this, outcome](Received&&) {
    ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("b"), 2).ok());
    EXPECT_EQ(Receive(rendezvous.get(), LocalKey("b"))->number(), 2);
    ++outcome->calls;
  });
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 1).ok());
  EXPECT_EQ(outcome->calls, 1);

  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  args.deadline = Deadline::After(alarms, absl::Seconds(1));
  const auto other = Receive(rendezvous.get(), LocalKey("d"), args);
  rendezvous->RecvAsync(LocalKey("c"), args, [this](Received&&) { rendezvous.reset(); });
  cancellation.StartCancel();
  EXPECT_EQ(rendezvous, nullptr);
  EXPECT_EQ(other->code(), absl::StatusCode::kCancelled);
}

TEST_F(LocalRendezvousTest, DestructionEndsWhatWaits) {
  RecvArgs args;
  args.deadline = Deadline::After(alarms, absl::Seconds(1));
  const auto waiting = Receive(rendezvous.get(), LocalKey("a"), args);
  auto batch = std::make_shared<absl::Status>();
  rendezvous->RecvManyAsync({LocalKey("b"), LocalKey("c")}, args,
                            [batch](absl::Status s, absl::Span<Received>) { *batch = s; });
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("d"), 1).ok());
  rendezvous.reset();
  EXPECT_EQ(waiting->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(waiting->status.message(), "the rendezvous was destroyed while this receive waited");
  EXPECT_EQ(batch->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(alarms.size(), 0u) << "its alarms are gone with it";
}

TEST_F(LocalRendezvousTest, DoneRunsOnTheExecutor) {
  ThreadPoolExecutor executor(1, 16);
  RecvArgs args;
  args.executor = &executor;
  const std::thread::id here = std::this_thread::get_id();
  std::atomic<int> calls{0};
  const auto done = [&](Received&&) {
    EXPECT_NE(std::this_thread::get_id(), here);
    ++calls;
  };
  rendezvous->RecvAsync(LocalKey("waits"), args, done);
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("waits"), 1).ok());
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("is here"), 1).ok());
  rendezvous->RecvAsync(LocalKey("is here"), args, done);
  rendezvous->RecvAsync(TensorKey(), args, done);
  rendezvous->RecvManyAsync({LocalKey("a"), LocalKey("b")}, args,
                            [&](absl::Status, absl::Span<Received>) {
                              EXPECT_NE(std::this_thread::get_id(), here);
                              ++calls;
                            });
  rendezvous->RecvAsync(LocalKey("aborted"), args, done);
  rendezvous->StartAbort(absl::InternalError("x"));
  while (calls < 5) std::this_thread::yield();
}

TEST_F(LocalRendezvousTest, ABatchIsOneCallbackWithEveryResult) {
  std::vector<TensorKey> keys;
  for (int i = 0; i < 20; ++i) keys.push_back(LocalKey(absl::StrCat("k", i)));
  keys.push_back(keys[0]);
  std::vector<SendItem> items;
  for (int i = 0; i < 21; ++i) items.push_back({keys[i], Number(i), false});
  items[3].is_dead = true;
  int calls = 0;
  const auto check = [&](absl::Status status, absl::Span<Received> results) {
    ++calls;
    EXPECT_TRUE(status.ok());
    ASSERT_EQ(results.size(), 21u);
    for (int i = 0; i < 21; ++i) {
      EXPECT_EQ(results[i].is_dead, i == 3);
      if (i != 3) {
        EXPECT_EQ(*results[i].tensor.data_as<int64_t>(), i);
      }
    }
  };
  auto again = items;
  ASSERT_TRUE(rendezvous->SendMany(absl::MakeSpan(items), SendArgs()).ok());
  rendezvous->RecvManyAsync(keys, RecvArgs(), check);
  EXPECT_EQ(calls, 1);
  rendezvous->RecvManyAsync(keys, RecvArgs(), check);
  EXPECT_EQ(calls, 1);
  ASSERT_TRUE(rendezvous->SendMany(absl::MakeSpan(again), SendArgs()).ok());
  EXPECT_EQ(calls, 2);
  rendezvous->RecvManyAsync({}, RecvArgs(), [&](absl::Status status, absl::Span<Received> results) {
    EXPECT_TRUE(status.ok() && results.empty());
    ++calls;
  });
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(rendezvous->counters().receives, 2 * 21);
  EXPECT_EQ(rendezvous->counters().dead, 2);
}

TEST_F(LocalRendezvousTest, ACancelledBatchKeepsWhatItGotAndConsumesNothingElse) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  args.deadline = Deadline::After(alarms, absl::Seconds(9));
  std::vector<absl::Status> statuses;
  absl::Status first_error;
  rendezvous->RecvManyAsync({LocalKey("a"), LocalKey("b"), LocalKey("c")}, args,
                            [&](absl::Status status, absl::Span<Received> results) {
                              first_error = status;
                              for (const Received& r : results) statuses.push_back(r.status);
                            });
  const auto neighbour = Receive(rendezvous.get(), LocalKey("b"));
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 1).ok());
  cancellation.StartCancel();
  ASSERT_EQ(statuses.size(), 3u);
  EXPECT_TRUE(statuses[0].ok());
  EXPECT_TRUE(absl::IsCancelled(statuses[1]) && absl::IsCancelled(statuses[2]));
  EXPECT_TRUE(absl::IsCancelled(first_error) && IsDerived(first_error));
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("b"), 2).ok());
  EXPECT_EQ(neighbour->number(), 2);
  EXPECT_EQ(alarms.size(), 0u);
  // A receive that is cancelled before it begins gets a tensor that is here (docs/decisions/0027).
  statuses.clear();
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("d"), 3).ok());
  rendezvous->RecvManyAsync({LocalKey("d"), LocalKey("e")}, args,
                            [&](absl::Status, absl::Span<Received> results) {
                              for (const Received& r : results) statuses.push_back(r.status);
                              EXPECT_EQ(*results[0].tensor.data_as<int64_t>(), 3);
                            });
  ASSERT_EQ(statuses.size(), 2u);
  EXPECT_TRUE(statuses[0].ok() && absl::IsCancelled(statuses[1]));
}

TEST_F(LocalRendezvousTest, ABatchHasADeadline) {
  RecvArgs args;
  args.deadline = Deadline::After(alarms, absl::Seconds(1));
  std::vector<absl::StatusCode> codes;
  const auto done = [&](absl::Status, absl::Span<Received> results) {
    for (const Received& r : results) codes.push_back(r.status.code());
  };
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 1).ok());
  rendezvous->RecvManyAsync({LocalKey("a"), LocalKey("b")}, args, done);
  alarms.AdvanceBy(absl::Seconds(1));
  const std::vector<absl::StatusCode> expected = {absl::StatusCode::kOk,
                                                  absl::StatusCode::kDeadlineExceeded};
  EXPECT_EQ(codes, expected);
  codes.clear();
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 1).ok());
  rendezvous->RecvManyAsync({LocalKey("a"), LocalKey("b")}, args, done);
  EXPECT_EQ(codes, expected) << "passed before it began: what is here is given";
}

TEST_F(LocalRendezvousTest, SendsOverTheCapAreRefusedUntilThereIsRoom) {
  LocalRendezvous::Options options;
  options.max_held_bytes = 4096;
  Open(options);
  const Tensor tensor = *Tensor::Allocate(DType::kUint8, {2048});
  ASSERT_TRUE(rendezvous->Send(LocalKey("a"), SendArgs(), tensor, false).ok());
  ASSERT_TRUE(rendezvous->Send(LocalKey("b"), SendArgs(), tensor, false).ok());
  EXPECT_EQ(rendezvous->Send(LocalKey("c"), SendArgs(), tensor, false).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(rendezvous->Send(LocalKey("c"), SendArgs(), Tensor(), true).code(),
            absl::StatusCode::kResourceExhausted)
      << "a dead tensor's place is charged too";
  int ready = 0;
  rendezvous->WhenRoom(2048, [&](absl::Status status) {
    EXPECT_TRUE(status.ok());
    ++ready;
    EXPECT_TRUE(rendezvous->Send(LocalKey("c"), SendArgs(), tensor, false).ok());
  });
  EXPECT_EQ(ready, 0);
  EXPECT_TRUE(Receive(rendezvous.get(), LocalKey("a"))->ok());
  EXPECT_EQ(ready, 1);
  EXPECT_TRUE(Receive(rendezvous.get(), LocalKey("c"))->ok());
  EXPECT_EQ(rendezvous->counters().refused_over_cap, 2);
  // A receive that waits needs no room.
  ASSERT_TRUE(rendezvous->Send(LocalKey("d"), SendArgs(), tensor, false).ok());
  const auto waiting = Receive(rendezvous.get(), LocalKey("e"));
  EXPECT_TRUE(rendezvous->Send(LocalKey("e"), SendArgs(), tensor, false).ok());
  EXPECT_TRUE(waiting->ok());
}

TEST_F(LocalRendezvousTest, ABatchOverTheCapIsRefusedAsAWhole) {
  LocalRendezvous::Options options;
  options.max_held_bytes = 1000;
  Open(options);
  std::vector<SendItem> items;
  for (int i = 0; i < 4; ++i) items.push_back({LocalKey(absl::StrCat(i)), Number(i), false});
  EXPECT_EQ(rendezvous->SendMany(absl::MakeSpan(items), SendArgs()).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(rendezvous->counters().waiting_sends, 0);
  EXPECT_TRUE(items[0].tensor.valid());
  items.pop_back();
  EXPECT_TRUE(rendezvous->SendMany(absl::MakeSpan(items), SendArgs()).ok());
  EXPECT_EQ(rendezvous->counters().held_bytes, 3 * LocalRendezvous::kMinChargeBytes);
}

TEST_F(LocalRendezvousTest, CapsOfTheProcessAreSharedBySteps) {
  auto process = std::make_shared<HeldBytes>(1 << 20);
  LocalRendezvous a({}, &alarms, process);
  LocalRendezvous b({}, &alarms, process);
  const Tensor half = *Tensor::Allocate(DType::kUint8, {1 << 19});
  // Small tensors make every shard of `a` take its reserve from the cap.
  for (int i = 0; i < 64; ++i) {
    ASSERT_TRUE(SendNumber(&a, LocalKey(absl::StrCat(i)), i).ok());
    EXPECT_TRUE(Receive(&a, LocalKey(absl::StrCat(i)))->ok());
  }
  EXPECT_GT(process->held(), 0) << "reserves";
  EXPECT_TRUE(b.Send(LocalKey("x"), SendArgs(), half, false).ok());
  EXPECT_TRUE(b.Send(LocalKey("y"), SendArgs(), half, false).ok()) << "reserves are collected";
  EXPECT_EQ(process->held(), 1 << 20);
  EXPECT_EQ(SendNumber(&a, LocalKey("z"), 1).code(), absl::StatusCode::kResourceExhausted);
  int ready = 0;
  a.WhenRoom(8, [&](absl::Status status) { ready += status.ok(); });
  EXPECT_EQ(ready, 0);
  b.StartAbort(absl::AbortedError("over"));
  EXPECT_EQ(ready, 1) << "room made by another step";
  EXPECT_EQ(process->held(), 0);
}

TEST_F(LocalRendezvousTest, ASmallSendTakesNoLotWhileSomebodyWaitsForRoom) {
  LocalRendezvous::Options options;
  options.max_held_bytes = 1 << 20;
  Open(options);
  const auto send = [this](const char* edge, int64_t bytes) {
    return rendezvous->Send(LocalKey(edge), SendArgs(), *Tensor::Allocate(DType::kUint8, {bytes}),
                            false);
  };
  ASSERT_TRUE(send("large", 600 << 10).ok());
  int ready = 0;
  rendezvous->WhenRoom(980 << 10, [&](absl::Status status) { ready += status.ok(); });
  // Ten, because the shard of "large" gives back its lot with that one.
  for (const char* small : {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}) {
    ASSERT_TRUE(send(small, 1 << 10).ok());
  }
  EXPECT_EQ(ready, 0);
  ASSERT_TRUE(Receive(rendezvous.get(), LocalKey("large"))->ok());
  EXPECT_EQ(ready, 1) << "only the small ones are held";
}

// For ThreadSanitizer: a step that begins while another step's refused sends collect reserves.
TEST_F(LocalRendezvousTest, AStepBeginsWhileReservesAreCollected) {
  auto process = std::make_shared<HeldBytes>(1024);
  LocalRendezvous full({}, &alarms, process);
  while (SendNumber(&full, LocalKey("a"), 1).ok()) {
  }
  std::atomic<int> refused{0};
  std::thread sender([&] {
    for (int i = 0; i < 1000; ++i) {
      ASSERT_FALSE(SendNumber(&full, LocalKey("a"), 1).ok());
      refused.fetch_add(1, std::memory_order_relaxed);
    }
  });
  while (refused.load(std::memory_order_relaxed) < 1000) {
    LocalRendezvous beginning({}, &alarms, process);
  }
  sender.join();
}

// For ThreadSanitizer: nothing orders the cancelling thread before what the abort does next.
TEST_F(LocalRendezvousTest, AReceiveIsCancelledWhileAnAbortHasItInHand) {
  std::atomic<bool> taken_out{false};
  std::atomic<bool> cancelled{false};
  LocalRendezvous::Options options;
  options.shards = 1;
  options.between_locks = [&](const char* place, uint64_t) {
    if (absl::string_view(place) != "abort") return;
    taken_out.store(true, std::memory_order_relaxed);
    while (!cancelled.load(std::memory_order_relaxed)) std::this_thread::yield();
  };
  LocalRendezvous one(options, &alarms);
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  const auto outcome = Receive(&one, LocalKey("a"), args);
  std::thread canceller([&] {
    while (!taken_out.load(std::memory_order_relaxed)) std::this_thread::yield();
    cancellation.StartCancel();
    cancelled.store(true, std::memory_order_relaxed);
  });
  one.StartAbort(absl::InternalError("over"));
  canceller.join();
  EXPECT_EQ(outcome->calls, 1);
  EXPECT_EQ(outcome->code(), absl::StatusCode::kInternal);
}

TEST_F(LocalRendezvousTest, WhoWaitsForRoomHearsOfTheAbort) {
  LocalRendezvous::Options options;
  options.max_held_bytes = 256;
  Open(options);
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 1).ok());
  absl::Status status;
  rendezvous->WhenRoom(8, [&](absl::Status s) { status = s; });
  rendezvous->StartAbort(absl::InternalError("cause"));
  EXPECT_EQ(status.message(), "cause");
  status = absl::OkStatus();
  rendezvous->WhenRoom(8, [&](absl::Status s) { status = s; });
  EXPECT_EQ(status.message(), "cause");
}

TEST_F(LocalRendezvousTest, WhatIsGivenBackKeepsItsPlace) {
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), i).ok());
  std::vector<Received> taken(3);
  for (Received& one : taken) one = *Receive(rendezvous.get(), LocalKey("a"));
  for (size_t i : {1, 0, 2}) rendezvous->GiveBack(LocalKey("a"), taken[i]);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Receive(rendezvous.get(), LocalKey("a"))->number(), i);
  EXPECT_EQ(rendezvous->counters().given_back, 3);
  EXPECT_EQ(rendezvous->counters().waiting_sends, 0);
  // A tensor that was given back and is taken again has the same turn.
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 7).ok());
  const auto again = Receive(rendezvous.get(), LocalKey("b"));
  taken[0].send_attrs.scope_id = 9;
  rendezvous->GiveBack(LocalKey("b"), taken[0]);
  EXPECT_EQ(again->turn, taken[0].turn);
  rendezvous->GiveBack(LocalKey("c"), taken[0]);
  EXPECT_EQ(Receive(rendezvous.get(), LocalKey("c"))->send_attrs.scope_id, 9);
}

TEST_F(LocalRendezvousTest, WhatIsGivenBackIsNotRefused) {
  LocalRendezvous::Options options;
  options.max_held_bytes = 256;
  Open(options);
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 1).ok());
  EXPECT_EQ(SendNumber(rendezvous.get(), LocalKey("b"), 2).code(),
            absl::StatusCode::kResourceExhausted);
  rendezvous->GiveBack(LocalKey("b"), {absl::OkStatus(), Number(2)});
  EXPECT_EQ(rendezvous->counters().held_bytes, 256);
  EXPECT_EQ(Receive(rendezvous.get(), LocalKey("b"))->number(), 2);
  EXPECT_EQ(Receive(rendezvous.get(), LocalKey("a"))->number(), 1);
  EXPECT_EQ(rendezvous->counters().held_bytes, 0);
  rendezvous->StartAbort(absl::InternalError("over"));
  rendezvous->GiveBack(LocalKey("b"), {absl::OkStatus(), Number(2)});
  EXPECT_EQ(rendezvous->counters().waiting_sends, 0);
}

TEST_F(LocalRendezvousTest, ACopyIsSentToWhoAsksForOne) {
  LocalRendezvous::Options options;
  options.check_immutable = true;
  Open(options);
  SendArgs args;
  args.copy_on_send = true;
  Tensor number = Number(1);
  Tensor strings = *Tensor::FromStrings({"a", "b"}, {2});
  ASSERT_TRUE(rendezvous->Send(LocalKey("n"), args, number, false).ok());
  SendItem items[] = {{LocalKey("s"), strings, false}, {LocalKey("d"), Tensor(), true}};
  ASSERT_TRUE(rendezvous->SendMany(absl::MakeSpan(items), args).ok());
  *static_cast<int64_t*>(number.mutable_data()) = 2;
  strings.mutable_strings()[0] = "changed";
  EXPECT_EQ(Receive(rendezvous.get(), LocalKey("n"))->number(), 1);
  const auto got = Receive(rendezvous.get(), LocalKey("s"));
  ASSERT_TRUE(got->ok()) << got->status;
  EXPECT_EQ(got->tensor.strings()[0], "a");
  EXPECT_TRUE(Receive(rendezvous.get(), LocalKey("d"))->is_dead);
}

TEST_F(LocalRendezvousTest, BytesChangedAfterSendAreFound) {
  LocalRendezvous::Options options;
  options.check_immutable = true;
  Open(options);
  Tensor tensor = Number(1);
  ASSERT_TRUE(rendezvous->Send(LocalKey("a"), SendArgs(), tensor, false).ok());
  *static_cast<int64_t*>(tensor.mutable_data()) = 2;
  const auto got = Receive(rendezvous.get(), LocalKey("a"));
  EXPECT_EQ(got->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(got->tensor.valid());
  Tensor strings = *Tensor::FromStrings({"a", "b"}, {2});
  SendItem items[] = {{LocalKey("s"), strings, false}, {LocalKey("t"), Number(1), false}};
  ASSERT_TRUE(rendezvous->SendMany(absl::MakeSpan(items), SendArgs()).ok());
  strings.mutable_strings()[1].push_back(0);
  absl::Status of_s, of_t;
  rendezvous->RecvManyAsync({LocalKey("s"), LocalKey("t")}, RecvArgs(),
                            [&](absl::Status, absl::Span<Received> results) {
                              of_s = results[0].status;
                              of_t = results[1].status;
                            });
  EXPECT_EQ(of_s.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(of_t.ok());
  // The change is found at the latest when the step drops the tensor.
  ASSERT_TRUE(rendezvous->Send(LocalKey("b"), SendArgs(), tensor, false).ok());
  *static_cast<int64_t*>(tensor.mutable_data()) = 3;
  rendezvous->StartAbort(absl::AbortedError("over"));
  EXPECT_EQ(rendezvous->counters().changed_after_send, 3);
}

TEST_F(LocalRendezvousTest, ListsWhoWaitsSinceWhen) {
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 1).ok());
  alarms.AdvanceBy(absl::Seconds(1));
  const auto waiting = Receive(rendezvous.get(), LocalKey("b"));
  WaitingItems all(2);
  rendezvous->ListWaiting(7, &all);
  EXPECT_EQ(all.left_out(), 0u);
  const std::vector<WaitingItem> items = all.Take();
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0].kind, WaitingItem::Kind::kSend);
  EXPECT_EQ(items[0].bytes, 8u);
  EXPECT_EQ(items[1].kind, WaitingItem::Kind::kReceive);
  EXPECT_EQ(items[1].since_ns - items[0].since_ns, 1'000'000'000);
  WaitingItems oldest(1);
  rendezvous->ListWaiting(7, &oldest);
  EXPECT_EQ(oldest.left_out(), 1u);
  EXPECT_EQ(oldest.Take()[0].kind, WaitingItem::Kind::kSend);
  rendezvous.reset();
}

TEST_F(LocalRendezvousTest, RecvWaitsOnThisThread) {
  ThreadAlarms real;
  LocalRendezvous here({}, &real);
  std::thread sender([&] { EXPECT_TRUE(SendNumber(&here, LocalKey("a"), 4).ok()); });
  absl::StatusOr<Received> got = here.Recv(LocalKey("a"), RecvArgs(), absl::InfiniteDuration());
  sender.join();
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(*got->tensor.data_as<int64_t>(), 4);
  EXPECT_EQ(here.Recv(LocalKey("a"), RecvArgs(), absl::Milliseconds(1)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  RecvArgs args;
  args.deadline = Deadline::After(real.clock(), absl::Milliseconds(1));
  EXPECT_EQ(here.Recv(LocalKey("a"), args, absl::InfiniteDuration()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(here.Recv(TensorKey(), RecvArgs(), absl::Seconds(1)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A caller that sends when it is told of room, and is refused, asks again: without an end where it
// is told too early.
TEST_F(LocalRendezvousTest, RoomForASmallTensorIsToldOfWhenItsSendFits) {
  LocalRendezvous::Options options;
  options.max_held_bytes = 2 * LocalRendezvous::kMinChargeBytes - 1;
  Open(options);
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 1).ok());
  ASSERT_EQ(SendNumber(rendezvous.get(), LocalKey("b"), 2).code(),
            absl::StatusCode::kResourceExhausted);
  int ready = 0;
  rendezvous->WhenRoom(8, [&](absl::Status status) {
    EXPECT_TRUE(status.ok());
    EXPECT_TRUE(SendNumber(rendezvous.get(), LocalKey("b"), 2).ok());
    ++ready;
  });
  EXPECT_EQ(ready, 0) << "8 bytes would fit, but not its place in the table";
  EXPECT_EQ(Receive(rendezvous.get(), LocalKey("a"))->number(), 1);
  EXPECT_EQ(ready, 1);
  EXPECT_EQ(Receive(rendezvous.get(), LocalKey("b"))->number(), 2);
}

// Room that a shard keeps for its next sends is room that other steps lack.
TEST_F(LocalRendezvousTest, AStepKeepsLittleRoomOfWhatItHadTaken) {
  auto process = std::make_shared<HeldBytes>(8 << 20);
  Open({}, process);
  for (int i = 0; i < 16; ++i) {
    const TensorKey key = LocalKey(absl::StrCat(i));
    const Tensor large = *Tensor::Allocate(DType::kUint8, {1 << 19});
    ASSERT_TRUE(rendezvous->Send(key, SendArgs(), large, false).ok());
    ASSERT_TRUE(Receive(rendezvous.get(), key)->ok());
  }
  EXPECT_LE(process->held(), 4 * (64 << 10)) << "one lot in each of four shards";
}

// A process may have any number of steps, one after the other, and each would leave a lot.
TEST_F(LocalRendezvousTest, AStepThatIsOverKeepsNoRoom) {
  auto process = std::make_shared<HeldBytes>(1 << 20);
  for (const bool received : {true, false}) {
    Open({}, process);
    ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 1).ok());
    if (received) {
      ASSERT_TRUE(Receive(rendezvous.get(), LocalKey("a"))->ok());
    }
    EXPECT_GT(process->held(), LocalRendezvous::kMinChargeBytes) << "more than it needs";
    rendezvous.reset();
    EXPECT_EQ(process->held(), 0) << received;
  }
}

// Whether the receive or the send is there first, and whatever the receive may end by.
TEST_F(LocalRendezvousTest, TheSendersAttributesReachEveryReceive) {
  Cancellation cancellation;
  RecvArgs plain, late, cancellable;
  late.deadline = Deadline::After(alarms, absl::Seconds(1));
  cancellable.cancellation = &cancellation;
  SendArgs send_args;
  send_args.alloc_attrs.scope_id = 5;
  for (const RecvArgs& args : {plain, late, cancellable}) {
    for (const bool send_first : {true, false}) {
      std::shared_ptr<Outcome> got;
      if (!send_first) got = Receive(rendezvous.get(), LocalKey("a"), args);
      ASSERT_TRUE(rendezvous->Send(LocalKey("a"), send_args, Number(1), false).ok());
      if (send_first) got = Receive(rendezvous.get(), LocalKey("a"), args);
      ASSERT_TRUE(got->ok()) << got->status;
      EXPECT_EQ(got->send_attrs.scope_id, 5);
    }
  }
}

TEST(FailReceiveTest, WhatFailsIsNotDeadWhereverItIsTold) {
  InlineExecutor inline_executor;
  for (Executor* const executor :
       {static_cast<Executor*>(nullptr), static_cast<Executor*>(&inline_executor)}) {
    auto outcome = std::make_shared<Outcome>();
    FailReceive(absl::AbortedError("over"), executor, Into(outcome));
    EXPECT_EQ(outcome->status, absl::AbortedError("over"));
    EXPECT_FALSE(outcome->is_dead);
    EXPECT_FALSE(outcome->tensor.valid());
  }
}

}  // namespace
}  // namespace tryst
