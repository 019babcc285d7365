#include "tests/sim/large_job.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "bench/ps_model.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/virtual_alarms.h"
#include "tests/process/pair/pool_counters.h"
#include "tests/sim/large_hosts.h"

namespace tryst {
namespace {

constexpr int64_t kAgainNs = 10 * kMs;  // Until a fetch that failed is tried once more.
constexpr int kAsksATurn = 16;
constexpr int64_t kDownNs = 200 * kMs;  // Until a host that died runs again.
constexpr int64_t kRackDarkNs = 2'000 * kMs;
constexpr int64_t kRollingNs = 200 * kMs;  // From the first restart to the last.

// As `./run bench host`'s step: 1,000 variables, some 20 MiB.
std::vector<uint64_t> VariableBytes(const LargeJobOptions& options) {
  std::vector<uint64_t> bytes;
  const uint64_t part = options.small_variables ? 16 : 1;
  for (int i = 0; i < options.variables; ++i) {
    const int kind = (i * 37) % 1000;
    bytes.push_back((kind < 700 ? 512 : kind < 950 ? 18 << 10 : 320 << 10) / part);
  }
  return bytes;
}

uint64_t ResidentKib() {
  std::ifstream status("/proc/self/statm");
  uint64_t pages = 0;
  status >> pages >> pages;
  return pages * 4;
}

// Each poller needs two descriptors.
void AllowDescriptors() {
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

LargeHostsOptions HostsOptions(const LargeJobOptions& options) {
  LargeHostsOptions hosts;
  hosts.seed = options.seed;
  hosts.hosts = static_cast<uint32_t>(options.workers + options.servers);
  hosts.world.shared_ports = true;
  hosts.world.link.latency_ns = 2000;
  hosts.world.link.message_overhead_ns = 10;
  hosts.world.link.bytes_per_second = options.gbits * 125'000'000;
  hosts.world.chunk_bytes = 64 << 10;
  hosts.transports = options.shipped_settings ? TransportsOptions() : LargeJobTransports();
  hosts.transports.completion_depth = 1 << 20;
  return hosts;
}

class LargeJob final : public SimProgram {
 public:
  explicit LargeJob(const LargeJobOptions& options)
      : options_(options),
        bytes_(VariableBytes(options)),
        hosts_(HostsOptions(options), this),
        states_(hosts_.hosts()),
        workers_(static_cast<size_t>(options.workers)) {
    for (uint64_t bytes : bytes_) {
      if (tensors_.count(bytes) != 0) continue;
      Tensor tensor = *Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(bytes)});
      auto* at = static_cast<uint8_t*>(tensor.mutable_data());
      for (uint64_t i = 0; i < bytes; ++i) at[i] = static_cast<uint8_t>(i * 131 + bytes);
      tensors_[bytes] = tensor;
    }
  }

  LargeJobReport Run();

  void Take(SimProcess* process, int64_t step, const TensorKey& key, const RecvArgs& args,
            DoneFn done) override;
  void GiveBack(SimProcess* process, int64_t step, const TensorKey& key, Received taken) override;
  bool StartSome(SimProcess* process) override;

 private:
  // A fetch that a host wants to make: of a variable by a worker, of a gradient by a server.
  struct Ask {
    uint32_t peer;
    int32_t variable;
    int32_t step;
  };
  // What is in a host's memory: gone with its process.
  struct HostState {
    std::deque<Ask> asks;
    std::map<int64_t, std::unique_ptr<LocalRendezvous>> steps;
  };
  // What the job knows of a worker.
  struct Worker {
    int32_t step = 0;
    bool pushing = false;
    int left = 0;              // Tensors that the pull, or the push, still waits for.
    std::vector<bool> landed;  // Whether each of the push has landed at its server.
    int64_t began_ns = 0;
  };

  bool IsServer(uint32_t host) const { return host < static_cast<uint32_t>(options_.servers); }
  uint32_t ServerOf(int32_t variable) const {
    return static_cast<uint32_t>(variable % options_.servers);
  }
  uint32_t HostOf(size_t worker) const {
    return static_cast<uint32_t>(worker) + static_cast<uint32_t>(options_.servers);
  }
  size_t WorkerAt(uint32_t host) const { return host - static_cast<uint32_t>(options_.servers); }
  int64_t CostNs(const SimProcess* process) const {
    return IsServer(process->host()) ? options_.message_ns / options_.server_processors
                                     : options_.message_ns;
  }
  int64_t NowNs() { return hosts_.world()->NowNs(); }
  bool Over() const { return done_workers_ == workers_.size(); }
  void Violate(std::string what) {
    if (report_.violations.size() < 20) {
      report_.violations.push_back(absl::StrCat("at ", NowNs() / 1000, " us: ", what));
    }
  }

