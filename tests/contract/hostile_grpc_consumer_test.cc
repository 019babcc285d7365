// What a FetchServer promises when a consumer repeats itself, comes back as another, or goes away.
#include <grpcpp/create_channel.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "channel/compat/fetch_wire.h"
#include "channel/compat/grpc_transport.h"
#include "channel/signing/caller.h"
#include "channel/trace/trace.h"
#include "gtest/gtest.h"
#include "proto/transport.grpc.pb.h"
#include "rendezvous/host_source.h"
#include "rendezvous/tensor_key.h"
#include "rendezvous/thread_alarms.h"
#include "rendezvous/virtual_alarms.h"
#include "tests/contract/fetch_host.h"

namespace tryst {
namespace {

constexpr uint64_t kIncarnation = 0xab;

// Answers a take when the test says so, even if it was cancelled before: a send had met it.
class ScriptedSource final : public TensorSource {
 public:
  void Take(int64_t, const TensorKey& key, const RecvArgs&, DoneFn done) override {
    MutexLock lock(&mu_);
    log_.push_back(absl::StrCat("take ", key.edge()));
    takes_.push_back(std::move(done));
    changed_.NotifyAll();
  }
  void GiveBack(int64_t, const TensorKey& key, Received) override {
    MutexLock lock(&mu_);
    log_.push_back(absl::StrCat("give back ", key.edge()));
  }

