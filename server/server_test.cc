// Whole servers, several in one process.
#include "server/server.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "base/mutex.h"
#include "channel/compat/fetch_wire.h"
#include "channel/signing/caller.h"
#include "channel/trace/trace_dump.h"
#include "gtest/gtest.h"
#include "proto/transport.grpc.pb.h"
#include "rendezvous/cancellation.h"
#include "rendezvous/own_steps.h"
#include "server/config/pollers.h"
#include "server/data_plane/open_nics.h"
#include "server/server_parts.h"
#include "server/services/samples.h"
#include "server/status/insight.h"

namespace tryst {
namespace {

// "shm" stands for grpc+verbs with shared memory before the soft NIC, "stream" for a stream of
// gRPC to each peer, "grpc" for a call of it for each fetch.
ServerConfig Config(const std::string& job, int task, const std::string& protocol) {
  ServerConfig config;
  config.cluster = "lab";
  config.job = job;
  config.task = task;
  config.protocol = protocol == "shm" || protocol == "stream" ? "grpc+verbs" : protocol;
  config.insecure = true;
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  config.nic = protocol == "stream" ? "grpc" : protocol == "grpc" ? "calls" : "soft";
  config.shm = protocol == "shm" ? "on" : "off";
  config.patience = absl::Seconds(10);
  config.stop_deadline = absl::Seconds(5);
  return config;
}

std::unique_ptr<Server> Start(const ServerConfig& config) {
  auto server = ServerBuilder().SetEnvironment({}).Build(config);
  EXPECT_TRUE(server.ok()) << server.status();
  if (!server.ok()) return nullptr;
  absl::Status started = (*server)->Start();
  EXPECT_TRUE(started.ok()) << started;
  return *std::move(server);
}

std::string Seed(const Server& server) {
  return absl::StrCat(server.worker(), "@", server.address());
}

TensorKey Key(const Server& producer, const std::string& consumer, const std::string& edge) {
  return *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;%s;0:0",
                                           producer.worker(), producer.incarnation(), consumer,
                                           edge));
}

Tensor Int(int32_t value) {
  Tensor tensor = *Tensor::Allocate(DType::kInt32, TensorShape({1}));
  *static_cast<int32_t*>(tensor.mutable_data()) = value;
  return tensor;
}

absl::StatusOr<Received> Recv(Server* consumer, int64_t step, const TensorKey& key) {
  auto rendezvous = consumer->steps()->StartStep(step);
  if (!rendezvous.ok()) return rendezvous.status();
  return (*rendezvous)->Recv(key, {}, absl::Seconds(20));
}

absl::Status Send(Server* producer, int64_t step, const TensorKey& key, Tensor tensor) {
  auto rendezvous = producer->steps()->StartStep(step);
  if (!rendezvous.ok()) return rendezvous.status();
  return (*rendezvous)->Send(key, {}, std::move(tensor), false);
}

class EveryWay : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, EveryWay, testing::Values("grpc", "grpc+verbs", "shm", "stream"),
                         [](const auto& info) {
                           const std::string way = info.param;
                           return way == "stream" ? "Stream"
                                  : way == "grpc" ? "Grpc"
                                  : way == "shm"  ? "Shm"
                                                  : "GrpcAndVerbs";
                         });

TEST_P(EveryWay, TensorsGoBothWaysBetweenServersThatFindEachOther) {
  auto ps = Start(Config("ps", 0, GetParam()));
  ServerConfig config = Config("worker", 0, GetParam());
  config.join = Seed(*ps);
  auto worker = Start(config);
  for (int32_t step = 1; step <= 5; ++step) {
    const TensorKey there = Key(*ps, worker->worker(), "there");
    ASSERT_TRUE(Send(ps.get(), step, there, Int(step)).ok());
    auto got = Recv(worker.get(), step, there);
    ASSERT_TRUE(got.ok()) << got.status() << ps->Explain("") << worker->Explain("");
    EXPECT_EQ(*got->tensor.data_as<int32_t>(), step);
    // The ps learned of the worker only by its announcement.
    const TensorKey back = Key(*worker, ps->worker(), "back");
    ASSERT_TRUE(Send(worker.get(), step, back, Int(-step)).ok());
    got = Recv(ps.get(), step, back);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got->tensor.data_as<int32_t>(), -step);
    ps->steps()->CleanupStep(step);
    worker->steps()->CleanupStep(step);
  }
  const auto stats = worker->Stats();
  const std::string way = GetParam();
  if (way == "grpc+verbs" || way == "stream") {
    EXPECT_EQ(stats.at("rdma_fetches"), 5) << worker->Explain("");
    EXPECT_NE(
        worker->Explain(ps->worker()).find(way == "stream" ? "over grpc/stream" : "rdma/soft"),
        std::string::npos);
  } else {
    EXPECT_EQ(stats.count("rdma_fetches"), std::string(GetParam()) == "shm" ? 1u : 0u);
  }
  // Each five of four bytes; the producer counts what it answers by calls.
  const bool by_calls = way == "grpc";
  auto of_calls = ps->Stats();
  for (int i = 0; by_calls && i < 1000 && of_calls.at("grpc_tensors") < 5; ++i) {
    absl::SleepFor(absl::Milliseconds(5));  // The last counts when its answer has gone.
    of_calls = ps->Stats();
  }
  EXPECT_EQ(of_calls.at("grpc_tensors"), by_calls ? 5 : 0);
  EXPECT_EQ(of_calls.at("grpc_bytes"), by_calls ? 20 : 0);
  if (!by_calls) {
    EXPECT_EQ(stats.at(way == "shm" ? "shm_fetched_bytes" : "rdma_fetched_bytes"), 20);
  }
  const bool shares = std::string(GetParam()) == "shm";
  if (shares) {
    EXPECT_EQ(stats.at("rdma_fetches"), 0);
    EXPECT_EQ(stats.at("shm_fetches"), 5) << worker->Explain("");
  }
  EXPECT_EQ(worker->allocator() != nullptr, shares);
  if (shares) {
    EXPECT_NE(worker->Explain(ps->worker()).find("over shm"), std::string::npos);
    const auto before = worker->Stats();
    const auto tensor = worker->allocator()->AllocateTensor(DType::kInt32, TensorShape({1000}));
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_GE(worker->Stats().at("shm_used_bytes"), before.at("shm_used_bytes") + 4000);
    EXPECT_GE(worker->Stats().at("shm_segment_bytes"), 4000);
    EXPECT_EQ(worker->Stats().at("shm_refusals"), 0);
  }
  EXPECT_TRUE(worker->Stop(absl::Seconds(5)).ok());
  EXPECT_TRUE(ps->Stop(absl::Seconds(5)).ok());
}

// How often the thread with that name has gone to sleep; -1: there is no such thread.
int64_t SleepsOf(const std::string& thread) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    std::string word, name;
    status >> word >> name;
    if (name != thread) continue;
    while (status >> word) {
      if (word != "voluntary_ctxt_switches:") continue;
      int64_t sleeps = -1;
      status >> sleeps;
      return sleeps;
    }
  }
  return -1;
}

