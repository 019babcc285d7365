#include "tests/sim/large_hosts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "rendezvous/tensor_key.h"

namespace tryst {
namespace {

constexpr int64_t kUs = 1'000;
constexpr int64_t kHelloNs = 100 * kUs;        // One way.
constexpr int64_t kLostHelloNs = 2'000 * kMs;  // Until the caller gives an answer up.
constexpr int64_t kDrainNs = 60'000 * kMs;

}  // namespace

// ---- A process ----

SimProcess::SimProcess(LargeHosts* hosts, uint32_t host, uint64_t incarnation)
    : hosts_(hosts), host_(host), incarnation_(incarnation), poller_(&hosts->world_.clock()) {
  SimNicOptions nic_options;
  nic_options.on_work = [this] { hosts_->Wake(this); };
  nic_ = hosts->world_.OpenNic(host, nic_options);
  TransportsOptions options = hosts->options_.transports;
  options.self = LargeHosts::NameOf(host);
  options.incarnation = incarnation;
  options.seed = incarnation * 7919;
  pool_ = MakeChannelPool(&poller_, hosts, this, {{"rdma/sim", nic_}}, nullptr, options);
  const absl::Status opened = pool_->Open();
  TRYST_CHECK(opened.ok()) << opened;
}

SimProcess::~SimProcess() {
  pool_.reset();
  nic_.reset();
}

void SimProcess::Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) {
  if (key.src_incarnation() != incarnation_) {
    return std::move(done)({absl::AbortedError("another incarnation")});
  }
  hosts_->program_->Take(this, step_id, key, args, std::move(done));
}

void SimProcess::GiveBack(int64_t step_id, const TensorKey& key, Received taken) {
  hosts_->program_->GiveBack(this, step_id, key, std::move(taken));
}

void SimProcess::End(const absl::Status& why) {
  alive_ = false;
  pool_->Close(why);
  hosts_->Wake(this);
}

bool SimProcess::Turn() {
  if (pool_ == nullptr) return false;
  const bool more = alive_ && hosts_->program_->StartSome(this);
  const bool worked = poller_.Turn();
  return worked || more;
}

bool SimProcess::DropWhenDrained() {
  if (alive_ || pool_ == nullptr || !pool_->Drained()) return pool_ == nullptr;
  pool_.reset();
  nic_.reset();
  return true;
}

// ---- All of them ----

LargeHosts::LargeHosts(const LargeHostsOptions& options, SimProgram* program)
    : options_(options),
      program_(program),
      world_(options.seed, options.world),
      now_(options.hosts, nullptr),
      silent_(options.hosts, false) {
  FixKeyHashes();
  for (uint32_t host = 0; host < options.hosts; ++host) host_of_[NameOf(host)] = host;
}

LargeHosts::~LargeHosts() = default;

std::string LargeHosts::NameOf(uint32_t host) {
  return absl::StrCat("/job:host/replica:0/task:", host);
}

SimProcess* LargeHosts::StartProcess(uint32_t host) {
  processes_.push_back(std::make_unique<SimProcess>(this, host, next_incarnation_++));
  now_[host] = processes_.back().get();
  Wake(now_[host]);
  return now_[host];
}

void LargeHosts::Start() {
  for (uint32_t host = 0; host < options_.hosts; ++host) StartProcess(host);
}

void LargeHosts::Wake(SimProcess* process) {
  if (process->queued_) return;
  process->queued_ = true;
  ready_.push_back(process);
}

void LargeHosts::WakeAt(SimProcess* process, int64_t at_ns) {
  if (process->wakes_at_ns_ <= at_ns && process->wakes_at_ns_ > world_.NowNs()) return;
  process->wakes_at_ns_ = at_ns;
  world_.At(at_ns, [this, process] { Wake(process); });
}