  LocalRendezvous* StepOf(uint32_t host, int64_t step);
  void AskFor(uint32_t host, const Ask& ask);
  void StartFetch(SimProcess* process, const Ask& ask);
  void OnFetched(SimProcess* process, const Ask& ask, const absl::Status& status,
                 const Tensor& tensor);
  void CheckTensor(const Ask& ask, const Tensor& tensor);
  void BeginPull(size_t worker);
  void BeginPush(size_t worker);
  void SendGradient(size_t worker, int32_t variable);
  void EndStep(size_t worker);
  void OnRestarted(uint32_t host);
  void MakeTrouble();
  void Roll(uint32_t host);
  void CountConnections();

  const LargeJobOptions options_;
  const std::vector<uint64_t> bytes_;
  VirtualAlarms alarms_;                // Never moves: takes have no deadline.
  std::map<uint64_t, Tensor> tensors_;  // By size: what all variables and gradients are.
  LargeHosts hosts_;
  std::vector<HostState> states_;
  std::vector<Worker> workers_;
  size_t done_workers_ = 0;
  size_t first_steps_ = 0;  // Workers that have done theirs.
  uint64_t started_ = 0;    // Fetches; each ends once.
  uint64_t ended_ = 0;
  uint64_t steps_ended_ = 0;
  bool trouble_over_ = true;
  // When everybody is under way: after the last first step, before the first last one.
  int64_t measured_from_ns_ = 0;
  uint64_t measured_steps_before_ = 0;
  uint64_t measured_steps_ = 0;
  uint64_t measured_messages_before_ = 0;
  int64_t measured_ns_ = 0;
  uint64_t measured_messages_ = 0;
  int64_t trouble_from_ns_ = 0;
  LargeJobReport report_;
};

LocalRendezvous* LargeJob::StepOf(uint32_t host, int64_t step) {
  auto& table = states_[host].steps[step];
  if (table == nullptr) {
    LocalRendezvous::Options options;
    options.shards = 1;
    options.check_immutable = false;
    table = std::make_unique<LocalRendezvous>(options, &alarms_);
  }
  return table.get();
}

// ---- Serving ----

void LargeJob::Take(SimProcess* process, int64_t step, const TensorKey& key, const RecvArgs& args,
                    DoneFn done) {
  process->Charge(CostNs(process));
  if (!IsServer(process->host())) {
    return StepOf(process->host(), step)->RecvAsync(key, args, std::move(done));
  }
  int variable = 0;
  TRYST_CHECK(absl::SimpleAtoi(key.edge().substr(1), &variable));
  std::move(done)({absl::OkStatus(), tensors_.at(bytes_[static_cast<size_t>(variable)])});
}

void LargeJob::GiveBack(SimProcess* process, int64_t step, const TensorKey& key, Received taken) {
  if (IsServer(process->host())) return;  // A variable is always there.
  StepOf(process->host(), step)->GiveBack(key, std::move(taken));
}

// ---- Fetching ----

void LargeJob::AskFor(uint32_t host, const Ask& ask) {
  states_[host].asks.push_back(ask);
  hosts_.Wake(hosts_.process(host));
}

bool LargeJob::StartSome(SimProcess* process) {
  std::deque<Ask>& asks = states_[process->host()].asks;
  for (int i = 0; i < kAsksATurn && !asks.empty(); ++i) {
    const Ask ask = asks.front();
    asks.pop_front();
    StartFetch(process, ask);
  }
  return !asks.empty();
}

void LargeJob::StartFetch(SimProcess* process, const Ask& ask) {
  const auto device = [](uint32_t host) {
    return absl::StrCat(LargeHosts::NameOf(host), "/device:CPU:0");
  };
  const TensorKey key =
      TensorKeyPrefix::Make(device(ask.peer), hosts_.process(ask.peer)->incarnation(),
                            device(process->host()),
                            absl::StrCat(IsServer(process->host()) ? "g" : "v", ask.variable))
          ->At(0, 0);
  process->Charge(CostNs(process));
  ++started_;
  process->pool()->Fetch(ask.step, key, RecvArgs(), [this, process, ask](Received&& received) {
    OnFetched(process, ask, received.status, received.tensor);
  });
}

void LargeJob::OnFetched(SimProcess* process, const Ask& ask, const absl::Status& status,
                         const Tensor& tensor) {
  ++ended_;
  if (!process->alive()) return;
  process->Charge(CostNs(process));
  const uint32_t host = process->host();
  const bool push = IsServer(host);
  Worker& worker = workers_[WorkerAt(push ? ask.peer : host)];
  if (!status.ok()) {
    if (report_.restarts == 0 && options_.trouble == LargeJobOptions::Trouble::kNone) {
      Violate(absl::StrCat("a fetch failed: ", status.ToString()));
    }
    ++report_.asked_again;
    hosts_.world()->At(NowNs() + kAgainNs, [this, process, host, ask] {
      if (process->alive()) AskFor(host, ask);
    });
    return;
  }
  ++report_.tensors;
  CheckTensor(ask, tensor);
  if (worker.step != ask.step || worker.pushing != push) {
    if (options_.trouble == LargeJobOptions::Trouble::kNone) Violate("a tensor of another step");
    return;
  }
  if (push) {
    if (worker.landed[static_cast<size_t>(ask.variable)]) {
      if (options_.trouble == LargeJobOptions::Trouble::kNone) Violate("a gradient came twice");
      return;
    }
    worker.landed[static_cast<size_t>(ask.variable)] = true;
    if (ask.step + 1 < options_.steps) AskFor(host, {ask.peer, ask.variable, ask.step + 1});
  }
  if (--worker.left > 0) return;
  const size_t number = WorkerAt(push ? ask.peer : host);
  push ? EndStep(number) : BeginPush(number);
}

void LargeJob::CheckTensor(const Ask& ask, const Tensor& tensor) {
  const uint64_t bytes = bytes_[static_cast<size_t>(ask.variable)];
  const Tensor& wanted = tensors_.at(bytes);
  const auto* got = static_cast<const uint8_t*>(tensor.data());
  const auto* want = static_cast<const uint8_t*>(wanted.data());
  if (tensor.shape().elements() != static_cast<int64_t>(bytes) || got[0] != want[0] ||
      got[bytes / 2] != want[bytes / 2] || got[bytes - 1] != want[bytes - 1]) {
    Violate(absl::StrCat("variable ", ask.variable, " has wrong bytes"));
  }
}

// ---- Steps ----

void LargeJob::BeginPull(size_t number) {
  Worker& worker = workers_[number];
  worker.pushing = false;
  worker.left = options_.variables;
  // Each begins elsewhere, or all would ask the same server first.
  for (int i = 0; i < options_.variables; ++i) {
    const auto variable = static_cast<int32_t>((number + static_cast<size_t>(i)) % bytes_.size());
    AskFor(HostOf(number), {ServerOf(variable), variable, worker.step});
  }
}

void LargeJob::BeginPush(size_t number) {
  Worker& worker = workers_[number];
  worker.pushing = true;
  worker.left = 0;
  for (bool landed : worker.landed) worker.left += landed ? 0 : 1;
  if (worker.left == 0) return EndStep(number);
  for (int i = 0; i < options_.variables; ++i) {
    const auto variable = static_cast<int32_t>((number + static_cast<size_t>(i)) % bytes_.size());
    if (!worker.landed[static_cast<size_t>(variable)]) SendGradient(number, variable);
  }
}

void LargeJob::SendGradient(size_t number, int32_t variable) {
  const uint32_t host = HostOf(number);
  const TensorKey key =
      TensorKeyPrefix::Make(absl::StrCat(LargeHosts::NameOf(host), "/device:CPU:0"),
                            hosts_.process(host)->incarnation(),
                            absl::StrCat(LargeHosts::NameOf(ServerOf(variable)), "/device:CPU:0"),
                            absl::StrCat("g", variable))
          ->At(0, 0);
  const absl::Status sent =
      StepOf(host, workers_[number].step)
          ->Send(key, SendArgs(), tensors_.at(bytes_[static_cast<size_t>(variable)]), false);
  if (!sent.ok()) Violate(absl::StrCat("send refused: ", sent.ToString()));
  hosts_.Wake(hosts_.process(host));
}

void LargeJob::EndStep(size_t number) {
  Worker& worker = workers_[number];
  ++steps_ended_;
  const int64_t now_ns = NowNs();
  if (worker.step > 0) {
    report_.slowest_step_ms =
        std::max(report_.slowest_step_ms, static_cast<double>(now_ns - worker.began_ns) * 1e-6);
  }
  worker.began_ns = now_ns;
  worker.landed.assign(bytes_.size(), false);
  auto& tables = states_[HostOf(number)].steps;
  // The table that this runs in stays for another step.
  while (!tables.empty() && tables.begin()->first + 1 < worker.step) tables.erase(tables.begin());
  if (worker.step == 0 && ++first_steps_ == workers_.size()) {
    report_.join_ms = static_cast<double>(now_ns) * 1e-6;
    report_.host_kib = static_cast<double>(ResidentKib());
    measured_from_ns_ = now_ns;
    measured_steps_before_ = steps_ended_;
    measured_messages_before_ = hosts_.world()->fabric().messages_sent();
    MakeTrouble();
  }
  if (++worker.step == options_.steps) {
    if (done_workers_++ == 0 && measured_from_ns_ > 0) {
      measured_ns_ = now_ns - measured_from_ns_;
      measured_steps_ = steps_ended_ - measured_steps_before_;
      measured_messages_ = hosts_.world()->fabric().messages_sent() - measured_messages_before_;
    }
    return;
  }
  BeginPull(number);
}

// ---- Trouble ----

// Another process runs on that host: what was in its memory is made anew.
void LargeJob::OnRestarted(uint32_t host) {
  ++report_.restarts;
  states_[host].asks.clear();
  if (!IsServer(host)) {
    states_[host].steps.clear();
    if (workers_[WorkerAt(host)].step < options_.steps) BeginPull(WorkerAt(host));
    return;
  }
  for (size_t number = 0; number < workers_.size(); ++number) {
    const Worker& worker = workers_[number];
    if (worker.step == options_.steps) continue;
    for (auto variable = static_cast<int32_t>(host); variable < options_.variables;
         variable += options_.servers) {
      const bool landed = worker.landed[static_cast<size_t>(variable)];
      const int32_t step = worker.step + (landed ? 1 : 0);
      if (step == options_.steps) continue;
      AskFor(host, {HostOf(number), variable, step});
      // The server that died may have taken it along.
      if (worker.pushing && !landed) SendGradient(number, variable);
    }
  }
}

void LargeJob::Roll(uint32_t host) {
  if (host == hosts_.hosts()) return;
  hosts_.Restart(host, kDownNs / 10, [this, host] {
    OnRestarted(host);
    if (host + 1 == hosts_.hosts()) trouble_over_ = true;
  });
  hosts_.world()->At(NowNs() + kRollingNs / hosts_.hosts(), [this, host] { Roll(host + 1); });
}

void LargeJob::MakeTrouble() {
  using Trouble = LargeJobOptions::Trouble;
  if (options_.trouble == Trouble::kNone) return;
  trouble_from_ns_ = NowNs();
  trouble_over_ = false;
  SimRandom random(options_.seed * 31 + 5);
  // The chosen hosts are spread, so that there are servers among them.
  const uint32_t hosts = hosts_.hosts();
  const uint32_t count =
      options_.trouble == Trouble::kKills ? std::max(2u, hosts / 100) : std::max(2u, hosts / 25);
  auto left = std::make_shared<uint32_t>(count);
  const auto first = static_cast<uint32_t>(random.Below(hosts / count));
  // The trouble begins in the middle of the second step.
  hosts_.world()->At(NowNs() + kMs, [this, count, left, first, hosts] {
    if (options_.trouble == Trouble::kRolling) return Roll(0);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t host = options_.trouble == Trouble::kKills
                                ? first + i * (hosts / count)
                                : (static_cast<uint32_t>(options_.servers) - 2 + i) % hosts;
      if (options_.trouble == Trouble::kKills) {
        hosts_.Kill(host, kDownNs, [this, host, left] {
          OnRestarted(host);
          if (--*left == 0) trouble_over_ = true;
        });
      } else {
        hosts_.SetSilent(host, true);
        hosts_.world()->At(NowNs() + kRackDarkNs, [this, host, left] {
          hosts_.SetSilent(host, false);
          if (--*left == 0) trouble_over_ = true;
        });
      }
    }
  });
}

