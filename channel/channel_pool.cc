#include "channel/channel_pool.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "channel/rdma/farewell.h"
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

// How a peer may be reached: by a rail, or by the fallback.
struct ChannelPool::Way {
  std::unique_ptr<FetchChannel> channel;  // Null: not tried yet.
  std::string refused;                    // The peer has no such path: why.
  std::string left;                       // It stopped working: why.
  int64_t left_ns = 0;
};

struct ChannelPool::Peer {
  Peer(ChannelPool* pool, std::string worker, size_t rails)
      : pool(pool), worker(std::move(worker)), ways(rails + 1), probe(this) {}

  struct ProbeTimer final : PollerTimer {
    explicit ProbeTimer(Peer* peer) : peer(peer) {}
    void OnTimer() override { peer->pool->Probe(peer); }
    Peer* const peer;
  };

  ChannelPool* const pool;
  const std::string worker;
  std::vector<Way> ways;  // One for each rail, the best first, and one for the fallback.
  size_t current = 0;
  std::unique_ptr<Channel> fallback;
  std::unique_ptr<ShmFetchChannel> shm;  // In use unless it was refused.
  std::string shm_refusal;
  uint64_t incarnation = 0;  // As it said in its last hello; 0: it has said none.
  int64_t shm_prove_ns = 0;  // When it is proved anew,
  int64_t shm_pause_ms = 0;  // and how long after the last time.
  // Since it was proved anew: what was out by then on another way stays there to its end.
  std::unique_ptr<absl::flat_hash_set<TensorKey>> out_elsewhere;
  int64_t fallback_since_ns = 0;
  std::shared_ptr<KeysOut> keys_out;  // Once a path was left; null: all fetches are on one.
  ProbeTimer probe;
  int64_t probe_ms = 0;
};

// Which keys are being fetched by which way. Fetches of one key meet its sends in their order,
// which two ways at once would not keep: as long as a key is out on one, it stays there.
class ChannelPool::KeysOut {
 public:
  // The way for the next fetch of `key`: `way`, unless it is out on another.
  size_t Add(const TensorKey& key, size_t way) {
    MutexLock lock(&mu_);
    Out& out = out_.try_emplace(key, Out{0, way}).first->second;
    ++out.fetches;
    return out.way;
  }
  void Remove(const TensorKey& key) {
    MutexLock lock(&mu_);
    auto at = out_.find(key);
    if (--at->second.fetches == 0) out_.erase(at);
  }
  void Move(size_t from, size_t to) {
    MutexLock lock(&mu_);
    for (auto& out : out_) {
      if (out.second.way == from) out.second.way = to;
    }
  }
  bool empty() {
    MutexLock lock(&mu_);
    return out_.empty();
  }

 private:
  struct Out {
    size_t fetches;
    size_t way;
  };
  Mutex mu_;
  absl::flat_hash_map<TensorKey, Out> out_ ABSL_GUARDED_BY(mu_);
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
  for (Peer* peer : peers_in_order_) poller_->CancelTimer(&peer->probe);
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
  if (options_.shm_arena != nullptr) {
    ShmPathOptions shm = options_.shm;
    shm.self = options_.self;
    shm.self_incarnation = options_.incarnation;
    shm.trace = options_.trace;
    shm.seed = random_();
    auto path = ShmPath::Create(poller_, bootstrap_, source_, options_.shm_arena, std::move(shm));
    shm_status_ = path.status();  // Peers are reached otherwise, and Explain() says so.
    if (path.ok()) shm_ = *std::move(path);
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
  if (poller_->OnThread() && !closed_) {
    ShmFetchChannel* shm = ShmOf(PeerOf(key.src().worker), &key);
    if (shm != nullptr) return shm->Fetch(step_id, key, args, std::move(done));
  }
  FetchTask* task = TakeTask();
  task->step_id = step_id;
  task->key = key;
  task->args = args;
  task->done = std::move(done);
  poller_->Post(task);
}

void ChannelPool::FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const Args& args,
                            ManyDoneFn done) {
  if (poller_->OnThread()) {
    // Where all are one peer's and it is on this host they go as one.
    if (ShmFetchChannel* shm = ShmForAll(keys)) {
      return shm->FetchMany(step_id, keys, args, std::move(done));
    }
  } else if (shm_ != nullptr) {
    return poller_->PostFn([this, step_id, args, done = std::move(done),
                            keys = std::vector<TensorKey>(keys.begin(), keys.end())]() mutable {
      FetchMany(step_id, keys, args, std::move(done));
    });
  }
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

ShmFetchChannel* ChannelPool::ShmForAll(absl::Span<const TensorKey> keys) {
  if (shm_ == nullptr || closed_ || keys.empty()) return nullptr;
  const absl::string_view worker = keys[0].src().worker;
  for (const TensorKey& key : keys) {
    if (key.src().worker != worker) return nullptr;
  }
  return ShmOf(PeerOf(worker), nullptr);
}

void ChannelPool::StartFetch(FetchTask* task) {
  const int64_t step_id = task->step_id;
  const TensorKey key = std::move(task->key);
  const Args args = std::move(task->args);
  DoneFn done = std::move(task->done);
  task->args = Args();
  GiveTask(task);
  RouteFetch(step_id, key, args, std::move(done));
}

void ChannelPool::RouteFetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) {
  if (closed_) return FailReceive(close_status_, args, std::move(done));
  Peer* peer = PeerOf(key.src().worker);
  if (ShmFetchChannel* shm = ShmOf(peer, &key))
    return shm->Fetch(step_id, key, args, std::move(done));
  FetchOn(peer, step_id, key, args, std::move(done));
}