// Neither of the two pollers has all three producers. They are asked one by one, then by one
// RecvMany.
TEST_P(EveryWay, PollersShareThePeersAndNoneIsLost) {
  ServerConfig config = Config("worker", 0, GetParam());
  config.pollers = "2";
  auto worker = Start(config);
  std::vector<std::unique_ptr<Server>> producers;
  std::vector<TensorKey> keys;
  for (int i = 0; i < 3; ++i) {
    ServerConfig of_ps = Config("ps", i, GetParam());
    of_ps.pollers = absl::StrCat(i);  // The two ends need not have the same number.
    of_ps.join = Seed(*worker);
    producers.push_back(Start(of_ps));
  }
  for (int32_t step = 1; step <= 3; ++step) {
    keys.clear();
    for (int32_t i = 0; i < 12; ++i) {
      Server* const ps = producers[static_cast<size_t>(i % 3)].get();
      keys.push_back(Key(*ps, worker->worker(), absl::StrCat("many_", i)));
      ASSERT_TRUE(Send(ps, step, keys.back(), Int(100 * step + i)).ok());
      const TensorKey back = Key(*worker, ps->worker(), absl::StrCat("back_", i));
      ASSERT_TRUE(Send(worker.get(), step, back, Int(i)).ok());
    }
    absl::Notification ended;
    (*worker->steps()->StartStep(step))
        ->RecvManyAsync(keys, {}, [&](const absl::Status& first, absl::Span<Received> all) {
          EXPECT_TRUE(first.ok()) << first;
          for (size_t i = 0; i < all.size(); ++i) {
            EXPECT_EQ(*all[i].tensor.data_as<int32_t>(), 100 * step + static_cast<int32_t>(i));
          }
          ended.Notify();
        });
    ASSERT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(30))) << worker->Explain("");
    for (int32_t i = 0; i < 12; ++i) {
      Server* const ps = producers[static_cast<size_t>(i % 3)].get();
      auto got = Recv(ps, step, Key(*worker, ps->worker(), absl::StrCat("back_", i)));
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got->tensor.data_as<int32_t>(), i);
    }
  }
  if (UsableCpus() < 2) GTEST_SKIP() << "a process with one processor has one poller";
  EXPECT_EQ(worker->Stats().at("pollers"), 2);
  const std::string paths = worker->Explain("");
  EXPECT_NE(paths.find("; 2 pollers"), std::string::npos) << paths;
  EXPECT_NE(paths.find("on poller 0"), std::string::npos) << paths;
  EXPECT_NE(paths.find("on poller 1"), std::string::npos) << paths;
  EXPECT_NE(worker->insight()->PathsJson("").find("\"poller\":1"), std::string::npos);
  EXPECT_NE(worker->insight()->Metrics().find("tryst_pollers 2"), std::string::npos);
}

TEST(Metrics, OnlyWhatIsThereNowIsAGauge) {
  const auto worker = Start(Config("worker", 0, "grpc"));
  const std::string page = worker->insight()->Metrics();
  for (const char* gauge : {"open", "strangers"}) {
    EXPECT_NE(page.find(absl::StrCat("# TYPE tryst_connections_", gauge, " gauge\n")),
              std::string::npos)
        << page;
  }
  for (const char* count : {"accepted", "crowded_out", "timed_out", "flooded", "held_back",
                            "refused", "listener_rests"}) {
    EXPECT_NE(page.find(absl::StrCat("# TYPE tryst_connections_", count, "_total counter\n")),
              std::string::npos)
        << page;
  }
}

TEST_P(EveryWay, APollerWithoutAPeerSleeps) {
  if (UsableCpus() < 2) GTEST_SKIP() << "a process with one processor has one poller";
  ServerConfig config = Config("worker", 0, GetParam());
  config.pollers = "2";
  auto worker = Start(config);
  // A loaded machine is slow to start it. Once it sleeps, it sleeps on.
  for (int i = 0; i < 8; ++i) {
    const int64_t before = SleepsOf("tryst-poller-1");
    ASSERT_GE(before, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    if (SleepsOf("tryst-poller-1") == before) return;
  }
  FAIL() << "it has not slept on for 2.5 s in 20 s";
}

TEST(Libfabric, CarriesTensorsBetweenServersThatNameItsProvider) {
  ServerConfig ps_config = Config("ps", 0, "grpc+verbs");
  ps_config.nic = "ofi:tcp";
  auto ps = Start(ps_config);
  ServerConfig config = Config("worker", 0, "grpc+verbs");
  config.nic = "ofi:tcp";
  config.join = Seed(*ps);
  auto worker = Start(config);
  for (int32_t step = 1; step <= 3; ++step) {
    const TensorKey key = Key(*ps, worker->worker(), "there");
    ASSERT_TRUE(Send(ps.get(), step, key, Int(step)).ok());
    const auto got = Recv(worker.get(), step, key);
    ASSERT_TRUE(got.ok()) << got.status() << worker->Explain("");
    EXPECT_EQ(*got->tensor.data_as<int32_t>(), step);
  }
  EXPECT_EQ(worker->Stats().at("rdma_fetches"), 3) << worker->Explain("");
  EXPECT_NE(worker->Explain(ps->worker()).find("rdma/ofi-tcp"), std::string::npos)
      << worker->Explain(ps->worker());
  EXPECT_TRUE(worker->Stop(absl::Seconds(5)).ok());
  EXPECT_TRUE(ps->Stop(absl::Seconds(5)).ok());
}

TEST(Joining, WhatNamesNoWorkerAndItsAddressIsRefused) {
  for (const char* const join : {"127.0.0.1:2222", "/job:ps/replica:0/task:0", "@127.0.0.1:2222",
                                 "/job:ps/replica:1/task:0@127.0.0.1:2222", "ps@127.0.0.1:2222"}) {
    ServerConfig config = Config("worker", 0, "grpc");
    config.join = absl::StrCat("/job:ps/replica:0/task:1@127.0.0.1:2223,", join);
    const absl::Status status = ServerBuilder().SetEnvironment({}).Build(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << join;
    EXPECT_NE(status.message().find(absl::StrCat("'", join, "'")), std::string::npos) << status;
  }
}

TEST(Libfabric, ProviderThatNobodyKnowsIsRefusedAtTheStart) {
  ServerConfig config = Config("ps", 0, "grpc+verbs");
  config.nic = "ofi:pigeon";
  auto server = ServerBuilder().SetEnvironment({}).Build(config);
  const absl::Status status = server.ok() ? (*server)->Start() : server.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find("ofi:tcp"), std::string::npos) << status;
}

TEST_P(EveryWay, AnEarlyRequesterMeetsALateJoiner) {
  auto worker = Start(Config("worker", 0, GetParam()));
  absl::Notification done;
  absl::Status status;
  // The worker does not know where the ps will be, nor its incarnation, until the ps announces
  // itself.
  auto ps_config = Config("ps", 0, GetParam());
  ps_config.join = Seed(*worker);
  auto ps = ServerBuilder().SetEnvironment({}).Build(ps_config);
  ASSERT_TRUE(ps.ok()) << ps.status();
  const TensorKey key = Key(**ps, worker->worker(), "k");
  auto rendezvous = worker->steps()->StartStep(1);
  ASSERT_TRUE(rendezvous.ok());
  (*rendezvous)->RecvAsync(key, {}, [&](Received&& received) {
    status = received.status;
    done.Notify();
  });
  EXPECT_FALSE(done.WaitForNotificationWithTimeout(absl::Milliseconds(300)));
  ASSERT_TRUE((*ps)->Start().ok());
  ASSERT_TRUE(Send(ps->get(), 1, key, Int(1)).ok());
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(20))) << worker->Explain("");
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(EveryWay, AWorkerReturnsElsewhereAndNobodyElseRestarts) {
  auto worker = Start(Config("worker", 0, GetParam()));
  ServerConfig config = Config("ps", 0, GetParam());
  config.join = Seed(*worker);
  auto ps = Start(config);
  const TensorKey first = Key(*ps, worker->worker(), "k");
  ASSERT_TRUE(Send(ps.get(), 1, first, Int(1)).ok());
  ASSERT_TRUE(Recv(worker.get(), 1, first).ok());
  // One fetch waits while the ps stops.
  absl::Notification done;
  absl::Status status;
  auto rendezvous = worker->steps()->StartStep(2);
  (*rendezvous)->RecvAsync(first, {}, [&](Received&& received) {
    status = received.status;
    done.Notify();
  });
  absl::SleepFor(absl::Milliseconds(100));
  ps.reset();
  ps = Start(config);  // It has another port and another incarnation.
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(20))) << worker->Explain("");
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  const TensorKey next = Key(*ps, worker->worker(), "k");
  ASSERT_TRUE(Send(ps.get(), 3, next, Int(3)).ok());
  auto got = Recv(worker.get(), 3, next);
  ASSERT_TRUE(got.ok()) << got.status() << worker->Explain("");
  EXPECT_EQ(*got->tensor.data_as<int32_t>(), 3);
}

struct Pending {
  absl::Notification done;
  absl::Status status;
};

std::shared_ptr<Pending> StartRecv(Server* consumer, int64_t step, const TensorKey& key) {
  auto pending = std::make_shared<Pending>();
  auto rendezvous = consumer->steps()->StartStep(step);
  EXPECT_TRUE(rendezvous.ok()) << rendezvous.status();
  (*rendezvous)->RecvAsync(key, {}, [pending](Received&& received) {
    pending->status = received.status;
    pending->done.Notify();
  });
  return pending;
}

