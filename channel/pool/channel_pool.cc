#include "channel/pool/channel_pool.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/reached.h"
#include "base/release_memory.h"

namespace tryst {
namespace {

constexpr int64_t kMaintenanceNs = 1'000'000'000;
constexpr std::chrono::seconds kPollerPatience{2};
constexpr size_t kMostIdleTasks = 1024;
constexpr size_t kMostLives = 4096;
constexpr int64_t kLateHelloNs = 10'000'000'000;  // Twice as long as a hello waits for its answer.

}  // namespace

// A Fetch on its way to the poller thread.
class ChannelPool::FetchTask final : public PollerTask {
 public:
  explicit FetchTask(ChannelPool* pool) : pool_(pool) {}
  void RunOnPoller() override { pool_->StartFetch(this); }

  int64_t step_id = 0;
  TensorKey key;
  RecvArgs args;
  FetchedFn done;

 private:
  ChannelPool* const pool_;
};

ChannelPool::ChannelPool(Poller* poller, Bootstrap* bootstrap, TensorSource* source,
                         const std::vector<TransportFactory>& transports,
                         ChannelPoolOptions options)
    : poller_(poller), options_(std::move(options)) {
  TRYST_CHECK(options_.incarnation != 0);
  context_.poller = poller;
  context_.options = &options_;
  context_.random.seed(options_.seed);
  TransportContext& common = context_.common;
  common.poller = poller;
  common.bootstrap = bootstrap;
  common.source = source;
  common.self = options_.self;
  common.incarnation = options_.incarnation;
  common.max_tensor_bytes = options_.max_tensor_bytes;
  common.trace = options_.trace;
  common.place = options_.place;
  common.network_changed = [this] {
    for (PeerPaths* peer : peers_in_order_) peer->RetryNow();
  };
  consumers_ =
      std::make_unique<Consumers>(poller, source, ServeOptionsFrom(options_.sessions, common),
                                  options_.sessions.max_consumers, context_.random());
  common.consumers = consumers_.get();
  for (const TransportFactory& make : transports) {
    TransportContext context = common;
    context.seed = context_.random();
    context_.transports.push_back(make(context));
  }
}

ChannelPool::~ChannelPool() {
  TRYST_CHECK(!open_ || Drained());
  poller_->CancelTimer(&maintenance_);
  consumers_->Reap();
}

absl::Status ChannelPool::Open() {
  auto* transports = &context_.transports;
  for (auto at = transports->begin(); at != transports->end();) {
    const absl::Status opened = (*at)->Open();
    if (opened.ok()) {
      ++at;
      // Another transport reaches peers, and Explain() says why this one does not.
    } else if ((*at)->is_optional()) {
      context_.missing.emplace_back((*at)->name(), opened);
      at = transports->erase(at);
    } else {
      return opened;
    }
  }
  open_ = true;
  // Other pollers begin with their first peer, and sleep until then.
  if (options_.place == 0) StartMaintenance();
  return absl::OkStatus();
}

// ---- Fetching ----

ChannelPool::FetchTask* ChannelPool::TakeTask() {
  MutexLock lock(&mu_);
  if (free_tasks_.empty()) {
    tasks_.push_back(std::make_unique<FetchTask>(this));
    return tasks_.back().get();
  }
  FetchTask* task = free_tasks_.back();
  free_tasks_.pop_back();
  return task;
}

// A burst of calls made tasks faster than the poller could take them. They go with the last.
void ChannelPool::GiveTask(FetchTask* task) {
  std::vector<std::unique_ptr<FetchTask>> burst;  // Destroyed without the lock.
  MutexLock lock(&mu_);
  free_tasks_.push_back(task);
  if (tasks_.size() <= kMostIdleTasks || free_tasks_.size() < tasks_.size()) return;
  burst.swap(tasks_);
  ReleaseMemory(&free_tasks_);
}

// Fetches in the inbox were made earlier and go first. An abort ends only fetches made before it.
bool ChannelPool::MayStartNow() const {
  if (posted_aborts_.load(std::memory_order_relaxed) != 0) {
    TRYST_REACHED("sim: a fetch waits behind an abort");
    return false;
  }
  return posted_fetches_.load(std::memory_order_relaxed) == 0;
}

void ChannelPool::Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
                        FetchedFn&& done) {
  asked_.store(true, std::memory_order_relaxed);
  if (poller_->OnThread() && !closed_ && MayStartNow()) {
    Channel* channel = PeerOf(key)->InCallbacks();
    if (channel != nullptr) return channel->Fetch(step_id, key, args, std::move(done));
  }
  FetchTask* task = TakeTask();
  posted_fetches_.fetch_add(1, std::memory_order_relaxed);
  task->step_id = step_id;
  task->key = key;
  task->args.Assign(args);
  task->done = std::move(done);
  poller_->Post(task);
}