void ChannelPool::FetchOn(Peer* peer, int64_t step_id, const TensorKey& key, const Args& args,
                          DoneFn done) {
  size_t way = peer->current;
  if (peer->keys_out != nullptr && !HasLeft(*peer) && peer->keys_out->empty()) {
    peer->keys_out.reset();  // All is as if nothing had happened.
  }
  if (peer->keys_out != nullptr) {
    way = peer->keys_out->Add(key, way);
    done = [out = peer->keys_out, key, done = std::move(done)](
               absl::Status status, const Args& send_args, const Args& recv_args, Tensor tensor,
               bool is_dead) mutable {
      out->Remove(key);
      std::move(done)(std::move(status), send_args, recv_args, std::move(tensor), is_dead);
    };
  }
  Channel* channel = ChannelOn(peer, way);
  if (channel != nullptr) return channel->Fetch(step_id, key, args, std::move(done));
  FailReceive(absl::UnavailableError(
                  absl::StrCat("no path leads to ", peer->worker, "; ", ExplainPeer(*peer))),
              args, std::move(done));
}

ChannelPool::Peer* ChannelPool::PeerOf(absl::string_view worker) {
  if (last_peer_ != nullptr && last_peer_->worker == worker) return last_peer_;
  auto found = peers_.find(worker);
  if (found != peers_.end()) return last_peer_ = found->second.get();
  auto peer = std::make_unique<Peer>(this, std::string(worker), rails_.size());
  peers_in_order_.push_back(peer.get());
  return peers_.emplace(peer->worker, std::move(peer)).first->second.get();
}

// Shared memory with it; null: there is none.
ShmFetchChannel* ChannelPool::ShmOf(Peer* peer, const TensorKey* key) {
  if (shm_ == nullptr || !peer->shm_refusal.empty()) return nullptr;
  if (peer->shm == nullptr) {
    peer->shm = shm_->MakeFetchChannel(
        peer->worker, [this, peer] { RerouteFromShm(peer); }, [this, peer] { OnShmOpen(peer); });
  }
  if (peer->out_elsewhere != nullptr && (key == nullptr || peer->out_elsewhere->contains(*key))) {
    return nullptr;
  }
  return peer->shm.get();
}

Channel* ChannelPool::ChannelOn(Peer* peer, size_t way) {
  if (way == rails_.size()) {
    if (peer->fallback == nullptr && fallback_) {
      peer->fallback = fallback_(peer->worker);
      peer->fallback_since_ns = poller_->now_ns();
    }
    return peer->fallback.get();
  }
  auto& channel = peer->ways[way].channel;
  if (channel == nullptr) channel = OpenWay(peer, way);
  return channel.get();
}