// Each server sends one tensor to each other one.
void ExchangeAll(const std::vector<std::unique_ptr<Server>>& servers, int64_t step) {
  for (const auto& producer : servers) {
    for (const auto& consumer : servers) {
      if (producer == consumer) continue;
      const TensorKey key = Key(*producer, consumer->worker(), "all");
      ASSERT_TRUE(Send(producer.get(), step, key, Int(static_cast<int32_t>(step))).ok());
      auto got = Recv(consumer.get(), step, key);
      ASSERT_TRUE(got.ok()) << got.status() << consumer->Explain("");
      ASSERT_EQ(*got->tensor.data_as<int32_t>(), step);
    }
  }
}

TEST_P(EveryWay, ARollingRestartLosesNothingAndHangsNobody) {
  std::vector<std::unique_ptr<Server>> servers(3);
  const auto restart = [&](size_t i) {
    ServerConfig config = Config("w", static_cast<int>(i), GetParam());
    servers[i].reset();
    for (const auto& other : servers) {
      if (other != nullptr) absl::StrAppend(&config.join, ",", Seed(*other));
    }
    servers[i] = Start(config);
  };
  for (size_t i = 0; i < servers.size(); ++i) restart(i);
  int64_t step = 0;
  for (size_t i = 0; i < servers.size(); ++i) {
    ExchangeAll(servers, ++step);
    std::vector<std::shared_ptr<Pending>> pending;
    ++step;
    for (size_t other = 0; other < servers.size(); ++other) {
      if (other == i) continue;
      pending.push_back(StartRecv(servers[other].get(), step,
                                  Key(*servers[i], servers[other]->worker(), "never")));
      pending.push_back(
          StartRecv(servers[i].get(), step, Key(*servers[other], servers[i]->worker(), "never")));
    }
    absl::SleepFor(absl::Milliseconds(50));
    restart(i);
    for (const auto& fetch : pending) {
      ASSERT_TRUE(fetch->done.WaitForNotificationWithTimeout(absl::Seconds(20))) << "hangs";
      EXPECT_TRUE(absl::IsAborted(fetch->status) || absl::IsUnavailable(fetch->status))
          << fetch->status;
    }
    ExchangeAll(servers, ++step);
  }
}

// All others joined by it, so nobody tells it who is there.
TEST_P(EveryWay, ASeedThatRestartsLearnsWhoIsThereFromOneThatFetches) {
  ServerConfig seed = Config("ps", 0, GetParam());
  auto ps = Start(seed);
  seed.listen = ps->address();
  ServerConfig config = Config("worker", 0, GetParam());
  config.join = Seed(*ps);
  auto worker = Start(config);
  config = Config("idle", 0, GetParam());
  config.join = Seed(*ps);
  auto idle = Start(config);
  const TensorKey before = Key(*ps, worker->worker(), "before");
  ASSERT_TRUE(Send(ps.get(), 1, before, Int(1)).ok());
  ASSERT_TRUE(Recv(worker.get(), 1, before).ok());
  (void)ps->Stop(absl::ZeroDuration());  // Without a goodbye.
  ps.reset();
  ps = Start(seed);
  ASSERT_NE(ps, nullptr);
  const TensorKey there = Key(*ps, worker->worker(), "there");
  ASSERT_TRUE(Send(ps.get(), 2, there, Int(2)).ok());
  const auto got = Recv(worker.get(), 2, there);
  ASSERT_TRUE(got.ok()) << got.status();
  for (Server* other : {worker.get(), idle.get()}) {
    const TensorKey back = Key(*other, ps->worker(), "back");
    ASSERT_TRUE(Send(other, 3, back, Int(3)).ok());
    const auto came = Recv(ps.get(), 3, back);
    EXPECT_TRUE(came.ok()) << other->worker() << ": " << came.status() << ps->Explain("");
  }
}

