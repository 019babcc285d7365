// Which calls a GrpcChannel makes for receives that share them, when, and what it says in them.
// Time passes as the test says.
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "channel/compat/fetch_wire.h"
#include "channel/compat/grpc_channel.h"
#include "channel/trace/trace.h"
#include "gtest/gtest.h"
#include "rendezvous/cancellation.h"
#include "rendezvous/tensor_key.h"
#include "rendezvous/virtual_alarms.h"
#include "tests/contract/scripted_producer.h"

namespace tryst {
namespace {

const grpc::Status kNotNow(grpc::StatusCode::UNAVAILABLE, "not now");

// What outlives the channel. The poller reads the clock while it is made.
struct HasTime {
  HasTime() {
    TraceOptions all;
    all.sample_every = 1;
    trace = std::make_unique<Trace>(all);
  }
  VirtualAlarms time;
  std::unique_ptr<Trace> trace;
};

class GrpcBatchesTest : protected HasTime, public ScriptedProducerTest {
 protected:
  GrpcBatchesTest() : ScriptedProducerTest(&time) {}
  ~GrpcBatchesTest() override {
    OnPoller([this] { channel_->Close(absl::CancelledError("the test is over")); });
    const auto drained = [this] {
      bool is_drained = false;
      OnPoller([&] { is_drained = channel_->Drained(); });
      return is_drained;
    };
    EXPECT_TRUE(PassUntil(drained)) << "calls under way are given a tenth of a second";
  }

