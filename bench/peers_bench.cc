// Measures what many peers cost one worker: the time to connect to them, the memory of each while
// it is idle, and the latency that they add to a fetch.
//
//   peers_bench [--json FILE] [--peers 256] [--protocol grpc+verbs] [--settle-ms 3000] [--check]
//               [--pollers 1]
//
// This process is the measured worker; it has so many pollers, as far as there are processors. A
// second process has all the peers, each a whole server that knows only the worker. With --check it
// fails if a figure misses its goal by more than a shared machine explains.
#include <fcntl.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "bench/flags.h"
#include "server/members/membership.h"
#include "server/server.h"
#include "server/server_parts.h"

namespace tryst {
namespace {

constexpr int kTensorBytes = 64;
constexpr int kRoundsOfOne = 2000;  // Fetches from the first peer, before and after.
constexpr int kRoundsOfEach = 16;   // Fetches from each peer in turn.
// So few peers fit into the caches, and yet each falls asleep before its next turn. Fetches from
// all peers by turns take longer than from these; the difference is what the number of peers costs.
constexpr int kFew = 8;
constexpr int kRoundsOfFew = 256;
constexpr int64_t kStep = 1;
constexpr char kHub[] = "/job:hub/replica:0/task:0";

constexpr double kGoalKib = 64;
constexpr double kGoalGrowth = 1.3;
// What --check allows in addition, for a shared machine.
constexpr double kGrowthSlack = 3;

struct Options {
  int peers = 256;
  std::string protocol = "grpc+verbs";
  std::string json_file;
  int settle_ms = 3000;
  int pollers = 1;
  bool check = false;
  std::string hub_address;  // If set, this is the process of the peers.
};

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "peers_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Value(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string PeerName(int i) { return absl::StrCat("/job:peer/replica:0/task:", i); }

TensorKey KeyOf(const std::string& producer, uint64_t incarnation, int round) {
  return TensorKeyPrefix::Make(absl::StrCat(producer, "/device:CPU:0"), incarnation,
                               absl::StrCat(kHub, "/device:CPU:0"), "t")
      ->At(0, static_cast<uint64_t>(round));
}

int RoundsOf(int peer) {
  return 1 + kRoundsOfEach + (peer < kFew ? kRoundsOfFew : 0) + (peer == 0 ? 2 * kRoundsOfOne : 0);
}

std::unique_ptr<Server> StartServer(const Options& options, const std::string& job, int task) {
  ServerConfig config;
  config.job = job;
  config.task = task;
  config.protocol = options.protocol;
  config.insecure = true;
  config.listen = "127.0.0.1:0";
  config.nic = "soft";
  const bool hub = job == "hub";
  config.pollers = absl::StrCat(hub ? options.pollers : 1);
  config.open_cluster = hub;
  ServerBuilder builder;
  builder.SetEnvironment({});
  if (!hub) {
    ClusterSpec spec;
    spec.jobs["peer"][task] = "127.0.0.1:0";
    spec.jobs["hub"][0] = options.hub_address;
    builder.SetCluster(spec);
  }
  ServerParts parts = Value(builder.Prepare(config));
  parts.security.idle = absl::Seconds(1);
  std::unique_ptr<Server> server = MakeServer(std::move(parts));
  Check(server->Start());
  return server;
}

// ---- The process of the peers ----

void BePeers(const Options& options) {
  const Tensor tensor = *Tensor::Allocate(DType::kUint8, {kTensorBytes});
  std::vector<std::unique_ptr<Server>> peers;
  for (int i = 0; i < options.peers; ++i) {
    peers.push_back(StartServer(options, "peer", i));
    auto step = Value(peers[static_cast<size_t>(i)]->steps()->StartStep(kStep));
    for (int round = 0; round < RoundsOf(i); ++round) {
      Check(step->Send(KeyOf(PeerName(i), peers.back()->incarnation(), round), {}, tensor, false));
    }
  }
  char byte;
  while (read(0, &byte, 1) > 0) {
  }
  std::_Exit(0);  // The peers need no orderly end.
}

// A child process that ends with us.
class PeersProcess {
 public:
  PeersProcess(const Options& options, const std::string& hub_address) {
    int input[2];
    if (pipe2(input, O_CLOEXEC) != 0) std::exit(1);
    std::vector<std::string> args = {std::filesystem::read_symlink("/proc/self/exe"),
                                     "--hub",
                                     hub_address,
                                     "--peers",
                                     absl::StrCat(options.peers),
                                     "--protocol",
                                     options.protocol};
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(&arg[0]);
    argv.push_back(nullptr);
    pid_ = vfork();
    if (pid_ == 0) {
      dup2(input[0], 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(input[0]);
    input_ = input[1];
  }
  ~PeersProcess() {
    close(input_);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
};

// ---- The worker that is measured ----

// The private memory of this process that is resident.
double ResidentKib() {
  std::ifstream in("/proc/self/smaps_rollup");
  double kib = 0;
  for (std::string line; std::getline(in, line);) {
    absl::string_view text = line;
    double value = 0;
    if (!absl::ConsumePrefix(&text, "Private_Dirty:")) continue;
    absl::ConsumeSuffix(&text, "kB");
    if (absl::SimpleAtod(absl::StripAsciiWhitespace(text), &value)) kib += value;
  }
  return kib;
}

class Hub {
 public:
  explicit Hub(const Options& options)
      : options_(options), server_(StartServer(options, "hub", 0)) {
    step_ = Value(server_->steps()->StartStep(kStep));
    rounds_.resize(static_cast<size_t>(options.peers));
  }
  Server* server() { return server_.get(); }

  // Waits until every peer has announced itself.
  void AwaitPeers() {
    for (const double until = Now() + 120;;) {
      size_t here = 0;
      incarnations_.assign(static_cast<size_t>(options_.peers), 0);
      for (const Member& member : server_->members()->Members()) {
        int task = 0;
        absl::string_view name = member.worker;
        if (!absl::ConsumePrefix(&name, "/job:peer/replica:0/task:")) continue;
        if (member.incarnation == 0 || !absl::SimpleAtoi(name, &task)) continue;
        incarnations_[static_cast<size_t>(task)] = member.incarnation;
        ++here;
      }
      if (here == incarnations_.size()) return;
      if (Now() > until) Check(absl::DeadlineExceededError("the peers do not come"));
      absl::SleepFor(absl::Milliseconds(10));
    }
  }

  double FetchSeconds(int peer) {
    const size_t i = static_cast<size_t>(peer);
    const TensorKey key = KeyOf(PeerName(peer), incarnations_[i], rounds_[i]++);
    const double start = Now();
    Check(step_->Recv(key, {}, absl::Seconds(60)).status());
    return Now() - start;
  }

  double MedianOfOneUs() {
    std::vector<double> times;
    for (int i = 0; i < kRoundsOfOne; ++i) times.push_back(FetchSeconds(0));
    return MedianUs(&times);
  }
  double MedianInTurnUs(int peers, int rounds) {
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) {
      for (int peer = 0; peer < peers; ++peer) times.push_back(FetchSeconds(peer));
    }
    return MedianUs(&times);
  }

 private:
  static double MedianUs(std::vector<double>* times) {
    std::sort(times->begin(), times->end());
    return (*times)[times->size() / 2] * 1e6;
  }

  const Options options_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<Rendezvous> step_;
  std::vector<uint64_t> incarnations_;
  std::vector<int> rounds_;
};

class Figures {
 public:
  explicit Figures(const Options& options) : options_(options) {}
  void Add(const std::string& figure, double value, const std::string& unit) {
    absl::PrintF("%-28s %10.2f %s\n", figure, value, unit);
    absl::StrAppend(&lines_, "{\"figure\":\"", figure, "\",\"system\":\"tryst_", options_.protocol,
                    "\",\"peers\":", options_.peers, ",\"value\":", value, ",\"unit\":\"", unit,
                    "\"}\n");
  }
  void Write() const {
    if (!WriteLines(options_.json_file, lines_)) std::exit(1);
  }

 private:
  const Options options_;
  std::string lines_;
};

void Settle(const Options& options) {
  absl::SleepFor(absl::Milliseconds(options.settle_ms));
  malloc_trim(0);
}

int Measure(const Options& options) {
  Figures figures(options);
  Hub hub(options);
  Settle(options);
  const double empty_kib = ResidentKib();
  PeersProcess peers(options, hub.server()->address());
  hub.AwaitPeers();
  Settle(options);
  const double known_kib = ResidentKib();

  hub.FetchSeconds(0);
  const double one_us = hub.MedianOfOneUs();
  Settle(options);
  const double warm_kib = ResidentKib();
  const double start = Now();
  for (int peer = 1; peer < options.peers; ++peer) hub.FetchSeconds(peer);
  const double connect_ms = (Now() - start) * 1e3 / (options.peers - 1);
  Settle(options);
  const double all_kib = ResidentKib();
  const double growth_kib = (all_kib - warm_kib) / (options.peers - 1);
  const double member_kib = (known_kib - empty_kib) / options.peers;
  const double idle_us = hub.MedianOfOneUs();
  const double few_us = hub.MedianInTurnUs(std::min(kFew, options.peers), kRoundsOfFew);
  const double each_us = hub.MedianInTurnUs(options.peers, kRoundsOfEach);

  figures.Add("connect", connect_ms, "ms");
  figures.Add("member_resident", member_kib, "KiB");
  figures.Add("path_resident", growth_kib, "KiB");
  figures.Add("idle_peer_resident", member_kib + growth_kib, "KiB");
  figures.Add("fetch_one_peer", one_us, "us");
  figures.Add("fetch_one_among_idle", idle_us, "us");
  figures.Add("fetch_few_in_turn", few_us, "us");
  figures.Add("fetch_each_in_turn", each_us, "us");
  figures.Add("fetch_growth_among_idle", idle_us / one_us, "ratio");
  figures.Add("fetch_growth_in_turn", each_us / one_us, "ratio");
  figures.Add("fetch_growth_of_few_in_turn", each_us / few_us, "ratio");
  figures.Write();
  if (!options.check) return 0;
  const bool small = member_kib + growth_kib <= kGoalKib;
  const bool fast = idle_us / one_us <= kGoalGrowth * kGrowthSlack;
  if (!small) std::printf("an idle peer holds more than %.0f KiB\n", kGoalKib);
  if (!fast) std::printf("a fetch slows down more than %.1f times\n", kGoalGrowth * kGrowthSlack);
  return small && fast ? 0 : 1;
}

absl::StatusOr<Options> Parse(const std::vector<std::string>& args) {
  Options options;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--check") {
      options.check = true;
      continue;
    }
    if (i + 1 == args.size()) return absl::InvalidArgumentError(args[i] + " has no value");
    const std::string value = args[i + 1];
    bool good = true;
    if (args[i] == "--peers") {
      good = absl::SimpleAtoi(value, &options.peers) && options.peers > 1;
    } else if (args[i] == "--settle-ms") {
      good = absl::SimpleAtoi(value, &options.settle_ms);
    } else if (args[i] == "--pollers") {
      good = absl::SimpleAtoi(value, &options.pollers) && options.pollers > 0;
    } else if (args[i] == "--protocol") {
      options.protocol = value;
    } else if (args[i] == "--json") {
      options.json_file = value;
    } else if (args[i] == "--hub") {
      options.hub_address = value;
    } else {
      good = false;
    }
    if (!good) return absl::InvalidArgumentError(absl::StrCat(args[i], " ", value));
    ++i;
  }
  return options;
}

int Main(const std::vector<std::string>& args) {
  const Options options = Value(Parse(args));
  SetLogSink([](LogSeverity severity, const char* file, int line, absl::string_view text) {
    if (severity < LogSeverity::kWarning) return;
    absl::FPrintF(stderr, "%s:%d] %s\n", file, line, text);
  });
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  if (!options.hub_address.empty()) BePeers(options);
  return Measure(options);
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::Main(std::vector<std::string>(argv + 1, argv + argc));
}