TEST(Server, StopsInTimeBesideThousandsOfDeadMembers) {
  auto server = Start(Config("ps", 0, "grpc"));
  // Where they are nobody answers: what comes waits in a queue that nobody takes from.
  const int silent = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  ASSERT_EQ(bind(silent, reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(getsockname(silent, reinterpret_cast<sockaddr*>(&at), &size), 0);
  ASSERT_EQ(listen(silent, 1), 0);
  auto stub = rpc::TransportService::NewStub(
      grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
  for (int task = 0; task < 5000; ++task) {
    rpc::HeartbeatRequest request;
    request.mutable_self()->set_worker(absl::StrCat("/job:dead/replica:0/task:", task));
    request.mutable_self()->set_address(absl::StrCat("127.0.0.1:", ntohs(at.sin_port)));
    request.mutable_self()->set_incarnation(9);
    request.set_after("~");
    CallSigner signer({"lab", request.self().worker(), 9}, "", UnixMs);
    grpc::ClientContext context;
    context.AddMetadata(kCallerMetadata,
                        signer.Sign(server->worker(), "/tryst.rpc.TransportService/Heartbeat",
                                    request.SerializeAsString()));
    rpc::HeartbeatResponse response;
    const grpc::Status told = stub->Heartbeat(&context, request, &response);
    ASSERT_TRUE(told.ok()) << told.error_message();
  }
  const absl::Time began = absl::Now();
  (void)server->Stop(absl::Seconds(2));
  const absl::Time stopped = absl::Now();
  server.reset();
  const absl::Time ended = absl::Now();
  printf("stopped after %.1f s, ended after %.1f s more\n", absl::ToDoubleSeconds(stopped - began),
         absl::ToDoubleSeconds(ended - stopped));
  EXPECT_LT(stopped - began, absl::Seconds(5));
  EXPECT_LT(ended - stopped, absl::Seconds(5));
  close(silent);
}

// A connection to each at once would keep it from serving, and from stopping.
TEST(Server, StartsAndStopsInTimeBesideThousandsOfMembersThatAreDown) {
  ServerConfig config = Config("ps", 0, "grpc");
  config.open_cluster = false;
  config.cluster_spec = "ps=127.0.0.1:0;dead=";
  for (int task = 0; task < 5000; ++task) {
    absl::StrAppend(&config.cluster_spec, task == 0 ? "" : ",", "127.0.0.1:1");
  }
  const absl::Time began = absl::Now();
  auto server = Start(config);
  ASSERT_NE(server, nullptr);
  const absl::Time started = absl::Now();
  absl::SleepFor(absl::Seconds(1));
  const absl::Time stops = absl::Now();
  (void)server->Stop(absl::Seconds(2));
  server.reset();
  const absl::Time ended = absl::Now();
  printf("started after %.1f s, ended after %.1f s\n", absl::ToDoubleSeconds(started - began),
         absl::ToDoubleSeconds(ended - stops));
  EXPECT_LT(started - began, absl::Seconds(12));
  EXPECT_LT(ended - stops, absl::Seconds(5));
}

TEST(Server, AMixedPairFallsBackToGrpc) {
  auto ps = Start(Config("ps", 0, "grpc"));
  ServerConfig config = Config("worker", 0, "grpc+verbs");
  config.join = Seed(*ps);
  auto worker = Start(config);
  const TensorKey key = Key(*ps, worker->worker(), "k");
  ASSERT_TRUE(Send(ps.get(), 1, key, Int(4)).ok());
  auto got = Recv(worker.get(), 1, key);
  ASSERT_TRUE(got.ok()) << got.status() << worker->Explain("");
  EXPECT_EQ(*got->tensor.data_as<int32_t>(), 4);
  EXPECT_NE(worker->Explain(ps->worker()).find("grpc to /job:ps"), std::string::npos)
      << worker->Explain(ps->worker());
}

TEST(Server, WhatWaitsInAStepIsListedHoweverMuchWaitsInOthers) {
  auto ps = Start(Config("ps", 0, "grpc"));
  const auto waits_for = [&](int64_t step, const std::string& edge) {
    (*ps->steps()->StartStep(step))->RecvAsync(Key(*ps, ps->worker(), edge), {}, [](Received&&) {});
  };
  constexpr int kListed = 1000;
  for (int i = 0; i < kListed; ++i) {
    const std::string edge = absl::StrCat("sent", i);
    ASSERT_TRUE(Send(ps.get(), 3, Key(*ps, ps->worker(), edge), Int(i)).ok());
  }
  for (int64_t step = 4; step <= 7; ++step) waits_for(step, "never_sent");
  const Insight* const insight = ps->insight();
  for (int64_t step = 4; step <= 7; ++step) {
    const std::string text = insight->WaitingText(step);
    EXPECT_TRUE(absl::StrContains(text, "never_sent")) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
    const std::string json = insight->WaitingJson(step);
    EXPECT_TRUE(absl::StrContains(json, "never_sent")) << json;
    EXPECT_FALSE(absl::StrContains(json, "sent1")) << json;
  }
  EXPECT_EQ(insight->WaitingText(8), "nothing waits\n");
  const std::string all = insight->WaitingText(-1);
  EXPECT_TRUE(absl::EndsWith(all, "and 4 younger sends and receives\n"));
  EXPECT_TRUE(absl::StrContains(insight->WaitingJson(-1), "\"waiting_left_out\":4,"));
}

TEST(Server, CallsBetweenPeers) {
  auto ps = Start(Config("ps", 0, "grpc"));
  ServerConfig config = Config("worker", 0, "grpc");
  config.join = Seed(*ps);
  auto worker = Start(config);
  const absl::Duration timeout = absl::Seconds(5);
  auto heard = worker->calls()->Ping(ps->worker(), timeout);
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_EQ(heard->self.incarnation, ps->incarnation());

  ASSERT_TRUE(worker->calls()->BeginStep(ps->worker(), 7, timeout).ok());
  auto step = ps->steps()->FindStep(7);
  ASSERT_NE(step, nullptr);
  const TensorKey key = Key(*ps, worker->worker(), "waited_for");
  ASSERT_TRUE(step->Send(key, {}, Int(1), false).ok());
  auto waiting = worker->calls()->DumpWaiting(ps->worker(), 7, false, timeout);
  ASSERT_TRUE(waiting.ok()) << waiting.status();
  EXPECT_NE(waiting->find("waited_for"), std::string::npos) << *waiting;
  auto trace = worker->calls()->TraceKey(ps->worker(), {"waited_for"}, timeout);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_TRUE(trace->records.empty());  // Nobody has asked for tracing.
  const auto stats = worker->calls()->Stats(ps->worker(), timeout);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->at("waiting_sends"), 1);
  EXPECT_EQ(stats->at("connections_refused"), 0);
  const auto explained = worker->calls()->Explain(ps->worker(), "", false, timeout);
  ASSERT_TRUE(explained.ok()) << explained.status();
  EXPECT_EQ(explained->find(ps->worker()), 0u) << *explained;
  EXPECT_NE(explained->find("protocol grpc"), std::string::npos) << *explained;

  ASSERT_TRUE(
      worker->calls()->AbortStep(ps->worker(), 7, absl::DataLossError("bad rows"), timeout).ok());
  EXPECT_TRUE(absl::IsDataLoss(step->Send(key, {}, Int(1), false)));
  EXPECT_TRUE(worker->calls()->CleanupStep(ps->worker(), 7, timeout).ok());
  EXPECT_EQ(ps->steps()->FindStep(7), nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(
      worker->calls()->AbortStep(ps->worker(), 8, absl::OkStatus(), timeout)));

  ASSERT_TRUE(ps->steps()->StartStep(kWeightsStep).ok());
  for (const int64_t own : {int64_t{INT64_MIN}, kWeightsStep, kLastOwnStep}) {
    EXPECT_TRUE(absl::IsInvalidArgument(worker->calls()->BeginStep(ps->worker(), own, timeout)));
    EXPECT_TRUE(absl::IsInvalidArgument(
        worker->calls()->AbortStep(ps->worker(), own, absl::DataLossError("no"), timeout)));
    EXPECT_TRUE(absl::IsInvalidArgument(worker->calls()->CleanupStep(ps->worker(), own, timeout)));
  }
  EXPECT_NE(ps->steps()->FindStep(kWeightsStep), nullptr);
}

TEST(Server, ATraceHasNoMoreThanItIsAskedFor) {
  ServerConfig config = Config("ps", 0, "grpc");
  config.trace_sample_every = 1;
  auto ps = Start(config);
  config = Config("worker", 0, "grpc");
  config.join = Seed(*ps);
  auto worker = Start(config);
  for (const char* edge : {"a", "b", "c"}) {
    const TensorKey key = Key(*ps, worker->worker(), edge);
    ASSERT_TRUE(Send(ps.get(), 1, key, Int(1)).ok());
    ASSERT_TRUE(Recv(worker.get(), 1, key).ok());
  }
  const auto records = [&](size_t most) {
    const auto trace = worker->calls()->TraceKey(ps->worker(), {"", -1, most}, absl::Seconds(5));
    EXPECT_TRUE(trace.ok()) << trace.status();
    return trace.ok() ? trace->records.size() : 0;
  };
  EXPECT_GE(records(0), 3u) << "0 asks for all that a trace has";
  EXPECT_EQ(records(2), 2u);
  const std::string explained = worker->Explain(ps->worker());
  EXPECT_NE(explained.find("measured: 3 done, 0 failed"), std::string::npos) << explained;
}

TEST(Server, SamplesAreForMembersAndComeWhole) {
  ServerConfig ps_config = Config("ps", 0, "grpc");
  ps_config.open_cluster = false;
  ps_config.cluster_spec = "ps=127.0.0.1:0;worker=127.0.0.1:1";
  auto ps = Start(ps_config);
  const absl::Duration timeout = absl::Seconds(5);
  for (const std::string job : {"worker", "stranger"}) {
    ServerConfig config = Config(job, 0, "grpc");
    config.join = Seed(*ps);
    auto asker = Start(config);
    const auto incarnation =
        asker->calls()->SendSamples(ps->worker(), kLastSampleStep, 1000, 3, timeout);
    if (job == "stranger") {
      EXPECT_TRUE(absl::IsPermissionDenied(incarnation.status())) << incarnation.status();
      continue;
    }
    ASSERT_TRUE(incarnation.ok()) << incarnation.status();
    const auto keys = SampleKeys(ps->worker(), *incarnation, asker->worker());
    for (uint64_t i = 0; i < 3; ++i) {
      const auto got = Recv(asker.get(), kLastSampleStep, keys->At(0, i));
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_TRUE(IsSample(got->tensor, 1000));
    }
  }
}

TEST(Server, ARequestOfAnotherDevicesLifeNamesBoth) {
  auto ps = Start(Config("ps", 0, "grpc"));
  ServerConfig config = Config("worker", 0, "grpc");
  config.join = Seed(*ps);
  auto worker = Start(config);
  const TensorKey key = *TensorKey::Parse(absl::StrCat(
      ps->worker(), "/device:CPU:0;00000000000000aa;", worker->worker(), "/device:CPU:0;k;0:0"));
  auto got = Recv(worker.get(), 1, key);
  EXPECT_TRUE(absl::IsAborted(got.status())) << got.status();
  EXPECT_NE(got.status().message().find("00000000000000aa"), std::string::npos) << got.status();
  EXPECT_NE(got.status().message().find(absl::StrFormat("%016x", ps->incarnation())),
            std::string::npos)
      << got.status();
}

TEST(Server, TheAllowListHoldsOnEveryPath) {
  for (const char* protocol : {"grpc", "grpc+verbs"}) {
    ServerConfig config = Config("ps", 0, protocol);
    auto eval = Start(Config("eval", 0, protocol));
    auto worker = Start(Config("worker", 0, protocol));
    config.allow = "/job:worker=/job:ps";
    config.join = absl::StrCat(Seed(*eval), ",", Seed(*worker));
    auto ps = Start(config);
    ASSERT_TRUE(Send(ps.get(), 1, Key(*ps, worker->worker(), "k"), Int(1)).ok());
    ASSERT_TRUE(Send(ps.get(), 1, Key(*ps, eval->worker(), "k"), Int(1)).ok());
    auto got = Recv(worker.get(), 1, Key(*ps, worker->worker(), "k"));
    EXPECT_TRUE(got.ok()) << got.status();
    got = Recv(eval.get(), 1, Key(*ps, eval->worker(), "k"));
    EXPECT_TRUE(absl::IsPermissionDenied(got.status())) << protocol << got.status();
  }
}

TEST(Server, AClosedClusterAndAnotherJobStayOut) {
  auto ps_config = Config("ps", 0, "grpc");
  ps_config.open_cluster = false;
  ps_config.cluster_spec = "ps=127.0.0.1:0;worker=127.0.0.1:1";
  auto ps = Start(ps_config);
  // Its name is not a member's.
  ServerConfig config = Config("worker", 7, "grpc");
  config.join = Seed(*ps);
  auto stranger = Start(config);
  const TensorKey key = Key(*ps, stranger->worker(), "k");
  ASSERT_TRUE(Send(ps.get(), 1, key, Int(1)).ok());
  auto got = Recv(stranger.get(), 1, key);
  EXPECT_TRUE(absl::IsPermissionDenied(got.status())) << got.status();
  // Its name is a member's, but its cluster is another.
  config = Config("worker", 0, "grpc");
  config.cluster = "factory";
  config.join = Seed(*ps);
  auto other = Start(config);
  got = Recv(other.get(), 1, Key(*ps, other->worker(), "k"));
  EXPECT_TRUE(absl::IsPermissionDenied(got.status())) << got.status();
  EXPECT_NE(got.status().message().find("factory"), std::string::npos);
}

TEST(Server, StopEndsWaitersAndJoinReturns) {
  auto ps = Start(Config("ps", 0, "grpc"));
  absl::Notification done;
  auto rendezvous = ps->steps()->StartStep(1);
  absl::Status status;
  const std::string self = ps->worker();
  (*rendezvous)->RecvAsync(Key(*ps, self, "k"), {}, [&](Received&& received) {
    status = received.status;
    done.Notify();
  });
  std::thread joiner([&] { ps->Join(); });
  testing::internal::CaptureStderr();
  EXPECT_TRUE(ps->Stop(absl::Seconds(1)).ok());
  EXPECT_EQ(testing::internal::GetCapturedStderr().find("keeps the memory"), std::string::npos);
  joiner.join();
  ASSERT_TRUE(done.HasBeenNotified());
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_TRUE(ps->Stop(absl::Seconds(1)).ok());  // Stopping twice is harmless.
}

// It is sent by a call, to a worker that takes its time.
TEST(Server, StopWaitsForTheLastTensorOnItsWay) {
  constexpr int64_t kNumbers = 8 << 20;  // More than gRPC takes for somebody who does not read.
  auto ps = Start(Config("ps", 0, "grpc"));
  const std::string worker = "/job:worker/replica:0/task:0";
  const TensorKey key = Key(*ps, worker, "large");
  ASSERT_TRUE(
      Send(ps.get(), 1, key, *Tensor::Allocate(DType::kInt32, TensorShape({kNumbers}))).ok());
  rpc::FetchRequest request;
  request.set_step_id(1);
  request.set_key(std::string(key.text()));
  request.set_serial(1);
  request.set_oldest_serial(1);
  request.set_channel(1);
  CallSigner signer({"lab", worker, 1}, "", UnixMs);
  grpc::ClientContext context;
  context.AddMetadata(kCallerMetadata,
                      signer.Sign(ps->worker(), kFetchMethod, request.SerializeAsString()));
  const auto stub = rpc::TransportService::NewStub(
      grpc::CreateChannel(ps->address(), grpc::InsecureChannelCredentials()));
  const auto call = stub->FetchTensor(&context);
  ASSERT_TRUE(call->Write(request));
  rpc::FetchResponse response;
  ASSERT_TRUE(call->Read(&response));
  size_t bytes = response.chunk().size();
  std::thread reads([&] {
    absl::SleepFor(absl::Milliseconds(300));
    while (call->Read(&response)) bytes += response.chunk().size();
  });
  const absl::Status stopped = ps->Stop(absl::Seconds(20));
  EXPECT_TRUE(stopped.ok()) << stopped;
  reads.join();
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_EQ(bytes, kNumbers * sizeof(int32_t));
}

// The paths that keep a session with each peer.
class EverySession : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, EverySession, testing::Values("grpc+verbs", "shm", "stream"),
                         [](const auto& info) {
                           const std::string way = info.param;
                           return way == "stream" ? "Stream" : way == "shm" ? "Shm" : "Soft";
                         });

// Servers of which one has sent a large tensor, and the other, which has asked for it, stands
// still.
struct LargeTensor {
  static constexpr int64_t kBytes = 64 << 20;  // More than any socket or ring takes.

  LargeTensor(const std::string& way, bool has_destination, int64_t bytes = kBytes) : size(bytes) {
    ps = Start(Config("ps", 0, way));
    ServerConfig config = Config("worker", 0, way);
    config.join = Seed(*ps);
    config.patience = absl::Seconds(3);
    worker = Start(config);
    const auto rendezvous = *worker->steps()->StartStep(1);
    RecvArgs args;
    if (has_destination) {
      args.destination = *Tensor::Allocate(DType::kUint8, TensorShape({size}));
    }
    rendezvous->RecvAsync(Key(*ps, worker->worker(), "large"), args, [this](Received&& received) {
      got = std::move(received);
      ended.Notify();
    });
    rendezvous->RecvAsync(Key(*ps, worker->worker(), "last"), {}, [this](Received&& received) {
      EXPECT_TRUE(received.status.ok()) << received.status;
      stands.Notify();
      goes_on.WaitForNotification();
    });
    EXPECT_TRUE(Send(ps.get(), 1, Key(*ps, worker->worker(), "last"), Int(1)).ok());
    stands.WaitForNotification();
    Tensor tensor = *Tensor::Allocate(DType::kUint8, TensorShape({size}));
    auto* const to = static_cast<uint8_t*>(tensor.mutable_data());
    for (int64_t i = 0; i < size; ++i) to[i] = ByteAt(i);
    EXPECT_TRUE(Send(ps.get(), 1, Key(*ps, worker->worker(), "large"), std::move(tensor)).ok());
  }
  static uint8_t ByteAt(int64_t i) { return static_cast<uint8_t>(i * 2654435761u >> 24); }
  // Whether it has come whole.
  bool Came() {
    if (!ended.WaitForNotificationWithTimeout(absl::Seconds(60))) return false;
    EXPECT_TRUE(got.status.ok()) << got.status;
    if (!got.status.ok() || got.tensor.bytes() != static_cast<uint64_t>(size)) return false;
    const auto* const bytes = got.tensor.data_as<uint8_t>();
    for (int64_t i = 0; i < size; ++i) {
      if (bytes[i] != ByteAt(i)) return false;
    }
    return true;
  }

  const int64_t size;
  absl::Notification stands;
  absl::Notification goes_on;
  absl::Notification ended;
  Received got;
  std::unique_ptr<Server> ps;
  std::unique_ptr<Server> worker;
};

TEST_P(EverySession, StopLetsALargeTensorArrive) {
  for (bool has_destination : {false, true}) {
    LargeTensor large(GetParam(), has_destination);
    std::thread goes_on([&] {
      while (large.ps->steps()->StartStep(2).ok()) absl::SleepFor(absl::Milliseconds(1));
      large.goes_on.Notify();
    });
    const absl::Time began = absl::Now();
    const absl::Status stopped = large.ps->Stop(absl::Seconds(60));
    EXPECT_TRUE(stopped.ok()) << stopped;
    EXPECT_LT(absl::Now() - began, absl::Seconds(30));
    goes_on.join();
    EXPECT_TRUE(large.Came()) << large.worker->Explain("");
  }
}

TEST_P(EverySession, StopWaitsUntilItsDeadlineForAPeerThatStandsStill) {
  LargeTensor large(GetParam(), /*has_destination=*/true);
  const absl::Time began = absl::Now();
  absl::Status beside;
  std::thread other([&] { beside = large.ps->Stop(absl::Milliseconds(500)); });
  const absl::Status stopped = large.ps->Stop(absl::Milliseconds(500));
  other.join();
  const absl::Duration took = absl::Now() - began;
  EXPECT_TRUE(absl::IsDeadlineExceeded(stopped)) << stopped;
  EXPECT_EQ(beside, stopped) << "it stops once";
  EXPECT_GE(took, absl::Milliseconds(300));  // The rest is for the drain.
  EXPECT_LT(took, absl::Seconds(10));
  EXPECT_FALSE(large.ended.HasBeenNotified());
  large.goes_on.Notify();
  ASSERT_TRUE(large.ended.WaitForNotificationWithTimeout(absl::Seconds(60)));
  EXPECT_FALSE(large.got.status.ok());
}

// What lies in the memory that both share is read behind the end of the link.
TEST(Server, StopWaitsForNobodyToReadWhatIsInSharedMemory) {
  struct Sent {
    int64_t size;
    bool has_destination;
  };
  // Inside a cell; in parts; in a segment.
  for (const Sent& sent : {Sent{16, false}, Sent{256 << 10, true}, Sent{64 << 20, false}}) {
    LargeTensor large("shm", sent.has_destination, sent.size);
    const absl::Time began = absl::Now();
    const absl::Status stopped = large.ps->Stop(absl::Seconds(60));
    EXPECT_TRUE(stopped.ok()) << stopped;
    EXPECT_LT(absl::Now() - began, absl::Seconds(30));
    large.ps.reset();
    EXPECT_FALSE(large.ended.HasBeenNotified());
    large.goes_on.Notify();
    EXPECT_TRUE(large.Came()) << large.worker->Explain("");
  }
}

// One waits for a tensor that was never sent, and one has asked ahead for what it may never want.
TEST_P(EverySession, StopWaitsForNobodyToWhomNothingIsOnItsWay) {
  auto ps = Start(Config("ps", 0, GetParam()));
  ServerConfig config = Config("worker", 0, GetParam());
  config.join = Seed(*ps);
  auto worker = Start(config);
  RecvArgs recurring;
  recurring.recurring = true;
  const TensorKey key = Key(*ps, worker->worker(), "again");
  constexpr int kSteps = 6;
  for (int step = 1; step <= kSteps; ++step) {
    ASSERT_TRUE(Send(ps.get(), step, key, Int(step)).ok());
    if (step == kSteps) break;
    const auto got = (*worker->steps()->StartStep(step))->Recv(key, recurring, absl::Seconds(20));
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got->tensor.data_as<int32_t>(), step);
  }
  absl::Notification ended;
  (*worker->steps()->StartStep(1))
      ->RecvAsync(Key(*ps, worker->worker(), "never"), {}, [&](Received&&) { ended.Notify(); });
  const auto ps_waits = [&](const std::string& text) {
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (absl::Now() < end) {
      if (absl::StrContains(ps->insight()->WaitingText(-1), text)) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  };
  EXPECT_TRUE(ps_waits("never")) << ps->insight()->WaitingText(-1);
  if (std::string(GetParam()) != "shm") {
    EXPECT_TRUE(ps_waits("the consumer's acceptance")) << ps->insight()->WaitingText(-1);
  }
  const absl::Time began = absl::Now();
  const absl::Status stopped = ps->Stop(absl::Seconds(60));
  EXPECT_TRUE(stopped.ok()) << stopped;
  EXPECT_LT(absl::Now() - began, absl::Seconds(30));
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(60)));
}

