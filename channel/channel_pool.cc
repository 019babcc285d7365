#include "channel/channel_pool.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "verbs/async_event_thread.h"

namespace tryst {
namespace {

constexpr int64_t kMaintenanceNs = 1'000'000'000;
constexpr std::chrono::seconds kPollerPatience{2};

}  // namespace

// A Fetch on its way to the poller thread.
class ChannelPool::FetchTask final : public PollerTask {
 public:
  explicit FetchTask(ChannelPool* pool) : pool_(pool) {}
  void RunOnPoller() override { pool_->StartFetch(this); }

  int64_t step_id = 0;
  TensorKey key;
  Args args;
  DoneFn done;

 private:
  ChannelPool* const pool_;
};

ChannelPool::ChannelPool(Poller* poller, Bootstrap* bootstrap, TensorSource* source,
                         std::vector<NicPath> paths, FallbackFactory fallback,
                         ChannelPoolOptions options)
    : poller_(poller), source_(source), options_(std::move(options)) {
  TRYST_CHECK(options_.incarnation != 0);
  context_.poller = poller;
  context_.bootstrap = bootstrap;
  context_.options = &options_;
  context_.fallback = std::move(fallback);
  context_.random.seed(options_.seed);
  for (NicPath& path : paths) {
    auto rail = std::make_unique<Rail>();
    rail->path = std::move(path);
    context_.rails.push_back(std::move(rail));
  }
  room_task_.pool = this;
  consumers_ = std::make_unique<Consumers>(&options_, &context_.rails, source_, context_.random());
}

ChannelPool::~ChannelPool() {
  TRYST_CHECK(!open_ || Drained());
  for (auto& rail : context_.rails) {
    if (rail->landings != nullptr) rail->landings->SetRoomCallback(nullptr);
    if (rail->hub != nullptr) rail->hub->Detach();
  }
  poller_->CancelTimer(&maintenance_);
}

absl::Status ChannelPool::Open() {
  for (auto& rail : context_.rails) {
    const absl::Status opened = OpenRail(rail.get());
    if (!opened.ok()) return opened;
  }
  if (options_.shm_arena != nullptr) {
    ShmPathOptions shm = options_.shm;
    shm.self = options_.self;
    shm.self_incarnation = options_.incarnation;
    shm.trace = options_.trace;
    shm.seed = context_.random();
    auto path =
        ShmPath::Create(poller_, context_.bootstrap, source_, options_.shm_arena, std::move(shm));
    context_.shm_status = path.status();  // Peers are reached otherwise, and Explain() says so.
    if (path.ok()) context_.shm = *std::move(path);
  }
  open_ = true;
  poller_->SetTimer(&maintenance_, poller_->now_ns() + kMaintenanceNs);
  return absl::OkStatus();
}

absl::Status ChannelPool::OpenRail(Rail* rail) {
  Nic* nic = rail->path.nic.get();
  const uint32_t depth = std::min(options_.completion_depth, nic->limits().max_completion_depth);
  auto hub = QueueHub::Create(nic, poller_, depth);
  if (!hub.ok()) return hub.status();
  rail->hub = *std::move(hub);
  rail->hub->Attach();
  rail->landings = std::make_shared<LandingPool>(rail->path.nic, options_.landing_cap_bytes);
  rail->landings->SetRoomCallback([this] {
    if (!room_task_.posted.exchange(true)) poller_->Post(&room_task_);
  });
  if (nic->event_fd() < 0) return absl::OkStatus();
  auto events = AsyncEventThread::Start(nic, [this, rail](const NicEvent& event) {
    poller_->PostFn([this, rail, event] { OnNicEvent(rail, event); });
  });
  if (!events.ok()) return events.status();
  rail->events = *std::move(events);
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

void ChannelPool::GiveTask(FetchTask* task) {
  MutexLock lock(&mu_);
  free_tasks_.push_back(task);
}

void ChannelPool::Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) {
  // What other threads have asked for and is still in the inbox goes first: it was asked before.
  if (poller_->OnThread() && !closed_ && posted_fetches_.load(std::memory_order_relaxed) == 0) {
    ShmFetchChannel* shm = PeerOf(key.src().worker)->shm(&key);
    if (shm != nullptr) return shm->Fetch(step_id, key, args, std::move(done));
  }
  FetchTask* task = TakeTask();
  posted_fetches_.fetch_add(1, std::memory_order_relaxed);
  task->step_id = step_id;
  task->key = key;
  task->args = args;
  task->done = std::move(done);
  poller_->Post(task);
}

void ChannelPool::FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const Args& args,
                            ManyDoneFn done) {
  if (context_.shm == nullptr) {
    return FetchEach(keys, std::move(done), [&](const TensorKey& key, DoneFn one) {
      Fetch(step_id, key, args, std::move(one));
    });
  }
  if (poller_->OnThread() && posted_fetches_.load(std::memory_order_relaxed) == 0) {
    // Where all are one peer's and it is on this host they go as one.
    if (ShmFetchChannel* shm = ShmForAll(keys)) {
      return shm->FetchMany(step_id, keys, args, std::move(done));
    }
  }
  posted_fetches_.fetch_add(1, std::memory_order_relaxed);
  poller_->PostFn([this, step_id, args, done = std::move(done),
                   keys = std::vector<TensorKey>(keys.begin(), keys.end())]() mutable {
    posted_fetches_.fetch_sub(1, std::memory_order_relaxed);
    if (ShmFetchChannel* shm = ShmForAll(keys)) {
      return shm->FetchMany(step_id, keys, args, std::move(done));
    }
    FetchEach(keys, std::move(done), [&](const TensorKey& key, DoneFn one) {
      FetchNow(step_id, key, args, std::move(one));
    });
  });
}

