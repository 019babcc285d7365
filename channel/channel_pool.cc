#include "channel/channel_pool.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "verbs/async_event_thread.h"

namespace tryst {
namespace {

constexpr int64_t kMaintenanceNs = 1'000'000'000;
constexpr std::chrono::seconds kPollerPatience{2};

}  // namespace

// One NIC on the poller.
struct ChannelPool::Rail {
  NicPath path;
  std::unique_ptr<QueueHub> hub;
  std::shared_ptr<LandingPool> landings;
  std::unique_ptr<AsyncEventThread> events;  // Null where time is virtual.
};

struct ChannelPool::Peer {
  std::string worker;
  // One for each rail tried so far; the last is in use unless the fallback is.
  std::vector<std::unique_ptr<FetchChannel>> by_rail;
  std::vector<std::string> refusals;
  std::unique_ptr<Channel> fallback;
  int64_t fallback_since_ns = 0;
};

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
    : poller_(poller),
      bootstrap_(bootstrap),
      source_(source),
      fallback_(std::move(fallback)),
      options_(std::move(options)),
      random_(options_.seed) {
  TRYST_CHECK(options_.incarnation != 0);
  for (NicPath& path : paths) {
    auto rail = std::make_unique<Rail>();
    rail->path = std::move(path);
    rails_.push_back(std::move(rail));
  }
  room_task_.pool = this;
  next_session_ = random_();
}

ChannelPool::~ChannelPool() {
  TRYST_CHECK(!open_ || Drained());
  for (auto& rail : rails_) {
    if (rail->landings != nullptr) rail->landings->SetRoomCallback(nullptr);
    if (rail->hub != nullptr) rail->hub->Detach();
  }
  poller_->CancelTimer(&maintenance_);
}

absl::Status ChannelPool::Open() {
  for (auto& rail : rails_) {
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
    if (nic->event_fd() < 0) continue;
    auto events = AsyncEventThread::Start(nic, [this, at = rail.get()](const NicEvent& event) {
      poller_->PostFn([this, at, event] { OnNicEvent(at, event); });
    });
    if (!events.ok()) return events.status();
    rail->events = *std::move(events);
  }
  open_ = true;
  poller_->SetTimer(&maintenance_, poller_->now_ns() + kMaintenanceNs);
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
  FetchTask* task = TakeTask();
  task->step_id = step_id;
  task->key = key;
  task->args = args;
  task->done = std::move(done);
  poller_->Post(task);
}

void ChannelPool::FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const Args& args,
                            ManyDoneFn done) {
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
    Fetch(step_id, keys[i], args,
          [many, i, end_one](absl::Status status, const Args&, const Args&, Tensor tensor,
                             bool is_dead) {
            many->results[i].status = std::move(status);
            many->results[i].tensor = std::move(tensor);
            many->results[i].is_dead = is_dead;
            end_one(many);
          });
  }
  poller_->PostFn([many, end_one] { end_one(many); });
}

void ChannelPool::StartFetch(FetchTask* task) {
  const int64_t step_id = task->step_id;
  const TensorKey key = std::move(task->key);
  const Args args = std::move(task->args);
  DoneFn done = std::move(task->done);
  task->args = Args();
  GiveTask(task);

  Channel* channel = nullptr;
  absl::Status failed = close_status_;
  if (!closed_) {
    channel = Route(PeerOf(key.src().worker));
    if (channel == nullptr) {
      failed = absl::UnavailableError(absl::StrCat("no path leads to ", key.src().worker, "; ",
                                                   ExplainPeer(*PeerOf(key.src().worker))));
    }
  }
  if (channel != nullptr) return channel->Fetch(step_id, key, args, std::move(done));
  if (args.executor == nullptr) {
    return std::move(done)(failed, Args(), args, Tensor(), false);
  }
  args.executor->Run([failed, args, done = std::move(done)]() mutable {
    std::move(done)(failed, Args(), args, Tensor(), false);
  });
}

ChannelPool::Peer* ChannelPool::PeerOf(absl::string_view worker) {
  auto found = peers_.find(worker);
  if (found != peers_.end()) return found->second.get();
  auto peer = std::make_unique<Peer>();
  peer->worker = std::string(worker);
  peers_in_order_.push_back(peer.get());
  return peers_.emplace(peer->worker, std::move(peer)).first->second.get();
}