TEST(Server, ExplainSaysHowLargeTensorsGoOverSharedMemory) {
  auto ps = Start(Config("ps", 0, "shm"));
  ServerConfig config = Config("worker", 0, "shm");
  config.join = Seed(*ps);
  auto worker = Start(config);
  const TensorKey key = Key(*ps, worker->worker(), "large");
  const Tensor tensor = *Tensor::Allocate(DType::kUint8, TensorShape({1 << 20}));
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kUint8, TensorShape({1 << 20}));
  for (int step = 1; step <= 40; ++step) {  // More than one measurement takes.
    ASSERT_TRUE(Send(ps.get(), step, key, tensor).ok());
    const auto got = (*worker->steps()->StartStep(step))->Recv(key, args, absl::Seconds(20));
    ASSERT_TRUE(got.ok()) << got.status();
  }
  const std::string said = ps->Explain("");
  EXPECT_TRUE(absl::StrContains(said, "tensors of 1 to 8 MiB go in parts (")) << said;
}

// A callback that learns of the stop may use the server, and may be slow.
TEST(Server, CallbacksOfTheEndFindTheServerWhole) {
  auto ps = Start(Config("ps", 0, "grpc"));
  auto rendezvous = ps->steps()->StartStep(1);
  RecvArgs args;
  args.executor = ps->executor();
  std::atomic<bool> returned{false};
  (*rendezvous)->RecvAsync(Key(*ps, ps->worker(), "k"), args, [&](Received&&) {
    absl::SleepFor(absl::Milliseconds(300));
    ps->steps()->CleanupStep(1);
    EXPECT_FALSE(ps->Explain("").empty());
    returned = true;
  });
  EXPECT_TRUE(ps->Stop(absl::Milliseconds(100)).ok());
  EXPECT_TRUE(returned);
}