  bool AwaitTakes(size_t count) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    MutexLock lock(&mu_);
    while (takes_.size() < count) {
      if (changed_.WaitUntil(&mu_, until)) break;
    }
    return takes_.size() >= count;
  }
  void Answer(size_t number, const Tensor& tensor,
              std::shared_ptr<DeviceContext> send_context = nullptr) {
    DoneFn done;
    {
      MutexLock lock(&mu_);
      done = std::move(takes_.at(number));
    }
    std::move(done)({absl::OkStatus(), tensor, false, std::move(send_context)});
  }
  std::vector<std::string> log() {
    MutexLock lock(&mu_);
    return log_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<DoneFn> takes_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> log_ ABSL_GUARDED_BY(mu_);
};

Tensor Numbers(int64_t elements) {
  Tensor tensor = *Tensor::Allocate(DType::kFloat, {elements});
  float* const at = static_cast<float*>(tensor.mutable_data());
  for (int64_t i = 0; i < elements; ++i) at[i] = static_cast<float>(i);
  return tensor;
}

std::string BytesOf(const Tensor& tensor) {
  return std::string(static_cast<const char*>(tensor.data()), tensor.bytes());
}

// One FetchTensor call, made by hand.
class Call {
 public:
  Call(rpc::TransportService::Stub* stub, CallSigner* signer, const rpc::FetchRequest& request) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    context_.AddMetadata(kCallerMetadata,
                         signer->Sign(kHostWorker, kFetchMethod, request.SerializeAsString()));
    stream_ = stub->FetchTensor(&context_);
    stream_->Write(request);
  }
  bool Read(rpc::FetchResponse* response) { return stream_->Read(response); }
  // Reads to the end.
  grpc::Status End(rpc::FetchHeader* header = nullptr, std::string* payload = nullptr) {
    for (rpc::FetchResponse response; Read(&response);) {
      if (header != nullptr && response.has_header()) *header = response.header();
      if (payload != nullptr) payload->append(response.chunk());
    }
    return stream_->Finish();
  }
  // The consumer is gone.
  void Break() {
    context_.TryCancel();
    End();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<rpc::FetchRequest, rpc::FetchResponse>> stream_;
};

class HostileGrpcConsumerTest : public ::testing::Test {
 protected:
  void Open(const FetchServerOptions& options = {}) { Open(options, &alarms_); }
  void Open(const FetchServerOptions& options, Alarms* alarms) {
    host_ = std::make_unique<FetchHost>(&on_host_, alarms, kIncarnation, options);
    stub_ = rpc::TransportService::NewStub(grpc::CreateChannel(
        absl::StrCat("127.0.0.1:", host_->port()), grpc::InsecureChannelCredentials()));
  }
  static rpc::FetchRequest Request(uint64_t serial, const std::string& edge) {
    const std::string ps = absl::StrCat(kHostWorker, "/device:CPU:0");
    const std::string worker = absl::StrCat(kHostConsumer, "/device:CPU:0");
    rpc::FetchRequest request;
    request.set_step_id(1);
    request.set_key(
        std::string(TensorKeyPrefix::Make(ps, kIncarnation, worker, edge)->At(0, 0).text()));
    request.set_serial(serial);
    request.set_oldest_serial(1);
    request.set_channel(1);
    return request;
  }
  using Asks = std::vector<std::pair<uint64_t, std::string>>;
  // Asks for several, and waits until one of them is there.
  static rpc::FetchRequest Batch(const Asks& asks, uint64_t heard = 0) {
    rpc::FetchRequest request;
    request.set_waits(true);
    request.set_channel(1);
    request.set_oldest_serial(1);
    request.set_producer_incarnation(kIncarnation);
    request.set_heard(heard);
    for (const auto& [serial, edge] : asks) {
      const rpc::FetchRequest one = Request(serial, edge);
      rpc::FetchAsk* const ask = request.add_asks();
      ask->set_serial(serial);
      ask->set_step_id(one.step_id());
      ask->set_key(one.key());
    }
    return request;
  }
  using Serials = std::vector<uint64_t>;
  // Which of its fetches a batch is told of, in the answer of this number.
  static Serials Ready(Call* batch, uint64_t number) {
    rpc::FetchHeader header;
    const grpc::Status status = batch->End(&header);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(header.code(), 0) << header.message();
    EXPECT_EQ(header.number(), number);
    return Serials(header.ready().begin(), header.ready().end());
  }
  std::unique_ptr<Call> Start(const rpc::FetchRequest& request) {
    return std::make_unique<Call>(stub_.get(), &consumer_, request);
  }
  // Ends without an answer: it only says what has ended.
  void Note(uint64_t serial, bool wanted) {
    rpc::FetchRequest note;
    note.set_ends(true);
    note.set_channel(1);
    note.set_serial(serial + 1);
    note.set_oldest_serial(1);
    wanted ? note.add_over(serial) : note.add_unwanted(serial);
    ASSERT_TRUE(Start(note)->End().ok());
  }
  // Fetches a tensor to its end, and says nothing of it.
  void FetchWhole(uint64_t serial, const std::string& edge, const Tensor& tensor) {
    const size_t before = source_.log().size();
    auto call = Start(Request(serial, edge));
    ASSERT_TRUE(source_.AwaitTakes(before + 1));
    source_.Answer(before, tensor);
    std::string payload;
    ASSERT_TRUE(call->End(nullptr, &payload).ok());
    EXPECT_EQ(payload, BytesOf(tensor));
  }
  template <typename Condition>
  bool Eventually(Condition condition) {
    for (int i = 0; i < 2000; ++i) {
      if (condition(host_->counts())) return true;
      usleep(5'000);
    }
    return false;
  }
  // What a request that is not asked of the source is told in its header.
  absl::StatusCode Told(const rpc::FetchRequest& request) {
    rpc::FetchHeader header;
    const grpc::Status status = Start(request)->End(&header);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return static_cast<absl::StatusCode>(header.code());
  }

  ThreadAlarms alarms_;
  VirtualAlarms turned_;
  ScriptedSource source_;
  HostSource on_host_{&source_};
  std::unique_ptr<FetchHost> host_;
  CallSigner consumer_{{"lab", kHostConsumer, 1}, "", UnixMs};
  std::unique_ptr<rpc::TransportService::Stub> stub_;
};

TEST_F(HostileGrpcConsumerTest, AFetchThatIsOverIsNotTakenAgain) {
  Open();
  FetchWhole(1, "k", Numbers(4));
  Note(1, true);
  EXPECT_EQ(Told(Request(1, "k")), absl::StatusCode::kAborted);
  EXPECT_EQ(source_.log(), std::vector<std::string>{"take k"});
}

// A device whose memory is larger than the host's.
class HugeDevice final : public DeviceContext {
 public:
  absl::StatusOr<Tensor> Allocate(DType, const TensorShape&, const AllocatorAttributes&) override {
    return absl::UnimplementedError("nobody receives here");
  }
  void StartCopy(const Tensor&, const Tensor&, absl::AnyInvocable<void(absl::Status) &&>) override {
    ADD_FAILURE() << "there is no memory to copy to";
  }
  static Tensor Huge() {
    MemorySpace space;
    space.kind = MemorySpace::Kind::kDevice;
    space.device_ordinal = 0;
    void* const there = reinterpret_cast<void*>(uintptr_t{4096});
    return *Tensor::Adopt(there, DType::kUint8, {int64_t{1} << 60}, space, [] {});
  }
};

TEST_F(HostileGrpcConsumerTest, ATensorThatTheHostHasNoMemoryForGoesBack) {
  Open();
  rpc::FetchHeader header;
  auto call = Start(Request(1, "k"));
  ASSERT_TRUE(source_.AwaitTakes(1));
  source_.Answer(0, HugeDevice::Huge(), std::make_shared<HugeDevice>());
  ASSERT_TRUE(call->End(&header).ok());
  EXPECT_EQ(static_cast<absl::StatusCode>(header.code()), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(source_.log(), (std::vector<std::string>{"take k", "give back k"}));
}

TEST_F(HostileGrpcConsumerTest, AnAttemptThatBeginsInTheMiddleTakesNothing) {
  Open();
  rpc::FetchRequest request = Request(1, "k");
  request.set_offset(8);
  EXPECT_EQ(Told(request), absl::StatusCode::kAborted);
  EXPECT_TRUE(source_.log().empty());
}

TEST_F(HostileGrpcConsumerTest, ALaterAttemptGetsTheRestOfTheTensor) {
  Open();
  const Tensor tensor = Numbers(750);
  FetchWhole(1, "k", tensor);
  rpc::FetchRequest again = Request(1, "k");
  again.set_offset(1000);
  std::string payload;
  ASSERT_TRUE(Start(again)->End(nullptr, &payload).ok());
  EXPECT_EQ(payload, BytesOf(tensor).substr(1000));
}

// The consumer may have the tensor, so another one must not get it.
TEST_F(HostileGrpcConsumerTest, ATensorOfWhichSomeWasSentDoesNotGoBack) {
  FetchServerOptions options;
  options.keep_for = absl::Milliseconds(50);
  Open(options);
  auto call = Start(Request(1, "k"));
  ASSERT_TRUE(source_.AwaitTakes(1));
  source_.Answer(0, Numbers(8 << 20));
  rpc::FetchResponse first;
  ASSERT_TRUE(call->Read(&first));
  call->Break();
  ASSERT_TRUE(Eventually([](const FetchServer::Counts& counts) { return counts.dropped == 1; }));
  EXPECT_EQ(host_->counts().given_back, 0u);
}

// The first request was given up while its take was under way. What the take then brings is the
// older tensor, and the second request must find it.
TEST_F(HostileGrpcConsumerTest, AKeyIsTakenAgainAfterItsTensorWentBack) {
  Open();
  auto first = Start(Request(1, "k"));
  ASSERT_TRUE(source_.AwaitTakes(1));
  Note(1, false);
  first->Break();
  auto second = Start(Request(2, "k"));
  ASSERT_TRUE(Eventually([](const FetchServer::Counts& counts) { return counts.requests == 2; }));
  source_.Answer(0, Numbers(4));
  ASSERT_TRUE(source_.AwaitTakes(2));
  EXPECT_EQ(source_.log(), (std::vector<std::string>{"take k", "give back k", "take k"}));
  source_.Answer(1, Numbers(4));
  EXPECT_TRUE(second->End().ok());
}

// It waited for a take that had been given up.
TEST_F(HostileGrpcConsumerTest, WhatHasEndedBehindATakeTakesNothing) {
  Open();
  auto first = Start(Request(1, "k"));
  ASSERT_TRUE(source_.AwaitTakes(1));
  Note(1, false);
  first->Break();
  auto second = Start(Request(2, "k"));
  auto third = Start(Request(3, "k"));
  ASSERT_TRUE(Eventually([](const FetchServer::Counts& counts) { return counts.requests == 3; }));
  Note(2, false);
  second->Break();
  source_.Answer(0, Numbers(4));
  EXPECT_EQ(source_.log(), (std::vector<std::string>{"take k", "give back k", "take k"}));
  source_.Answer(1, Numbers(4));
  EXPECT_TRUE(third->End().ok());
}

TEST_F(HostileGrpcConsumerTest, AnEarlierLifeOfTheConsumerIsRefused) {
  Open();
  auto earlier = Start(Request(1, "k"));
  ASSERT_TRUE(source_.AwaitTakes(1));
  CallSigner next_life({"lab", kHostConsumer, 2}, "", UnixMs);
  Call later(stub_.get(), &next_life, Request(1, "k2"));
  ASSERT_TRUE(source_.AwaitTakes(2));
  EXPECT_TRUE(Start(Request(2, "k3"))->End().error_code() == grpc::StatusCode::ABORTED);
  EXPECT_EQ(source_.log().size(), 2u);
}

TEST_F(HostileGrpcConsumerTest, TensorsKeptForAConsumerHaveABound) {
  FetchServerOptions options;
  options.max_kept_bytes = 1000;
  options.keep_for = absl::Hours(1);
  Open(options);
  FetchWhole(1, "old", Numbers(200));
  FetchWhole(2, "new", Numbers(200));
  ASSERT_TRUE(Eventually([](const FetchServer::Counts& counts) {
    return counts.dropped == 1 && counts.kept_bytes == 800;
  }));
  EXPECT_EQ(Told(Request(1, "old")), absl::StatusCode::kAborted);
  EXPECT_EQ(Told(Request(2, "new")), absl::StatusCode::kOk);
}

TEST_F(HostileGrpcConsumerTest, TheRequestsOfAConsumerHaveABound) {
  FetchServerOptions options;
  options.max_requests = 2;
  Open(options);
  auto a = Start(Request(1, "a"));
  auto b = Start(Request(2, "b"));
  ASSERT_TRUE(source_.AwaitTakes(2));
  EXPECT_EQ(Start(Request(3, "c"))->End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(source_.log().size(), 2u);
}

TEST_F(HostileGrpcConsumerTest, TheBoundIsOfRequestsThatAreOut) {
  FetchServerOptions options;
  options.max_requests = 2;
  Open(options);
  for (uint64_t serial = 1; serial <= 5; ++serial) {
    FetchWhole(serial, absl::StrCat("k", serial), Numbers(4));
    Note(serial, true);
    if (HasFatalFailure()) return;
  }
}

TEST_F(HostileGrpcConsumerTest, TheKeysOfAConsumerHaveABound) {
  FetchServerOptions options;
  options.max_key_bytes = 100;  // One is longer.
  Open(options);
  auto a = Start(Request(1, "a"));
  ASSERT_TRUE(source_.AwaitTakes(1));
  EXPECT_EQ(Start(Request(2, "b"))->End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(HostileGrpcConsumerTest, TheChannelsOfAConsumerHaveABound) {
  constexpr uint64_t kMostChannels = 256;
  Open();
  std::vector<std::unique_ptr<Call>> calls;
  const auto on_channel = [](uint64_t channel) {
    rpc::FetchRequest request = Request(1, absl::StrCat("edge", channel));
    request.set_channel(channel);
    return request;
  };
  for (uint64_t channel = 1; channel <= kMostChannels; ++channel) {
    calls.push_back(Start(on_channel(channel)));
    ASSERT_TRUE(source_.AwaitTakes(channel));
  }
  const rpc::FetchRequest one_more = on_channel(kMostChannels + 1);
  EXPECT_EQ(Start(one_more)->End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(source_.log().size(), kMostChannels);
  Note(1, /*wanted=*/true);  // Nothing waits on the first channel any more.
  calls.push_back(Start(one_more));
  EXPECT_TRUE(Eventually([](const auto& counts) { return counts.requests == kMostChannels + 1; }));
}

// A consumer that has been silent for long may be gone, or it may not.
TEST_F(HostileGrpcConsumerTest, ASilentConsumersFetchesStayOver) {
  FetchServerOptions options;
  options.keep_for = absl::Milliseconds(50);
  Open(options);
  FetchWhole(1, "k", Numbers(4));
  Note(1, true);
  ASSERT_TRUE(Eventually([](const FetchServer::Counts& counts) {
    return counts.silent == 1 && counts.consumers == 0;
  }));
  EXPECT_EQ(Told(Request(1, "k")), absl::StatusCode::kAborted);
  EXPECT_EQ(source_.log().size(), 1u);
  EXPECT_EQ(host_->counts().silent, 0u);
  EXPECT_EQ(host_->counts().consumers, 1u);
}

// Its state would take megabytes.
TEST_F(HostileGrpcConsumerTest, ASilentConsumerThatLeftManyGapsIsForgotten) {
  FetchServerOptions options;
  options.keep_for = absl::Milliseconds(50);
  Open(options);
  rpc::FetchRequest note;
  note.set_ends(true);
  note.set_channel(1);
  note.set_serial(1000);
  note.set_oldest_serial(1);
  for (uint64_t serial = 3; serial < 300; serial += 2) note.add_over(serial);
  ASSERT_TRUE(Start(note)->End().ok());
  EXPECT_EQ(host_->counts().consumers, 1u);
  EXPECT_TRUE(Eventually([](const auto& counts) { return counts.consumers == 0; }));
  EXPECT_EQ(host_->counts().silent, 0u);
}

// Else whoever asks once and stays away would count for ever.
TEST_F(HostileGrpcConsumerTest, ASilentConsumerWhoseBatchWasDroppedMakesRoom) {
  FetchServerOptions options;
  options.keep_for = absl::Milliseconds(50);
  Open(options);
  auto call = Start(Batch({{1, "k"}}));
  ASSERT_TRUE(source_.AwaitTakes(1));
  call->Break();
  EXPECT_TRUE(Eventually([](const auto& counts) { return counts.consumers == 0; }));
  EXPECT_EQ(host_->counts().dropped, 1u);
  EXPECT_EQ(host_->counts().silent, 1u);
  EXPECT_EQ(Ready(Start(Batch({})).get(), 1), Serials{1}) << "it comes back";
  EXPECT_EQ(Told(Request(1, "k")), absl::StatusCode::kAborted);
  source_.Answer(0, Numbers(4));
}

// What it is to be told would take megabytes.
TEST_F(HostileGrpcConsumerTest, ASilentConsumerThatIsToBeToldOfManyFetchesIsForgotten) {
  FetchServerOptions options;
  options.keep_for = absl::Milliseconds(50);
  Open(options);
  Asks asks;
  for (uint64_t serial = 1; serial <= 4000; ++serial) asks.emplace_back(serial % 2000 + 1, "k");
  rpc::FetchRequest batch = Batch(asks);
  for (rpc::FetchAsk& ask : *batch.mutable_asks()) ask.set_key("no key");
  EXPECT_EQ(Ready(Start(batch).get(), 1).size(), 2000u) << "of each once";
  EXPECT_TRUE(Eventually([](const auto& counts) { return counts.consumers == 0; }));
  EXPECT_EQ(host_->counts().silent, 0u);
}

// The consumer has nothing to say but that it waits.
TEST_F(HostileGrpcConsumerTest, AConsumerWhoseBatchWaitsIsNotSilent) {
  FetchServerOptions options;
  options.keep_for = absl::Milliseconds(50);
  Open(options);
  auto waiting = Start(Batch({{1, "k"}}));
  ASSERT_TRUE(source_.AwaitTakes(1));
  Note(1, true);
  CallSigner other({"lab", "/job:worker/replica:0/task:1", 1}, "", UnixMs);
  rpc::FetchRequest word = Batch({});
  word.set_producer_incarnation(0);
  ASSERT_TRUE(Call(stub_.get(), &other, word).End().ok());
  ASSERT_TRUE(Eventually([](const FetchServer::Counts& counts) { return counts.silent == 1; }));
  EXPECT_EQ(host_->counts().consumers, 1u);
}

TEST_F(HostileGrpcConsumerTest, AProducerThatStopsRefusesAndEndsWhatWaits) {
  Open();
  auto waiting = Start(Request(1, "a"));
  ASSERT_TRUE(source_.AwaitTakes(1));
  auto batch = Start(Batch({{2, "b"}}));
  ASSERT_TRUE(source_.AwaitTakes(2));
  host_->Shutdown();
  EXPECT_EQ(waiting->End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(batch->End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Start(Request(3, "c"))->End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Start(Batch({{4, "d"}}))->End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(source_.log().size(), 2u);
  source_.Answer(0, Numbers(4));
  EXPECT_EQ(source_.log().back(), "give back a");
}

// Its owner frees what calls use as soon as there are none.
TEST_F(HostileGrpcConsumerTest, TheEndWaitsForACallThatIsUnderWay) {
  class SlowSource final : public TensorSource {
   public:
    void Take(int64_t, const TensorKey&, const RecvArgs&, DoneFn done) override {
      entered.set_value();
      usleep(1'000'000);
      is_over = true;
      std::move(done)({absl::CancelledError("too late")});
    }
    void GiveBack(int64_t, const TensorKey&, Received) override {}
    std::promise<void> entered;
    std::atomic<bool> is_over{false};
  } source;
  FetchHost host(&source, &alarms_, kIncarnation, FetchServerOptions());
  const auto stub = rpc::TransportService::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", host.port()), grpc::InsecureChannelCredentials()));
  Call call(stub.get(), &consumer_, Request(1, "k"));
  source.entered.get_future().wait();
  host.Join();
  EXPECT_TRUE(source.is_over);
}

TEST_F(HostileGrpcConsumerTest, SoManyConsumersAreServed) {
  FetchServerOptions options;
  options.max_consumers = 2;
  Open(options);
  std::vector<std::unique_ptr<Call>> calls;
  for (uint64_t task = 1; task <= 4; ++task) {
    CallSigner signer({"lab", absl::StrCat("/job:worker/replica:0/task:", task), 1}, "", UnixMs);
    calls.push_back(std::make_unique<Call>(stub_.get(), &signer, Request(1, "k")));
    if (task <= 2) {
      ASSERT_TRUE(source_.AwaitTakes(task));
    } else {
      EXPECT_EQ(calls.back()->End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    }
  }
  EXPECT_EQ(host_->counts().consumers, 2u);
  EXPECT_EQ(source_.log().size(), 2u);
}

TEST_F(HostileGrpcConsumerTest, AViewHasWhatEachConsumerWaitsFor) {
  Trace trace;
  FetchServerOptions options;
  options.trace = &trace;
  Open(options);
  std::vector<std::unique_ptr<Call>> calls;
  // Task 1 waits for one, task 2 for two.
  for (uint64_t task = 1; task <= 2; ++task) {
    CallSigner signer({"lab", absl::StrCat("/job:worker/replica:0/task:", task), 1}, "", UnixMs);
    for (uint64_t serial = 1; serial <= task; ++serial) {
      calls.push_back(std::make_unique<Call>(stub_.get(), &signer,
                                             Request(serial, absl::StrCat(task, "of", serial))));
      ASSERT_TRUE(source_.AwaitTakes(calls.size()));
    }
  }
  GrpcParts parts;
  parts.served = host_->server();
  parts.served_trace = &trace;
  const GrpcTransport transport(TransportContext(), parts, GrpcChannelOptions());
  std::vector<PathView> views;
  transport.View("", &views);
  ASSERT_EQ(views.size(), 2u);
  for (const PathView& view : views) {
    EXPECT_EQ(view.under_way, view.peer.back() == '1' ? 1u : 2u) << view.peer;
  }
  host_.reset();  // Before its trace.
}

TEST_F(HostileGrpcConsumerTest, TheNewestCallForAFetchGetsIt) {
  Open();
  auto first = Start(Request(1, "k"));
  ASSERT_TRUE(source_.AwaitTakes(1));
  auto second = Start(Request(1, "k"));
  EXPECT_EQ(first->End().error_code(), grpc::StatusCode::ABORTED);
  const Tensor tensor = Numbers(4);
  source_.Answer(0, tensor);
  std::string payload;
  EXPECT_TRUE(second->End(nullptr, &payload).ok());
  EXPECT_EQ(payload, BytesOf(tensor));
  EXPECT_EQ(host_->counts().requests, 1u);
  EXPECT_EQ(host_->counts().repetitions, 1u);
  EXPECT_EQ(source_.log().size(), 1u);
}

TEST_F(HostileGrpcConsumerTest, WhatIsAskedOfAnotherLifeIsToldSo) {
  Open();
  rpc::FetchRequest one = Request(1, "k");
  one.set_producer_incarnation(kIncarnation + 1);
  rpc::FetchRequest several = Batch({{1, "k"}});
  several.set_producer_incarnation(kIncarnation + 1);
  for (const rpc::FetchRequest& request : {one, several}) {
    rpc::FetchHeader header;
    EXPECT_TRUE(Start(request)->End(&header).ok());
    EXPECT_TRUE(header.is_other_incarnation());
    EXPECT_EQ(header.producer_incarnation(), kIncarnation);
    EXPECT_EQ(static_cast<absl::StatusCode>(header.code()), absl::StatusCode::kAborted);
  }
  EXPECT_TRUE(source_.log().empty());
  one.set_producer_incarnation(kIncarnation);
  auto right = Start(one);
  EXPECT_TRUE(source_.AwaitTakes(1));
}

TEST_F(HostileGrpcConsumerTest, WhatIsNoRequestIsRefused) {
  Open();
  rpc::FetchRequest without_serial = Request(0, "k");
  rpc::FetchRequest batch_with_serial = Batch({{1, "k"}});
  batch_with_serial.set_serial(1);
  rpc::FetchRequest no_key = Request(1, "k");
  no_key.set_key("k");
  rpc::FetchRequest ends_too_many = Request(1, "k");
  for (uint64_t serial = 2; serial <= 2 * 65536 + 2; ++serial) ends_too_many.add_over(serial);
  for (const rpc::FetchRequest& request :
       {without_serial, batch_with_serial, no_key, ends_too_many}) {
    EXPECT_EQ(Start(request)->End().error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << request.ShortDebugString().substr(0, 200);
  }
  EXPECT_EQ(host_->counts().refused, 4u);
  EXPECT_TRUE(source_.log().empty());
}

// ---- Batches ----

TEST_F(HostileGrpcConsumerTest, ABatchIsToldWhatIsThereUntilItHasHeardOfIt) {
  Open();
  auto first = Start(Batch({{1, "a"}, {2, "b"}}));
  ASSERT_TRUE(source_.AwaitTakes(2));
  EXPECT_EQ(host_->counts().parked, 2u);
  source_.Answer(0, Numbers(4));
  EXPECT_EQ(Ready(first.get(), 1), Serials{1});
  EXPECT_EQ(Ready(Start(Batch({})).get(), 2), Serials{1}) << "it was lost";
  auto heard = Start(Batch({}, 2));
  source_.Answer(1, Numbers(5));
  EXPECT_EQ(Ready(heard.get(), 3), Serials{2});
  std::string payload;
  ASSERT_TRUE(Start(Request(2, "b"))->End(nullptr, &payload).ok());
  EXPECT_EQ(payload, BytesOf(Numbers(5)));
  EXPECT_EQ(host_->counts().requests, 2u);
  EXPECT_EQ(host_->counts().parked, 0u);
  EXPECT_EQ(source_.log(), (std::vector<std::string>{"take a", "take b"}));
}

TEST_F(HostileGrpcConsumerTest, TheNewestBatchWaits) {
  Open();
  auto former = Start(Batch({{1, "a"}}));
  ASSERT_TRUE(source_.AwaitTakes(1));
  auto newest = Start(Batch({{2, "b"}}));
  EXPECT_EQ(Ready(former.get(), 0), Serials());
  ASSERT_TRUE(source_.AwaitTakes(2));
  source_.Answer(0, Numbers(4));
  EXPECT_EQ(Ready(newest.get(), 1), Serials{1});
}

TEST_F(HostileGrpcConsumerTest, WhatIsSmallComesInTheAnswer) {
  Open();
  rpc::FetchRequest request = Batch({{1, "small"}, {2, "large"}});
  request.set_takes_parcels(true);
  auto call = Start(request);
  ASSERT_TRUE(source_.AwaitTakes(2));
  const Tensor small = Numbers(4);
  source_.Answer(0, small);
  rpc::FetchHeader header;
  ASSERT_TRUE(call->End(&header).ok());
  ASSERT_EQ(header.parcels_size(), 1);
  EXPECT_EQ(header.parcels(0).serial(), 1u);
  rpc::FetchResponse response;
  ASSERT_TRUE(response.ParseFromString(header.parcels(0).response()));
  EXPECT_EQ(response.chunk(), BytesOf(small));
  EXPECT_EQ(host_->counts().parcels, 1u);
  request = Batch({}, 1);
  request.set_takes_parcels(true);
  call = Start(request);
  source_.Answer(1, Numbers(int64_t{kParcelBytes} / 4 + 1));
  ASSERT_TRUE(call->End(&header).ok());
  EXPECT_EQ(header.parcels_size(), 0);
  ASSERT_EQ(header.ready_size(), 1);
  EXPECT_EQ(header.ready(0), 2u);
}

// There was no room for it when it was asked for first, and its answer was lost. Then it waits, and
// is told of all the same.
TEST_F(HostileGrpcConsumerTest, WhatIsToldOfAgainAndHasNotComeIsInNoParcel) {
  FetchServerOptions options;
  options.max_requests = 1;
  Open(options);
  rpc::FetchRequest request = Batch({{1, "a"}, {2, "b"}});
  request.set_takes_parcels(true);
  auto lost = Start(request);
  EXPECT_EQ(Ready(lost.get(), 1), Serials{2});
  ASSERT_TRUE(source_.AwaitTakes(1));
  Note(1, false);
  source_.Answer(0, Numbers(4));  // Now there is room.
  request = Batch({{2, "b"}});
  request.set_takes_parcels(true);
  auto again = Start(request);
  rpc::FetchHeader header;
  ASSERT_TRUE(again->End(&header).ok());
  EXPECT_EQ(header.parcels_size(), 0);
  ASSERT_EQ(header.ready_size(), 1);
  EXPECT_EQ(header.ready(0), 2u);
  ASSERT_TRUE(source_.AwaitTakes(2));
  source_.Answer(1, Numbers(4));
  EXPECT_EQ(Told(Request(2, "b")), absl::StatusCode::kOk);
}

TEST_F(HostileGrpcConsumerTest, WhoAsksWhetherWeAreThereIsToldAtOnce) {
  Open();
  rpc::FetchRequest question = Batch({});
  question.set_producer_incarnation(0);
  rpc::FetchHeader header;
  ASSERT_TRUE(Start(question)->End(&header).ok());
  EXPECT_EQ(header.producer_incarnation(), kIncarnation);
  EXPECT_EQ(header.number(), 0u);
}

// A call for it alone is told what is wrong.
TEST_F(HostileGrpcConsumerTest, WhatABatchCannotHaveIsReadyAtOnce) {
  Open();
  FetchWhole(1, "k", Numbers(4));
  Note(1, true);
  rpc::FetchRequest request = Batch({{1, "k"}, {2, "b"}, {3, "c"}});
  request.mutable_asks(1)->set_key("no key");
  auto call = Start(request);
  EXPECT_EQ(Ready(call.get(), 1), (Serials{1, 2}));
  EXPECT_EQ(Told(Request(1, "k")), absl::StatusCode::kAborted);
  EXPECT_TRUE(source_.AwaitTakes(2)) << "the third is asked for";
}

// Nothing of it was sent to the consumer that went away.
TEST_F(HostileGrpcConsumerTest, WhatABatchNeverFetchedGoesBack) {
  FetchServerOptions options;
  options.keep_for = absl::Milliseconds(50);
  Open(options);
  auto call = Start(Batch({{1, "a"}, {2, "b"}}));
  ASSERT_TRUE(source_.AwaitTakes(2));
  source_.Answer(0, Numbers(4));
  EXPECT_EQ(Ready(call.get(), 1), Serials{1});
  ASSERT_TRUE(Eventually([](const FetchServer::Counts& counts) { return counts.dropped == 2; }));
  EXPECT_EQ(host_->counts().given_back, 1u);
  EXPECT_EQ(host_->counts().waiting, 0u);
  source_.Answer(1, Numbers(4));
  ASSERT_TRUE(Eventually([](const FetchServer::Counts& counts) { return counts.given_back == 2; }));
  EXPECT_EQ(source_.log(),
            (std::vector<std::string>{"take a", "take b", "give back a", "give back b"}));
  EXPECT_EQ(Ready(Start(Batch({}, 1)).get(), 2), (Serials{1, 2})) << "it comes back";
  EXPECT_EQ(Told(Request(1, "a")), absl::StatusCode::kAborted);
}

// The deleter of a caller's bytes is the caller's code, and may ask the server for something.
TEST_F(HostileGrpcConsumerTest, BytesAreLetGoOfWithoutALock) {
  FetchServerOptions options;
  options.keep_for = absl::Seconds(10);
  Open(options, &turned_);
  float numbers[4] = {};
  std::atomic<uint64_t> let_go{0};
  for (const bool stays_away : {false, true}) {
    auto call = Start(Request(stays_away ? 2 : 1, "k"));
    ASSERT_TRUE(source_.AwaitTakes(stays_away ? 2 : 1));
    source_.Answer(stays_away ? 1 : 0,
                   *Tensor::Adopt(numbers, DType::kFloat, {4}, MemorySpace(), [&] {
                     (void)host_->counts();
                     ++let_go;
                   }));
    rpc::FetchResponse first;
    ASSERT_TRUE(call->Read(&first));
    call->Break();
    if (stays_away) {
      EXPECT_TRUE(Eventually([](const FetchServer::Counts& counts) { return counts.alone == 1; }));
      turned_.AdvanceBy(absl::Seconds(20));
    } else {
      Note(1, true);
    }
    const uint64_t expected = stays_away ? 2 : 1;
    EXPECT_TRUE(Eventually([&](const FetchServer::Counts&) { return let_go == expected; }));
  }
}

// The consumer has it, and reads no further: the call stays.
TEST_F(HostileGrpcConsumerTest, WhatHasEndedIsLetGoOfBeforeItsCall) {
  Open();
  grpc::ChannelArguments reads_no_more_than_is_asked_for;
  reads_no_more_than_is_asked_for.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  reads_no_more_than_is_asked_for.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
  stub_ = rpc::TransportService::NewStub(grpc::CreateCustomChannel(
      absl::StrCat("127.0.0.1:", host_->port()), grpc::InsecureChannelCredentials(),
      reads_no_more_than_is_asked_for));
  auto call = Start(Request(1, "k"));
  ASSERT_TRUE(source_.AwaitTakes(1));
  const auto context = std::make_shared<HugeDevice>();  // It goes with what was taken.
  source_.Answer(0, Numbers(2 << 20), context);
  rpc::FetchResponse first;
  ASSERT_TRUE(call->Read(&first));
  EXPECT_EQ(context.use_count(), 2);
  Note(1, true);
  for (int i = 0; i < 1000 && context.use_count() > 1; ++i) usleep(5'000);  // The call has 10 s.
  EXPECT_EQ(context.use_count(), 1);
  call->Break();
}

// Whatever the clock was set for when it went away.
TEST_F(HostileGrpcConsumerTest, WhatLostItsCallIsKeptSoLongAndNotLonger) {
  FetchServerOptions options;
  options.keep_for = absl::Seconds(10);
  Open(options, &turned_);
  auto call = Start(Request(1, "a"));
  ASSERT_TRUE(source_.AwaitTakes(1));
  turned_.AdvanceBy(absl::Seconds(4));
  call->Break();
  ASSERT_TRUE(Eventually([](const FetchServer::Counts& counts) { return counts.alone == 1; }));
  turned_.AdvanceBy(absl::Seconds(10) - absl::Nanoseconds(1));
  EXPECT_EQ(host_->counts().dropped, 0u);
  turned_.AdvanceBy(absl::Nanoseconds(1));
  EXPECT_EQ(host_->counts().dropped, 1u);
  source_.Answer(0, Numbers(4));
}

// The clock that was set for the first does not end the other short of its time.
TEST_F(HostileGrpcConsumerTest, EachThatLostItsCallIsKeptForItsOwnTime) {
  FetchServerOptions options;
  options.keep_for = absl::Seconds(10);
  Open(options, &turned_);
  const auto alone = [this](uint64_t count) {
    return Eventually([=](const FetchServer::Counts& counts) { return counts.alone == count; });
  };
  auto first = Start(Request(1, "a"));
  auto second = Start(Request(2, "b"));
  ASSERT_TRUE(source_.AwaitTakes(2));
  first->Break();
  ASSERT_TRUE(alone(1));
  turned_.AdvanceBy(absl::Nanoseconds(1));
  second->Break();
  ASSERT_TRUE(alone(2));
  turned_.AdvanceBy(absl::Seconds(10) - absl::Nanoseconds(1));
  EXPECT_EQ(host_->counts().dropped, 1u);
  turned_.AdvanceBy(absl::Nanoseconds(1));
  EXPECT_EQ(host_->counts().dropped, 2u);
  for (size_t i = 0; i < 2; ++i) source_.Answer(i, Numbers(4));
}

// In the batch, which is away twice; each time is short of what drops it.
TEST_F(HostileGrpcConsumerTest, WhatABatchAskedForIsKeptWhileItComesBackInTime) {
  FetchServerOptions options;
  options.keep_for = absl::Seconds(10);
  Open(options, &turned_);
  const auto parked = [this](uint64_t count) {
    return Eventually([=](const FetchServer::Counts& counts) { return counts.parked == count; });
  };
  for (uint64_t away = 0; away < 2; ++away) {
    // What is asked for in this batch shows that it is there.
    auto call = Start(Batch({{2 * away + 1, "a"}, {2 * away + 2, "b"}}));
    ASSERT_TRUE(parked(2 * away + 2));
    Note(9, true);  // When this has an answer, what came before was seen.
    turned_.AdvanceBy(absl::Seconds(9));
    EXPECT_EQ(host_->counts().dropped, 0u) << away;
    call->Break();
    Note(9, true);
    turned_.AdvanceBy(absl::Seconds(9));
    EXPECT_EQ(host_->counts().dropped, 0u) << away;
  }
  ASSERT_TRUE(Eventually([this](const FetchServer::Counts& counts) {
    turned_.AdvanceBy(absl::Seconds(1));
    return counts.dropped == 4;
  })) << "now it stays away";
  ASSERT_TRUE(source_.AwaitTakes(4));
  for (size_t i = 0; i < 4; ++i) source_.Answer(i, Numbers(4));
}

TEST_F(HostileGrpcConsumerTest, ABatchEndsWithTheLifeThatSentIt) {
  Open();
  auto earlier = Start(Batch({{1, "a"}, {2, "b"}}));
  ASSERT_TRUE(source_.AwaitTakes(2));
  CallSigner next_life({"lab", kHostConsumer, 2}, "", UnixMs);
  Call later(stub_.get(), &next_life, Request(1, "c"));
  EXPECT_EQ(earlier->End().error_code(), grpc::StatusCode::ABORTED);
  ASSERT_TRUE(source_.AwaitTakes(3));
  EXPECT_EQ(host_->counts().waiting, 1u);
  source_.Answer(0, Numbers(4));
  EXPECT_EQ(source_.log().back(), "give back a");
  source_.Answer(2, Numbers(4));
  EXPECT_TRUE(later.End().ok());
}

}  // namespace
}  // namespace tryst
