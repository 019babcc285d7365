// What a GrpcChannel promises when the producer breaks off, sends wrong bytes, or never answers.
#include <grpcpp/alarm.h>
#include <grpcpp/create_channel.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "channel/compat/fetch_wire.h"
#include "channel/compat/grpc_channel.h"
#include "channel/grpc/byte_buffers.h"
#include "channel/grpc/event_thread.h"
#include "channel/trace/live_ops.h"
#include "gtest/gtest.h"
#include "rendezvous/cancellation.h"
#include "tests/contract/scripted_producer.h"
#include "tests/doubles/server/cut_proxy.h"

namespace tryst {
namespace {

class HostileGrpcProducerTest : public ScriptedProducerTest {
 protected:
  static grpc::ByteBuffer WrongDigest(const HeldCall& call) {
    const OutgoingTensor out = *OutgoingTensor::Make(OneFloat(1), false);
    rpc::FetchHeader header = ScriptedHeader();
    *header.mutable_tensor() = out.metadata();
    std::string bytes = BytesOf(out.Message(&header, 0, out.bytes(), call.request().digests()));
    bytes.back() ^= 1;  // The payload comes last.
    return BufferOf(bytes);
  }
};

TEST_F(HostileGrpcProducerTest, AWrongDigestIsAskedForOnceMoreAndThenTold) {
  GrpcChannelOptions options;
  options.digests = true;
  Open(options);
  End& end = NewEnd();
  Fetch("k", &end);
  for (size_t number = 0; number < 2; ++number) {
    HeldCall* const call = producer_.AwaitCall(number);
    ASSERT_NE(call, nullptr);
    const grpc::ByteBuffer wrong = WrongDigest(*call);
    call->Answer(grpc::Status::OK, &wrong);
  }
  const absl::Status status = end.Await();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(producer_.calls(), 2u);
}

TEST_F(HostileGrpcProducerTest, AWrongDigestFollowedByARightOneIsNotTold) {
  GrpcChannelOptions options;
  options.digests = true;
  Open(options);
  End& end = NewEnd();
  Fetch("k", &end);
  HeldCall* const first = producer_.AwaitCall(0);
  ASSERT_NE(first, nullptr);
  const grpc::ByteBuffer wrong = WrongDigest(*first);
  first->Answer(grpc::Status::OK, &wrong);
  HeldCall* const second = producer_.AwaitCall(1);
  ASSERT_NE(second, nullptr);
  second->AnswerTensor(OneFloat(1));
  ASSERT_TRUE(end.Await().ok());
  EXPECT_EQ(end.tensor().data_as<float>()[0], 1);
}

// The producer would give the same answer if it were asked again.
TEST_F(HostileGrpcProducerTest, WhatABatchIsRefusedIsToldAtOnce) {
  GrpcChannelOptions options;
  options.max_asked = 1;  // Further ones go in batches.
  Open(options);
  End& first = NewEnd();
  Fetch("a", &first);
  HeldCall* const call = producer_.AwaitCall(0);
  ASSERT_NE(call, nullptr);
  End& second = NewEnd();
  Fetch("b", &second);
  HeldCall* const batch = producer_.AwaitCall(1);
  ASSERT_NE(batch, nullptr);
  EXPECT_TRUE(batch->request().waits());
  LiveOps ops(8);
  OnPoller([&] { channel_->ListOps(&ops); });
  EXPECT_EQ(ops.Take().size(), 2u) << "each is listed, in a call of its own or not";
  batch->Answer(grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "not you"));
  const absl::Status status = second.Await();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  call->AnswerTensor(OneFloat(1));
  EXPECT_TRUE(first.Await().ok());
}

// The call of the first receive brought all its bytes, and they were no tensor. The second receive
// takes over the request, and must not wait for that call.
TEST_F(HostileGrpcProducerTest, TheNextReceiveOfAKeyBeginsAnewAfterBrokenStrings) {
  Open();
  End& first_end = NewEnd();
  End& second_end = NewEnd();
  Fetch("k", &first_end);
  Fetch("k", &second_end);
  HeldCall* const first = producer_.AwaitCall(0);
  ASSERT_NE(first, nullptr);
  rpc::FetchResponse broken;
  *broken.mutable_header() = ScriptedHeader();
  rpc::TensorMetadata* const metadata = broken.mutable_header()->mutable_tensor();
  Tensor strings = *Tensor::Allocate(DType::kString, {2});
  strings.mutable_strings()[1] = "two";
  const OutgoingTensor out = *OutgoingTensor::Make(strings, false);
  *metadata = out.metadata();
  broken.set_chunk(std::string(out.bytes(), '\xff'));  // Lengths beyond every bound.
  const grpc::ByteBuffer message = BufferOf(broken.SerializeAsString());
  first->Answer(grpc::Status::OK, &message);
  const absl::Status status = first_end.Await();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  HeldCall* const second = producer_.AwaitCall(1);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->request().offset(), 0u);
  second->AnswerTensor(strings);
  const absl::Status whole = second_end.Await();
  ASSERT_TRUE(whole.ok()) << whole;
  EXPECT_EQ(second_end.tensor().strings()[1], "two");
}