std::unique_ptr<FetchChannel> ChannelPool::OpenWay(Peer* peer, size_t way) {
  Rail* rail = rails_[way].get();
  FetchChannelOptions channel_options;
  channel_options.link = options_.link;
  channel_options.link.digests &= rail->path.digests;
  channel_options.landing_bytes = options_.landing_bytes;
  channel_options.path = rail->path.path;
  channel_options.self = options_.self;
  channel_options.self_incarnation = options_.incarnation;
  channel_options.peer = peer->worker;
  channel_options.on_refused = [this, peer, way] { OnRefused(peer, way); };
  if (rails_.size() > 1 || fallback_) channel_options.give_up_ms = options_.give_up_ms;
  channel_options.on_left = [this, peer, way](std::vector<WaitingFetch> fetches) {
    OnLeft(peer, way, std::move(fetches));
  };
  channel_options.on_usable = [this, peer, way] { OnUsable(peer, way); };
  channel_options.trace = options_.trace;
  channel_options.seed = random_();
  channel_options.heartbeat_ms = options_.heartbeat_ms;
  channel_options.silence_ms = options_.silence_ms;
  channel_options.retain_ms = options_.retain_ms;
  channel_options.standing = options_.standing;
  channel_options.standing_ms = options_.standing_ms;
  channel_options.protocol_newest = options_.protocol_newest;
  return std::make_unique<FetchChannel>(rail->hub.get(), rail->landings.get(), bootstrap_,
                                        std::move(channel_options));
}

// The best way but `failed` that is neither refused nor given up. Where there is none, the one
// that was given up first, which may work again: so all have their turns. Where there is no
// other at all, `failed`.
size_t ChannelPool::NextWay(Peer* peer, size_t failed) {
  size_t next = failed;
  for (size_t way = 0; way < peer->ways.size(); ++way) {
    if (way == rails_.size() && !fallback_) break;
    if (way == failed || !peer->ways[way].refused.empty()) continue;
    if (peer->ways[way].left.empty()) return way;
    if (next == failed || peer->ways[way].left_ns < peer->ways[next].left_ns) next = way;
  }
  peer->ways[next].left.clear();
  return next;
}

bool ChannelPool::HasLeft(const Peer& peer) {
  return std::any_of(peer.ways.begin(), peer.ways.end(),
                     [](const Way& way) { return !way.left.empty(); });
}

// The peer has no such path: nothing was asked on it that another one could not be asked.
void ChannelPool::OnRefused(Peer* peer, size_t way) {
  Way* refused = &peer->ways[way];
  if (!refused->refused.empty()) return;
  refused->refused =
      absl::StrCat(rails_[way]->path.path, ": ", refused->channel->connect_status().message());
  const size_t next = NextWay(peer, way);
  if (next == way) {
    refused->refused.clear();  // There is no other: it goes on trying.
    return;
  }
  TRYST_LOG(Info) << options_.self << " does not reach " << peer->worker << " by "
                  << refused->refused;
  if (peer->current != way) return;
  UseWay(peer, next);
  if (peer->keys_out != nullptr) peer->keys_out->Move(way, next);
  for (WaitingFetch& fetch : refused->channel->TakeWaiting()) {
    ChannelOn(peer, next)->Fetch(fetch.step, fetch.key, fetch.args, std::move(fetch.done));
  }
}

// The path has stopped working: all that waited for it goes to the next one.
void ChannelPool::OnLeft(Peer* peer, size_t way, std::vector<WaitingFetch> fetches) {
  Way* left = &peer->ways[way];
  left->left = std::string(left->channel->connect_status().message());
  left->left_ns = poller_->now_ns();
  const std::string why = left->left;
  const size_t next = NextWay(peer, way);
  const bool tracked = peer->keys_out != nullptr;
  if (tracked) peer->keys_out->Move(way, next);
  if (peer->current == way) {
    UseWay(peer, next);
    if (next != way) {
      TRYST_LOG(Warning) << options_.self << " goes on by " << WayName(next) << " to reach "
                         << peer->worker << ", with " << fetches.size() << " fetches, after "
                         << WayName(way) << " failed: " << why;
    }
  }
  if (!tracked) peer->keys_out = std::make_shared<KeysOut>();
  for (WaitingFetch& fetch : fetches) {
    if (tracked) {  // It has been counted.
      ChannelOn(peer, next)->Fetch(fetch.step, fetch.key, fetch.args, std::move(fetch.done));
    } else {
      FetchOn(peer, fetch.step, fetch.key, fetch.args, std::move(fetch.done));
    }
  }
  peer->probe_ms = 0;
  if (next != way) ProbeLater(peer);
}