  // One receive has a call of its own, and waits; those after it go in batches.
  HeldCall* Begin(GrpcChannelOptions options = {}) {
    options.max_asked = 1;
    Open(options);
    Fetch("own", &NewEnd());
    return producer_.AwaitCall(0);
  }
  // All timers that are due have run when it returns.
  void Pass(absl::Duration time_that_passes) {
    OnPoller([&] { time.AdvanceBy(time_that_passes); });
    for (int turn = 0; turn < 2; ++turn) OnPoller([] {});
  }
  // Lets time pass in small steps until then. False: it never comes.
  template <typename Condition>
  bool PassUntil(Condition condition, absl::Duration step = absl::Milliseconds(100)) {
    for (int i = 0; i < 300; ++i) {
      if (condition()) return true;
      Pass(step);
      usleep(5'000);
    }
    return condition();
  }
  template <typename Condition>
  static bool Eventually(Condition condition) {
    for (int i = 0; i < 2000; ++i) {
      if (condition()) return true;
      usleep(5'000);
    }
    return false;
  }
  // Makes so many receives in step 2, the serials from 2 on, whose ends it counts. Returns the
  // batch that waits for all of them; null: it does not come.
  HeldCall* AskForMany(int receives, std::atomic<int>* ended) {
    OnPoller([&] {
      const std::string ps = absl::StrCat(kHostWorker, "/device:CPU:0");
      const std::string worker = absl::StrCat(kHostConsumer, "/device:CPU:0");
      for (int i = 0; i < receives; ++i) {
        const TensorKey key =
            TensorKeyPrefix::Make(ps, kScriptedIncarnation, worker, absl::StrCat(i))->At(0, 0);
        channel_->Fetch(2, key, RecvArgs(), [ended](Received&&) { ++*ended; });
      }
    });
    HeldCall* batch = nullptr;
    int asked = 0;
    for (size_t number = 1; asked < receives; ++number) {
      if (batch != nullptr) batch->Answer(ScriptedHeader());
      batch = producer_.AwaitCall(number);
      if (batch == nullptr) return nullptr;
      asked += batch->request().asks_size();
    }
    return batch;
  }
  // An answer with tensors for the first so many of them.
  static rpc::FetchHeader Parcels(uint64_t count) {
    const OutgoingTensor tensor = *OutgoingTensor::Make(OneFloat(2), true);
    rpc::FetchHeader of_parcel = ScriptedHeader();
    *of_parcel.mutable_tensor() = tensor.metadata();
    const std::string response = tensor.Parcel(of_parcel, false);
    rpc::FetchHeader header = ScriptedHeader();
    header.set_number(1);
    for (uint64_t serial = 2; serial < 2 + count; ++serial) {
      rpc::FetchParcel* const parcel = header.add_parcels();
      parcel->set_serial(serial);
      parcel->set_response(response);
    }
    return header;
  }
  // What has been answered before has come when it returns, most likely.
  void FetchNow(const std::string& edge) {
    const size_t number = producer_.calls();
    End& end = NewEnd();
    Fetch(edge, &end);
    HeldCall* const call = producer_.AwaitCall(number);
    ASSERT_NE(call, nullptr);
    call->AnswerTensor(OneFloat(1));
    ASSERT_TRUE(end.Await().ok());
  }
};

// Whoever comes within a second finds the call that its predecessor has left.
TEST_F(GrpcBatchesTest, ACallWithoutReceivesStaysForASecond) {
  ASSERT_NE(Begin(), nullptr);
  Cancellation first, last;
  RecvArgs args;
  args.cancellation = &first;
  End& given_up = NewEnd();
  Fetch("b", &given_up, args);
  ASSERT_NE(producer_.AwaitCall(1), nullptr);
  first.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(given_up.Await()));
  Pass(absl::Milliseconds(500));
  End& comes = NewEnd();
  Fetch("c", &comes);
  HeldCall* const batch = producer_.AwaitCall(2);
  ASSERT_NE(batch, nullptr);
  Pass(absl::Milliseconds(600));
  rpc::FetchHeader ready = ScriptedHeader();
  ready.set_number(1);
  ready.add_ready(batch->request().asks(0).serial());
  batch->Answer(ready);
  HeldCall* const fetched = producer_.AwaitCall(3);
  ASSERT_NE(fetched, nullptr) << "the batch was cancelled";
  fetched->AnswerTensor(OneFloat(3));
  EXPECT_TRUE(comes.Await().ok());
  EXPECT_EQ(producer_.cancels(), 0u);

  args.cancellation = &last;
  End& also_given_up = NewEnd();
  Fetch("d", &also_given_up, args);
  ASSERT_NE(producer_.AwaitCall(4), nullptr);
  last.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(also_given_up.Await()));
  Pass(absl::Milliseconds(1100));
  EXPECT_TRUE(Eventually([&] { return producer_.cancels() == 2; })) << "its own call, and b's";
}

TEST_F(GrpcBatchesTest, AWordThatTheProducerIsThereBringsNoAskAgain) {
  ASSERT_NE(Begin(), nullptr);
  Fetch("b", &NewEnd());
  ASSERT_NE(producer_.AwaitCall(1), nullptr);
  // A second question shows that the answer to the first has come.
  ASSERT_TRUE(PassUntil([&] { return producer_.questions() == 2; }));
  EXPECT_EQ(producer_.calls(), 2u);
}

TEST_F(GrpcBatchesTest, ABatchNamesTheLifeOfTheProducerThatIsKnown) {
  HeldCall* const first = Begin();
  ASSERT_NE(first, nullptr);
  Fetch("b", &NewEnd());
  HeldCall* const before = producer_.AwaitCall(1);
  ASSERT_NE(before, nullptr);
  EXPECT_EQ(before->request().producer_incarnation(), 0u);
  first->AnswerTensor(OneFloat(1));
  EXPECT_TRUE(ends_.front().Await().ok());
  Fetch("another", &NewEnd());
  ASSERT_NE(producer_.AwaitCall(2), nullptr);
  Fetch("c", &NewEnd());
  HeldCall* const after = producer_.AwaitCall(3);
  ASSERT_NE(after, nullptr);
  EXPECT_TRUE(after->request().waits());
  EXPECT_EQ(after->request().producer_incarnation(), kScriptedIncarnation);
}

TEST_F(GrpcBatchesTest, WhatComesInAnAnswerHasWaitedForItsSend) {
  GrpcChannelOptions options;
  options.trace = trace.get();
  ASSERT_NE(Begin(options), nullptr);
  End& end = NewEnd();
  Fetch("b", &end);
  HeldCall* const batch = producer_.AwaitCall(1);
  ASSERT_NE(batch, nullptr);
  const OutgoingTensor tensor = *OutgoingTensor::Make(OneFloat(2), false);
  rpc::FetchHeader of_parcel = ScriptedHeader();
  *of_parcel.mutable_tensor() = tensor.metadata();
  rpc::FetchHeader header = ScriptedHeader();
  header.set_number(1);
  header.add_ready(batch->request().asks(0).serial());
  rpc::FetchParcel* const parcel = header.add_parcels();
  parcel->set_serial(header.ready(0));
  parcel->set_response(tensor.Parcel(of_parcel, false));
  batch->Answer(header);
  ASSERT_TRUE(end.Await().ok());
  EXPECT_EQ(end.tensor().data_as<float>()[0], 2);
  const std::vector<TraceRecord> records = trace->Records();
  ASSERT_EQ(records.size(), 1u);
  ASSERT_GE(records[0].span.count(), 1u);
  EXPECT_EQ(records[0].span.stamp(0).what, WaitsFor::kPeerSend);
}

// A later batch was told of it. Its own batch then breaks.
TEST_F(GrpcBatchesTest, WhatIsOnItsWayIsNotAskedForAgain) {
  ASSERT_NE(Begin(), nullptr);
  End& told = NewEnd();
  Fetch("b", &told);
  HeldCall* const breaks = producer_.AwaitCall(1);
  Fetch("c", &NewEnd());
  HeldCall* const later = producer_.AwaitCall(2);
  ASSERT_TRUE(breaks != nullptr && later != nullptr);
  rpc::FetchHeader ready = ScriptedHeader();
  ready.set_number(1);
  ready.add_ready(breaks->request().asks(0).serial());
  later->Answer(ready);
  HeldCall* const fetches = producer_.AwaitCall(3);
  ASSERT_NE(fetches, nullptr);
  EXPECT_EQ(fetches->request().serial(), ready.ready(0));
  breaks->Answer(kNotNow);
  ASSERT_TRUE(PassUntil([&] { return producer_.calls() == 5; }));
  EXPECT_TRUE(producer_.RequestOf(4).waits());
  EXPECT_EQ(producer_.RequestOf(4).asks_size(), 0);
  fetches->AnswerTensor(OneFloat(1));
  EXPECT_TRUE(told.Await().ok());
}

TEST_F(GrpcBatchesTest, ABatchThatBreaksWithoutAReceiveKeepsNobodyFromAsking) {
  HeldCall* const own = Begin();
  ASSERT_NE(own, nullptr);
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  End& given_up = NewEnd();
  Fetch("b", &given_up, args);
  HeldCall* const batch = producer_.AwaitCall(1);
  ASSERT_NE(batch, nullptr);
  cancellation.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(given_up.Await()));
  batch->Answer(kNotNow);
  own->AnswerTensor(OneFloat(1));
  EXPECT_TRUE(ends_.front().Await().ok());
  usleep(50'000);  // The end of the batch has come by now, most likely.
  for (const char* edge : {"c", "d"}) Fetch(edge, &NewEnd());
  const auto in_batch = [this] {
    for (size_t number = 2; number < producer_.calls(); ++number) {
      if (producer_.RequestOf(number).waits()) return true;
    }
    return false;
  };
  EXPECT_TRUE(Eventually(in_batch)) << "it pauses, although no time passes";
}

// The key names the life that the producer has now, so the one that was asked before refused it.
TEST_F(GrpcBatchesTest, AnotherLifeIsAskedForWhatTheLastOneWasAskedFor) {
  ASSERT_NE(Begin(), nullptr);
  Fetch("b", &NewEnd());
  HeldCall* const batch = producer_.AwaitCall(1);
  ASSERT_NE(batch, nullptr);
  rpc::FetchHeader former = ScriptedHeader();
  former.set_producer_incarnation(kScriptedIncarnation - 1);
  batch->Answer(former);
  HeldCall* const waits = producer_.AwaitCall(2);
  ASSERT_NE(waits, nullptr);
  EXPECT_EQ(waits->request().asks_size(), 0);
  EXPECT_EQ(waits->request().producer_incarnation(), kScriptedIncarnation - 1);
  rpc::FetchHeader other = ScriptedHeader();
  other.set_is_other_incarnation(true);
  other.set_code(static_cast<int>(absl::StatusCode::kAborted));
  waits->Answer(other);
  HeldCall* const again = producer_.AwaitCall(3);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->request().asks_size(), 1);
  EXPECT_EQ(again->request().producer_incarnation(), kScriptedIncarnation);
}

// Only what waits in batches ends: the peer may still bring what it was asked for in another call.
TEST_F(GrpcBatchesTest, AFailingBatchEndsWithThePatience) {
  GrpcChannelOptions options;
  options.patience = absl::Seconds(8);
  options.longest_retry = absl::Milliseconds(100);  // So that it is not the silence that ends it.
  HeldCall* const own = Begin(options);
  ASSERT_NE(own, nullptr);
  End& in_batch = NewEnd();
  Fetch("b", &in_batch);
  HeldCall* const batch = producer_.AwaitCall(1);
  ASSERT_NE(batch, nullptr);
  producer_.RefuseAll(kNotNow);
  batch->Answer(kNotNow);
  const auto ended = [&] {
    usleep(15'000);  // What gRPC does takes time that is not ours, where the processors are busy.
    return in_batch.ended();
  };
  ASSERT_TRUE(PassUntil(ended, absl::Milliseconds(50)));
  const absl::Status status = in_batch.Await();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  producer_.RefuseAll(grpc::Status::OK);
  own->AnswerTensor(OneFloat(1));
  const absl::Status of_own = ends_.front().Await();
  EXPECT_TRUE(of_own.ok()) << of_own;
}

TEST_F(GrpcBatchesTest, ABatchThatHasFailedAsksForLittle) {
  constexpr int kReceives = 100;
  ASSERT_NE(Begin(), nullptr);
  OnPoller([&] {
    for (int i = 0; i < kReceives; ++i) FetchHere(absl::StrCat("edge", i), &NewEnd());
  });
  HeldCall* const all = producer_.AwaitCall(1);
  ASSERT_NE(all, nullptr);
  ASSERT_EQ(all->request().asks_size(), kReceives);
  all->Answer(kNotNow);
  ASSERT_TRUE(PassUntil([&] { return producer_.calls() > 2; }));
  HeldCall* const few = producer_.AwaitCall(2);
  const int asks = few->request().asks_size();
  EXPECT_LT(asks, kReceives / 2);
  Pass(absl::Seconds(1));
  EXPECT_EQ(producer_.calls(), 3u) << "one at a time";
  few->Answer(ScriptedHeader());
  HeldCall* const rest = producer_.AwaitCall(3);
  ASSERT_NE(rest, nullptr);
  EXPECT_EQ(asks + rest->request().asks_size(), kReceives);
}

// ---- What has ended ----

// The producer has taken a tensor for the first. It must have it back before the third is asked
// for, although it has heard of neither end, and never of the second.
TEST_F(GrpcBatchesTest, ABatchNamesAllThatItsKeyLeftBehind) {
  using Serials = std::vector<uint64_t>;
  ASSERT_NE(Begin(), nullptr);
  producer_.LoseNotes();
  for (const Serials& left : {Serials(), Serials{2}, Serials{2, 3}}) {
    Cancellation cancellation;
    RecvArgs args;
    args.cancellation = &cancellation;
    End& given_up = NewEnd();
    Fetch("b", &given_up, args);
    HeldCall* const batch = producer_.AwaitCall(left.size() + 1);
    ASSERT_NE(batch, nullptr);
    ASSERT_EQ(batch->request().asks_size(), 1);
    const auto& unwanted = batch->request().unwanted();
    EXPECT_EQ(Serials(unwanted.begin(), unwanted.end()), left);
    cancellation.StartCancel();
    EXPECT_TRUE(absl::IsCancelled(given_up.Await()));
  }
}

// The peer has no address for a moment.
TEST_F(GrpcBatchesTest, ANoteThatCannotLeaveFollowsLater) {
  ASSERT_NE(Begin(), nullptr);
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  End& given_up = NewEnd();
  Fetch("b", &given_up, args);
  ASSERT_NE(producer_.AwaitCall(1), nullptr);
  producer_.HaveAddress(false);
  cancellation.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(given_up.Await()));
  Pass(absl::Milliseconds(1));
  producer_.HaveAddress(true);
  EXPECT_EQ(producer_.notes().size(), 0u);
  Pass(absl::Milliseconds(1100));
  ASSERT_TRUE(Eventually([&] { return producer_.notes().size() == 1; }));
  EXPECT_EQ(producer_.notes()[0].unwanted_size(), 1);
}

TEST_F(GrpcBatchesTest, ARequestDoesNotSayAgainWhatWasHeard) {
  Open();
  Fetch("waits", &NewEnd());  // It is the oldest, so what ends behind it is named.
  ASSERT_NE(producer_.AwaitCall(0), nullptr);
  using Serials = std::vector<uint64_t>;
  for (uint64_t serial = 2; serial <= 4; ++serial) {
    FetchNow(absl::StrCat("k", serial));
    const auto over = producer_.RequestOf(serial - 1).over();
    EXPECT_EQ(Serials(over.begin(), over.end()), serial == 2 ? Serials() : Serials{serial - 1});
  }
}

TEST_F(GrpcBatchesTest, NoNoteFollowsWithoutAnEnd) {
  Open();
  for (size_t number = 1; number <= 2; ++number) {
    FetchNow(absl::StrCat("k", number));
    Pass(absl::Milliseconds(3));
    EXPECT_TRUE(Eventually([&] { return producer_.notes().size() >= number; }));
  }
  for (int i = 0; i < 3; ++i) FetchNow(absl::StrCat("now", i));
  usleep(50'000);  // For notes that follow each other.
  EXPECT_LE(producer_.notes().size(), 5u) << "what ends beside a note that is out has its own";
}

TEST_F(GrpcBatchesTest, WhatOneNoteHasNoRoomForFollowsAtOnce) {
  constexpr int kMostInNote = 65536;
  constexpr int kReceives = kMostInNote + 1000;
  std::atomic<int> ended{0};
  ASSERT_NE(Begin(), nullptr);
  ASSERT_NE(AskForMany(kReceives, &ended), nullptr);
  OnPoller([&] { channel_->AbortStep(2, absl::AbortedError("the step is over")); });
  EXPECT_EQ(ended, kReceives);
  ASSERT_TRUE(Eventually([&] { return producer_.notes().size() == 2; })) << "no time passes";
  const std::vector<rpc::FetchRequest> notes = producer_.notes();
  EXPECT_EQ(notes[0].unwanted_size(), kMostInNote);
  EXPECT_EQ(notes[1].unwanted_size(), kReceives - kMostInNote);
}

// A server gives back to the system what the burst has left.
TEST_F(GrpcBatchesTest, TheEndOfABurstIsNotedOnceItsTablesAreEmpty) {
  constexpr int kReceives = Poller::kLargeBurst + 1000;
  std::atomic<int> ended{0};
  ASSERT_NE(Begin(), nullptr);
  ASSERT_NE(AskForMany(kReceives, &ended), nullptr);
  OnPoller([&] { channel_->AbortStep(2, absl::AbortedError("the step is over")); });
  EXPECT_EQ(ended, kReceives);
  ASSERT_TRUE(Eventually([&] { return producer_.notes().size() == 1; }));
  EXPECT_EQ(poller_.bursts_over(), 0u) << "one waits still";
  OnPoller([&] { channel_->AbortStep(1, absl::AbortedError("so is this one")); });
  ASSERT_TRUE(Eventually([&] {
    Pass(absl::Seconds(1));  // Notes follow each other with pauses.
    return producer_.notes().size() >= 2;
  }));
  EXPECT_EQ(poller_.bursts_over(), 1u);
}

// An older fetch waits, so nobody else tells the producer that these have landed.
TEST_F(GrpcBatchesTest, AllThatOneAnswerBringsIsToldAtOnce) {
  constexpr int kReceives = 40'000;
  std::atomic<int> ended{0};
  ASSERT_NE(Begin(), nullptr);
  HeldCall* const batch = AskForMany(kReceives, &ended);
  ASSERT_NE(batch, nullptr);
  batch->Answer(Parcels(kReceives));
  ASSERT_TRUE(Eventually([&] { return ended == kReceives; }));
  ASSERT_TRUE(Eventually([&] { return producer_.notes().size() == 1; })) << "no time passes";
  const rpc::FetchRequest note = producer_.notes()[0];
  EXPECT_EQ(note.over_size(), kReceives);
  EXPECT_EQ(note.unwanted_size(), 0);
  EXPECT_EQ(note.oldest_serial(), 1u);
}

TEST_F(GrpcBatchesTest, WhatWasDeliveredFollowsANoteThatHasNoRoomForIt) {
  constexpr int kMostInNote = 65536;
  constexpr int kDelivered = 10;
  std::atomic<int> ended{0};
  ASSERT_NE(Begin(), nullptr);
  HeldCall* const batch = AskForMany(kMostInNote + kDelivered, &ended);
  ASSERT_NE(batch, nullptr);
  batch->Answer(Parcels(kDelivered));
  ASSERT_TRUE(Eventually([&] { return ended == kDelivered; }));
  OnPoller([&] { channel_->AbortStep(2, absl::AbortedError("the step is over")); });
  ASSERT_TRUE(Eventually([&] { return producer_.notes().size() == 2; })) << "no time passes";
  const std::vector<rpc::FetchRequest> notes = producer_.notes();
  EXPECT_EQ(notes[0].unwanted_size(), kMostInNote);
  EXPECT_EQ(notes[0].over_size(), kMostInNote);
  EXPECT_EQ(notes[1].unwanted_size(), 0);
  EXPECT_EQ(notes[1].over_size(), kDelivered);
}

}  // namespace
}  // namespace tryst