void ChannelPool::FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                            ManyFetchedFn done) {
  asked_.store(true, std::memory_order_relaxed);
  if (poller_->OnThread() && MayStartNow() && FetchAsOne(step_id, keys, args, &done)) return;
  posted_fetches_.fetch_add(1, std::memory_order_relaxed);
  poller_->PostFn([this, step_id, args = args, done = std::move(done),
                   keys = std::vector<TensorKey>(keys.begin(), keys.end()),
                   destinations = std::vector<Tensor>(args.destinations.begin(),
                                                      args.destinations.end())]() mutable {
    posted_fetches_.fetch_sub(1, std::memory_order_relaxed);
    args.destinations = destinations;
    if (FetchAsOne(step_id, keys, args, &done)) return;
    ArgsOfEach each(args);
    FetchEach(keys.size(), std::move(done), [&](size_t i, FetchedFn one) {
      FetchNow(step_id, keys[i], each.At(i), std::move(one));
    });
  });
}

void ChannelPool::FetchEach(size_t count, ManyFetchedFn done,
                            absl::FunctionRef<void(size_t, FetchedFn)> fetch) {
  // Shared by the fetches; the last one to end calls back.
  struct Many {
    std::atomic<size_t> left{0};
    std::vector<Received> results;
    ManyFetchedFn done;
  };
  auto many = std::make_shared<Many>();
  many->results.resize(count);
  many->left = count + 1;
  many->done = std::move(done);
  const auto end_one = [](const std::shared_ptr<Many>& many) {
    if (many->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    absl::Status first;
    for (const Received& result : many->results) {
      if (first.ok()) first = result.status;
    }
    std::move(many->done)(std::move(first), absl::MakeSpan(many->results));
  };
  for (size_t i = 0; i < count; ++i) {
    fetch(i, [many, i, end_one](Received&& received) {
      many->results[i] = std::move(received);
      end_one(many);
    });
  }
  // Counted, because once the pool has drained nobody turns the poller any more.
  posted_fetches_.fetch_add(1, std::memory_order_relaxed);
  poller_->PostFn([this, many, end_one] {
    posted_fetches_.fetch_sub(1, std::memory_order_relaxed);
    end_one(many);
  });
}

bool ChannelPool::FetchAsOne(int64_t step_id, absl::Span<const TensorKey> keys,
                             const RecvArgs& args, ManyFetchedFn* done) {
  if (closed_ || keys.empty()) return false;
  const absl::string_view worker = keys[0].src().worker;
  for (const TensorKey& key : keys) {
    if (!key.IsFrom(worker)) return false;
  }
  return PeerOf(keys[0])->FetchMany(step_id, keys, args, done);
}

void ChannelPool::StartFetch(FetchTask* task) {
  posted_fetches_.fetch_sub(1, std::memory_order_relaxed);
  FetchNow(task->step_id, task->key, task->args, std::move(task->done));
  task->key = TensorKey();
  task->args.DropReferences();
  task->done = nullptr;
  GiveTask(task);
}

void ChannelPool::FetchNow(int64_t step_id, const TensorKey& key, const RecvArgs& args,
                           FetchedFn&& done) {
  if (closed_) return FailReceive(close_status_, args.executor, std::move(done));
  PeerOf(key)->Fetch(step_id, key, args, std::move(done));
}

PeerPaths* ChannelPool::PeerOf(const TensorKey& key) {
  if (last_peer_ != nullptr && key.IsFrom(last_peer_->worker())) return last_peer_;
  const absl::string_view worker = key.src().worker;
  auto found = peers_.find(worker);
  if (found != peers_.end()) return last_peer_ = found->second.get();
  auto peer = std::make_unique<PeerPaths>(&context_, std::string(worker));
  peers_in_order_.push_back(peer.get());
  StartMaintenance();
  return peers_.emplace(peer->worker(), std::move(peer)).first->second.get();
}

void ChannelPool::AbortStep(int64_t step_id, const absl::Status& status) {
  // Without any fetch there is nothing to abort, and the poller need not be woken.
  if (!asked_.load(std::memory_order_relaxed)) return;
  posted_aborts_.fetch_add(1, std::memory_order_relaxed);
  poller_->PostFn([this, step_id, status] {
    posted_aborts_.fetch_sub(1, std::memory_order_relaxed);
    for (PeerPaths* peer : peers_in_order_) peer->AbortStep(step_id, status);
  });
}

void ChannelPool::RenewLinks(int64_t within_ms) {
  poller_->PostFn([this, within_ms] {
    // Not all at once, so that they do not wait for each other's handshakes.
    std::uniform_int_distribution<int64_t> pause_ms(0, within_ms);
    for (PeerPaths* peer : peers_in_order_) peer->Renew(pause_ms(context_.random));
  });
}

// ---- Serving ----

void ChannelPool::OnHello(const Hello& hello, HelloDone done) {
  poller_->PostFn(
      [this, hello, done = std::move(done)]() mutable { AnswerHello(hello, std::move(done)); });
}

void ChannelPool::AnswerHello(const Hello& hello, HelloDone done) {
  if (closed_) return std::move(done)(close_status_);
  if (hello.incarnation == 0 || hello.worker.empty() || hello.epoch == 0) {
    return std::move(done)(
        absl::InvalidArgumentError("the request to open a connection (hello) does not name the "
                                   "worker and incarnation that sent it, or has no number"));
  }
  const absl::Status spoken = CheckProtocol(hello, options_.self);
  if (absl::IsFailedPrecondition(spoken)) return std::move(done)(spoken);
  if (!HearLife(hello)) {
    TRYST_REACHED("rare: a hello of a process that has ended");
    return std::move(done)(absl::AbortedError(absl::StrCat(
        hello.worker,
        " has restarted: this request to open a connection (hello) is from its earlier process")));
  }
  StartMaintenance();
  auto peer = peers_.find(hello.worker);
  if (peer != peers_.end()) peer->second->NoteIncarnation(hello.incarnation);
  consumers_->NotePeer(hello.worker, hello.incarnation);
  Transport* const transport = FindTransport(hello.path);
  if (transport != nullptr) return transport->OnHello(hello, std::move(done));
  std::string why = absl::StrCat("; there is: ", absl::StrJoin(transport_names(), ", "));
  for (const auto& [name, status] : context_.missing) {
    if (name == hello.path) why = absl::StrCat(": ", status.message());
  }
  std::move(done)(
      absl::UnimplementedError(absl::StrCat("this worker has no path ", hello.path, why)));
}

bool ChannelPool::HearLife(const Hello& hello) {
  const int64_t now_ns = poller_->now_ns();
  if (lives_.size() >= kMostLives && !lives_.contains(hello.worker)) {
    lives_.erase(std::min_element(lives_.begin(), lives_.end(), [](const auto& a, const auto& b) {
      return a.second.heard_ns < b.second.heard_ns;
    }));
  }
  PeerLife& life = lives_[hello.worker];
  if (life.incarnation != hello.incarnation) {
    // Where a clock was set back, the process that started earlier lives, and says hello again.
    if (hello.started_us != 0 && hello.started_us < life.started_us &&
        now_ns - life.since_ns < kLateHelloNs) {
      return false;
    }
    life.incarnation = hello.incarnation;
    life.started_us = hello.started_us;
    life.since_ns = now_ns;
  }
  life.heard_ns = now_ns;
  return true;
}

void ChannelPool::StartMaintenance() {
  if (std::exchange(maintained_, true) || closed_) return;
  poller_->SetTimer(&maintenance_, poller_->now_ns() + kMaintenanceNs);
}

void ChannelPool::Maintain() {
  consumers_->Maintain();
  for (const auto& transport : context_.transports) transport->Maintain();
  if (!closed_) poller_->SetTimer(&maintenance_, poller_->now_ns() + kMaintenanceNs);
}

// ---- Ending ----

absl::StatusOr<size_t> ChannelPool::Coming() {
  size_t count = 0;
  const absl::Status asked = AskPoller([&] { count = consumers_->Coming(); });
  if (!asked.ok()) return asked;
  return count;
}

void ChannelPool::Close(const absl::Status& why) {
  poller_->PostFn([this, why] {
    if (closed_) return;
    closed_ = true;
    close_status_ = why;
    for (PeerPaths* peer : peers_in_order_) peer->Close(why);
    consumers_->Close(why);
    for (const auto& transport : context_.transports) transport->Close(why);
    poller_->CancelTimer(&maintenance_);
  });
}

bool ChannelPool::Drained() {
  return closed_ && posted_fetches_.load(std::memory_order_relaxed) == 0 &&
         std::all_of(peers_in_order_.begin(), peers_in_order_.end(),
                     [](const PeerPaths* peer) { return peer->Drained(); }) &&
         consumers_->Drained() &&
         std::all_of(context_.transports.begin(), context_.transports.end(),
                     [](const auto& transport) { return transport->Drained(); });
}

absl::Status ChannelPool::Stop(const absl::Status& why, absl::Duration timeout) {
  Close(why);
  const Clock& clock = poller_->clock();
  const Deadline until = Deadline::After(clock, timeout);
  for (;;) {
    bool drained = false;
    poller_->RunAndWait([this, &drained] { drained = Drained(); });
    if (drained) return absl::OkStatus();
    if (until.Passed(clock.NowNs())) {
      return absl::DeadlineExceededError(
          "some transfers did not end within the time for stopping: raise stop_deadline");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// ---- Explaining ----

std::string ChannelPool::Explain(const std::string& peer) {
  if (poller_->OnThread())
    // A caller on the poller thread would wait for itself.
    return ExplainNow(peer);
  std::string out;
  poller_->RunAndWait([&] { out = ExplainNow(peer); });
  return out;
}

std::string ChannelPool::ExplainNow(const std::string& peer) const {
  std::string out;
  for (const PeerPaths* known : peers_in_order_) {
    if (peer.empty() || known->worker() == peer) absl::StrAppend(&out, known->Explain(), "\n");
  }
  consumers_->Explain(peer, &out);
  for (const auto& transport : context_.transports) transport->ExplainServing(peer, &out);
  return out;
}

void ChannelPool::ListOpsNow(LiveOps* ops) const {
  for (const PeerPaths* peer : peers_in_order_) peer->ListOps(ops);
  consumers_->ListOps(ops);
  for (const auto& transport : context_.transports) transport->ListOps(ops);
}

void ChannelPool::AddCountersNow(Counters* counters) const {
  for (const auto& transport : context_.transports) transport->AddCounters(counters);
}

Transport* ChannelPool::FindTransport(absl::string_view name) const {
  for (const auto& transport : context_.transports) {
    if (transport->name() == name) return transport.get();
  }
  return nullptr;
}

std::vector<std::string> ChannelPool::transport_names() const {
  std::vector<std::string> names;
  for (const auto& transport : context_.transports) names.push_back(transport->name());
  return names;
}

// State is often asked for because something hangs, so this call must not hang with it.
absl::Status ChannelPool::AskPoller(absl::AnyInvocable<void() &&> fn) {
  if (poller_->OnThread()) {
    std::move(fn)();
    return absl::OkStatus();
  }
  struct Asked {
    Mutex mu;
    CondVar answered_cv;
    absl::AnyInvocable<void() &&> fn ABSL_GUARDED_BY(mu);  // Null: it has run, or was given up.
  };
  auto asked = std::make_shared<Asked>();
  {
    MutexLock lock(&asked->mu);
    asked->fn = std::move(fn);
  }
  poller_->PostFn([asked] {
    MutexLock lock(&asked->mu);
    if (asked->fn != nullptr) std::move(asked->fn)();  // It takes no lock and calls no callback.
    asked->fn = nullptr;
    asked->answered_cv.NotifyOne();
  });
  const std::chrono::steady_clock::time_point until(
      std::chrono::nanoseconds(poller_->clock().NowNs()) + kPollerPatience);
  MutexLock lock(&asked->mu);
  while (asked->fn != nullptr) {
    if (!asked->answered_cv.WaitUntil(&asked->mu, until) || asked->fn == nullptr) continue;
    asked->fn = nullptr;
    return absl::DeadlineExceededError(absl::StrCat(
        "the poller thread of ", options_.self, " has not answered for ", kPollerPatience.count(),
        " s: it is stuck in a callback, or gets no processor"));
  }
  return absl::OkStatus();
}

absl::Status ChannelPool::ListOps(LiveOps* ops) {
  return AskPoller([&] { ListOpsNow(ops); });
}

absl::StatusOr<std::vector<PathView>> ChannelPool::ViewPaths(const std::string& peer) {
  std::vector<PathView> views;
  const absl::Status asked = AskPoller([&] {
    for (const PeerPaths* known : peers_in_order_) {
      if (peer.empty() || known->worker() == peer) known->View(&views);
    }
    consumers_->View(peer, &views);
    for (const auto& transport : context_.transports) transport->View(peer, &views);
  });
  if (!asked.ok()) return asked;
  return views;
}

absl::Status ChannelPool::AskCounters(Counters* counters) {
  return AskPoller([&] { AddCountersNow(counters); });
}

}  // namespace tryst