// A device whose copies end when the test says so.
class SlowDevice final : public DeviceContext {
 public:
  absl::StatusOr<Tensor> Allocate(DType dtype, const TensorShape& shape,
                                  const AllocatorAttributes&) override {
    return Tensor::Allocate(dtype, shape);
  }
  void StartCopy(const Tensor& from, const Tensor& into,
                 absl::AnyInvocable<void(absl::Status) &&> done) override {
    MutexLock lock(&mu_);
    memcpy(into.mutable_data(), from.data(), from.bytes());
    copies_.push_back(std::move(done));
    begun_.NotifyAll();
  }
  // Waits until a copy is under way.
  bool AwaitCopy() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    MutexLock lock(&mu_);
    while (copies_.empty() && !begun_.WaitUntil(&mu_, until)) {
    }
    return !copies_.empty();
  }
  void EndCopy() {
    absl::AnyInvocable<void(absl::Status) &&> done;
    {
      MutexLock lock(&mu_);
      done = std::move(copies_.front());
      copies_.pop_front();
    }
    std::move(done)(absl::OkStatus());
  }

 private:
  Mutex mu_;
  CondVar begun_;
  std::deque<absl::AnyInvocable<void(absl::Status) &&>> copies_ ABSL_GUARDED_BY(mu_);
};

// Servers of which one fetches from the other what a device copies to the host for it.
struct CopyForAPeer {
  explicit CopyForAPeer(const std::string& way) {
    ps = Start(Config("ps", 0, way));
    ServerConfig config = Config("worker", 0, way);
    config.join = Seed(*ps);
    worker = Start(config);
    key = Key(*ps, worker->worker(), "edge");
    Send();
    got = Fetch(&cancellation);
    EXPECT_TRUE(device->AwaitCopy()) << worker->Explain("");
  }

  // Each sends the number after the last one, from 1 on, in the device's memory.
  void Send() {
    SendArgs args;
    args.device_context = device;
    MemorySpace space;
    space.kind = MemorySpace::Kind::kDevice;
    values.push_back(static_cast<int32_t>(values.size()) + 1);
    auto tensor = Tensor::Adopt(&values.back(), DType::kInt32, TensorShape({1}), space, [] {});
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_TRUE((*ps->steps()->StartStep(1))->Send(key, args, *tensor, false).ok());
  }
  struct Result {
    absl::Notification ended;
    Received received;
    int32_t Value() {
      EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
      EXPECT_TRUE(received.status.ok()) << received.status;
      return received.status.ok() ? *received.tensor.data_as<int32_t>() : 0;
    }
  };
  std::shared_ptr<Result> Fetch(Cancellation* cancellation = nullptr) {
    auto result = std::make_shared<Result>();
    RecvArgs args;
    args.cancellation = cancellation;
    (*worker->steps()->StartStep(1))->RecvAsync(key, args, [result](Received&& received) {
      result->received = std::move(received);
      result->ended.Notify();
    });
    return result;
  }

  std::deque<int32_t> values;
  Cancellation cancellation;  // It ends `got`.
  std::shared_ptr<SlowDevice> device = std::make_shared<SlowDevice>();
  std::unique_ptr<Server> ps;
  std::unique_ptr<Server> worker;
  TensorKey key;
  std::shared_ptr<Result> got;
};

TEST_P(EveryWay, WhatADeviceHasIsCopiedForPeers) {
  CopyForAPeer pair(GetParam());
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_FALSE(pair.got->ended.HasBeenNotified());
  pair.device->EndCopy();
  EXPECT_EQ(pair.got->Value(), 1);
}

