// Measures, in virtual time, jobs that do not fit one machine.
//
//   scale_bench [--json FILE] [--peers N]          real channels over simulated NICs:
//                                                  one consumer and N producers
//   scale_bench --model [--json FILE] [--message-ns O] [--tensor-ns T] [--workers N]
//               [--servers N] [--gbits N] [--processors N]
//                                                  a parameter-server job (bench/ps_model.h)
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/log.h"
#include "bench/flags.h"
#include "bench/ps_model.h"
#include "channel/transports.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {
namespace {

constexpr uint64_t kIncarnation = 7;
constexpr int kRounds = 200;

struct Options {
  std::string json_file;
  bool model = false;
  int64_t peers = 64;
  int64_t message_ns = 500;
  int64_t tensor_ns = 100;
  int64_t workers = 1000;
  int64_t servers = 100;
  int64_t gbits = 400;
  int64_t processors = 4;
};

class Figures {
 public:
  void Add(const std::string& figure, const std::string& labels, double value,
           const std::string& unit) {
    absl::PrintF("%-24s %-60s %12.4g %s\n", figure, labels, value, unit);
    absl::StrAppend(&lines_, "{\"figure\":\"", figure, "\",\"system\":\"tryst_sim\",", labels,
                    ",\"value\":", value, ",\"unit\":\"", unit, "\",\"runs\":1}\n");
  }
  bool Write(const std::string& path) const { return WriteLines(path, lines_); }

 private:
  std::string lines_;
};

// ---- Peers ----

class SmallTensors final : public TensorSource {
 public:
  void Take(int64_t, const TensorKey&, const RecvArgs&, DoneFn done) override {
    std::move(done)({absl::OkStatus(), tensor_});
  }
  void GiveBack(int64_t, const TensorKey&, Received) override {}  // Every tensor is the same.

 private:
  const Tensor tensor_ = *Tensor::Allocate(DType::kUint8, {64});
};

// A hello takes the time of a round trip.
class VirtualHellos final : public Bootstrap {
 public:
  VirtualHellos(SimWorld* world, int64_t latency_ns) : world_(world), latency_ns_(latency_ns) {}
  void Exchange(const std::string& peer, const Hello& hello, Deadline, HelloDone done) override {
    auto answer = std::make_shared<HelloDone>(std::move(done));
    HelloHandler* const handler = handlers.at(peer);
    world_->At(world_->NowNs() + latency_ns_, [this, handler, hello, answer] {
      handler->OnHello(hello, [this, answer](absl::StatusOr<Hello> reply) {
        auto kept = std::make_shared<absl::StatusOr<Hello>>(std::move(reply));
        world_->At(world_->NowNs() + latency_ns_,
                   [kept, answer] { std::move (*answer)(std::move(*kept)); });
      });
    });
  }
  std::map<std::string, HelloHandler*> handlers;

 private:
  SimWorld* const world_;
  const int64_t latency_ns_;
};

class PeersWorld {
 public:
  explicit PeersWorld(int peers)
      : world_(1, WorldOptions()),
        hellos_(&world_, WorldOptions().link.latency_ns),
        hub_poller_(&world_.clock()),
        peer_poller_(&world_.clock()) {
    hub_ = Open("/job:hub/replica:0/task:0", &hub_poller_);
    for (int i = 0; i < peers; ++i) peers_.push_back(Open(PeerName(i), &peer_poller_));
  }
  ~PeersWorld() {
    const absl::Status why = absl::CancelledError("measured");
    hub_->Close(why);
    for (auto& peer : peers_) peer->Close(why);
    while (!Drained()) Turn();
  }

  // Returns how much virtual time a fetch takes.
  int64_t FetchNs(int peer) {
    const TensorKey key =
        TensorKeyPrefix::Make(absl::StrCat(PeerName(peer), "/device:CPU:0"), kIncarnation,
                              "/job:hub/replica:0/task:0/device:CPU:0", "x")
            ->At(0, 0);
    bool landed = false;
    const int64_t began_ns = world_.NowNs();
    hub_->Fetch(1, key, RecvArgs(), [&landed](Received&& received) {
      TRYST_CHECK(received.status.ok()) << received.status;
      landed = true;
    });
    while (!landed) Turn();
    return world_.NowNs() - began_ns;
  }
  static uint64_t HeapBytes() {
    const struct mallinfo2 heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
  }

 private:
  static SimOptions WorldOptions() {
    SimOptions options;
    options.link.latency_ns = 1000;
    options.link.bytes_per_second = 50'000'000'000;
    return options;
  }
  static std::string PeerName(int i) { return absl::StrCat("/job:peer/replica:0/task:", i); }

  std::unique_ptr<ChannelPool> Open(const std::string& name, Poller* poller) {
    TransportsOptions options;
    options.self = name;
    options.incarnation = kIncarnation;
    options.max_consumers = 4;
    const bool is_hub = poller == &hub_poller_;
    options.completion_depth = is_hub ? 1 << 20 : 4096;
    std::vector<NicPath> paths = {
        {"rdma/sim", std::shared_ptr<Nic>(world_.OpenNic(next_place_++))}};
    auto pool = MakeChannelPool(poller, &hellos_, &source_, std::move(paths), nullptr, options);
    const absl::Status opened = pool->Open();
    TRYST_CHECK(opened.ok()) << opened;
    hellos_.handlers[name] = pool.get();
    return pool;
  }
  void Turn() {
    while (hub_poller_.Turn() || peer_poller_.Turn()) {
    }
    if (world_.next_ns() != INT64_MAX) {
      world_.Step();
    } else {
      world_.RunFor(1'000'000);  // Only timers are left.
    }
  }
  bool Drained() {
    return hub_->Drained() && std::all_of(peers_.begin(), peers_.end(),
                                          [](const auto& peer) { return peer->Drained(); });
  }

