// One end of a stream of large tensors, for networks_test.sh.
//
//   flow [trystd's flags] --peer=WORKER --bytes=N --seconds=S [--consume=true]
//
// A producer sends until it is ended by SIGTERM. A consumer has kOut receives out for S seconds,
// looks at what each has brought, and prints a line for every second, "second 3: 248 MB/s", then
// "rate R MB/s, F failed", and what explain says.
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/process/stop_signals.h"
#include "server/server.h"

namespace tryst {
namespace {

constexpr uint64_t kOut = 16;
constexpr int64_t kStep = 1;

struct Flow {
  std::string peer;
  int64_t bytes = 0;
  int64_t seconds = 0;
};

TensorKey KeyOf(const std::string& from, uint64_t incarnation, const std::string& to, uint64_t i) {
  return TensorKeyPrefix::Make(from + "/device:CPU:0", incarnation, to + "/device:CPU:0",
                               absl::StrCat("flow", i % kOut))
      ->At(0, 0);
}

// Each tensor has its number in its first and its last word.
Tensor Numbered(int64_t bytes, uint64_t number) {
  const int64_t words = bytes / static_cast<int64_t>(sizeof(uint64_t));
  Tensor tensor = *Tensor::Allocate(DType::kUint64, TensorShape({words}));
  auto* const word = static_cast<uint64_t*>(tensor.mutable_data());
  word[0] = word[words - 1] = number;
  return tensor;
}

bool HasNumber(const Tensor& tensor, int64_t bytes, uint64_t number) {
  const int64_t words = bytes / static_cast<int64_t>(sizeof(uint64_t));
  if (tensor.dtype() != DType::kUint64 || tensor.shape() != TensorShape({words})) return false;
  const auto* const word = tensor.data_as<uint64_t>();
  return word[0] == number && word[words - 1] == number;
}

void Produce(Server* server, const Flow& flow, const std::atomic<bool>& stop) {
  auto step = server->steps()->StartStep(kStep);
  for (uint64_t i = 0; step.ok() && !stop; ++i) {
    const TensorKey key = KeyOf(server->worker(), server->incarnation(), flow.peer, i);
    for (;;) {
      const absl::Status sent = (*step)->Send(key, {}, Numbered(flow.bytes, i), false);
      if (sent.ok() || stop) break;
      if (!absl::IsResourceExhausted(sent)) {
        std::fprintf(stderr, "flow: %s\n", sent.ToString().c_str());
        return;
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
}

int Consume(Server* server, const Flow& flow) {
  const absl::Time patience = absl::Now() + absl::Seconds(30);
  auto step = server->steps()->StartStep(kStep);
  auto heard = server->calls()->Ping(flow.peer, absl::Seconds(1));
  while (!heard.ok() && absl::Now() < patience) {
    heard = server->calls()->Ping(flow.peer, absl::Seconds(1));
  }
  if (!heard.ok() || !step.ok()) {
    std::fprintf(stderr, "flow: %s\n", heard.status().ToString().c_str());
    return 1;
  }
  const uint64_t incarnation = heard->self.incarnation;
  const absl::Time until = absl::Now() + absl::Seconds(flow.seconds);
  std::atomic<int64_t> failed{0};
  std::atomic<int64_t> received{0};
  std::vector<std::thread> receivers;
  for (uint64_t place = 0; place < kOut; ++place) {
    receivers.emplace_back([&, place] {
      for (uint64_t i = place; absl::Now() < until; i += kOut) {
        const auto got = (*step)->Recv(KeyOf(flow.peer, incarnation, server->worker(), i), {},
                                       absl::Seconds(20));
        if (got.ok() && HasNumber(got->tensor, flow.bytes, i)) {
          received += flow.bytes;
        } else {
          ++failed;
          std::fprintf(stderr, "flow: tensor %llu: %s\n", static_cast<unsigned long long>(i),
                       got.status().ToString().c_str());
        }
      }
    });
  }
  const absl::Time began = absl::Now();
  int64_t before = 0;
  for (int64_t second = 1; second <= flow.seconds; ++second) {
    absl::SleepFor(began + absl::Seconds(second) - absl::Now());
    const int64_t now = received;
    std::printf("second %lld: %lld MB/s\n", static_cast<long long>(second),
                static_cast<long long>((now - before) / 1'000'000));
    std::fflush(stdout);
    before = now;
  }
  const std::string paths = server->Explain("");
  for (std::thread& receiver : receivers) receiver.join();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - began);
  std::printf("%s\nrate %.0f MB/s, %lld failed\n", paths.c_str(),
              static_cast<double>(received) / seconds / 1e6, static_cast<long long>(failed));
  return 0;
}

int Main(const std::vector<std::string>& args) {
  BlockStopSignals();
  std::vector<std::string> rest;
  std::map<std::string, std::string> own = {
      {"peer", ""}, {"bytes", "2097152"}, {"seconds", "5"}, {"consume", "false"}};
  auto config = LoadConfig(args, ProcessEnvironment(), &rest, &own);
  Flow flow;
  absl::Status bad = config.status();
  if (bad.ok() && (!absl::SimpleAtoi(own["bytes"], &flow.bytes) ||
                   !absl::SimpleAtoi(own["seconds"], &flow.seconds))) {
    bad = absl::InvalidArgumentError("--bytes, --seconds");
  }
  flow.peer = own["peer"];
  std::unique_ptr<Server> server;
  if (bad.ok()) {
    auto built = ServerBuilder().Build(*config);
    bad = built.status();
    if (built.ok()) server = *std::move(built);
  }
  if (bad.ok()) bad = server->Start();
  if (!bad.ok()) {
    std::fprintf(stderr, "flow: %s\n", bad.ToString().c_str());
    return 1;
  }
  int code = 0;
  if (own["consume"] != "false") {
    code = Consume(server.get(), flow);
  } else {
    std::atomic<bool> stop{false};
    std::thread producer([&] { Produce(server.get(), flow, stop); });
    WaitForStopSignal();
    stop = true;
    server->steps()->CleanupAll(absl::AbortedError("the flow has ended"));
    producer.join();
  }
  const absl::Status stopped = server->Stop(absl::Seconds(2));
  if (!stopped.ok()) std::fprintf(stderr, "flow: %s\n", stopped.ToString().c_str());
  return code;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::Main(std::vector<std::string>(argv + 1, argv + argc));
}