Channel* ChannelPool::Route(Peer* peer) {
  if (peer->fallback != nullptr) return peer->fallback.get();
  // The rail in use, unless the peer has turned it down by now.
  if (!peer->by_rail.empty()) {
    FetchChannel* current = peer->by_rail.back().get();
    if (!IsPathRefusal(current->connect_status())) return current;
    const std::string why = absl::StrCat(rails_[peer->by_rail.size() - 1]->path.path, ": ",
                                         current->connect_status().message());
    TRYST_LOG(Info) << options_.self << " does not reach " << peer->worker << " by " << why;
    if (peer->by_rail.size() == rails_.size() && !fallback_) return current;
    peer->refusals.push_back(why);
  }
  if (peer->by_rail.size() < rails_.size()) {
    Rail* rail = rails_[peer->by_rail.size()].get();
    FetchChannelOptions channel_options;
    channel_options.link = options_.link;
    channel_options.landing_bytes = options_.landing_bytes;
    channel_options.path = rail->path.path;
    channel_options.self = options_.self;
    channel_options.self_incarnation = options_.incarnation;
    channel_options.peer = peer->worker;
    channel_options.on_refused = [this, peer] { Reroute(peer); };
    channel_options.trace = options_.trace;
    channel_options.seed = random_();
    channel_options.heartbeat_ms = options_.heartbeat_ms;
    channel_options.silence_ms = options_.silence_ms;
    channel_options.retain_ms = options_.retain_ms;
    peer->by_rail.push_back(std::make_unique<FetchChannel>(rail->hub.get(), rail->landings.get(),
                                                           bootstrap_, std::move(channel_options)));
    return peer->by_rail.back().get();
  }
  if (fallback_) {
    peer->fallback = fallback_(peer->worker);
    peer->fallback_since_ns = poller_->now_ns();
  }
  return peer->fallback.get();
}

void ChannelPool::Reroute(Peer* peer) {
  FetchChannel* refused = peer->by_rail.back().get();
  Channel* next = Route(peer);
  if (next == nullptr || next == refused) return;  // There is no other: it goes on trying.
  for (WaitingFetch& fetch : refused->TakeWaiting()) {
    next->Fetch(fetch.step, fetch.key, fetch.args, std::move(fetch.done));
  }
}

void ChannelPool::AbortStep(int64_t step_id, const absl::Status& status) {
  poller_->PostFn([this, step_id, status] {
    for (Peer* peer : peers_in_order_) {
      for (auto& channel : peer->by_rail) channel->AbortStep(step_id, status);
      if (peer->fallback != nullptr) peer->fallback->AbortStep(step_id, status);
    }
  });
}

void ChannelPool::CleanupStep(int64_t) {}  // Nothing is kept by step.

void ChannelPool::RoomTask::RunOnPoller() {
  posted.store(false);
  pool->OnRoom();
}

void ChannelPool::OnRoom() {
  // Another peer is first each time, so that none is always last.
  const size_t count = peers_in_order_.size();
  for (size_t i = 0; i < count; ++i) {
    for (auto& channel : peers_in_order_[(room_first_ + i) % count]->by_rail) channel->OnRoom();
  }
  if (count > 0) room_first_ = (room_first_ + 1) % count;
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
  if (hello.protocol_newest < kProtocolOldest || hello.protocol_oldest > kProtocolNewest) {
    return std::move(done)(absl::FailedPreconditionError(absl::StrCat(
        hello.worker, " speaks protocol ", hello.protocol_oldest, " to ", hello.protocol_newest,
        ", this worker ", kProtocolOldest, " to ", kProtocolNewest)));
  }
  auto rail = std::find_if(rails_.begin(), rails_.end(), [&](const std::unique_ptr<Rail>& rail) {
    return rail->path.path == hello.path;
  });
  if (rail == rails_.end()) {
    return std::move(done)(absl::UnimplementedError(absl::StrCat(
        "no path ", hello.path, " here; there is: ",
        absl::StrJoin(rails_, ", ", [](std::string* out, const std::unique_ptr<Rail>& rail) {
          absl::StrAppend(out, rail->path.path);
        }))));
  }
  // A consumer that was started anew has nothing to do with what its former life asked.
  for (auto& channel : serving_) {
    if (channel != nullptr && channel->consumer() == hello.worker &&
        channel->consumer_incarnation() != hello.incarnation) {
      channel->Close(absl::AbortedError(absl::StrCat(hello.worker, " was restarted")));
      closing_.push_back(std::move(channel));
    }
  }
  serving_.erase(std::remove(serving_.begin(), serving_.end(), nullptr), serving_.end());
  auto serving = std::find_if(serving_.begin(), serving_.end(), [&](const auto& channel) {
    return channel->consumer() == hello.worker && channel->path() == hello.path;
  });
  if (serving == serving_.end()) {
    if (serving_.size() >= options_.max_consumers) {
      return std::move(done)(absl::ResourceExhaustedError(
          absl::StrCat(options_.max_consumers, " consumers are connected: raise max_consumers")));
    }
    ServeChannelOptions serve_options;
    serve_options.link = options_.link;
    serve_options.path = hello.path;
    serve_options.self = options_.self;
    serve_options.self_incarnation = options_.incarnation;
    serve_options.eager_bytes = options_.eager_bytes;
    serve_options.stripe_bytes = options_.stripe_bytes;
    serve_options.write_bytes = options_.write_bytes;
    serve_options.retain_ms = options_.retain_ms;
    serve_options.trace = options_.trace;
    if (++next_session_ == 0) ++next_session_;
    serving_.push_back(std::make_unique<ServeChannel>(
        (*rail)->hub.get(), source_, std::move(serve_options), hello, next_session_));
    serving = serving_.end() - 1;
  }
  (*serving)->OnHello(hello, std::move(done));
}