  SimWorld world_;
  VirtualHellos hellos_;
  SmallTensors source_;
  Poller hub_poller_, peer_poller_;
  uint32_t next_place_ = 0;
  std::unique_ptr<ChannelPool> hub_;
  std::vector<std::unique_ptr<ChannelPool>> peers_;
};

void MeasurePeers(int peers, Figures* figures) {
  PeersWorld world(peers);
  const SteadyClock clock;
  const uint64_t before = PeersWorld::HeapBytes();
  const int64_t began_ns = clock.NowNs();
  std::vector<int64_t> connect_ns, fetch_ns;
  for (int i = 0; i < peers; ++i) connect_ns.push_back(world.FetchNs(i));
  const double real_ms = static_cast<double>(clock.NowNs() - began_ns) * 1e-6 / peers;
  const uint64_t after = PeersWorld::HeapBytes();
  for (int i = 0; i < kRounds; ++i) fetch_ns.push_back(world.FetchNs(i % peers));
  std::sort(connect_ns.begin(), connect_ns.end());
  std::sort(fetch_ns.begin(), fetch_ns.end());
  const std::string labels = absl::StrCat("\"peers\":", peers);
  figures->Add("peer_memory", labels, static_cast<double>(after - before) / 1024 / peers, "KiB");
  figures->Add("connect", labels, static_cast<double>(connect_ns[connect_ns.size() / 2]) * 1e-3,
               "us");
  figures->Add("connect_work", labels, real_ms, "ms");
  figures->Add("pull_p50", labels, static_cast<double>(fetch_ns[fetch_ns.size() / 2]) * 1e-3, "us");
}

// ---- The model ----

// The step of `./run bench host`: 1,000 variables, about 20 MiB.
std::vector<uint64_t> MixedVariables() {
  std::vector<uint64_t> bytes;
  for (int i = 0; i < 1000; ++i) {
    const int kind = (i * 37) % 1000;
    bytes.push_back(kind < 700 ? 512 : kind < 950 ? 18 << 10 : 320 << 10);
  }
  return bytes;
}

void PredictJob(const Options& options, Figures* figures) {
  PsCosts costs;
  costs.link.latency_ns = 2000;
  costs.link.message_overhead_ns = 10;
  costs.link.bytes_per_second = options.gbits * 125'000'000;
  costs.ask_ns = costs.answer_ns = costs.land_ns = options.message_ns;
  costs.server_processors = static_cast<int>(options.processors);
  PsJob job;
  job.workers = static_cast<int>(options.workers);
  job.servers = static_cast<int>(options.servers);
  job.variable_bytes = MixedVariables();
  for (bool fused : {false, true}) {
    job.fused = job.standing = fused;
    costs.tensor_ns = fused ? options.tensor_ns : 0;
    const PsPrediction predicted = Predict(job, costs);
    const std::string labels = absl::StrCat(
        "\"workers\":", job.workers, ",\"servers\":", job.servers, ",\"gbits\":", options.gbits,
        ",\"processors\":", costs.server_processors, ",\"fused\":", fused ? "true" : "false");
    figures->Add("ps_step", labels, predicted.step_ms, "ms");
    figures->Add("ps_step_bound", labels, BoundMs(job, costs), "ms");
    figures->Add("ps_server_processors_busy", labels, predicted.processors_busy, "share");
    figures->Add("ps_server_sending_busy", labels, predicted.sending_busy, "share");
    figures->Add("ps_server_receiving_busy", labels, predicted.receiving_busy, "share");
  }
}

bool Parse(int argc, char** argv, Options* options) {
  const std::map<std::string, int64_t*> numbers = {
      {"--peers", &options->peers},           {"--message-ns", &options->message_ns},
      {"--tensor-ns", &options->tensor_ns},   {"--workers", &options->workers},
      {"--servers", &options->servers},       {"--gbits", &options->gbits},
      {"--processors", &options->processors},
  };
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--model") {
      options->model = true;
    } else if (i + 1 < argc && flag == "--json") {
      options->json_file = argv[++i];
    } else if (const auto it = numbers.find(flag); i + 1 < argc && it != numbers.end()) {
      if (!absl::SimpleAtoi(argv[++i], it->second) || *it->second < 1) return false;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::Options options;
  if (!tryst::Parse(argc, argv, &options)) {
    fprintf(stderr,
            "scale_bench [--json FILE] [--peers N]\n"
            "scale_bench --model [--json FILE] [--message-ns O] [--tensor-ns T] [--workers N]\n"
            "            [--servers N] [--gbits N] [--processors N]\n");
    return 2;
  }
  tryst::Figures figures;
  if (options.model) {
    tryst::PredictJob(options, &figures);
  } else {
    tryst::MeasurePeers(static_cast<int>(options.peers), &figures);
  }
  return figures.Write(options.json_file) ? 0 : 1;
}
