// What a GrpcChannel promises when the producer breaks off, sends wrong bytes, or never answers.
#include <grpcpp/alarm.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "channel/compat/fetch_wire.h"
#include "channel/compat/grpc_channel.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/peer_directory.h"
#include "channel/poller/poller.h"
#include "channel/signing/caller.h"
#include "channel/trace/live_ops.h"
#include "gtest/gtest.h"
#include "rendezvous/tensor_key.h"
#include "server/services/cut_proxy.h"
#include "tests/contract/fetch_host.h"

namespace tryst {
namespace {

constexpr uint64_t kIncarnation = 0xab;

std::string TextOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string out;
  if (!buffer.Dump(&slices).ok()) return out;
  for (const grpc::Slice& slice : slices) {
    out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return out;
}

grpc::ByteBuffer BufferOf(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

rpc::FetchHeader Header() {
  rpc::FetchHeader header;
  header.set_producer_incarnation(kIncarnation);
  header.set_parcel_bytes(kParcelBytes);
  return header;
}

// One call of a consumer, which the test answers.
class HeldCall final : public grpc::ServerGenericBidiReactor {
 public:
  using OnRequest = std::function<void(HeldCall*)>;
  explicit HeldCall(OnRequest on_request) : on_request_(std::move(on_request)) {
    StartRead(&buffer_);
  }

  const rpc::FetchRequest& request() const { return request_; }
  // Sends one message, or none, and ends the call. Once.
  void Answer(const grpc::Status& status, const grpc::ByteBuffer* message = nullptr) {
    if (answered_.exchange(true)) return;
    if (message == nullptr) return Finish(status);
    buffer_ = *message;
    status_ = status;
    StartWrite(&buffer_);
  }
  // Sends the first message of a tensor of `bytes` bytes, and nothing more.
  void BeginTensor(uint64_t bytes) {
    rpc::FetchResponse response;
    *response.mutable_header() = Header();
    rpc::TensorMetadata* const metadata = response.mutable_header()->mutable_tensor();
    const Tensor none = *Tensor::Allocate(DType::kUint8, {0});
    *metadata = OutgoingTensor::Make(none, false)->metadata();
    metadata->set_dims(0, static_cast<int64_t>(bytes));
    metadata->set_bytes(bytes);
    response.set_chunk("x");
    buffer_ = BufferOf(response.SerializeAsString());
    begins_ = true;
    StartWrite(&buffer_);
  }
  // Sends all of `tensor`, of which `offset` bytes arrived before.
  void AnswerTensor(const Tensor& tensor) {
    const OutgoingTensor out = *OutgoingTensor::Make(tensor, false);
    rpc::FetchHeader header = Header();
    *header.mutable_tensor() = out.metadata();
    const grpc::ByteBuffer message = out.Message(
        &header, request_.offset(), out.bytes() - request_.offset(), request_.digests());
    Answer(grpc::Status::OK, &message);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok || !request_.ParseFromString(TextOf(buffer_)) || request_.ends()) {
      return Answer(grpc::Status::OK);
    }
    on_request_(this);
  }
  void OnWriteDone(bool) override {
    if (!begins_.exchange(false)) Finish(status_);
  }
  void OnCancel() override { Answer(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }

  const OnRequest on_request_;
  grpc::ByteBuffer buffer_;
  rpc::FetchRequest request_;
  grpc::Status status_;
  std::atomic<bool> answered_{false};
  std::atomic<bool> begins_{false};
};

// The consumer asks whether we are there, and for nothing else.
bool IsQuestion(const rpc::FetchRequest& request) {
  return request.waits() && request.asks_size() == 0 && request.producer_incarnation() == 0;
}

// Hands its calls to the test, in the order in which their requests arrived. Unless it is silent,
// it answers by itself whether it is there.
class ScriptedProducer final : public grpc::CallbackGenericService, public PeerDirectory {
 public:
  ScriptedProducer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    channel_ =
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials());
  }
  ~ScriptedProducer() override { server_->Shutdown(std::chrono::system_clock::now()); }