void ChannelPool::OnNicEvent(Rail* rail, const NicEvent& event) {
  if (closed_) return;
  rail->hub->OnEvent(event);
  if (event.kind != NicEvent::Kind::kPortUp && event.kind != NicEvent::Kind::kAddressChanged) {
    return;
  }
  for (Peer* peer : peers_in_order_) {
    for (auto& channel : peer->by_rail) channel->RetryNow();
  }
}

void ChannelPool::Maintain() {
  OnRoom();  // A registration that failed may work now; nobody else would say so.
  for (auto& rail : rails_) {
    if (rail->events != nullptr) continue;
    while (auto event = rail->path.nic->NextEvent()) OnNicEvent(rail.get(), *event);
  }
  for (auto& channel : serving_) {
    if (!channel->Abandoned()) continue;
    TRYST_LOG(Warning) << channel->consumer() << " did not come back within " << options_.retain_ms
                       << " ms: giving up what it had asked for";
    channel->Close(absl::UnavailableError("the consumer did not come back"));
    closing_.push_back(std::move(channel));
  }
  serving_.erase(std::remove(serving_.begin(), serving_.end(), nullptr), serving_.end());
  closing_.erase(std::remove_if(closing_.begin(), closing_.end(),
                                [](const auto& channel) { return channel->Drained(); }),
                 closing_.end());
  if (!closed_) poller_->SetTimer(&maintenance_, poller_->now_ns() + kMaintenanceNs);
}

// ---- Ending ----

void ChannelPool::Close(const absl::Status& why) {
  poller_->PostFn([this, why] {
    if (closed_) return;
    closed_ = true;
    close_status_ = why;
    // Joined here: it only posts. What it has posted runs before anybody hears Drained().
    for (auto& rail : rails_) rail->events.reset();
    for (Peer* peer : peers_in_order_) {
      for (auto& channel : peer->by_rail) channel->Close(why);
      if (peer->fallback != nullptr) peer->fallback->Close(why);
    }
    for (auto& channel : serving_) {
      channel->Close(why);
      closing_.push_back(std::move(channel));
    }
    serving_.clear();
    poller_->CancelTimer(&maintenance_);
  });
}

