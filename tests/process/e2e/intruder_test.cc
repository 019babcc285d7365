// Intruders on a whole server with real sockets: they overhear, guess, forge, repeat and talk
// nonsense, and must not get in.
#include <dirent.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "channel/bootstrap.h"
#include "channel/rdma/wire.h"
#include "channel/signing/caller.h"
#include "gtest/gtest.h"
#include "proto/transport.grpc.pb.h"
#include "server/server.h"
#include "tests/doubles/soft/hostile_peer.h"

namespace tryst {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";
constexpr char kToken[] = "0123456789abcdef";
constexpr char kService[] = "/tryst.rpc.TransportService/";

ServerConfig Config(const std::string& job, int task) {
  ServerConfig config;
  config.cluster = "lab";
  config.job = job;
  config.task = task;
  config.nic = "soft";
  config.encrypt = "off";  // So that what is tried here is the data path itself.
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  config.patience = absl::Seconds(5);
  config.stop_deadline = absl::Seconds(2);
  config.token_file = absl::StrCat(testing::TempDir(), "/intruder.token");
  std::ofstream(config.token_file) << kToken << "\n";
  return config;
}

std::unique_ptr<Server> Start(const ServerConfig& config) {
  auto server = ServerBuilder().SetEnvironment({}).Build(config);
  EXPECT_TRUE(server.ok()) << server.status();
  if (!server.ok()) return nullptr;
  EXPECT_TRUE((*server)->Start().ok());
  return *std::move(server);
}

// Holds the token, claims to be a worker, and calls the ps by hand.
class Insider {
 public:
  explicit Insider(const Server& ps, const std::string& name = kWorker, uint64_t incarnation = 9,
                   const std::string& token = kToken)
      : ps_(ps),
        signer_({"lab", name, incarnation}, token, UnixMs),
        channel_(grpc::CreateChannel(ps.address(), grpc::InsecureChannelCredentials())),
        stub_(rpc::TransportService::NewStub(channel_)) {}

  rpc::HelloRequest Hello(uint64_t epoch) const {
    rpc::HelloRequest hello;
    hello.set_peer(ps_.worker());
    hello.set_worker(signer_.self().worker);
    hello.set_incarnation(signer_.self().incarnation);
    hello.set_protocol_oldest(kProtocolOldest);
    hello.set_protocol_newest(kProtocolNewest);
    hello.set_epoch(epoch);
    hello.set_path("rdma/soft");
    hello.add_queue_pairs(HostilePeer::Address());
    wire::ChannelParameters parameters;
    parameters.slots = 4;
    parameters.ring_slots = 4;
    parameters.message_bytes = 8192;
    parameters.ring_address = 4096;
    parameters.ring_key = 1;
    parameters.ack_address = 8192;
    parameters.ack_key = 1;
    uint8_t bytes[wire::kParametersBytes];
    wire::EncodeParameters(parameters, bytes);
    hello.set_parameters(bytes, sizeof(bytes));
    return hello;
  }
  std::string Sign(const std::string& method, const google::protobuf::Message& request,
                   const std::string& callee = kPs) {
    return signer_.Sign(callee, kService + method, request.SerializeAsString());
  }
  grpc::Status SayHello(const rpc::HelloRequest& request, const std::string& statement,
                        rpc::HelloResponse* response) {
    grpc::ClientContext context;
    context.AddMetadata(kCallerMetadata, statement);
    return stub_->Hello(&context, request, response);
  }
  // The address of the ps's queue pair for us, from its answer to an honest hello.
  std::string QueuePair(uint64_t epoch = 1) {
    const rpc::HelloRequest hello = Hello(epoch);
    rpc::HelloResponse response;
    const grpc::Status said = SayHello(hello, Sign("Hello", hello), &response);
    EXPECT_TRUE(said.ok()) << said.error_message();
    EXPECT_EQ(response.hello().queue_pairs_size(), 1);
    EXPECT_TRUE(parameters_ok(response));
    return response.hello().queue_pairs_size() == 1 ? response.hello().queue_pairs(0) : "";
  }
  const wire::ChannelParameters& parameters() const { return parameters_; }