void ChannelPool::FetchEach(absl::Span<const TensorKey> keys, ManyDoneFn done,
                            absl::FunctionRef<void(const TensorKey&, DoneFn)> fetch) {
  // Shared by the fetches; the last one to end calls back.
  struct Many {
    std::atomic<size_t> left{0};
    std::vector<Received> results;
    ManyDoneFn done;
  };
  auto many = std::make_shared<Many>();
  many->results.resize(keys.size());
  many->left = keys.size() + 1;
  many->done = std::move(done);
  const auto end_one = [](const std::shared_ptr<Many>& many) {
    if (many->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    absl::Status first;
    for (const Received& result : many->results) {
      if (first.ok()) first = result.status;
    }
    std::move(many->done)(std::move(first), absl::MakeSpan(many->results));
  };
  for (size_t i = 0; i < keys.size(); ++i) {
    fetch(keys[i], [many, i, end_one](absl::Status status, const Args&, const Args&, Tensor tensor,
                                      bool is_dead) {
      many->results[i].status = std::move(status);
      many->results[i].tensor = std::move(tensor);
      many->results[i].is_dead = is_dead;
      end_one(many);
    });
  }
  poller_->PostFn([many, end_one] { end_one(many); });
}

ShmFetchChannel* ChannelPool::ShmForAll(absl::Span<const TensorKey> keys) {
  if (context_.shm == nullptr || closed_ || keys.empty()) return nullptr;
  const absl::string_view worker = keys[0].src().worker;
  for (const TensorKey& key : keys) {
    if (key.src().worker != worker) return nullptr;
  }
  return PeerOf(worker)->shm(nullptr);
}

void ChannelPool::StartFetch(FetchTask* task) {
  const int64_t step_id = task->step_id;
  const TensorKey key = std::move(task->key);
  const Args args = std::move(task->args);
  DoneFn done = std::move(task->done);
  task->args = Args();
  GiveTask(task);
  posted_fetches_.fetch_sub(1, std::memory_order_relaxed);
  FetchNow(step_id, key, args, std::move(done));
}

void ChannelPool::FetchNow(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) {
  if (closed_) return FailReceive(close_status_, args, std::move(done));
  PeerOf(key.src().worker)->Fetch(step_id, key, args, std::move(done));
}

PeerPaths* ChannelPool::PeerOf(absl::string_view worker) {
  if (last_peer_ != nullptr && last_peer_->worker() == worker) return last_peer_;
  auto found = peers_.find(worker);
  if (found != peers_.end()) return last_peer_ = found->second.get();
  auto peer = std::make_unique<PeerPaths>(&context_, std::string(worker));
  peers_in_order_.push_back(peer.get());
  return peers_.emplace(peer->worker(), std::move(peer)).first->second.get();
}

void ChannelPool::AbortStep(int64_t step_id, const absl::Status& status) {
  poller_->PostFn([this, step_id, status] {
    for (PeerPaths* peer : peers_in_order_) peer->AbortStep(step_id, status);
  });
}

void ChannelPool::CleanupStep(int64_t) {}  // Nothing is kept by step.

void ChannelPool::RoomTask::RunOnPoller() {
  posted.store(false);
  pool->OnRoom();
}

void ChannelPool::OnRoom() {
  // One tensor for each peer in turn, and from where the last round ended, so that none takes
  // it all and none is always last.
  const size_t count = peers_in_order_.size();
  for (size_t idle = 0; idle < count;) {
    const bool took = peers_in_order_[room_first_ % count]->TakeRoom();
    idle = took ? 0 : idle + 1;
    room_first_ = (room_first_ + 1) % count;
  }
  // What is there and wanted goes before what is asked for ahead, whosever it is.
  for (size_t rail = 0; rail < context_.rails.size(); ++rail) {
    const bool wanted = std::any_of(peers_in_order_.begin(), peers_in_order_.end(),
                                    [rail](PeerPaths* peer) { return peer->WaitsForRoom(rail); });
    if (!wanted) continue;
    for (PeerPaths* peer : peers_in_order_) peer->DropOneStanding(rail);
  }
}

// ---- Serving ----

void ChannelPool::OnHello(const Hello& hello, HelloDone done) {
  poller_->PostFn(
      [this, hello, done = std::move(done)]() mutable { AnswerHello(hello, std::move(done)); });
}

void ChannelPool::AnswerHello(const Hello& hello, HelloDone done) {
  if (closed_) return std::move(done)(close_status_);
  if (hello.incarnation == 0 || hello.worker.empty()) {
    return std::move(done)(absl::InvalidArgumentError("a hello without worker or incarnation"));
  }
  if (hello.protocol_newest < kProtocolOldest || hello.protocol_oldest > options_.protocol_newest) {
    return std::move(done)(absl::FailedPreconditionError(absl::StrCat(
        hello.worker, " speaks protocol ", hello.protocol_oldest, " to ", hello.protocol_newest,
        ", this worker ", kProtocolOldest, " to ", options_.protocol_newest)));
  }
  auto peer = peers_.find(hello.worker);
  if (peer != peers_.end()) peer->second->NoteIncarnation(hello.incarnation);
  if (hello.path != "shm") return consumers_->OnHello(hello, std::move(done));
  if (context_.shm != nullptr) return context_.shm->OnHello(hello, std::move(done));
  std::move(done)(absl::UnimplementedError(absl::StrCat(
      "this worker shares no memory", context_.shm_status.ok()
                                          ? " by its configuration"
                                          : absl::StrCat(": ", context_.shm_status.message()))));
}

void ChannelPool::OnNicEvent(Rail* rail, const NicEvent& event) {
  if (closed_) return;
  rail->hub->OnEvent(event);
  if (event.kind != NicEvent::Kind::kPortUp && event.kind != NicEvent::Kind::kAddressChanged) {
    return;
  }
  for (PeerPaths* peer : peers_in_order_) peer->RetryNow();
}

void ChannelPool::Maintain() {
  OnRoom();  // A registration that failed may work now; nobody else would say so.
  for (auto& rail : context_.rails) {
    if (rail->events != nullptr) continue;
    while (auto event = rail->path.nic->NextEvent()) OnNicEvent(rail.get(), *event);
  }
  consumers_->Maintain();
  if (context_.shm != nullptr) {
    context_.shm->Maintain();
    for (PeerPaths* peer : peers_in_order_) peer->MaintainShm();
  }
  if (!closed_) poller_->SetTimer(&maintenance_, poller_->now_ns() + kMaintenanceNs);
}

// ---- Ending ----

void ChannelPool::Close(const absl::Status& why) {
  poller_->PostFn([this, why] {
    if (closed_) return;
    closed_ = true;
    close_status_ = why;
    // Joined here: it only posts. What it has posted runs before anybody hears Drained().
    for (auto& rail : context_.rails) rail->events.reset();
    for (PeerPaths* peer : peers_in_order_) peer->Close(why);
    consumers_->Close(why);
    if (context_.shm != nullptr) context_.shm->Close(why);
    poller_->CancelTimer(&maintenance_);
  });
}

bool ChannelPool::Drained() {
  return closed_ && consumers_->Drained() && (context_.shm == nullptr || context_.shm->Drained()) &&
         std::all_of(peers_in_order_.begin(), peers_in_order_.end(),
                     [](const PeerPaths* peer) { return peer->Drained(); });
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
      return absl::DeadlineExceededError("channels did not drain in time");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// ---- Explaining ----

// A callback in place is on the poller thread, and would wait for itself.
void ChannelPool::RunOnPoller(absl::AnyInvocable<void() &&> fn) {
  if (poller_->OnThread()) return std::move(fn)();
  poller_->RunAndWait(std::move(fn));
}

std::string ChannelPool::Explain(const std::string& peer) {
  std::string out;
  RunOnPoller([&] { out = ExplainNow(peer); });
  return out;
}

std::string ChannelPool::ExplainNow(const std::string& peer) const {
  std::string out;
  for (const PeerPaths* known : peers_in_order_) {
    if (peer.empty() || known->worker() == peer) absl::StrAppend(&out, known->Explain(), "\n");
  }
  consumers_->Explain(peer, &out);
  if (context_.shm == nullptr) return out;
  absl::StrAppend(&out, context_.shm->ExplainServing(peer));
  if (peer.empty()) absl::StrAppend(&out, options_.shm_arena->Explain(), "\n");
  return out;
}

void ChannelPool::ListOpsNow(LiveOps* ops) const {
  for (const PeerPaths* peer : peers_in_order_) peer->ListOps(ops);
  consumers_->ListOps(ops);
  if (context_.shm == nullptr) return;
  for (const auto& channel : context_.shm->serving()) channel->ListOps(ops);
}

// Who asks what goes on asks because something hangs: that must not hang with it.
absl::Status ChannelPool::AskPoller(absl::AnyInvocable<void() &&> fn) {
  if (poller_->OnThread()) {
    std::move(fn)();
    return absl::OkStatus();
  }
  struct Asked {
    Mutex mu;
    CondVar answered_cv;
    absl::AnyInvocable<void() &&> fn ABSL_GUARDED_BY(mu);  // Null: run, or given up.
  };
  auto asked = std::make_shared<Asked>();
  {
    MutexLock lock(&asked->mu);
    asked->fn = std::move(fn);
  }
  poller_->PostFn([asked] {
    MutexLock lock(&asked->mu);
    if (asked->fn != nullptr) std::move(asked->fn)();  // Takes no lock and calls nobody back.
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

absl::StatusOr<ChannelPool::Listed> ChannelPool::ListOps(size_t most) {
  Listed listed;
  const absl::Status asked = AskPoller([this, &listed, most] {
    LiveOps ops(most);
    ListOpsNow(&ops);
    listed.left_out = ops.left_out();
    listed.ops = ops.Take();
    listed.now_ns = poller_->now_ns();
  });
  if (!asked.ok()) return asked;
  return listed;
}

absl::StatusOr<std::vector<PathView>> ChannelPool::ViewPaths(const std::string& peer) {
  std::vector<PathView> views;
  const absl::Status asked = AskPoller([&] {
    for (const PeerPaths* known : peers_in_order_) {
      if (peer.empty() || known->worker() == peer) known->View(&views);
    }
    consumers_->View(peer, &views);
    if (context_.shm == nullptr) return;
    for (const auto& channel : context_.shm->serving()) {
      if (!peer.empty() && channel->consumer() != peer) continue;
      LiveOps ops(0);
      channel->ListOps(&ops);
      views.push_back({TraceRole::kServe, channel->consumer(), "shm", !channel->ended(),
                       channel->state_text(), "", channel->state_since_ns(), channel->epoch(),
                       ops.left_out()});
    }
  });
  if (!asked.ok()) return asked;
  return views;
}

FetchCounters ChannelPool::fetch_counters() {
  FetchCounters sum;
  RunOnPoller([&] { sum = FetchCountersNow(); });
  return sum;
}

FetchCounters ChannelPool::FetchCountersNow() const {
  FetchCounters sum;
  for (const PeerPaths* peer : peers_in_order_) sum += peer->counters();
  return sum;
}

ShmFetchCounters ChannelPool::shm_fetch_counters() {
  ShmFetchCounters sum;
  RunOnPoller([&] { sum = ShmFetchCountersNow(); });
  return sum;
}

ShmFetchCounters ChannelPool::ShmFetchCountersNow() const {
  ShmFetchCounters sum;
  for (const PeerPaths* peer : peers_in_order_) sum += peer->shm_counters();
  return sum;
}

ShmServeCounters ChannelPool::shm_serve_counters() {
  ShmServeCounters sum;
  RunOnPoller([&] { sum = ShmServeCountersNow(); });
  return sum;
}

ShmServeCounters ChannelPool::ShmServeCountersNow() const {
  return context_.shm == nullptr ? ShmServeCounters() : context_.shm->serve_counters();
}

std::pair<uint64_t, uint64_t> ChannelPool::PinnedBytes() const {
  std::pair<uint64_t, uint64_t> sum;
  for (const auto& rail : context_.rails) {
    sum.first += rail->landings->pinned_bytes();
    sum.second += rail->landings->pinned_bytes_most();
  }
  return sum;
}

ServeCounters ChannelPool::serve_counters() {
  ServeCounters sum;
  RunOnPoller([&] { sum = consumers_->counters(); });
  return sum;
}

}  // namespace tryst