bool ChannelPool::Drained() {
  if (!closed_) return false;
  for (Peer* peer : peers_in_order_) {
    for (auto& channel : peer->by_rail) {
      if (!channel->Drained()) return false;
    }
    if (peer->fallback != nullptr && !peer->fallback->Drained()) return false;
  }
  return std::all_of(closing_.begin(), closing_.end(),
                     [](const auto& channel) { return channel->Drained(); });
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

std::string ChannelPool::ExplainPeer(const Peer& peer) const {
  std::string out = peer.fallback != nullptr ? peer.fallback->Explain()
                    : !peer.by_rail.empty()  ? peer.by_rail.back()->Explain()
                                             : absl::StrCat(peer.worker, ": not asked yet");
  for (const std::string& refusal : peer.refusals) {
    absl::StrAppend(&out, "\n  turned down: ", refusal);
  }
  return out;
}

std::string ChannelPool::Explain(const std::string& peer) {
  std::string out;
  poller_->RunAndWait([&] { out = ExplainNow(peer); });
  return out;
}

std::string ChannelPool::ExplainNow(const std::string& peer) const {
  std::string out;
  for (const Peer* known : peers_in_order_) {
    if (peer.empty() || known->worker == peer) absl::StrAppend(&out, ExplainPeer(*known), "\n");
  }
  for (const auto& channel : serving_) {
    if (peer.empty() || channel->consumer() == peer) {
      absl::StrAppend(&out, channel->Explain(), "\n");
    }
  }
  return out;
}

void ChannelPool::ListOpsNow(LiveOps* ops) const {
  for (const Peer* peer : peers_in_order_) {
    for (const auto& channel : peer->by_rail) channel->ListOps(ops);
    if (peer->fallback != nullptr) peer->fallback->ListOps(ops);
  }
  for (const auto& channel : serving_) channel->ListOps(ops);
  for (const auto& channel : closing_) channel->ListOps(ops);
}

// Who asks what goes on asks because something hangs: that must not hang with it.
absl::Status ChannelPool::AskPoller(absl::AnyInvocable<void() &&> fn) {
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

void ChannelPool::ViewPeer(const Peer& peer, std::vector<PathView>* views) const {
  const auto count = [](const Channel& channel) {
    LiveOps ops(0);
    channel.ListOps(&ops);
    return ops.left_out();
  };
  for (size_t i = 0; i < rails_.size(); ++i) {
    PathView view;
    view.peer = peer.worker;
    view.path = rails_[i]->path.path;
    view.state = "not tried";
    if (i < peer.by_rail.size()) {
      const FetchChannel& channel = *peer.by_rail[i];
      const bool refused = i < peer.refusals.size();
      view.in_use = !refused;
      view.state = refused ? "turned down" : channel.state_text();
      view.since_ns = channel.state_since_ns();
      view.why = refused ? peer.refusals[i] : std::string(channel.connect_status().message());
      view.epoch = channel.epoch();
      view.under_way = count(channel);
    } else {
      view.why = peer.fallback != nullptr ? "" : "a better one is in use";
    }
    views->push_back(std::move(view));
  }
  PathView view;
  view.peer = peer.worker;
  view.path = "grpc";
  view.in_use = peer.fallback != nullptr;
  view.state = view.in_use ? "in use" : "not tried";
  view.why = view.in_use ? (rails_.empty() ? "this worker has no other path" : "")
                         : "the last resort: a better one is in use";
  if (view.in_use) {
    view.since_ns = peer.fallback_since_ns;
    view.under_way = count(*peer.fallback);
  }
  if (view.in_use || fallback_) views->push_back(std::move(view));
}

absl::StatusOr<std::vector<PathView>> ChannelPool::ViewPaths(const std::string& peer) {
  std::vector<PathView> views;
  const absl::Status asked = AskPoller([&] {
    for (const Peer* known : peers_in_order_) {
      if (peer.empty() || known->worker == peer) ViewPeer(*known, &views);
    }
    for (const auto& channel : serving_) {
      if (!peer.empty() && channel->consumer() != peer) continue;
      LiveOps ops(0);
      channel->ListOps(&ops);
      views.push_back({TraceRole::kServe, channel->consumer(), channel->path(), true,
                       channel->state_text(), "", channel->state_since_ns(), channel->epoch(),
                       ops.left_out()});
    }
  });
  if (!asked.ok()) return asked;
  return views;
}

FetchCounters ChannelPool::fetch_counters() {
  FetchCounters sum;
  poller_->RunAndWait([&] { sum = FetchCountersNow(); });
  return sum;
}

FetchCounters ChannelPool::FetchCountersNow() const {
  FetchCounters sum;
  for (const Peer* peer : peers_in_order_) {
    for (const auto& channel : peer->by_rail) sum += channel->counters();
  }
  return sum;
}

std::pair<uint64_t, uint64_t> ChannelPool::PinnedBytes() const {
  std::pair<uint64_t, uint64_t> sum;
  for (const auto& rail : rails_) {
    sum.first += rail->landings->pinned_bytes();
    sum.second += rail->landings->pinned_bytes_most();
  }
  return sum;
}

ServeCounters ChannelPool::serve_counters() {
  ServeCounters sum;
  poller_->RunAndWait([&] {
    for (const auto& channel : serving_) sum += channel->counters();
  });
  return sum;
}

}  // namespace tryst