TEST_P(EveryWay, WhatIsGivenUpDuringTheCopyStaysFirstInItsLine) {
  CopyForAPeer pair(GetParam());
  pair.Send();
  pair.cancellation.StartCancel();
  EXPECT_TRUE(pair.got->ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(absl::IsCancelled(pair.got->received.status)) << pair.got->received.status;
  pair.device->EndCopy();
  for (int32_t value : {1, 2}) {
    const auto result = pair.Fetch();
    ASSERT_TRUE(pair.device->AwaitCopy());  // It copies what was sent, not a copy.
    pair.device->EndCopy();
    EXPECT_EQ(result->Value(), value);
  }
}

// One server fetches from the other into memory of a device, with a destination there or without.
TEST_P(EveryWay, MemoryOfADeviceIsFilledByACopyThatNothingCutsShort) {
  auto ps = Start(Config("ps", 0, GetParam()));
  ServerConfig config = Config("worker", 0, GetParam());
  config.join = Seed(*ps);
  auto worker = Start(config);
  const auto device = std::make_shared<SlowDevice>();
  const TensorKey key =
      *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:GPU:0;edge;0:0",
                                        ps->worker(), ps->incarnation(), worker->worker()));
  int32_t there = 0;
  MemorySpace space;
  space.kind = MemorySpace::Kind::kDevice;
  for (bool has_destination : {false, true}) {
    ASSERT_TRUE(Send(ps.get(), 1, key, Int(7)).ok());
    RecvArgs args;
    Cancellation cancellation;
    args.cancellation = &cancellation;
    args.device_context = device;
    if (has_destination) {
      args.destination = *Tensor::Adopt(&there, DType::kInt32, TensorShape({1}), space, [] {});
    }
    absl::Notification ended;
    Received got;
    (*worker->steps()->StartStep(1))->RecvAsync(key, args, [&](Received&& received) {
      got = std::move(received);
      ended.Notify();
    });
    ASSERT_TRUE(device->AwaitCopy()) << worker->Explain("");
    cancellation.StartCancel();
    absl::SleepFor(absl::Milliseconds(50));
    EXPECT_FALSE(ended.HasBeenNotified());
    std::thread ends([&] {
      absl::SleepFor(absl::Milliseconds(100));
      device->EndCopy();
    });
    const absl::Status stopped =
        has_destination ? worker->Stop(absl::Seconds(10)) : absl::OkStatus();
    EXPECT_TRUE(stopped.ok()) << stopped;
    ASSERT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
    ends.join();
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(*got.tensor.data_as<int32_t>(), 7);
  }
  EXPECT_EQ(there, 7);
}

TEST_P(EveryWay, StopWaitsForADeviceThatCopiesForAPeer) {
  // What was copied in time still goes; a call may be cut off meanwhile.
  CopyForAPeer pair(GetParam());
  std::atomic<bool> ended{false};
  std::thread ends([&] {
    absl::SleepFor(absl::Milliseconds(300));
    ended = true;
    pair.device->EndCopy();
  });
  const absl::Status stopped = pair.ps->Stop(absl::Seconds(10));
  EXPECT_TRUE(stopped.ok()) << stopped;
  EXPECT_TRUE(ended);
  ends.join();
  ASSERT_TRUE(pair.got->ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
  if (absl::string_view(GetParam()) == "grpc" && !pair.got->received.status.ok()) return;
  EXPECT_EQ(pair.got->Value(), 1);
}

TEST_P(EveryWay, IsKeptForADeviceThatCopiesForAPeerForLong) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "it leaks on purpose";
#endif
  CopyForAPeer pair(GetParam());
  EXPECT_TRUE(absl::IsDeadlineExceeded(pair.ps->Stop(absl::Milliseconds(100))));
  pair.ps.reset();
  pair.device->EndCopy();  // It comes to what the server was made of.
}

TEST(Server, TakesTensorFlowsQueueDepthByBothNames) {
  for (const char* name : {"RDMA_QUEUE_DEPTH", "RDMA_QP_QUEUE_DEPTH"}) {
    const auto depth = [name](const char* value) {
      return LinkFrom({}, Config("ps", 0, "grpc+verbs"), {{name, value}});
    };
    EXPECT_EQ(depth("64")->send_depth, 64u);
    EXPECT_EQ(depth("1")->send_depth, 16u);  // The value that makes sense.
    EXPECT_EQ(depth("1000000")->send_depth, 8192u);
    EXPECT_TRUE(absl::IsInvalidArgument(depth("deep").status()));
    // A whole server works with the smallest depth.
    const auto start = [name](const ServerConfig& config) {
      auto server = ServerBuilder().SetEnvironment({{name, "16"}}).Build(config);
      EXPECT_TRUE(server.ok() && (*server)->Start().ok()) << server.status();
      return *std::move(server);
    };
    auto ps = start(Config("ps", 0, "grpc+verbs"));
    ServerConfig config = Config("worker", 0, "grpc+verbs");
    config.join = Seed(*ps);
    auto worker = start(config);
    auto from = *ps->steps()->StartStep(1);
    auto to = *worker->steps()->StartStep(1);
    for (int i = 0; i < 100; ++i) {  // More fetches at once than the depth.
      const TensorKey key = Key(*ps, worker->worker(), absl::StrCat("e", i));
      ASSERT_TRUE(from->Send(key, {}, Int(i), false).ok());
    }
    for (int i = 0; i < 100; ++i) {
      const TensorKey key = Key(*ps, worker->worker(), absl::StrCat("e", i));
      auto got = to->Recv(key, {}, absl::Seconds(10));
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got->tensor.data_as<int32_t>(), i);
    }
    EXPECT_NE(worker->Explain(ps->worker()).find("over rdma/soft"), std::string::npos);
  }
  const auto both = LinkFrom({}, Config("ps", 0, "grpc+verbs"),
                             {{"RDMA_QUEUE_DEPTH", "64"}, {"RDMA_QP_QUEUE_DEPTH", "128"}});
  EXPECT_TRUE(absl::IsInvalidArgument(both.status())) << both.status();
}

// A table that grows under threads makes the thread that opens the next descriptor wait.
TEST(Server, TheTableOfDescriptorsIsLargeBeforeAnyPeerComes) {
  const auto server = Start(Config("worker", 0, "grpc+verbs"));
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != "FDSize:") {
  }
  int size = 0;
  status >> size;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_GE(size, static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 4096)));
}

TEST(Server, TwoServersDoNotShareAPort) {
  auto first = Start(Config("ps", 0, "grpc"));
  ServerConfig config = Config("ps", 1, "grpc");
  config.listen = first->address();
  auto second = ServerBuilder().SetEnvironment({}).Build(config);
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(absl::IsUnavailable((*second)->Start()));
}

TEST(Server, WhoseStatusPageHasNoPlaceDoesNotStart) {
  ServerConfig config = Config("ps", 0, "grpc");
  config.status_listen = "127.0.0.1:0";
  auto first = Start(config);
  config.task = 1;
  config.status_listen = first->status_address();
  auto second = ServerBuilder().SetEnvironment({}).Build(config);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(absl::IsUnavailable((*second)->Start()));
}

TEST(Server, ALimitThatIsNoneIsRefusedAtTheStart) {
  ServerConfig config = Config("ps", 0, "grpc");
  config.max_held_bytes = UINT64_MAX;
  auto server = ServerBuilder().SetEnvironment({}).Build(config);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(absl::IsInvalidArgument((*server)->Start()));
}

absl::Status BuildStatus(const ServerConfig& config) {
  return ServerBuilder().SetEnvironment({}).Build(config).status();
}