TEST_F(HostileGrpcProducerTest, AReceiveEndsWithItsPatienceThoughItHasNoDeadline) {
  GrpcChannelOptions options;
  options.patience = absl::Milliseconds(200);
  Open(options);
  producer_.RefuseAll(grpc::Status(grpc::StatusCode::UNAVAILABLE, "not now"));
  End& end = NewEnd();
  Fetch("k", &end);
  const absl::Status status = end.Await();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_GE(producer_.calls(), 2u);
}

// What it takes over has failed before, and a part of it lies in memory that it cannot use.
TEST_F(HostileGrpcProducerTest, WhoTakesOverAReceiveHasAPatienceOfItsOwn) {
  using std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPatience(600);
  constexpr int64_t kBytes = 1 << 20;
  GrpcChannelOptions options;
  options.patience = absl::FromChrono(kPatience);
  Open(options);
  Cancellation cancellation;
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
  args.cancellation = &cancellation;
  End& first = NewEnd();
  Fetch("k", &first, args);
  args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
  args.cancellation = nullptr;
  End& next = NewEnd();
  Fetch("k", &next, args);
  HeldCall* const fails = producer_.AwaitCall(0);
  ASSERT_NE(fails, nullptr);
  const auto failed = steady_clock::now();
  fails->Answer(grpc::Status(grpc::StatusCode::UNAVAILABLE, "not now"));
  HeldCall* const begins = producer_.AwaitCall(1);
  ASSERT_NE(begins, nullptr);
  begins->BeginTensor(kBytes);
  uint64_t came = 0;
  while (came == 0 || steady_clock::now() < failed + kPatience * 2 / 3) {
    OnPoller([&] {
      LiveOps ops(8);
      channel_->ListOps(&ops);
      came = 0;
      for (const LiveOp& op : ops.Take()) came += op.bytes;
    });
    usleep(1000);
  }
  producer_.RefuseAll(grpc::Status(grpc::StatusCode::UNAVAILABLE, "not now"));
  const auto cancelled = steady_clock::now();
  cancellation.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(first.Await()));
  const absl::Status status = next.Await();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_GE(steady_clock::now() - cancelled, kPatience);
}

