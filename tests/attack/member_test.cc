// Attackers that hold the cluster's token, or that sit at a member's address.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "proto/transport.pb.h"
#include "server/members/membership.h"
#include "server/server.h"
#include "tests/attack/half_messages.h"
#include "tests/attack/insider.h"
#include "tests/attack/process_use.h"

namespace tryst {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kToken[] = "0123456789abcdef";

ServerConfig Config(const std::string& job) {
  ServerConfig config;
  config.cluster = "lab";
  config.job = job;
  config.protocol = "grpc";
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  config.token_file = absl::StrCat(testing::TempDir(), "/member.token");
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

std::string NameOf(int task) { return absl::StrCat("/job:worker/replica:0/task:", task); }

Insider Member(const Server& server, const std::string& name, uint64_t incarnation = 9) {
  return Insider({server.worker(), server.address(), "lab", kToken}, name, incarnation);
}

std::string Announcement(const std::string& name, uint64_t incarnation, const std::string& at) {
  rpc::HeartbeatRequest request;
  request.mutable_self()->set_worker(name);
  request.mutable_self()->set_incarnation(incarnation);
  request.mutable_self()->set_address(at);
  return request.SerializeAsString();
}

// Sits at a worker's address without the token, and answers every call with `bytes`.
class Impostor final : public grpc::CallbackGenericService {
 public:
  explicit Impostor(std::string bytes) : bytes_(std::move(bytes)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
  }
  ~Impostor() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int calls() const { return calls_.load(); }

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Reactor(const std::string& bytes) : slice_(bytes), answer_(&slice_, 1) {
      StartWriteAndFinish(&answer_, {}, grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    const grpc::Slice slice_;
    const grpc::ByteBuffer answer_;
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    calls_.fetch_add(1);
    return new Reactor(bytes_);
  }

  const std::string bytes_;
  std::atomic<int> calls_{0};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(Membership, NobodyIsBelievedWithoutTheToken) {
  rpc::HeartbeatResponse answer;
  answer.mutable_self()->set_worker(kPs);
  answer.mutable_self()->set_incarnation(7);
  for (int i = 0; i < 2000; ++i) {
    rpc::Member* member = answer.add_members();
    member->set_worker(NameOf(100 + i));
    member->set_address("127.0.0.1:1");
  }
  answer.set_mac(std::string(32, 'x'));
  Impostor impostor(answer.SerializeAsString());
  ServerConfig config = Config("worker");
  config.join = absl::StrCat(kPs, "@", impostor.address());
  auto worker = Start(config);
  for (int i = 0; i < 3000 && impostor.calls() == 0; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_GT(impostor.calls(), 0);
  const auto heard = worker->calls()->Ping(kPs, absl::Seconds(20));
  EXPECT_TRUE(absl::IsUnauthenticated(heard.status())) << heard.status();
  EXPECT_EQ(worker->members()->Members().size(), 2u);
  const absl::Status begun = worker->calls()->BeginStep(kPs, 1, absl::Seconds(20));
  EXPECT_TRUE(absl::IsUnauthenticated(begun)) << begun;
}

TEST(Membership, NamesAndAddressesHaveABound) {
  auto ps = Start(Config("ps"));
  const std::string name = absl::StrCat("/job:", std::string(5000, 'j'), "/replica:0/task:0");
  Insider poisoner = Member(*ps, name);
  EXPECT_EQ(poisoner.Call("Heartbeat", Announcement(name, 9, "127.0.0.1:1")).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  Insider other = Member(*ps, NameOf(1));
  EXPECT_EQ(
      other.Call("Heartbeat", Announcement(NameOf(1), 9, std::string(5000, '1'))).error_code(),
      grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ps->members()->Members().size(), 1u);
}

// With the longest names and addresses, 900 members once made an answer that no worker could
// receive.
TEST(Membership, AClusterIsLearntPageByPage) {
  auto ps = Start(Config("ps"));
  const std::string padding(200, 'x');
  for (int i = 0; i < 9000; ++i) {
    ASSERT_TRUE(ps->members()
                    ->Announce({absl::StrCat("/job:", padding, "/replica:0/task:", i),
                                absl::StrCat("unix:/no/", padding), 0})
                    .ok());
  }
  rpc::HeartbeatRequest request;
  rpc::HeartbeatResponse page;
  size_t heard = 0;
  int pages = 0;
  Insider asker = Member(*ps, NameOf(1));
  do {
    std::string answer;
    request.set_after(page.rest_after());
    const grpc::Status said = asker.Call("Heartbeat", request.SerializeAsString(), &answer);
    ASSERT_TRUE(said.ok()) << said.error_message();
    ASSERT_LT(answer.size(), 2u << 20);
    ASSERT_TRUE(page.ParseFromString(answer));
    heard += static_cast<size_t>(page.members_size());
    ++pages;
  } while (!page.rest_after().empty() && pages < 100);
  EXPECT_EQ(heard, 9001u);
  EXPECT_GT(pages, 3);
}

TEST(Membership, IsFullAtSomePointAndForgetsThoseWhoLeft) {
  auto ps = Start(Config("ps"));
  absl::Status full;
  int announced = 0;
  for (; announced < 70'000 && full.ok(); ++announced) {
    full = ps->members()->Announce({NameOf(announced), "127.0.0.1:1", announced == 5 ? 9u : 0u});
  }
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_LE(announced, 16'384);
  ps->members()->Leave(NameOf(5), 9);
  EXPECT_TRUE(ps->members()->Announce({NameOf(100'000), "127.0.0.1:1", 9}).ok());
}

TEST(Bounds, WhyAStepEndsIsKeptAsAShortText) {
  auto ps = Start(Config("ps"));
  Insider member = Member(*ps, NameOf(1));
  // It has authenticated now, so it may send more at once than a stranger.
  ASSERT_TRUE(member.Call("BeginStep", "").ok());
  const uint64_t before = ResidentBytes();
  for (int step = 1; step <= 150; ++step) {
    rpc::AbortStepRequest request;
    request.set_step_id(step);
    request.set_code(static_cast<int>(absl::StatusCode::kAborted));
    request.set_message(std::string(3 << 20, 'm'));
    ASSERT_TRUE(member.Call("AbortStep", request.SerializeAsString()).ok());
  }
  EXPECT_LT(ResidentBytes(), before + (200 << 20));
  const auto over = ps->steps()->StartStep(7);
  EXPECT_LT(over.status().message().size(), 2000u);
  EXPECT_TRUE(absl::StrContains(over.status().message(), "mmm"));
}

// The largest first message of a worker, on a connection that nobody has authenticated on.
TEST(Bounds, AnHonestFirstMessageMayBeLarge) {
  auto ps = Start(Config("ps"));
  for (int i = 0; i < 5; ++i) {
    Insider member = Member(*ps, NameOf(i));
    rpc::AbortStepRequest request;
    request.set_step_id(1 + i);
    request.set_code(static_cast<int>(absl::StatusCode::kAborted));
    request.set_message(std::string(600 << 10, 'm'));
    const grpc::Status said = member.Call("AbortStep", request.SerializeAsString());
    EXPECT_TRUE(said.ok()) << said.error_message();
  }
  EXPECT_EQ(ps->Stats().at("connections_flooded"), 0);
}

// gRPC holds what has come of them, and nobody else hears of them. Beyond its quota of 256 MiB it
// ends some.
TEST(Bounds, MessagesThatDoNotEnd) {
  auto ps = Start(Config("ps"));
  const uint64_t before = ResidentBytes();
  HalfMessages attack({ps->worker(), ps->address(), "lab", kToken}, NameOf(1), 9);
  uint64_t most = 0;
  while (attack.bytes() < 1200u << 20) {
    ASSERT_TRUE(attack.Send(10)) << attack.bytes();
    most = std::max(most, ResidentBytes());
  }
  EXPECT_GT(attack.ended(), 0u);
  EXPECT_LT(most, before + (800u << 20));
}

TEST(Bounds, StepsThatPeersBegin) {
  auto ps = Start(Config("ps"));
  Insider member = Member(*ps, NameOf(1));
  const uint64_t before = ResidentBytes();
  grpc::Status begun;
  int64_t step = 1;
  for (; step < 20'000 && begun.ok(); ++step) {
    rpc::BeginStepRequest request;
    request.set_step_id(step);
    begun = member.Call("BeginStep", request.SerializeAsString());
  }
  EXPECT_EQ(begun.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << begun.error_message();
  EXPECT_GT(step, 16'000);
  EXPECT_LT(ResidentBytes(), before + (200 << 20));
  EXPECT_TRUE(ps->steps()->StartStep(1'000'000).ok());  // The worker itself may begin steps.
  rpc::CleanupStepRequest cleanup;
  cleanup.set_step_id(1);
  ASSERT_TRUE(member.Call("CleanupStep", cleanup.SerializeAsString()).ok());
}

// A consumer has one share, however many channels it uses.
TEST(Bounds, ChannelsOfAConsumer) {
  auto ps = Start(Config("ps"));
  Insider member = Member(*ps, NameOf(1));
  grpc::Status asked;
  uint64_t channel = 1;
  for (; channel < 600 && asked.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED; ++channel) {
    rpc::FetchRequest request;
    request.set_waits(true);
    request.set_sealed(true);
    request.set_channel(channel);
    request.set_oldest_serial(1);
    rpc::FetchAsk* ask = request.add_asks();
    ask->set_serial(1);
    ask->set_step_id(1);
    ask->set_key(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;k;0:0", kPs,
                                 ps->incarnation(), NameOf(1)));
    asked = member.Fetch(request.SerializeAsString(), 100);
  }
  EXPECT_EQ(asked.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << asked.error_message();
  EXPECT_GE(channel, 256u);
}

TEST(Bounds, WhatIsOverIsToldInPieces) {
  auto ps = Start(Config("ps"));
  Insider member = Member(*ps, NameOf(1));
  const auto note = [](uint64_t first, int count) {
    rpc::FetchRequest request;
    request.set_serial(uint64_t{1} << 40);
    request.set_oldest_serial(1);
    request.set_ends(true);
    request.set_channel(1);
    for (int i = 0; i < count; ++i) request.add_over(first + 2 * static_cast<uint64_t>(i));
    return request.SerializeAsString();
  };
  EXPECT_TRUE(member.Fetch(note(2, 65'536), 0).ok());
  EXPECT_EQ(member.Fetch(note(2, 400'000), 0).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  // The bound holds for any number of notes and channels.
  grpc::Status full;
  for (uint64_t i = 1; i < 64 && full.ok(); ++i) {
    rpc::FetchRequest request;
    ASSERT_TRUE(request.ParseFromString(note(2 + i * 200'000, 65'536)));
    request.set_channel(i % 8);
    full = member.Fetch(request.SerializeAsString(), 0);
  }
  EXPECT_EQ(full.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << full.error_message();
}

}  // namespace
}  // namespace tryst
