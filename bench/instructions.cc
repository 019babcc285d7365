// Makes the pulls that bench/instructions.py counts under callgrind. Both ends are in this process.
//
//   instructions shm|shm_early|shm_many|shm_all_many|rdma|rdma_early|rdma_many|gather|grpc PULLS
//
// shm, rdma   pulls of 8 bytes, one after the other; this thread turns both ends. rdma uses a NIC
//             whose own work is not counted
// *_early     each tensor is sent when its pull waits for it at the producer
// *_many      64 keys in each RecvManyAsync; PULLS counts keys
// *_all_many  and in each SendMany
// gather      1,000 spans of 64 bytes under each key, over shared memory; PULLS counts spans
// grpc        two servers in this process, with their threads

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "bench/instant_nic.h"
#include "bench/turned_pair.h"
#include "rendezvous/tensor_key.h"
#include "server/process/grpc_locks.h"
#include "server/server.h"
#include "server/server_parts.h"

// Counting begins and ends here; callgrind finds the functions by their names.
extern "C" {
__attribute__((noinline)) void CountFromHere() { asm volatile(""); }
__attribute__((noinline)) void CountToHere() { asm volatile(""); }
}

namespace tryst {
namespace {

constexpr int kMany = 64;
constexpr int kSpans = 1000;
constexpr int kSpanBytes = 64;
constexpr int kWarmUp = 64 * kMany;  // Until both are connected and all tables have grown.

enum class Order { kSent, kEarly, kMany, kAllMany };

void PullByTurns(bool nic, Order order, int pulls) {
  TurnedPairOptions options;
  options.keys = kMany;
  if (nic) options.open_nic = OpenInstantNic;
  TurnedPair pair(options);
  const bool many = order == Order::kMany || order == Order::kAllMany;
  const auto pull = [&pair, order, many](int count) {
    for (int i = 0; i < count; ++i) {
      if (order == Order::kEarly) {
        pair.Ask(i % kMany);
        pair.Answer();
      }
      if (order != Order::kAllMany) pair.Send(i % kMany);
      if (order == Order::kSent) pair.Ask(i % kMany);
      if (many && (i + 1) % kMany != 0) continue;
      if (order == Order::kAllMany) pair.SendMany(0, kMany);
      if (many) pair.AskMany(0, kMany);
      pair.Answer();
      pair.Deliver();
      pair.WaitFor(many ? kMany : 1);
    }
  };
  pull(kWarmUp);
  CountFromHere();
  pull(pulls);
  CountToHere();
}

void Gather(int spans) {
  TurnedPairOptions options;
  options.keys = 1;
  options.spans = kSpans;
  options.bytes = kSpans * kSpanBytes;
  TurnedPair pair(options);
  const auto gather = [&pair](int count) {
    for (int i = 0; i < count; ++i) {
      pair.SendSelected(0);
      pair.AskSelected(0);
      pair.Answer();
      pair.Deliver();
      pair.WaitFor(1);
    }
  };
  gather(100);
  CountFromHere();
  gather(spans / kSpans);
  CountToHere();
}

// A worker that moves tensors by gRPC alone: by a stream, or a call for each. Its poller sleeps,
// because spinning would be counted.
std::unique_ptr<Server> StartServer(const std::string& job, const std::string& ps_address,
                                    bool by_stream) {
  ServerConfig config;
  config.job = job;
  config.protocol = "grpc";
  config.nic = by_stream ? "grpc" : "calls";
  config.insecure = true;
  config.listen = "127.0.0.1:0";
  ClusterSpec cluster;
  cluster.jobs["ps"][0] = ps_address;
  cluster.jobs["worker"][0] = "127.0.0.1:0";
  static ThreadPoolExecutor* const executor = new ThreadPoolExecutor(1, 1024);
  absl::StatusOr<ServerParts> parts =
      ServerBuilder().SetEnvironment({}).SetCluster(cluster).SetExecutor(executor).Prepare(config);
  TRYST_CHECK(parts.ok()) << parts.status();
  parts->inner.poller.spin_us = 0;
  std::unique_ptr<Server> server = MakeServer(*std::move(parts));
  const absl::Status started = server->Start();
  TRYST_CHECK(started.ok()) << started;
  return server;
}

void PullByGrpc(int pulls, bool by_stream) {
  const std::unique_ptr<Server> ps = StartServer("ps", "127.0.0.1:0", by_stream);
  const std::unique_ptr<Server> worker = StartServer("worker", ps->address(), by_stream);
  const TensorKey key =
      TensorKeyPrefix::Make(absl::StrCat(ps->worker(), "/device:CPU:0"), ps->incarnation(),
                            absl::StrCat(worker->worker(), "/device:CPU:0"), "w")
          ->At(0, 0);
  const auto sends = *ps->steps()->StartStep(1);
  const auto receives = *worker->steps()->StartStep(1);
  const Tensor tensor = *Tensor::Allocate(DType::kUint8, {8});
  const auto pull = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const absl::Status sent = sends->Send(key, {}, tensor, false);
      TRYST_CHECK(sent.ok()) << sent;
      const auto received = receives->Recv(key, {}, absl::Seconds(60));
      TRYST_CHECK(received.ok()) << received.status();
    }
  };
  pull(200);
  CountFromHere();
  pull(pulls);
  CountToHere();
}

int Run(const std::string& what, int pulls) {
  if (what == "gather") {
    Gather(pulls);
    return 0;
  }
  if (what == "grpc" || what == "grpc_stream") {
    PullByGrpc(pulls, what == "grpc_stream");
    return 0;
  }
  for (const std::string path : {"shm", "rdma"}) {
    for (const auto& [ending, order] :
         {std::pair("", Order::kSent), std::pair("_early", Order::kEarly),
          std::pair("_many", Order::kMany), std::pair("_all_many", Order::kAllMany)}) {
      if (what != path + ending) continue;
      PullByTurns(path == "rdma", order, pulls / kMany * kMany);
      return 0;
    }
  }
  fprintf(stderr, "instructions: no such path: %s\n", what.c_str());
  return 2;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::StopLookingForDeadlocks();
  if (argc != 3 || atoi(argv[2]) <= 0) {
    fprintf(stderr, "usage: see the head of bench/instructions.cc\n");
    return 2;
  }
  tryst::FixKeyHashes();  // With a secret per process the tables would differ from run to run.
  return tryst::Run(argv[1], atoi(argv[2]));
}