// The first of a key pauses before it asks again, and is given up.
TEST_F(HostileGrpcProducerTest, WhoTakesOverAReceiveThatPausesAsksAgain) {
  Open();
  producer_.RefuseAll(grpc::Status(grpc::StatusCode::UNAVAILABLE, "not now"));
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  End &first = NewEnd(), &second = NewEnd();
  Fetch("k", &first, args);
  Fetch("k", &second);
  const auto pauses = [&] {
    LiveOps listed(10);
    OnPoller([&] { channel_->ListOps(&listed); });
    const std::vector<LiveOp> ops = listed.Take();
    return std::any_of(ops.begin(), ops.end(),
                       [](const LiveOp& op) { return absl::StrContains(op.detail, "not now"); });
  };
  for (int i = 0; i < 2000 && !pauses(); ++i) usleep(5'000);
  ASSERT_TRUE(pauses()) << "it is seen why";
  cancellation.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(first.Await()));
  HeldCall* const call = producer_.AwaitCall(producer_.RefuseAll(grpc::Status::OK));
  ASSERT_NE(call, nullptr);
  call->AnswerTensor(OneFloat(5));
  const absl::Status status = second.Await();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(HostileGrpcProducerTest, ATensorThatBeginsAndStopsEndsWithThePatience) {
  GrpcChannelOptions options;
  options.patience = absl::Milliseconds(800);
  options.max_tensor_bytes = uint64_t{2} << 30;
  Open(options);
  End& begun = NewEnd();
  End& behind = NewEnd();
  End& not_sent = NewEnd();
  Fetch("k", &begun);
  Fetch("k", &behind);
  Fetch("other", &not_sent);
  HeldCall* const call = producer_.AwaitCall(0);
  HeldCall* const other = producer_.AwaitCall(1);
  ASSERT_TRUE(call != nullptr && other != nullptr);
  HeldCall* const begins = call->request().key() < other->request().key() ? call : other;
  HeldCall* const waits = begins == call ? other : call;
  begins->BeginTensor(uint64_t{1} << 30);
  for (End* end : {&begun, &behind}) {
    const absl::Status status = end->Await();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  }
  // The other was not sent yet, which is no stall.
  waits->AnswerTensor(OneFloat(7));
  EXPECT_TRUE(not_sent.Await().ok());
}

// It answers all others, more often than it is looked at.
TEST_F(HostileGrpcProducerTest, OneThatStopsIsSeenBesideManyThatCome) {
  GrpcChannelOptions options;
  options.patience = absl::Milliseconds(800);
  options.max_tensor_bytes = uint64_t{2} << 30;
  Open(options);
  End& begun = NewEnd();
  Fetch("k", &begun);
  HeldCall* const begins = producer_.AwaitCall(0);
  ASSERT_NE(begins, nullptr);
  begins->BeginTensor(uint64_t{1} << 30);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (size_t i = 1; !begun.ended() && std::chrono::steady_clock::now() < until; ++i) {
    End& end = NewEnd();
    Fetch(absl::StrCat("other", i), &end);
    HeldCall* const call = producer_.AwaitCall(i);
    ASSERT_NE(call, nullptr);
    call->AnswerTensor(OneFloat(7));
    ASSERT_TRUE(end.Await().ok());
    usleep(1000);
  }
  ASSERT_TRUE(begun.ended());
  EXPECT_TRUE(absl::IsUnavailable(begun.Await()));
}

// ---- What a producer owes: a word, when it is asked for one ----

class OwingGrpcProducerTest : public HostileGrpcProducerTest {
 protected:
  static constexpr int64_t kPatienceMs = 800;

  // One receive in a call of its own, one behind it, and one that is in a batch if `most` is 1.
  void Ask(size_t most = 1) {
    GrpcChannelOptions options;
    options.patience = absl::Milliseconds(kPatienceMs);
    options.max_asked = most;
    Open(options);
    began_ns_ = clock_.NowNs();
    for (const char* edge : {"a", "a", "b"}) Fetch(edge, &NewEnd());
  }
  void ExpectAllEnd() {
    for (End& end : ends_) {
      const absl::Status status = end.Await();
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    }
    EXPECT_GE(PassedMs(), kPatienceMs);
    EXPECT_LE(PassedMs(), 10 * kPatienceMs) << "the machine is busy";
  }
  int64_t PassedMs() const { return (clock_.NowNs() - began_ns_) / 1'000'000; }

  int64_t began_ns_ = 0;
};

// It takes connections, and says nothing over them.
TEST_F(OwingGrpcProducerTest, WhoAcceptsAndIsSilentEndsWhatWaits) {
  const int door = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  ASSERT_EQ(bind(door, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(listen(door, 16), 0);
  ASSERT_EQ(getsockname(door, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  producer_.MoveTo(grpc::CreateChannel(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)),
                                       grpc::InsecureChannelCredentials()));
  Ask();
  ExpectAllEnd();
  EXPECT_EQ(producer_.calls(), 0u);
  close(door);
}

TEST_F(OwingGrpcProducerTest, WhoTakesTheAsksAndIsSilentAboutThemEndsWhatWaits) {
  producer_.BeSilent();
  Ask();
  ExpectAllEnd();
  EXPECT_GE(producer_.questions(), 1u);
}

// It opens a stream, claims a gibibyte there and sends nothing more, anywhere.
TEST_F(OwingGrpcProducerTest, WhoBeginsALargeTensorAndIsSilentEndsWhatWaits) {
  producer_.BeSilent();
  Ask();
  HeldCall* const call = producer_.AwaitCall(0);
  ASSERT_NE(call, nullptr);
  call->BeginTensor(uint64_t{1} << 30);
  ExpectAllEnd();
}

// An honest producer answers, and its program has not called Send yet.
TEST_F(OwingGrpcProducerTest, WhoAnswersMayTakeLongForItsSends) {
  Ask(8);
  HeldCall* const first = producer_.AwaitCall(0);
  HeldCall* const second = producer_.AwaitCall(1);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  while (PassedMs() < 3 * kPatienceMs) usleep(10'000);
  EXPECT_GE(producer_.questions(), 3u);
  EXPECT_LE(producer_.questions(), 25u);
  EXPECT_EQ(producer_.calls(), 2u) << "nothing was asked for again";
  first->AnswerTensor(OneFloat(1));
  second->AnswerTensor(OneFloat(2));
  HeldCall* const behind = producer_.AwaitCall(2);
  ASSERT_NE(behind, nullptr);
  behind->AnswerTensor(OneFloat(3));
  for (End& end : ends_) EXPECT_TRUE(end.Await().ok());
}

// The wire is cut while nobody has anything to say. The peer's silence before that is none, and
// neither is that before gRPC's keepalive noticed.
TEST_F(OwingGrpcProducerTest, WhoIsCutOffIsGivenThePatienceFromThenOn) {
  constexpr int64_t kMs = 2000;
  CutProxy wire(producer_.port());
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 1200);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 200);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 300);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  producer_.MoveTo(
      grpc::CreateCustomChannel(wire.address(), grpc::InsecureChannelCredentials(), args));
  GrpcChannelOptions options;
  options.patience = absl::Milliseconds(kMs);
  options.answer_within = absl::Milliseconds(200);
  Open(options);
  Fetch("k", &NewEnd());
  ASSERT_NE(producer_.AwaitCall(0), nullptr);
  while (producer_.questions() == 0) usleep(10'000);
  usleep(kMs * 1000 * 2 / 5);
  wire.Swallow();
  began_ns_ = clock_.NowNs();
  const absl::Status status = ends_.front().Await();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_GE(PassedMs(), kMs * 9 / 10) << status;
  EXPECT_LE(PassedMs(), 4 * kMs) << "the machine is busy";
}

// What reads the peer's answers is busy for longer than the patience, and so is not the peer.
TEST_F(OwingGrpcProducerTest, WhoseAnswersWeDidNotReadIsNotBlamed) {
  struct Long final : GrpcEvent {
    void OnEvent(bool) override {
      usleep(kPatienceMs * 1500);
      over.set_value();
    }
    std::promise<void> over;
  } event;
  Ask(8);
  HeldCall* const first = producer_.AwaitCall(0);
  HeldCall* const second = producer_.AwaitCall(1);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  grpc::Alarm alarm;
  alarm.Set(events_.queue(), std::chrono::system_clock::now(), &event);
  event.over.get_future().wait();
  usleep(kPatienceMs * 1000);
  first->AnswerTensor(OneFloat(1));
  second->AnswerTensor(OneFloat(2));
  HeldCall* const behind = producer_.AwaitCall(2);
  ASSERT_NE(behind, nullptr);
  behind->AnswerTensor(OneFloat(3));
  for (End& end : ends_) {
    const absl::Status status = end.Await();
    EXPECT_TRUE(status.ok()) << status;
  }
}

// A batch gives up in the very turn in which another call is answered. So the peer lives, and the
// receives of the batch are asked for again.
TEST_F(HostileGrpcProducerTest, ABatchIsSentAgainWhenItsPatienceEndsBesideAnAnswer) {
  GrpcChannelOptions options;
  options.patience = absl::ZeroDuration();
  options.max_asked = 2;
  Open(options);
  End& a = NewEnd();
  End& b = NewEnd();
  End& in_batch = NewEnd();
  Fetch("a", &a);
  HeldCall* const call_a = producer_.AwaitCall(0);
  Fetch("b", &b);
  HeldCall* const call_b = producer_.AwaitCall(1);
  Fetch("c", &in_batch);
  HeldCall* const first = producer_.AwaitCall(2);
  ASSERT_TRUE(call_a != nullptr && call_b != nullptr && first != nullptr);
  const grpc::Status not_now(grpc::StatusCode::UNAVAILABLE, "not now");
  first->Answer(not_now);  // From here on its patience counts.
  HeldCall* const batch = producer_.AwaitCall(3);
  ASSERT_NE(batch, nullptr);
  ASSERT_TRUE(batch->request().waits());
  std::promise<void> holds, go;  // Both ends must be in the poller's queue before it looks.
  poller_.PostFn([&] {
    holds.set_value();
    go.get_future().wait();
  });
  holds.get_future().wait();
  batch->Answer(not_now);
  usleep(100'000);
  call_b->AnswerTensor(OneFloat(2));
  usleep(100'000);
  go.set_value();
  EXPECT_TRUE(b.Await().ok());
  HeldCall* const again = producer_.AwaitCall(4);
  ASSERT_NE(again, nullptr) << "nobody asks for c";
  ASSERT_TRUE(again->request().waits());
  ASSERT_EQ(again->request().asks_size(), 1);
  rpc::FetchHeader ready = ScriptedHeader();
  ready.set_number(1);
  ready.add_ready(again->request().asks(0).serial());
  again->Answer(ready);
  HeldCall* const call_c = producer_.AwaitCall(5);
  ASSERT_NE(call_c, nullptr);
  call_c->AnswerTensor(OneFloat(3));
  EXPECT_TRUE(in_batch.Await().ok());
  call_a->AnswerTensor(OneFloat(1));
  EXPECT_TRUE(a.Await().ok());
}

}  // namespace
}  // namespace tryst