// The turns that are due now.
bool LargeHosts::RunReady() {
  const bool any = !ready_.empty();
  while (!ready_.empty()) {
    SimProcess* const process = ready_.front();
    ready_.pop_front();
    process->queued_ = false;
    const int64_t now_ns = world_.NowNs();
    if (process->busy_until_ns_ > now_ns) {
      WakeAt(process, process->busy_until_ns_);
      continue;
    }
    const bool more = process->Turn();
    process->busy_until_ns_ = now_ns + process->charged_ns_;
    process->charged_ns_ = 0;
    if (process->DropWhenDrained()) continue;
    if (more) {
      Wake(process);
    } else if (const int64_t timer_ns = process->poller_.NextTimerNs();
               timer_ns != std::numeric_limits<int64_t>::max()) {
      WakeAt(process, timer_ns);
    }
  }
  return any;
}

void LargeHosts::RunUntil(int64_t until_ns, const std::function<bool()>& over) {
  while (world_.NowNs() < until_ns && !over()) {
    RunReady();
    if (world_.next_ns() > until_ns) return world_.RunUntil(until_ns);
    world_.Step();
  }
}

bool LargeHosts::TakeDown() {
  for (SimProcess* process : now_) {
    if (process->alive_) process->End(absl::UnavailableError("the simulation is over"));
  }
  const auto drained = [this] {
    return std::all_of(processes_.begin(), processes_.end(),
                       [](const auto& process) { return process->pool_ == nullptr; });
  };
  // To look at all of them after every event would take longer than the rest.
  const int64_t until_ns = world_.NowNs() + kDrainNs;
  while (!drained() && world_.NowNs() < until_ns) {
    RunUntil(world_.NowNs() + 10 * kMs, [] { return false; });
  }
  return drained();
}

// ---- What goes wrong ----

void LargeHosts::Replace(uint32_t host, int64_t down_ns, std::function<void()> restarted) {
  world_.At(world_.NowNs() + down_ns, [this, host, restarted = std::move(restarted)] {
    // A process that ends by itself has to have left its NIC.
    if (now_[host]->nic_ != nullptr && world_.nic(host) != nullptr) {
      return Replace(host, 10 * kMs, restarted);
    }
    StartProcess(host);
    restarted();
  });
}

void LargeHosts::Kill(uint32_t host, int64_t down_ns, std::function<void()> restarted) {
  world_.Kill(host);
  now_[host]->End(absl::UnavailableError("killed"));
  Replace(host, down_ns, std::move(restarted));
}

void LargeHosts::Restart(uint32_t host, int64_t down_ns, std::function<void()> restarted) {
  now_[host]->End(absl::UnavailableError("this worker restarts"));
  Replace(host, down_ns, std::move(restarted));
}

void LargeHosts::SetSilent(uint32_t host, bool silent) {
  silent_[host] = silent;
  world_.SetSilent(host, silent);
}

void LargeHosts::Exchange(const std::string& peer, const Hello& hello, Deadline deadline,
                          HelloDone done) {
  // Shared by the answer and the time-out; whichever is first.
  auto shared = std::make_shared<HelloDone>(std::move(done));
  const uint32_t from = host_of_.at(hello.worker), to = host_of_.at(peer);
  SimProcess* const asker = now_[from];
  const auto answer = [this, shared, asker](absl::StatusOr<Hello> hello) {
    if (!*shared) return;
    HelloDone once = std::move(*shared);
    *shared = nullptr;
    std::move(once)(std::move(hello));
    Wake(asker);
  };
  const int64_t now_ns = world_.NowNs();
  if (silent_[from] || silent_[to]) {
    world_.At(std::min(deadline.at_ns(), now_ns + kLostHelloNs),
              [answer] { answer(absl::UnavailableError("no answer to the hello")); });
    return;
  }
  world_.At(now_ns + kHelloNs, [this, to, hello, answer] {
    if (!now_[to]->alive_) {
      return answer(absl::UnavailableError(absl::StrCat(NameOf(to), " is not up")));
    }
    now_[to]->pool_->OnHello(hello, [this, answer](absl::StatusOr<Hello> said) {
      world_.At(world_.NowNs() + kHelloNs, [answer, said = std::move(said)] { answer(said); });
    });
    Wake(now_[to]);
  });
}

}  // namespace tryst