  grpc::Status Abort(int64_t step, const std::string& statement) {
    rpc::StepResponse response;
    grpc::ClientContext context;
    context.AddMetadata(kCallerMetadata, statement);
    return stub_->AbortStep(&context, AbortRequest(step), &response);
  }
  static rpc::AbortStepRequest AbortRequest(int64_t step) {
    rpc::AbortStepRequest request;
    request.set_step_id(step);
    request.set_code(static_cast<int>(absl::StatusCode::kAborted));
    request.set_message("by an intruder");
    return request;
  }
  // Sends any bytes to any method.
  grpc::Status CallRaw(const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    context.AddMetadata(kCallerMetadata, signer_.Sign(kPs, kService + method, bytes));
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::CompletionQueue queue;
    auto call = stub.PrepareUnaryCall(&context, kService + method, request, &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }

 private:
  bool parameters_ok(const rpc::HelloResponse& response) {
    auto decoded = wire::DecodeParameters(response.hello().parameters());
    if (decoded.ok()) parameters_ = *decoded;
    return decoded.ok();
  }

  const Server& ps_;
  CallSigner signer_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<rpc::TransportService::Stub> stub_;
  wire::ChannelParameters parameters_;
};

// Whether the ps closes the connection within two seconds, without sending a byte.
bool IsTurnedAway(HostilePeer* peer) {
  for (int i = 0; i < 400; ++i) {
    if (peer->HearHello()) return false;
    if (peer->Closed()) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return false;
}
bool IsLetIn(HostilePeer* peer) {
  for (int i = 0; i < 400 && !peer->Closed(); ++i) {
    if (peer->HearHello()) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return false;
}
bool IsHungUpOn(HostilePeer* peer) {
  for (int i = 0; i < 400; ++i) {
    peer->ForgetWhatWasHeard();
    if (peer->Closed()) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return false;
}

class IntruderTest : public testing::Test {
 protected:
  void SetUp() override {
    ps_ = Start(Config("ps", 0));
    ASSERT_NE(ps_, nullptr);
  }
  // Whatever the test did, an honest worker must be served by the data plane.
  void TearDown() override {
    ServerConfig config = Config("worker", 1);
    config.join = absl::StrCat(kPs, "@", ps_->address());
    auto worker = Start(config);
    const TensorKey key = *TensorKey::Parse(absl::StrFormat(
        "%s/device:CPU:0;%016x;%s/device:CPU:0;k;0:0", kPs, ps_->incarnation(), worker->worker()));
    ASSERT_TRUE((*ps_->steps()->StartStep(99))
                    ->Send(key, {}, *Tensor::Allocate(DType::kFloat, TensorShape({50'000})), false)
                    .ok());
    auto got = (*worker->steps()->StartStep(99))->Recv(key, {}, absl::Seconds(10));
    EXPECT_TRUE(got.ok()) << got.status() << worker->Explain("");
    EXPECT_TRUE(absl::StrContains(worker->Explain(kPs), "over rdma/soft")) << worker->Explain(kPs);
  }

  std::unique_ptr<Server> ps_;
};

TEST_F(IntruderTest, AnOverheardHelloOpensNothingTwice) {
  Insider insider(*ps_);
  const rpc::HelloRequest hello = insider.Hello(1);
  const std::string statement = insider.Sign("Hello", hello);
  rpc::HelloResponse response;
  ASSERT_TRUE(insider.SayHello(hello, statement, &response).ok());
  const grpc::Status again = insider.SayHello(hello, statement, &response);
  EXPECT_EQ(again.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(absl::StrContains(again.error_message(), "replay")) << again.error_message();
  // Signed again, as only a holder of the token can: but the epoch has passed.
  const grpc::Status old = insider.SayHello(hello, insider.Sign("Hello", hello), &response);
  EXPECT_EQ(old.error_code(), grpc::StatusCode::ABORTED) << old.error_message();
  // Changed on its way to an older protocol: the signature no longer fits.
  rpc::HelloRequest downgraded = insider.Hello(2);
  const std::string signed_as_it_was = insider.Sign("Hello", downgraded);
  downgraded.set_protocol_oldest(0);
  downgraded.set_protocol_newest(0);
  EXPECT_EQ(insider.SayHello(downgraded, signed_as_it_was, &response).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  // A holder of the token may sign it: the refusal names both ranges.
  const grpc::Status refused =
      insider.SayHello(downgraded, insider.Sign("Hello", downgraded), &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(absl::StrContains(refused.error_message(), "speaks protocol 0 to 0"))
      << refused.error_message();
}

TEST_F(IntruderTest, ACallIsForOneWorkerAlone) {
  auto other = Start(Config("ps", 1));
  Insider insider(*ps_);
  ASSERT_TRUE(other->steps()->StartStep(7).ok());
  ASSERT_TRUE(ps_->steps()->StartStep(7).ok());
  // Overheard on its way to one ps, and sent to another.
  const std::string statement = insider.Sign("AbortStep", Insider::AbortRequest(7));
  Insider at_other(*other);
  const grpc::Status said = at_other.Abort(7, statement);
  EXPECT_EQ(said.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(absl::StrContains(said.error_message(), "is to /job:ps/replica:0/task:0"))
      << said.error_message();
  EXPECT_TRUE(insider.Abort(7, statement).ok());
}

TEST_F(IntruderTest, WhatAnEarlierLifeHeardOpensNothingInTheNext) {
  std::string statement;
  const std::string port = ps_->address();
  {
    Insider insider(*ps_);
    statement = insider.Sign("AbortStep", Insider::AbortRequest(7));
    ASSERT_TRUE(insider.Abort(7, statement).ok());
  }
  ASSERT_TRUE(ps_->Stop(absl::Seconds(5)).ok());
  ps_.reset();
  ServerConfig again = Config("ps", 0);
  again.listen = port;
  ps_ = Start(again);
  ASSERT_TRUE(ps_->steps()->StartStep(7).ok());
  Insider insider(*ps_);
  const grpc::Status replayed = insider.Abort(7, statement);
  EXPECT_EQ(replayed.error_code(), grpc::StatusCode::UNAVAILABLE) << replayed.error_message();
  EXPECT_TRUE(absl::StrContains(replayed.error_message(), "before this worker started"))
      << replayed.error_message();
  EXPECT_TRUE(insider.Abort(7, insider.Sign("AbortStep", Insider::AbortRequest(7))).ok());
}

TEST_F(IntruderTest, AQueuePairOpensOnceToWhoWasTold) {
  Insider insider(*ps_);
  const std::string address = insider.QueuePair();
  const SoftHello right = HostilePeer::HelloFor(address);
  SoftHello forged = right;
  for (int i = 0; i < 64; ++i) {  // Numbers of other queue pairs, with the right token.
    forged.to_number = right.to_number + static_cast<uint32_t>(i) - 32;
    if (forged.to_number == right.to_number) continue;
    HostilePeer peer(address);
    peer.Say(forged);
    ASSERT_TRUE(IsTurnedAway(&peer)) << i;
  }
  forged = right;
  for (size_t bit = 0; bit < 128; bit += 9) {  // Tokens that differ in one bit.
    forged.token = right.token;
    forged.token[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    HostilePeer peer(address);
    peer.Say(forged);
    ASSERT_TRUE(IsTurnedAway(&peer)) << bit;
  }
  forged = right;
  forged.from_number = HostilePeer::kNumber + 1;  // It did not say hello.
  HostilePeer impostor(address);
  impostor.Say(forged);
  EXPECT_TRUE(IsTurnedAway(&impostor));

  HostilePeer first(address);
  first.Say(right);
  EXPECT_TRUE(IsLetIn(&first));
  HostilePeer second(address);  // It says the same bytes once more.
  second.Say(right);
  EXPECT_TRUE(IsTurnedAway(&second));
}

TEST_F(IntruderTest, GuessedKeysReachNoMemory) {
  std::mt19937 random(1);
  // The peer is told the ring's key. Any other key breaks the connection at once, so each hello
  // allows one guess.
  for (uint64_t epoch = 1; epoch <= 24; ++epoch) {
    Insider insider(*ps_, kWorker, 100 + epoch);
    const std::string address = insider.QueuePair();
    HostilePeer peer(address);
    peer.Say(HostilePeer::HelloFor(address));
    ASSERT_TRUE(IsLetIn(&peer));
    FrameHeader write;
    write.type = epoch % 3 == 2 ? FrameType::kRead : FrameType::kWrite;
    write.total = 64;
    write.bytes = write.type == FrameType::kRead ? 0 : 64;
    write.address = insider.parameters().ring_address;
    write.remote_key = epoch % 3 == 0 ? insider.parameters().ring_key + 1 : random();
    if (epoch % 4 == 1) {  // The right key, but beyond its region.
      write.remote_key = insider.parameters().ring_key;
      write.address += uint64_t{1} << (18 + epoch);
    }
    peer.Say(write, std::vector<uint8_t>(write.bytes, 0xee));
    EXPECT_TRUE(IsHungUpOn(&peer)) << epoch;
  }
}

TEST_F(IntruderTest, NonsenseOnTheDataPlaneHurtsNobodyElse) {
  std::mt19937 random(2);
  for (uint64_t round = 1; round <= 20; ++round) {
    Insider insider(*ps_, kWorker, 200 + round);
    const std::string address = insider.QueuePair();
    HostilePeer stranger(address);  // Bytes that are not a hello.
    stranger.SayBytes(std::vector<uint8_t>(1 + random() % 5000, static_cast<uint8_t>(random())));
    HostilePeer peer(address);
    peer.Say(HostilePeer::HelloFor(address));
    ASSERT_TRUE(IsLetIn(&peer));
    if (round % 4 == 0) {  // A frame that announces far too many bytes.
      FrameHeader huge;
      huge.type = FrameType::kWrite;
      huge.address = insider.parameters().ring_address;
      huge.remote_key = insider.parameters().ring_key;
      huge.total = uint64_t{1} << 62;
      huge.bytes = UINT32_MAX;
      peer.Say(huge);
    } else if (round % 4 == 1) {  // Not a message, at a place where it may write.
      FrameHeader message;
      message.type = FrameType::kWrite;
      message.has_immediate = true;
      message.immediate = wire::EncodeMessageImmediate(0);
      message.address = insider.parameters().ring_address;
      message.remote_key = insider.parameters().ring_key;
      message.total = message.bytes = 4096;
      std::vector<uint8_t> bytes(4096);
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
      peer.Say(message, bytes);
    } else {
      std::vector<uint8_t> bytes(10'000);
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
      peer.SayBytes(bytes);
    }
    EXPECT_TRUE(IsHungUpOn(&peer)) << round;
  }
}

TEST_F(IntruderTest, HalfOpenHandshakesHoldUpNobody) {
  // More connections than the NIC lets wait, each of which stalls: a silent socket, half a hello,
  // and a hello over gRPC without a connection.
  std::vector<std::unique_ptr<HostilePeer>> stalled;
  std::string address;
  for (uint64_t i = 0; i < 40; ++i) {
    Insider insider(*ps_, absl::StrCat("/job:worker/replica:0/task:", 100 + i), 300 + i);
    address = insider.QueuePair();
    stalled.push_back(std::make_unique<HostilePeer>(address));
    stalled.push_back(std::make_unique<HostilePeer>(address));
    stalled.back()->SayBytes(std::vector<uint8_t>(17, 1));
  }
  TearDown();  // Meanwhile an honest worker must be served.
  for (auto& peer : stalled) EXPECT_TRUE(IsHungUpOn(peer.get()));
}

int OpenFiles() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (folder != nullptr && readdir(folder) != nullptr) ++count;
  if (folder != nullptr) closedir(folder);
  return count;
}

// Both ends are in this process, so a descriptor that either forgets would show.
TEST_F(IntruderTest, AThousandConnectionsLeaveNothingOpen) {
  const auto connect = [&](uint64_t i) {
    Insider insider(*ps_, kWorker, 1000 + i);
    const std::string address = insider.QueuePair();
    HostilePeer peer(address);
    peer.Say(HostilePeer::HelloFor(address));
    if (i % 50 == 0) {
      EXPECT_TRUE(IsLetIn(&peer));
    }
  };
  for (uint64_t i = 0; i < 20; ++i) connect(i);
  const int before = OpenFiles();
  for (uint64_t i = 20; i < 1020; ++i) connect(i);
  int after = OpenFiles();
  for (int i = 0; i < 100 && after > before + 5; ++i) {
    absl::SleepFor(absl::Milliseconds(50));
    after = OpenFiles();
  }
  EXPECT_LE(after, before + 5);
}

TEST_F(IntruderTest, OversizedAndMalformedCallsAreRefused) {
  Insider insider(*ps_);
  // The server closes a connection that sends this much without an authenticated call.
  EXPECT_FALSE(Insider(*ps_).CallRaw("Stats", std::string(5 << 20, 'x')).ok());
  ASSERT_TRUE(insider.CallRaw("Stats", "").ok());
  for (const char* method : {"Hello", "BeginStep", "AbortStep", "CleanupStep", "Heartbeat",
                             "Explain", "DumpWaiting", "TraceKey"}) {
    EXPECT_EQ(insider.CallRaw(method, std::string(5 << 20, 'x')).error_code(),
              grpc::StatusCode::RESOURCE_EXHAUSTED)
        << method;
    EXPECT_EQ(insider.CallRaw(method, "\xff\xff\xff\xff\x0f").error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << method;
  }
  EXPECT_EQ(insider.CallRaw("NoSuchMethod", "x").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  Insider outsider(*ps_, kWorker, 9, "not the cluster's token");
  EXPECT_EQ(outsider.CallRaw("Stats", "").error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

// A server at a peer's address that answers every call with a status, or never.
class FakePeer final : public grpc::CallbackGenericService {
 public:
  // OK stands for never.
  explicit FakePeer(grpc::Status answer) : answer_(std::move(answer)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakePeer() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Reactor(const grpc::Status& answer) {
      if (!answer.ok()) Finish(answer);
    }
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Reactor(answer_);
  }

  const grpc::Status answer_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// The status of a fetch from such a peer, which must end within `within`.
absl::Status FetchFromFake(const FakePeer& fake, const std::string& protocol,
                           absl::Duration within) {
  ServerConfig config = Config("worker", 0);
  config.protocol = protocol;
  config.open_cluster = false;
  config.cluster_spec = absl::StrCat("ps=", fake.address(), ";worker=127.0.0.1:0");
  auto worker = Start(config);
  const TensorKey key = *TensorKey::Parse(
      absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;k;0:0", kPs, 7, worker->worker()));
  const absl::Time start = absl::Now();
  absl::Status status = (*worker->steps()->StartStep(1))->Recv(key, {}, within).status();
  EXPECT_LT(absl::Now() - start, within + absl::Seconds(2)) << "hangs";
  EXPECT_TRUE(worker->Stop(absl::Seconds(2)).ok());  // It stops in time, whatever the peer does.
  return status;
}

TEST(FakePeers, AnotherVersionEndsAFetchAtOnceWithBothRanges) {
  FakePeer fake({grpc::StatusCode::FAILED_PRECONDITION,
                 "/job:worker/replica:0/task:0 speaks protocol 1 to 1, the ps 2 to 3"});
  for (const char* protocol : {"grpc", "grpc+verbs"}) {
    const absl::Time start = absl::Now();
    const absl::Status status = FetchFromFake(fake, protocol, absl::Seconds(20));
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << protocol << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "1 to 1, the ps 2 to 3")) << status;
    EXPECT_LT(absl::Now() - start, absl::Seconds(10)) << protocol;
  }
}

TEST(FakePeers, OneThatNeverAnswersIsNamedWhenTheDeadlinePasses) {
  FakePeer fake(grpc::Status::OK);
  for (const char* protocol : {"grpc", "grpc+verbs"}) {
    const absl::Status status = FetchFromFake(fake, protocol, absl::Milliseconds(1500));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status))
        << protocol << status;
    EXPECT_FALSE(status.message().empty());
  }
}

// Fetches over shared memory: the worker's settings must hold there, too.
absl::Status FetchOverShm(const std::string& allow, uint64_t max_tensor_bytes,
                          std::string* served) {
  ServerConfig config = Config("ps", 0);
  config.shm = "on";
  config.allow = allow;
  auto ps = Start(config);
  config = Config("worker", 0);
  config.shm = "on";
  config.max_tensor_bytes = max_tensor_bytes;
  config.join = absl::StrCat(kPs, "@", ps->address());
  auto worker = Start(config);
  const TensorKey key = *TensorKey::Parse(absl::StrFormat(
      "%s/device:CPU:0;%016x;%s/device:CPU:0;k;0:0", kPs, ps->incarnation(), worker->worker()));
  auto tensor = ps->allocator()->AllocateTensor(DType::kFloat, TensorShape({50'000}));
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_TRUE((*ps->steps()->StartStep(1))->Send(key, {}, *tensor, false).ok());
  const absl::Status got =
      (*worker->steps()->StartStep(1))->Recv(key, {}, absl::Seconds(30)).status();
  *served = ps->Explain("");
  return got;
}

TEST(Neighbours, AnAllowListKeepsThemApartInSharedMemory) {
  std::string served;
  absl::Status got = FetchOverShm("", uint64_t{1} << 30, &served);
  EXPECT_TRUE(got.ok()) << got;
  EXPECT_TRUE(absl::StrContains(served, "over shm: connected")) << served;
  EXPECT_FALSE(absl::StrContains(served, "gets copies alone")) << served;
  got = FetchOverShm("/job:worker=/job:ps", uint64_t{1} << 30, &served);
  EXPECT_TRUE(got.ok()) << got;
  EXPECT_TRUE(absl::StrContains(served, "gets copies alone")) << served;
}

TEST(Neighbours, ATensorOverTheLimitIsRefusedInSharedMemory) {
  std::string served;
  const absl::Status got = FetchOverShm("", 1000, &served);
  EXPECT_TRUE(absl::IsResourceExhausted(got)) << got;
  EXPECT_TRUE(absl::StrContains(got.message(), "max_tensor_bytes")) << got;
}

TEST(Control, StepsAreForMembersOrForThoseNamed) {
  ServerConfig config = Config("ps", 0);
  config.open_cluster = false;
  config.cluster_spec = "ps=127.0.0.1:0;worker=127.0.0.1:1";
  auto ps = Start(config);
  const auto abort_as = [&](const Server& server, const std::string& name) {
    Insider caller(server, name);
    return caller.Abort(1, caller.Sign("AbortStep", Insider::AbortRequest(1), server.worker()));
  };
  EXPECT_TRUE(abort_as(*ps, kWorker).ok());
  const grpc::Status refused = abort_as(*ps, "/job:cli/replica:0/task:0");
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(absl::StrContains(refused.error_message(), "name it in the setting control"))
      << refused.error_message();

  config.control = "/job:chief,/job:cli/";
  auto chiefly = Start(config);
  EXPECT_TRUE(abort_as(*chiefly, "/job:cli/replica:0/task:0").ok());
  EXPECT_TRUE(abort_as(*chiefly, "/job:chief/replica:0/task:3").ok());
  EXPECT_EQ(abort_as(*chiefly, "/job:chiefs/replica:0/task:0").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(abort_as(*chiefly, kWorker).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  config.control = "chief";
  EXPECT_TRUE(absl::IsInvalidArgument(ServerBuilder().SetEnvironment({}).Build(config).status()));
}

}  // namespace
}  // namespace tryst