void ChannelPool::ProbeLater(Peer* peer) {
  peer->probe_ms = peer->probe_ms == 0 ? options_.probe_ms
                                       : std::min(peer->probe_ms * 2, options_.probe_ms_most);
  // Between half of it and all of it: consumers do not come back all together.
  const int64_t half_ns = peer->probe_ms * 500'000;
  const int64_t pause_ns =
      half_ns + static_cast<int64_t>(random_() % static_cast<uint64_t>(half_ns + 1));
  poller_->SetTimer(&peer->probe, poller_->now_ns() + pause_ns);
}

void ChannelPool::Probe(Peer* peer) {
  if (closed_) return;
  bool any = false;
  for (size_t way = 0; way < peer->current; ++way) {
    if (peer->ways[way].left.empty()) continue;
    any = true;
    peer->ways[way].channel->Probe();
  }
  if (any) ProbeLater(peer);
}

void ChannelPool::OnUsable(Peer* peer, size_t way) {
  if (peer->ways[way].left.empty()) return;
  const int64_t away_ms = (poller_->now_ns() - peer->ways[way].left_ns) / 1'000'000;
  peer->ways[way].left.clear();
  if (way >= peer->current) return;
  TRYST_LOG(Info) << options_.self << " goes back to " << WayName(way) << " to reach "
                  << peer->worker << ", after " << away_ms << " ms by " << WayName(peer->current);
  UseWay(peer, way);
}

void ChannelPool::UseWay(Peer* peer, size_t way) {
  peer->current = way;
  for (size_t at = 0; at < peer->ways.size(); ++at) {
    FetchChannel* channel = peer->ways[at].channel.get();
    if (channel != nullptr) channel->AskAhead(at == way);
  }
}

std::string ChannelPool::WayName(size_t way) const {
  return way < rails_.size() ? rails_[way]->path.path : "the fallback";
}

void ChannelPool::RerouteFromShm(Peer* peer) {
  const absl::string_view why = peer->shm->connect_status().message();
  if (rails_.empty() && !fallback_) return;  // There is no other way: it goes on trying.
  // What the reason was may pass: a peer that is configured anew, a container that shares its
  // host's namespace from now on.
  peer->shm_pause_ms = peer->shm_pause_ms == 0
                           ? options_.probe_ms
                           : std::min(peer->shm_pause_ms * 2, options_.probe_ms_most);
  peer->shm_prove_ns = poller_->now_ns() + peer->shm_pause_ms * 1'000'000;
  const std::string refusal = absl::StrCat("shm: ", why);
  if (peer->shm_refusal != refusal) {
    TRYST_LOG(Info) << options_.self << " does not reach " << peer->worker << " by shm: " << why;
  }
  peer->shm_refusal = refusal;
  for (ShmWaitingFetch& fetch : peer->shm->TakeWaiting()) {
    FetchOn(peer, fetch.step, fetch.key, fetch.args, std::move(fetch.done));
  }
}

// Fetches of a key that are out on another way must meet its sends before those that come: the
// key follows when they have ended.
void ChannelPool::OnShmOpen(Peer* peer) {
  if (peer->shm_refusal.empty()) return;
  TRYST_LOG(Info) << options_.self << " reaches " << peer->worker << " by shm after all; before, "
                  << peer->shm_refusal;
  peer->shm_refusal.clear();
  peer->shm_pause_ms = 0;
  peer->out_elsewhere = std::make_unique<absl::flat_hash_set<TensorKey>>();
  ListElsewhere(peer);
}