// ---- The whole ----

void LargeJob::CountConnections() {
  for (uint32_t host = 0; host < hosts_.hosts(); ++host) {
    if (hosts_.process(host)->pool() == nullptr) continue;
    const FetchCounters counters = RdmaFetched(*hosts_.process(host)->pool());
    report_.connections += counters.links;
    if (options_.trouble == LargeJobOptions::Trouble::kNone && counters.breaks > 0) {
      Violate(absl::StrCat(counters.breaks, " connections of host ", host, " broke"));
    }
  }
}

LargeJobReport LargeJob::Run() {
  const auto began = std::chrono::steady_clock::now();
  const auto before_kib = static_cast<double>(ResidentKib());
  hosts_.Start();
  for (Worker& worker : workers_) worker.landed.assign(bytes_.size(), false);
  for (size_t number = 0; number < workers_.size(); ++number) {
    for (int32_t variable = 0; variable < options_.variables; ++variable) {
      AskFor(ServerOf(variable), {HostOf(number), variable, 0});
    }
    BeginPull(number);
  }
  hosts_.RunUntil(options_.limit_s * 1000 * kMs,
                  [this] { return !report_.violations.empty() || (Over() && trouble_over_); });
  if (report_.violations.empty() && !Over()) {
    Violate(absl::StrCat(workers_.size() - done_workers_, " of ", workers_.size(),
                         " workers have not done their steps; ", started_ - ended_,
                         " fetches are open"));
  }
  if (trouble_from_ns_ > 0) {
    report_.trouble_ms = static_cast<double>(NowNs() - trouble_from_ns_) * 1e-6;
  }
  CountConnections();
  const double hosts = hosts_.hosts();
  report_.host_kib = (report_.host_kib - before_kib) / hosts;
  if (measured_steps_ > 0) {
    const double steps = static_cast<double>(measured_steps_) / options_.workers;
    report_.step_ms = static_cast<double>(measured_ns_) * 1e-6 / steps;
    report_.messages_per_host_step = static_cast<double>(measured_messages_) / steps / hosts;
  }
  PsJob job;
  job.workers = options_.workers;
  job.servers = options_.servers;
  job.variable_bytes = bytes_;
  job.steps = options_.steps;
  PsCosts costs;
  costs.link = HostsOptions(options_).world.link;
  costs.ask_ns = costs.land_ns = costs.answer_ns = options_.message_ns;
  costs.server_processors = options_.server_processors;
  report_.bound_ms = BoundMs(job, costs);
  report_.predicted_ms = Predict(job, costs).step_ms;
  report_.events = hosts_.world()->events();
  if (!hosts_.TakeDown()) Violate("a host does not drain");
  if (started_ != ended_) Violate(absl::StrCat(started_ - ended_, " fetches never ended"));
  for (const std::string& violation : hosts_.world()->violations()) {
    Violate(absl::StrCat("memory: ", violation));
  }
  report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return report_;
}

}  // namespace

TransportsOptions LargeJobTransports() {
  TransportsOptions options;
  options.link.slots = 16;
  options.link.ring_slots = 4;
  options.link.message_bytes = 4608;
  options.link.send_depth = 32;
  options.link.digests = false;
  options.eager_bytes = 2048;
  options.offered_bytes = 64 << 10;
  options.landing_bytes = 4 << 20;
  return options;
}

LargeJobReport RunLargeJob(const LargeJobOptions& options) {
  AllowDescriptors();
  // Freed memory is used again, or most of the time would go into page faults.
  mallopt(M_MMAP_THRESHOLD, 512 << 20);
  malloc_trim(0);  // What an earlier job has left is not to hide what this one takes.
  auto job = std::make_unique<LargeJob>(options);
  LargeJobReport report = job->Run();
  // What has not drained cannot be taken down in an orderly way: leave it.
  if (!report.violations.empty()) job.release();  // NOLINT
  return report;
}

}  // namespace tryst
