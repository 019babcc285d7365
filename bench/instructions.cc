// Pulls that bench/instructions.py counts under callgrind, by both ends of them in this process.
//
//   instructions shm|shm_many|rdma|rdma_many|grpc PULLS
//
// shm, rdma   one key after the other, of 8 bytes, both ends turned by this thread; rdma over a
//             NIC that costs nothing
// *_many      64 keys in each RecvManyAsync; PULLS counts keys
// grpc        two servers in this process, with the threads that they have

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "bench/instant_nic.h"
#include "bench/turned_pair.h"
#include "rendezvous/tensor_key.h"
#include "server/server.h"

// Where counting begins and ends: callgrind knows them by name.
extern "C" {
__attribute__((noinline)) void CountFromHere() { asm volatile(""); }
__attribute__((noinline)) void CountToHere() { asm volatile(""); }
}

namespace tryst {
namespace {

constexpr int kMany = 64;
constexpr int kWarmUp = 64 * kMany;  // Connects, and all tables have grown.

void PullByTurns(bool nic, bool many, int pulls) {
  TurnedPairOptions options;
  options.keys = kMany;
  if (nic) options.open_nic = OpenInstantNic;
  TurnedPair pair(options);
  const auto pull = [&pair, many](int count) {
    for (int i = 0; i < count; ++i) {
      pair.Send(i % kMany);
      if (!many) pair.Ask(i % kMany);
      if (many && (i + 1) % kMany != 0) continue;
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

// A worker that moves tensors by gRPC alone, and whose poller sleeps: turns that wait would count.
std::unique_ptr<Server> StartServer(const std::string& job, const std::string& ps_address) {
  ServerConfig config;
  config.job = job;
  config.protocol = "grpc";
  config.insecure = true;
  config.listen = "127.0.0.1:0";
  config.callback_threads = 1;
  config.spin_us = 0;
  ClusterSpec cluster;
  cluster.jobs["ps"][0] = ps_address;
  cluster.jobs["worker"][0] = "127.0.0.1:0";
  auto server = ServerBuilder().SetEnvironment({}).SetCluster(cluster).Build(config);
  TRYST_CHECK(server.ok()) << server.status();
  const absl::Status started = (*server)->Start();
  TRYST_CHECK(started.ok()) << started;
  return *std::move(server);
}

void PullByGrpc(int pulls) {
  const std::unique_ptr<Server> ps = StartServer("ps", "127.0.0.1:0");
  const std::unique_ptr<Server> worker = StartServer("worker", ps->address());
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
  const bool many = what == "shm_many" || what == "rdma_many";
  if (what == "grpc") {
    PullByGrpc(pulls);
  } else if (many || what == "shm" || what == "rdma") {
    PullByTurns(what[0] == 'r', many, pulls / kMany * kMany);
  } else {
    fprintf(stderr, "instructions: no such path: %s\n", what.c_str());
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  if (argc != 3 || atoi(argv[2]) <= 0) {
    fprintf(stderr, "usage: see the head of bench/instructions.cc\n");
    return 2;
  }
  tryst::FixKeyHashes();  // Or each run's tables would differ a little.
  return tryst::Run(argv[1], atoi(argv[2]));
}