void ChannelPool::ListElsewhere(Peer* peer) {
  LiveOps out(std::numeric_limits<size_t>::max());
  for (const Way& way : peer->ways) {
    if (way.channel != nullptr) way.channel->ListOps(&out);
  }
  if (peer->fallback != nullptr) peer->fallback->ListOps(&out);
  peer->out_elsewhere->clear();
  for (const LiveOp& op : out.Take()) peer->out_elsewhere->insert(op.key);
  if (peer->out_elsewhere->empty()) peer->out_elsewhere.reset();
}

void ChannelPool::ProveShm() {
  for (Peer* peer : peers_in_order_) {
    if (peer->out_elsewhere != nullptr) ListElsewhere(peer);
    if (!peer->shm_refusal.empty() && poller_->now_ns() >= peer->shm_prove_ns) peer->shm->Prove();
  }
}

void ChannelPool::AbortStep(int64_t step_id, const absl::Status& status) {
  poller_->PostFn([this, step_id, status] {
    for (Peer* peer : peers_in_order_) {
      for (Way& way : peer->ways) {
        if (way.channel != nullptr) way.channel->AbortStep(step_id, status);
      }
      if (peer->fallback != nullptr) peer->fallback->AbortStep(step_id, status);
      if (peer->shm != nullptr) peer->shm->AbortStep(step_id, status);
    }
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
    bool took = false;
    for (Way& way : peers_in_order_[room_first_ % count]->ways) {
      if (way.channel != nullptr) took |= way.channel->TakeRoom();
    }
    idle = took ? 0 : idle + 1;
    room_first_ = (room_first_ + 1) % count;
  }
  // What is there and wanted goes before what is asked for ahead, whosever it is.
  for (size_t at = 0; at < rails_.size(); ++at) {
    const auto channel_of = [at](Peer* peer) { return peer->ways[at].channel.get(); };
    const bool wanted =
        std::any_of(peers_in_order_.begin(), peers_in_order_.end(), [&](Peer* peer) {
          return channel_of(peer) != nullptr && channel_of(peer)->waits_for_room();
        });
    for (Peer* peer : peers_in_order_) {
      if (wanted && channel_of(peer) != nullptr) channel_of(peer)->DropOneStanding();
    }
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
  if (hello.path == "shm") {
    NoteIncarnation(hello.worker, hello.incarnation);
    if (shm_ != nullptr) return shm_->OnHello(hello, std::move(done));
    return std::move(done)(absl::UnimplementedError(absl::StrCat(
        "this worker shares no memory",
        shm_status_.ok() ? " by its configuration" : absl::StrCat(": ", shm_status_.message()))));
  }
  NoteIncarnation(hello.worker, hello.incarnation);
  // A consumer that was started anew has nothing to do with what its former life asked.
  for (auto& channel : serving_) {
    if (channel != nullptr && channel->consumer() == hello.worker &&
        channel->consumer_incarnation() != hello.incarnation) {
      channel->Close(absl::AbortedError(absl::StrCat(hello.worker, " was restarted")));
      closing_.push_back(std::move(channel));
    }
  }
  serving_.erase(std::remove(serving_.begin(), serving_.end(), nullptr), serving_.end());
  if (hello.queue_pairs.empty()) return AnswerFarewell(hello, std::move(done));
  auto rail = std::find_if(rails_.begin(), rails_.end(), [&](const std::unique_ptr<Rail>& rail) {
    return rail->path.path == hello.path;
  });
  if (rail == rails_.end()) {
    return std::move(done)(absl::UnimplementedError(
        absl::StrCat("no path ", hello.path, " here; there is: ",
                     absl::StrJoin(rails_, "",
                                   [](std::string* out, const std::unique_ptr<Rail>& rail) {
                                     absl::StrAppend(out, rail->path.path, ", ");
                                   }),
                     "grpc")));
  }
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
    serve_options.link.digests &= (*rail)->path.digests;
    serve_options.path = hello.path;
    serve_options.self = options_.self;
    serve_options.self_incarnation = options_.incarnation;
    serve_options.eager_bytes = options_.eager_bytes;
    serve_options.stripe_bytes = options_.stripe_bytes;
    serve_options.write_bytes = options_.write_bytes;
    serve_options.retain_ms = options_.retain_ms;
    serve_options.protocol_newest = options_.protocol_newest;
    serve_options.trace = options_.trace;
    if (++next_session_ == 0) ++next_session_;
    serving_.push_back(std::make_unique<ServeChannel>(
        (*rail)->hub.get(), source_, std::move(serve_options), hello, next_session_));
    serving = serving_.end() - 1;
  }
  (*serving)->OnHello(hello, std::move(done));
}

// Who has been started anew may share memory now.
void ChannelPool::NoteIncarnation(const std::string& worker, uint64_t incarnation) {
  auto found = peers_.find(worker);
  if (found == peers_.end()) return;
  Peer* peer = found->second.get();
  if (std::exchange(peer->incarnation, incarnation) == incarnation) return;
  peer->shm_pause_ms = 0;
  peer->shm_prove_ns = 0;
}

void ChannelPool::AnswerFarewell(const Hello& hello, HelloDone done) {
  auto farewell = DecodeFarewell(hello.parameters);
  if (!farewell.ok()) return std::move(done)(farewell.status());
  for (auto& channel : serving_) {
    if (channel->consumer() != hello.worker || channel->path() != hello.path) continue;
    return channel->OnFarewell(hello, *farewell, std::move(done));
  }
  // Nothing is known of it, so nothing is kept; but we are up.
  Hello answer;
  answer.worker = options_.self;
  answer.incarnation = options_.incarnation;
  answer.epoch = hello.epoch;
  answer.path = hello.path;
  std::move(done)(std::move(answer));
}

void ChannelPool::OnNicEvent(Rail* rail, const NicEvent& event) {
  if (closed_) return;
  rail->hub->OnEvent(event);
  if (event.kind != NicEvent::Kind::kPortUp && event.kind != NicEvent::Kind::kAddressChanged) {
    return;
  }
  for (Peer* peer : peers_in_order_) {
    for (Way& way : peer->ways) {
      if (way.channel != nullptr) way.channel->RetryNow();
    }
    if (peer->probe.is_set()) {
      peer->probe_ms = 0;
      Probe(peer);
    }
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
  if (shm_ != nullptr) {
    shm_->Maintain();
    ProveShm();
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
    for (auto& rail : rails_) rail->events.reset();
    for (Peer* peer : peers_in_order_) {
      poller_->CancelTimer(&peer->probe);
      for (Way& way : peer->ways) {
        if (way.channel != nullptr) way.channel->Close(why);
      }
      if (peer->fallback != nullptr) peer->fallback->Close(why);
      if (peer->shm != nullptr) peer->shm->Close(why);
    }
    for (auto& channel : serving_) {
      channel->Close(why);
      closing_.push_back(std::move(channel));
    }
    serving_.clear();
    if (shm_ != nullptr) shm_->Close(why);
    poller_->CancelTimer(&maintenance_);
  });
}

bool ChannelPool::Drained() {
  if (!closed_) return false;
  for (Peer* peer : peers_in_order_) {
    for (const Way& way : peer->ways) {
      if (way.channel != nullptr && !way.channel->Drained()) return false;
    }
    if (peer->fallback != nullptr && !peer->fallback->Drained()) return false;
    if (peer->shm != nullptr && !peer->shm->Drained()) return false;
  }
  if (shm_ != nullptr && !shm_->Drained()) return false;
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
  const Channel* current = peer.fallback.get();
  if (peer.current < rails_.size()) current = peer.ways[peer.current].channel.get();
  if (peer.shm != nullptr && peer.shm_refusal.empty()) current = peer.shm.get();
  std::string out =
      current != nullptr ? current->Explain() : absl::StrCat(peer.worker, ": not asked yet");
  if (!shm_status_.ok()) absl::StrAppend(&out, "\n  no shm here: ", shm_status_.message());
  if (!peer.shm_refusal.empty()) absl::StrAppend(&out, "\n  turned down: ", peer.shm_refusal);
  for (size_t at = 0; at < peer.ways.size(); ++at) {
    const Way& way = peer.ways[at];
    if (!way.refused.empty()) absl::StrAppend(&out, "\n  turned down: ", way.refused);
    if (way.left.empty()) continue;
    absl::StrAppend(&out, "\n  left since ", (poller_->now_ns() - way.left_ns) / 1'000'000,
                    " ms: ", WayName(at), ": ", way.left, "; tried again every ", peer.probe_ms,
                    " ms");
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
  if (shm_ != nullptr) absl::StrAppend(&out, shm_->ExplainServing(peer));
  if (shm_ != nullptr && peer.empty()) absl::StrAppend(&out, options_.shm_arena->Explain(), "\n");
  return out;
}

void ChannelPool::ListOpsNow(LiveOps* ops) const {
  for (const Peer* peer : peers_in_order_) {
    for (const Way& way : peer->ways) {
      if (way.channel != nullptr) way.channel->ListOps(ops);
    }
    if (peer->fallback != nullptr) peer->fallback->ListOps(ops);
    if (peer->shm != nullptr) peer->shm->ListOps(ops);
  }
  for (const auto& channel : serving_) channel->ListOps(ops);
  for (const auto& channel : closing_) channel->ListOps(ops);
  if (shm_ != nullptr) {
    for (const auto& channel : shm_->serving()) channel->ListOps(ops);
  }
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
  if (peer.shm != nullptr) {
    const bool refused = !peer.shm_refusal.empty();
    PathView view;
    view.peer = peer.worker;
    view.path = "shm";
    view.in_use = !refused;
    view.state = refused ? "turned down" : peer.shm->state_text();
    view.since_ns = peer.shm->state_since_ns();
    view.why = refused ? peer.shm_refusal : std::string(peer.shm->connect_status().message());
    view.epoch = peer.shm->epoch();
    view.under_way = count(*peer.shm);
    views->push_back(std::move(view));
  }
  for (size_t i = 0; i < rails_.size(); ++i) {
    PathView view;
    view.peer = peer.worker;
    view.path = rails_[i]->path.path;
    view.in_use = i == peer.current && (peer.shm == nullptr || !peer.shm_refusal.empty());
    view.state = "not tried";
    const Way& way = peer.ways[i];
    if (way.channel == nullptr) {
      view.in_use = false;
      view.why = i < peer.current ? "" : "a better one is in use";
    } else {
      const FetchChannel& channel = *way.channel;
      view.state = !way.refused.empty() ? "turned down"
                   : !way.left.empty()  ? "left"
                                        : channel.state_text();
      view.since_ns = !way.left.empty() ? way.left_ns : channel.state_since_ns();
      view.why = !way.refused.empty() ? way.refused
                 : !way.left.empty()  ? way.left
                                      : std::string(channel.connect_status().message());
      view.epoch = channel.epoch();
      view.under_way = count(channel);
    }
    views->push_back(std::move(view));
  }
  PathView view;
  view.peer = peer.worker;
  view.path = "grpc";
  view.in_use = peer.current == rails_.size() && peer.fallback != nullptr;
  view.state = view.in_use ? "in use" : peer.fallback != nullptr ? "spare" : "not tried";
  view.why = "the last resort: a better one is in use";
  if (peer.fallback != nullptr) {
    view.why = peer.fallback->Explain();
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
    if (shm_ == nullptr) return;
    for (const auto& channel : shm_->serving()) {
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
  poller_->RunAndWait([&] { sum = FetchCountersNow(); });
  return sum;
}

FetchCounters ChannelPool::FetchCountersNow() const {
  FetchCounters sum;
  for (const Peer* peer : peers_in_order_) {
    for (const Way& way : peer->ways) {
      if (way.channel != nullptr) sum += way.channel->counters();
    }
  }
  return sum;
}

ShmFetchCounters ChannelPool::shm_fetch_counters() {
  ShmFetchCounters sum;
  poller_->RunAndWait([&] { sum = ShmFetchCountersNow(); });
  return sum;
}

ShmFetchCounters ChannelPool::ShmFetchCountersNow() const {
  ShmFetchCounters sum;
  for (const Peer* peer : peers_in_order_) {
    if (peer->shm != nullptr) sum += peer->shm->counters();
  }
  return sum;
}

ShmServeCounters ChannelPool::shm_serve_counters() {
  ShmServeCounters sum;
  poller_->RunAndWait([&] { sum = ShmServeCountersNow(); });
  return sum;
}

ShmServeCounters ChannelPool::ShmServeCountersNow() const {
  return shm_ == nullptr ? ShmServeCounters() : shm_->serve_counters();
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