TEST(ServerBuilder, RefusesWhatMakesNoSense) {
  ServerConfig config = Config("ps", 0, "grpc+gdr");
  EXPECT_TRUE(absl::IsNotFound(BuildStatus(config)));
  EXPECT_EQ(BuildStatus(config).message(),
            "protocol is 'grpc+gdr', and should be one of: grpc grpc+verbs");
  config = Config("ps", 0, "grpc");
  config.insecure = false;
  EXPECT_TRUE(absl::IsInvalidArgument(BuildStatus(config)));  // No security mode is chosen.
  config.insecure = true;
  config.listen = "0.0.0.0:0";
  config.advertise = "host:1";
  EXPECT_TRUE(absl::IsInvalidArgument(BuildStatus(config)));
  config.insecure_anywhere = true;
  EXPECT_TRUE(BuildStatus(config).ok()) << BuildStatus(config);
  config.advertise = "";
  EXPECT_TRUE(absl::IsInvalidArgument(BuildStatus(config)));  // Peers cannot reach 0.0.0.0.
  config = Config("ps", 0, "grpc");
  config.token_file = "/nowhere";
  EXPECT_TRUE(absl::IsInvalidArgument(BuildStatus(config)));
  config = Config("", 0, "grpc");
  EXPECT_TRUE(absl::IsInvalidArgument(BuildStatus(config)));
  config = Config("ps", 0, "grpc");
  config.memory_bytes = 1 << 20;
  EXPECT_NE(BuildStatus(config).message().find("= 1GiB, of memory_bytes 1MiB"), std::string::npos)
      << BuildStatus(config);
  config = Config("ps", 0, "grpc");
  config.allow = "ps";
  EXPECT_TRUE(absl::IsInvalidArgument(BuildStatus(config)));
  config = Config("ps", 0, "grpc");
  config.resolver = "zookeeper";
  EXPECT_TRUE(absl::IsInvalidArgument(BuildStatus(config)));
  config.resolver = "etcd:127.0.0.1:1";
  config.etcd_certificate_file = "certificate.pem";
  for (const char* key : {"", "key.pem"}) {
    config.etcd_key_file = key;
    EXPECT_EQ(BuildStatus(config).message(),
              "etcd_certificate_file needs etcd_key_file and etcd_ca_file beside it");
  }
  for (const char* listen : {"127.0.0.1:many", "127.0.0.1:65536"}) {
    config = Config("ps", 0, "grpc");
    config.listen = listen;
    EXPECT_TRUE(absl::IsInvalidArgument(BuildStatus(config))) << listen;
  }
  config = Config("ps", 0, "grpc");
  config.open_cluster = false;
  config.cluster_spec = "worker=127.0.0.1:1";
  EXPECT_TRUE(absl::IsInvalidArgument(BuildStatus(config))) << "it does not name this worker";
}

TEST(ServerBuilder, AnMpiJobNamesItsWorkers) {
  ServerConfig config = Config("", 0, "grpc");
  config.resolver = "mpi";
  config.cluster_spec = "ps=1,worker=1";
  const auto server =
      ServerBuilder().SetEnvironment({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).Build(config);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->worker(), "/job:worker/replica:0/task:0");
}

// The embedder brings its own service, executor and device.
TEST(ServerBuilder, TakesWhatAnEmbedderBrings) {
  class Echo final : public grpc::CallbackGenericService {};
  struct CountingExecutor final : Executor {
    bool TryRun(Work* work) override {
      ++runs;
      std::move (*work)();
      return true;
    }
    void Run(Work work) override { (void)TryRun(&work); }
    std::atomic<int> runs{0};
  } executor;
  auto ps = ServerBuilder()
                .SetEnvironment({})
                .SetExecutor(&executor)
                .AddDevice("GPU:0", 99)
                .Build(Config("ps", 0, "grpc"));
  ASSERT_TRUE(ps.ok()) << ps.status();
  ASSERT_TRUE((*ps)->Start().ok());
  EXPECT_EQ((*ps)->executor(), &executor);
  ServerConfig config = Config("worker", 0, "grpc");
  config.join = Seed(**ps);
  auto worker = Start(config);
  const TensorKey key = *TensorKey::Parse(absl::StrCat(
      (*ps)->worker(), "/device:GPU:0;0000000000000063;", worker->worker(), "/device:CPU:0;k;0:0"));
  ASSERT_TRUE(Send(ps->get(), 1, key, Int(1)).ok());
  auto got = Recv(worker.get(), 1, key);
  EXPECT_TRUE(got.ok()) << got.status();
}

int ConnectTo(int port, time_t most_seconds) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval most = {most_seconds, 0};
  EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most)), 0);
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(static_cast<uint16_t>(port));
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&place), sizeof(place)), 0);
  return fd;
}

class NoService final : public grpc::Service {};

TEST(ServerBuilder, ServicesSayHowLongTheirCallersMayStay) {
  NoService service;
  auto ps = ServerBuilder()
                .SetEnvironment({})
                .AddService(&service, absl::Seconds(1))
                .Build(Config("ps", 0, "grpc"));
  ASSERT_TRUE(ps.ok()) << ps.status();
  ASSERT_TRUE((*ps)->Start().ok());
  const int fd = ConnectTo((*ps)->port(), 5);  // Half of what callers get otherwise.
  char byte;
  ssize_t got = 1;
  while (got > 0) got = read(fd, &byte, 1);  // gRPC greets.
  EXPECT_EQ(got, 0) << "the connection is still open";
  close(fd);
}

grpc::Status CallRaw(const std::string& address, const std::string& method,
                     grpc::ByteBuffer* response, const std::string& bytes = "") {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  const grpc::Slice slice(bytes);
  grpc::ByteBuffer request(&slice, 1);
  absl::Notification done;
  grpc::Status status;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, response, [&](grpc::Status s) {
    status = s;
    done.Notify();
  });
  done.WaitForNotification();
  return status;
}

// Strangers send no more than two megabytes together, but its callers are strangers to us.
TEST(ServerBuilder, WhoCallsAServiceOfTheEmbeddersMaySayMuch) {
  NoService service;
  auto ps = ServerBuilder()
                .SetEnvironment({})
                .AddService(&service, absl::Seconds(60))
                .Build(Config("ps", 0, "grpc"));
  ASSERT_TRUE(ps.ok() && (*ps)->Start().ok());
  // HealthCheckRequest{service: a long name}, with its length in four bytes.
  const std::string request = "\x0a\x80\x80\xa0\x01" + std::string(5 << 19, 'x');
  grpc::ByteBuffer response;
  EXPECT_EQ(
      CallRaw((*ps)->address(), "/grpc.health.v1.Health/Check", &response, request).error_code(),
      grpc::StatusCode::NOT_FOUND);
}

TEST(ServerBuilder, AServiceThatIsThereAlreadyIsRefused) {
  rpc::TransportService::Service again;
  auto ps = ServerBuilder()
                .SetEnvironment({})
                .AddService(&again, absl::Seconds(1))
                .Build(Config("ps", 0, "grpc"));
  ASSERT_TRUE(ps.ok()) << ps.status();
  const absl::Status started = (*ps)->Start();
  EXPECT_TRUE(absl::IsUnavailable(started)) << started;
}

// gRPC would send it away for the fourth.
TEST(Server, WhoCallsNothingMayAskForSignsOfLife) {
  ServerBuilder builder;
  builder.SetEnvironment({});
  absl::StatusOr<ServerParts> parts = builder.Prepare(Config("ps", 0, "grpc"));
  ASSERT_TRUE(parts.ok()) << parts.status();
  parts->inner.least_ping = absl::Milliseconds(10);
  const std::unique_ptr<Server> ps = MakeServer(*std::move(parts));
  ASSERT_TRUE(ps->Start().ok());
  const int fd = ConnectTo(ps->port(), 20);
  const std::string no_settings("\0\0\0\4\0\0\0\0\0", 9);
  const std::string ping = std::string("\0\0\x08\6\0\0\0\0\0", 9) + "alive-->";
  const std::string pong = std::string("\0\0\x08\6\1\0\0\0\0", 9) + "alive-->";
  std::string said = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + no_settings;
  std::string heard;
  for (int i = 1; i <= 8; ++i) {
    said += ping;
    ASSERT_EQ(send(fd, said.data(), said.size(), MSG_NOSIGNAL), ssize_t(said.size())) << i;
    said.clear();
    for (char bytes[4096]; heard.find(pong) == std::string::npos;) {
      const ssize_t got = read(fd, bytes, sizeof(bytes));
      ASSERT_GT(got, 0) << "the server has sent it away for the sign it asked for as number " << i;
      heard.append(bytes, static_cast<size_t>(got));
    }
    heard.erase(0, heard.find(pong) + pong.size());
    absl::SleepFor(absl::Milliseconds(20));
  }
  close(fd);
}

TEST(Server, AnswersHealthChecks) {
  auto ps = Start(Config("ps", 0, "grpc"));
  grpc::ByteBuffer response;
  ASSERT_TRUE(CallRaw(ps->address(), "/grpc.health.v1.Health/Check", &response).ok());
  grpc::Slice slice;
  ASSERT_TRUE(response.DumpToSingleSlice(&slice).ok());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(slice.begin()), slice.size()), "\x08\x01");
  const std::string of_one = "\x0a\x03one";  // HealthCheckRequest{service: "one"}
  EXPECT_EQ(CallRaw(ps->address(), "/grpc.health.v1.Health/Check", &response, of_one).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(CallRaw(ps->address(), "/tryst.rpc.TransportService/Stats", &response).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

}  // namespace
}  // namespace tryst