  // Call `number`, from 0. Null: it does not come.
  HeldCall* AwaitCall(size_t number) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    MutexLock lock(&mu_);
    while (calls_.size() <= number) {
      if (changed_.WaitUntil(&mu_, until)) return nullptr;
    }
    return calls_[number];
  }
  size_t calls() {
    MutexLock lock(&mu_);
    return calls_.size();
  }
  void BeSilent() {
    MutexLock lock(&mu_);
    is_silent_ = true;
  }
  // How often consumers asked this producer whether it is there.
  size_t questions() {
    MutexLock lock(&mu_);
    return questions_;
  }
  int port() const { return port_; }
  // From now on, calls go there.
  void MoveTo(std::shared_ptr<grpc::Channel> channel) { channel_ = std::move(channel); }
  // From now on every call ends with this, at once, unless it is OK. Returns how many had come.
  size_t RefuseAll(const grpc::Status& status) {
    MutexLock lock(&mu_);
    refusal_ = status;
    return calls_.size();
  }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new HeldCall([this](HeldCall* call) {
      grpc::Status refusal;
      bool says_so = false;
      {
        MutexLock lock(&mu_);
        refusal = refusal_;
        const bool is_question = IsQuestion(call->request());
        questions_ += is_question;
        says_so = is_question && !is_silent_;
        if (!says_so) calls_.push_back(call);
        changed_.NotifyAll();
      }
      if (!refusal.ok()) return call->Answer(refusal);
      if (!says_so) return;
      rpc::FetchResponse here;
      *here.mutable_header() = Header();
      const grpc::ByteBuffer message = BufferOf(here.SerializeAsString());
      call->Answer(grpc::Status::OK, &message);
    });
  }
  absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(absl::string_view) override {
    return channel_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<HeldCall*> calls_ ABSL_GUARDED_BY(mu_);
  grpc::Status refusal_ ABSL_GUARDED_BY(mu_);
  bool is_silent_ ABSL_GUARDED_BY(mu_) = false;
  size_t questions_ ABSL_GUARDED_BY(mu_) = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

// How one receive ended.
class End {
 public:
  DoneFn Done() {
    return [this](Received&& received) {
      tensor_ = std::move(received.tensor);
      promise_.set_value(std::move(received.status));
    };
  }
  // kUnknown: it has not ended.
  absl::Status Await() {
    if (future_.wait_for(std::chrono::seconds(10)) != std::future_status::ready) {
      return absl::UnknownError("it does not end");
    }
    return future_.get();
  }
  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor tensor_;
  std::promise<absl::Status> promise_;
  std::future<absl::Status> future_ = promise_.get_future();
};

class HostileGrpcProducerTest : public ::testing::Test {
 protected:
  ~HostileGrpcProducerTest() override {
    producer_.RefuseAll(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the test is over"));
    OnPoller([this] { channel_->Close(absl::CancelledError("the test is over")); });
    bool drained = false;
    while (!drained) {
      OnPoller([&] { drained = channel_->Drained(); });
    }
    poller_.Stop();
  }

  void Open(const GrpcChannelOptions& options = {}) {
    poller_.Start();
    channel_ = std::make_unique<GrpcChannel>(kHostWorker, &producer_, &signer_, &events_, &poller_,
                                             options);
  }
  End& NewEnd() { return ends_.emplace_back(); }
  template <typename Fn>
  void OnPoller(Fn fn) {
    std::promise<void> ran;
    poller_.PostFn([&] {
      fn();
      ran.set_value();
    });
    ran.get_future().wait();
  }
  void Fetch(const std::string& edge, End* end, const RecvArgs& args = RecvArgs()) {
    const TensorKey key =
        TensorKeyPrefix::Make(absl::StrCat(kHostWorker, "/device:CPU:0"), kIncarnation,
                              absl::StrCat(kHostConsumer, "/device:CPU:0"), edge)
            ->At(0, 0);
    OnPoller([&] { channel_->Fetch(1, key, args, end->Done()); });
  }
  static Tensor Number(float value) {
    Tensor tensor = *Tensor::Allocate(DType::kFloat, {1});
    static_cast<float*>(tensor.mutable_data())[0] = value;
    return tensor;
  }
  static grpc::ByteBuffer WrongDigest(const HeldCall& call) {
    const OutgoingTensor out = *OutgoingTensor::Make(Number(1), false);
    rpc::FetchHeader header = Header();
    *header.mutable_tensor() = out.metadata();
    std::string bytes = TextOf(out.Message(&header, 0, out.bytes(), call.request().digests()));
    bytes.back() ^= 1;  // The payload comes last.
    return BufferOf(bytes);
  }

  std::list<End> ends_;  // They outlive the channel.
  const SteadyClock clock_{};
  ScriptedProducer producer_;
  Poller poller_{&clock_};
  EventThread events_{std::make_unique<grpc::CompletionQueue>(), std::vector<Poller*>{&poller_}};
  CallSigner signer_{{"lab", kHostConsumer, 1}, "", UnixMs};
  std::unique_ptr<GrpcChannel> channel_;
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
  second->AnswerTensor(Number(1));
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
  call->AnswerTensor(Number(1));
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
  *broken.mutable_header() = Header();
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
  call->AnswerTensor(Number(5));
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
  waits->AnswerTensor(Number(7));
  EXPECT_TRUE(not_sent.Await().ok());
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
  first->AnswerTensor(Number(1));
  second->AnswerTensor(Number(2));
  HeldCall* const behind = producer_.AwaitCall(2);
  ASSERT_NE(behind, nullptr);
  behind->AnswerTensor(Number(3));
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
  first->AnswerTensor(Number(1));
  second->AnswerTensor(Number(2));
  HeldCall* const behind = producer_.AwaitCall(2);
  ASSERT_NE(behind, nullptr);
  behind->AnswerTensor(Number(3));
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
  call_b->AnswerTensor(Number(2));
  usleep(100'000);
  go.set_value();
  EXPECT_TRUE(b.Await().ok());
  HeldCall* const again = producer_.AwaitCall(4);
  ASSERT_NE(again, nullptr) << "nobody asks for c";
  ASSERT_TRUE(again->request().waits());
  ASSERT_EQ(again->request().asks_size(), 1);
  rpc::FetchResponse ready;
  *ready.mutable_header() = Header();
  ready.mutable_header()->set_number(1);
  ready.mutable_header()->add_ready(again->request().asks(0).serial());
  const grpc::ByteBuffer message = BufferOf(ready.SerializeAsString());
  again->Answer(grpc::Status::OK, &message);
  HeldCall* const call_c = producer_.AwaitCall(5);
  ASSERT_NE(call_c, nullptr);
  call_c->AnswerTensor(Number(3));
  EXPECT_TRUE(in_batch.Await().ok());
  call_a->AnswerTensor(Number(1));
  EXPECT_TRUE(a.Await().ok());
}

}  // namespace
}  // namespace tryst
