#include "tests/sim/channel_cluster.h"

#include <malloc.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"
#include "channel/ops/verify_traces.h"
#include "channel/rdma/wire.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/trace.h"
#include "channel/trace/trace_dump.h"
#include "channel/transports.h"
#include "rendezvous/tensor_key.h"
#include "rendezvous/virtual_alarms.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_world.h"
#include "tests/model/slot_replay.h"
#include "tests/process/pair/pool_counters.h"
#include "tests/sim/sim_peers.h"
#include "tests/sim/sim_shm.h"

namespace tryst {
namespace {

// How long, after the load and the faults, every tensor that can still come may take.
constexpr int64_t kRestNs = 30'000 * kMs;
// By when everybody has seen that a process is dead whose memory they share.
constexpr int64_t kUnburiedNs = 2'000 * kMs;

std::string WorkerNameOf(size_t index) { return absl::StrCat("/job:w/replica:0/task:", index); }

class Cluster;

// One process.
struct Worker {
  Worker(Cluster* cluster, size_t index, uint64_t incarnation);
  ~Worker();

  LocalRendezvous* step(int64_t step_id);
  bool Turn();
  TraceDump Dump() const;
  int64_t NextTimerNs() const;

  Cluster* const cluster;
  const size_t index;
  const uint64_t incarnation;
  std::vector<std::unique_ptr<Poller>> pollers;
  std::vector<std::unique_ptr<Trace>> traces;  // One for each poller; none where nothing is traced.
  std::map<int64_t, std::unique_ptr<LocalRendezvous>> steps;
  struct Source final : TensorSource {
    explicit Source(Worker* worker) : worker(worker) {}
    void Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) override {
      if (key.src_incarnation() != worker->incarnation) {
        return std::move(done)({absl::AbortedError("another incarnation")});
      }
      worker->step(step_id)->RecvAsync(key, args, std::move(done));
    }
    // Where it may, a producer takes what is here without a callback, as programs do.
    bool TakeHere(int64_t step_id, TensorKey* key, Place*, Received* taken) override {
      return MayTake(*key) && worker->step(step_id)->TakeHere(key, taken);
    }
    bool MayTake(const TensorKey& key) const override {
      return takes_here && key.src_incarnation() == worker->incarnation;
    }
    bool takes_here = false;
    void GiveBack(int64_t step_id, const TensorKey& key, Received taken) override {
      worker->step(step_id)->GiveBack(key, std::move(taken));
    }
    Worker* const worker;
  } source;
  std::vector<std::shared_ptr<Nic>> nics;  // One for each path.
  std::shared_ptr<Arena> arena;            // Null: it shares no memory.
  std::unique_ptr<ChannelPools> pools;
  int64_t paused_until_ns = 0;  // Until then its machine gives it no processor.
  int64_t buried_at_ns = 0;     // It is dead, and until then nothing of it changes.
  bool is_over = false;         // What it has is taken down.
};

// The model of slots, whose search takes seconds; nothing where no NIC asks it.
const SlotEdges& EdgesFor(const ChannelClusterOptions& options) {
  static const auto* const none = new SlotEdges;
  return options.links == SimLinks::kShm ? *none : ModelEdges(options.slots == 1 ? 1 : 2);
}

// A slow wire and small pieces in a storm, so that bytes are under way for some time.
SimOptions WorldOptions(const LoadOptions& load) {
  SimOptions options;
  if (load.cancel_storm) {
    options.chunk_bytes = 2048;
    options.link.bytes_per_second = 1'250'000'000;
  }
  if (load.link_bytes_per_second > 0) {
    options.link.bytes_per_second = load.link_bytes_per_second;
  }
  return options;
}

// Without faults no peer is strange.
ChannelClusterOptions WithWhatFaultsAllow(ChannelClusterOptions options) {
  options.forgets &= options.load.faults;
  options.strays &= options.load.faults;
  return options;
}

class Cluster final : public LoadTarget {
 public:
  explicit Cluster(const ChannelClusterOptions& options);

  ChannelClusterReport Run();
  // Whether no part of the cluster can write memory any more. REQUIRES: Run() has returned.
  bool Drained() const;

  // LoadTarget.
  uint64_t IncarnationOf(size_t worker) const override { return workers_[worker]->incarnation; }
  LocalRendezvous* StepOf(size_t worker, int64_t step) override {
    return workers_[worker]->step(step);
  }
  TensorFetcher* FetcherOf(size_t worker) override { return workers_[worker]->pools.get(); }
  Allocator* SharedBy(size_t worker) override { return workers_[worker]->arena.get(); }
  std::string ExplainTo(size_t consumer, size_t producer) override {
    return absl::StrCat(
        workers_[consumer]->pools->ExplainNow(WorkerNameOf(producer)),
        "; producer: ", workers_[producer]->pools->ExplainNow(WorkerNameOf(consumer)));
  }
  void Violate(const std::string& what) override {
    report_.violations.push_back(absl::StrCat("at ", world_.NowNs() / 1000, " us: ", what));
  }

 private:
  friend struct Worker;

  // Hellos take the time of a loaded machine, and some are lost in either direction.
  class Wire final : public Bootstrap {
   public:
    explicit Wire(Cluster* cluster) : cluster_(cluster) {}
    void Exchange(const std::string& peer, const Hello& hello, Deadline deadline,
                  HelloDone done) override;

   private:
    Cluster* const cluster_;
  };

  bool Forgets(const std::string& worker) const {
    return options_.forgets && worker == WorkerNameOf(forgetful_);
  }
  uint64_t Draw(uint64_t below) { return random_.Below(below); }
  bool Chance(uint32_t percent) { return Draw(100) < percent; }
  TransportsOptions DrawPoolOptions();
  void DrawPaths();
  void DrawSharedMemory();
  void PlanShmFaults();
  void BreakShmLink();
  void StopBeforeTheCheck(const Worker* reader);
  bool ForbidsRead();
  bool TurnsDying(Worker* worker);
  uint32_t PlaceOf(size_t worker, uint32_t rail) const {
    return rail * static_cast<uint32_t>(options_.workers) + static_cast<uint32_t>(worker);
  }
  void PlanFaults();
  void PlanRenewals();
  void DrawFlips(FaultPlan* plan);
  void FlipBeforeThePeace(SimRandom random);
  void OnRuleBroken(const absl::Status& why);
  void LosePath(size_t index, uint32_t rail, uint64_t kind);
  void RefuseRegistration(size_t index);
  void Kill(size_t index);
  bool TurnAll();
  void Advance(int64_t until_ns);
  void RunUntil(int64_t until_ns);
  size_t Open() const { return load_->open() + (gathers_ == nullptr ? 0 : gathers_->open()); }
  void Settle();
  void StrikeBeforeTheDrain();
  void StrikeTheForgetful();
  void PlanStrays();
  void AuditLandings();
  void CheckNothingKept();
  void CheckArena(const Worker& worker);
  void CountAndCheckConnections();
  void VerifyWhatIsTraced();
  void TakeDown();
  Troubles TroublesOfRun() const;

  const ChannelClusterOptions options_;
  bool takes_here_ = false;
  SimWorld world_;
  VirtualAlarms alarms_;  // It never moves, because takes have no deadline.
  SimRandom random_;
  Wire wire_{this};
  uint8_t nic_ports_ = 1;
  uint32_t rails_ = 1;         // NICs of each worker; each makes a path.
  uint32_t losable_ = 1;       // The first so many of them may be lost.
  bool has_fallback_ = false;  // The last of them stands for streams of gRPC, and stays.
  bool has_shm_ = false;
  bool large_ = false;  // Large tensors are copied into shared memory.
  TransportsOptions pool_options_;
  SlotReplay replay_;
  TableWatch watch_{&replay_, [this](const absl::Status& why) { OnRuleBroken(why); }};
  // The model of slots knows no loan, no stage, and no consumer that forgets or breaks a rule.
  TableWatch bare_watch_{nullptr, [this](const absl::Status& why) { OnRuleBroken(why); }};
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Worker>> dying_;
  Worker* stopped_ = nullptr;  // It stands in the middle of a turn.
  std::unique_ptr<ChannelLoad> load_;
  std::unique_ptr<GatherLoad> gathers_;  // Null: there are none.
  bool quiet_ = false;                   // No more faults.
  bool flips_ = false;                   // Bits are flipped.
  bool buries_ = false;                  // A dead process's object has a turn.
  SimRandom aim_;
  SimRandom shm_random_;                      // So that seeds of NICs keep their runs.
  SimRandom peers_random_;                    // Likewise of seeds without such peers.
  size_t forgetful_ = LoadOptions::kNobody;   // A worker.
  int64_t forget_ms_ = 0;                     // So long it keeps what it has given up.
  uint64_t links_seen_ = 0;                   // That it has opened.
  uint64_t from_zero_ = 0;                    // The life of a worker whose generations begin at 0.
  std::vector<TraceDump> dumps_;              // A killed worker leaves its own here.
  std::map<uint64_t, uint64_t> breaks_seen_;  // By incarnation.
  uint64_t renewals_ = 0;
  uint64_t shm_breaks_ = 0;   // Links that the simulation has ended.
  uint64_t peer_breaks_ = 0;  // Links of the forgetful one that it has ended.
  uint64_t forbidden_ = 0;    // Reads.
  uint64_t strays_ = 0;       // Words that no honest consumer says.
  uint64_t shm_stops_ = 0;    // Readers that stood before they looked at a loan.
  uint64_t next_incarnation_ = 1000;
  ChannelClusterReport report_;
};

Worker::Worker(Cluster* cluster, size_t index, uint64_t incarnation)
    : cluster(cluster), index(index), incarnation(incarnation), source(this) {
  std::vector<Poller*> turned;
  for (int i = 0; i < cluster->options_.pollers; ++i) {
    pollers.push_back(std::make_unique<Poller>(&cluster->world_.clock()));
    turned.push_back(pollers.back().get());
  }
  std::vector<Trace*> traced;
  if (cluster->options_.verify) {
    TraceOptions all;
    all.sample_every = 1;
    for (int i = 0; i < cluster->options_.pollers; ++i) {
      traces.push_back(std::make_unique<Trace>(all));
      traced.push_back(traces.back().get());
    }
  }
  std::vector<NicPath> paths;
  for (uint32_t rail = 0; rail < cluster->rails_; ++rail) {
    SimNicOptions nic_options;
    nic_options.ports = cluster->nic_ports_;
    nic_options.limits.ordered = cluster->options_.nic != SimNicKind::kUnordered;
    nic_options.limits.write_with_immediate = cluster->options_.nic != SimNicKind::kNoImmediates;
    if (!nic_options.limits.ordered && cluster->options_.seed % 3 == 0) {
      nic_options.limits.max_message_bytes = 64 << 10;  // A tensor takes several writes.
    }
    nics.push_back(cluster->world_.OpenNic(cluster->PlaceOf(index, rail), nic_options));
    paths.push_back({absl::StrCat("rdma/sim", rail), nics.back()});
  }
  source.takes_here = cluster->takes_here_;
  TransportsOptions options = cluster->pool_options_;
  options.self = WorkerNameOf(index);
  options.incarnation = incarnation;
  options.seed = incarnation * 7919;
  if (index == cluster->forgetful_) options.retain_ms = cluster->forget_ms_;
  // Behind those of the pool's consumers and transports.
  if (incarnation == cluster->from_zero_) {
    options.seed = SeedOfGenerationZero(1 + paths.size() + (cluster->has_shm_ ? 1 : 0));
  }
  if (cluster->has_shm_) {
    ArenaOptions shared = DrawArena(&cluster->shm_random_, incarnation << 32);
    if (cluster->large_) shared.cap_bytes = 64 << 20;
    arena = Arena::Make(shared);
    options.shm_arena = arena;
    options.shm.before_check = [cluster, this] { cluster->StopBeforeTheCheck(this); };
    options.shm.forbids_read = [cluster] { return cluster->ForbidsRead(); };
  }
  (void)cluster->Chance(15);  // The pinned seeds were found with this draw.
  pools = MakeChannelPools(turned, traced, &cluster->wire_, &source, std::move(paths),
                           /*last_resort=*/nullptr, options);
  const absl::Status opened = pools->Open();
  TRYST_CHECK(opened.ok()) << opened;
}

Worker::~Worker() {
  pools.reset();
  nics.clear();
}

// Pollers are separate threads, so between two turns of one the others may take any number. One
// that gets no turn may have work, for which the time must not advance to the next event.
bool Worker::Turn() {
  bool worked = false;
  for (const auto& poller : pollers) {
    const bool is_late = pollers.size() > 1 && cluster->Chance(20);
    worked |= is_late || poller->Turn();
  }
  return worked;
}

int64_t Worker::NextTimerNs() const {
  int64_t next_ns = std::numeric_limits<int64_t>::max();
  for (const auto& poller : pollers) next_ns = std::min(next_ns, poller->NextTimerNs());
  return next_ns;
}

TraceDump Worker::Dump() const {
  TraceFilter all;
  all.most = std::numeric_limits<size_t>::max();
  TraceDump dump;
  dump.worker = WorkerNameOf(index);
  dump.incarnation = incarnation;
  dump.now_ns = cluster->world_.NowNs();
  for (const auto& trace : traces) AddRecords(*trace, all, &dump);
  LiveOps ops(all.most);
  for (const auto& pool : pools->all()) pool->ListOpsNow(&ops);
  AddLiveOps(ops.Take(), all, &dump);
  FinishDump(all, &dump);
  return dump;
}

LocalRendezvous* Worker::step(int64_t step_id) {
  auto& step = steps[step_id];
  if (step == nullptr) {
    LocalRendezvous::Options options;
    options.shards = 1;
    options.check_immutable = false;  // Every build replays a seed alike.
    step = std::make_unique<LocalRendezvous>(options, &cluster->alarms_);
  }
  return step.get();
}

void Cluster::Wire::Exchange(const std::string& peer, const Hello& asked, Deadline deadline,
                             HelloDone done) {
  Cluster* c = cluster_;
  Hello hello = asked;
  hello.started_us = static_cast<int64_t>(hello.incarnation);  // They are counted.
  // The answer and the time-out share it; the first of them uses it.
  auto shared = std::make_shared<HelloDone>(std::move(done));
  const auto answer = [shared](absl::StatusOr<Hello> hello) {
    if (!*shared) return;
    HelloDone once = std::move(*shared);
    *shared = nullptr;
    std::move(once)(std::move(hello));
  };
  const int64_t now_ns = c->world_.NowNs();
  c->world_.At(std::min(deadline.at_ns(), now_ns + 5'000 * kMs),
               [answer] { answer(absl::UnavailableError("no answer to the hello")); });
  const bool lossy = c->options_.load.faults && !c->quiet_;
  if (lossy && c->Chance(5)) return;  // The request is lost.
  if (lossy && c->Forgets(asked.worker) && c->peers_random_.Below(2) == 0) {
    return answer(absl::UnavailableError("nobody listens"));
  }
  const bool answer_lost = lossy && c->Chance(5);
  const bool doubled = lossy && c->Chance(3);
  const int64_t there_ns = now_ns + 20'000 + static_cast<int64_t>(c->Draw(2 * kMs));
  const int64_t back_ns = 20'000 + static_cast<int64_t>(c->Draw(2 * kMs));
  for (int copy = 0; copy < (doubled ? 2 : 1); ++copy) {
    c->world_.At(there_ns + copy * 100'000, [c, peer, hello, answer, answer_lost, back_ns] {
      for (auto& worker : c->workers_) {
        if (WorkerNameOf(worker->index) != peer) continue;
        worker->pools->OnHello(
            hello, [c, answer, answer_lost, back_ns](absl::StatusOr<Hello> said) mutable {
              if (answer_lost) return;
              c->world_.At(c->world_.NowNs() + back_ns,
                           [answer, said = std::move(said)] { answer(said); });
            });
        return;
      }
      answer(absl::UnavailableError(absl::StrCat(peer, " is not up")));
    });
  }
}

Cluster::Cluster(const ChannelClusterOptions& options)
    : options_(WithWhatFaultsAllow(options)),
      world_(options.seed, WorldOptions(options.load)),
      random_(options.seed * 2654435761u + 1),
      replay_(EdgesFor(options), [this](const std::string& what) { Violate(what); }),
      aim_(options.load.aim_seed),
      shm_random_(options.seed * 0x9e3779b97f4a7c15u + 31),
      peers_random_(options.seed * 0x9e3779b97f4a7c15u + 41) {
  pool_options_ = DrawPoolOptions();
  if (options.slots != 0) pool_options_.link.slots = options.slots;
  if (options.max_keys != 0) pool_options_.max_keys = options.max_keys;
  LoadOptions load = options.load;
  // A tensor that waits for the others of its call keeps its landing.
  load.many = !load.cancel_storm && pool_options_.landing_bytes > (4 << 20);
  if (!load.many) load.run_seed = 0;
  takes_here_ = load.run_seed != 0 || options.takes_here;
  if (Chance(25)) nic_ports_ = 2;
  if (options.paths > 1) DrawPaths();
  if (options.links != SimLinks::kNics) DrawSharedMemory();
  load.holds = has_shm_;
  load.large = large_;
  if (options_.forgets) {
    load.forgetful = forgetful_ = peers_random_.Below(static_cast<uint64_t>(options.workers));
    forget_ms_ = peers_random_.Between(0, 5);
  }
  if (peers_random_.Below(8) == 0) from_zero_ = next_incarnation_;
  pool_options_.watch = has_shm_ || options_.forgets || options_.strays ? &bare_watch_ : &watch_;
  for (int i = 0; i < options.workers; ++i) {
    workers_.push_back(std::make_unique<Worker>(this, static_cast<size_t>(i), next_incarnation_++));
  }
  load_ = std::make_unique<ChannelLoad>(&world_, random_.Fork(), this, workers_.size(), load);
  // Who is answered what it has not asked for ends that fetch.
  if (options_.strays && has_shm_) load_->NoteFlips();
  if (load.gather_seed != 0) {
    gathers_ = std::make_unique<GatherLoad>(&world_, SimRandom(load.gather_seed), this, &alarms_,
                                            workers_.size(), load);
    if (options_.strays && has_shm_) gathers_->NoteFlips();
  }
}

// Sizes from tiny, where every operation waits, to ordinary.
TransportsOptions Cluster::DrawPoolOptions() {
  static constexpr uint32_t kSlots[] = {1, 2, 3, 8, 128};
  static constexpr uint32_t kRing[] = {2, 3, 4, 16};
  const bool storm = options_.load.cancel_storm;
  TransportsOptions pool;
  pool.link.slots = kSlots[Draw(5)];
  pool.link.ring_slots = kRing[Draw(4)];
  pool.link.message_bytes = Chance(50) ? 8192 : 4608;
  pool.link.queue_pairs = Chance(30) ? 1 + static_cast<uint32_t>(Draw(4)) : 1;
  pool.link.send_depth = Chance(50) ? 16 : 128;
  pool.link.digests = !storm && Chance(40);
  pool.link.ack_timeout = 12;
  pool.link.retry_count = 3;
  pool.stripe_bytes = 32 << 10;
  pool.write_bytes = Chance(30) ? 8 << 10 : 16 << 20;
  pool.offered_bytes = Chance(50) ? 16 << 10 : 256 << 10;
  pool.landing_bytes = Chance(30) && !storm ? 768 << 10 : 64 << 20;
  pool.eager_bytes = Chance(30) || storm ? 64 : 8192;
  pool.retain_ms = 100'000;
  pool.standing_ms = Chance(30) ? 3 : 30'000;
  return pool;
}

void Cluster::DrawPaths() {
  has_fallback_ = Chance(50);
  rails_ = has_fallback_ && Chance(50) ? 1 : 2;
  losable_ = has_fallback_ ? rails_ : 1;
  if (has_fallback_) ++rails_;
  pool_options_.heartbeat_ms = 4;
  pool_options_.silence_ms = 12;
  pool_options_.give_up_ms = 5 + static_cast<int64_t>(Draw(40));
  pool_options_.probe_ms = 10;
  pool_options_.probe_ms_most = 100;
}

// Where there are NICs, too, and where there is another path, a path that fails is left.
void Cluster::DrawSharedMemory() {
  has_shm_ = true;
  if (options_.links == SimLinks::kShm) {
    rails_ = has_fallback_ ? 1 : 0;
    losable_ = 0;
  }
  pool_options_.shm = DrawShm(&shm_random_);
  large_ = options_.load.cancel_storm && options_.seed % 2 == 0;
  if (large_) pool_options_.shm.stage_bytes = 512 << 20;
  if (options_.slots != 0) pool_options_.shm.sizes.slots = options_.slots;
}

// Links end at either end, processes stop for a while, and some stop where they have read what
// another one has lent them and have not looked whether it still is.
void Cluster::PlanShmFaults() {
  if (!has_shm_) return;
  const int64_t end_ns = world_.NowNs() + options_.load.load_ns;
  if (shm_random_.Below(100) < options_.weights.of(Trouble::kBreak)) {
    const int64_t every_ns = shm_random_.Between(kMs / 4, 20 * kMs);
    for (int64_t at_ns = world_.NowNs(); at_ns < end_ns; at_ns += every_ns) {
      world_.At(at_ns + shm_random_.Between(0, every_ns), [this] { BreakShmLink(); });
    }
  }
  if (shm_random_.Below(100) < options_.weights.of(Trouble::kSilence)) {
    for (uint64_t stops = 1 + shm_random_.Below(4); stops > 0; --stops) {
      world_.At(world_.NowNs() + shm_random_.Between(0, options_.load.load_ns), [this] {
        if (quiet_) return;
        // All of them together are less than a fetch may be late.
        Worker* const worker = workers_[shm_random_.Below(workers_.size())].get();
        worker->paused_until_ns = world_.NowNs() + shm_random_.Between(kMs, 120 * kMs);
      });
    }
  }
}

void Cluster::BreakShmLink() {
  if (quiet_) return;
  if (BreakSomeShmLink(*workers_[shm_random_.Below(workers_.size())]->pools, &shm_random_)) {
    ++shm_breaks_;
  }
}

// The others go on while it stands there.
void Cluster::StopBeforeTheCheck(const Worker* reader) {
  if (quiet_ || !options_.load.faults || stopped_ != nullptr || shm_random_.Below(3) != 0) return;
  ++shm_stops_;
  stopped_ = workers_[reader->index].get();
  if (options_.strays && shm_random_.Below(2) == 0) {
    strays_ += SayStrayCancel(*stopped_->pools, &peers_random_);
  }
  for (uint64_t turns = 1 + shm_random_.Below(4); turns > 0; --turns) {
    for (const auto& worker : workers_) {
      if (worker.get() == stopped_) continue;
      if (shm_random_.Below(3) == 0 && BreakSomeShmLink(*worker->pools, &shm_random_)) {
        ++shm_breaks_;
      }
      (void)worker->Turn();
    }
  }
  stopped_ = nullptr;
}

// As when a process gets another user, or memory goes that it had from elsewhere.
bool Cluster::ForbidsRead() {
  if (quiet_ || !options_.load.faults || peers_random_.Below(32) != 0) return false;
  ++forbidden_;
  return true;
}

void Cluster::PlanFaults() {
  if (!options_.load.faults) return;
  PlanShmFaults();
  FaultPlan plan;
  const auto some = [&](uint32_t percent, uint64_t most) {
    return Chance(percent) ? static_cast<uint32_t>(1 + Draw(most)) : 0;
  };
  const SimWeights& weights = options_.weights;
  plan.break_ppm = some(weights.of(Trouble::kBreak), 3000);
  plan.fail_ppm = some(weights.of(Trouble::kFail), 2000);
  plan.delay_ppm = some(weights.of(Trouble::kDelay), 20'000);
  plan.lose_ppm = some(weights.of(Trouble::kLose), 500);
  plan.lose_for_ever_ppm = some(weights.of(Trouble::kLoseForEver), 200);
  plan.duplicate_ppm = some(weights.of(Trouble::kDuplicate), 500);
  plan.registration_ppm = some(weights.of(Trouble::kRegistration), 2000);
  const auto every = [&](Trouble trouble) {
    return Chance(weights.of(trouble)) ? static_cast<int64_t>((5 + Draw(40)) * kMs) : 0;
  };
  plan.port_flap_ns = every(Trouble::kPort);
  plan.address_change_ns = every(Trouble::kAddress);
  plan.silence_ns = every(Trouble::kSilence);
  plan.slow_link_ns = every(Trouble::kSlowLink);
  plan.lossy_link_ns = every(Trouble::kLossyLink);
  plan.overrun_ns = every(Trouble::kOverrun);
  plan.jump_ns = every(Trouble::kJump);
  if (rails_ > 0) DrawFlips(&plan);
  world_.SetFaultPlan(plan);
  // Whole paths fail at one worker, for a long time or for ever; one path always stays.
  for (uint64_t count = options_.paths > 1 ? 1 + Draw(4) : 0; count > 0; --count) {
    const size_t index = Draw(workers_.size());
    const uint32_t rail = has_fallback_ && losable_ > 0 ? static_cast<uint32_t>(Draw(losable_)) : 0;
    const uint64_t kind = Draw(10);
    world_.At(random_.Between(0, options_.load.load_ns),
              [this, index, rail, kind] { LosePath(index, rail, kind); });
  }
  PlanRenewals();
  PlanStrays();
  if (!options_.kills) return;
  for (uint64_t kills = Draw(4); kills > 0; --kills) {
    const size_t index = Draw(workers_.size());
    world_.At(random_.Between(0, options_.load.load_ns), [this, index] { Kill(index); });
  }
}

// From a random generator of its own, so that seeds without them keep their runs.
void Cluster::PlanRenewals() {
  SimRandom random(options_.seed * 0x9e3779b97f4a7c15u + 29);
  if (random.Below(100) >= options_.weights.of(Trouble::kRenew)) return;
  for (uint64_t count = 1 + random.Below(4); count > 0; --count) {
    const size_t index = random.Below(workers_.size());
    const int64_t within_ms = random.Between(0, 10);
    world_.At(random.Between(0, options_.load.load_ns), [this, index, within_ms] {
      if (quiet_) return;
      workers_[index]->pools->RenewLinks(within_ms);
      ++renewals_;
    });
  }
}

// Both ends are honest, and where no bit is flipped what one says is what the other reads. But a
// NIC may deliver a message twice or never, and a process that is dead reads nothing any more.
void Cluster::OnRuleBroken(const absl::Status& why) {
  if (flips_ || buries_ || options_.strays || why.message() == kBreaksARule) return;
  if (absl::StartsWith(why.message(), "message ")) return;
  if (absl::StrContains(why.message(), "or the NIC lost something")) return;
  Violate(absl::StrCat("an honest peer breaks a rule: ", why.message()));
}

// Many works are under way when the peace comes, and many of them were to flip a bit.
void Cluster::FlipBeforeThePeace(SimRandom random) {
  const int64_t peace_ns = world_.NowNs() + options_.load.load_ns;
  world_.At(peace_ns - 60'000, [this] {
    if (quiet_) return;  // A clock that jumped has brought the peace sooner.
    FaultPlan last = world_.faults().plan();
    last.flip_ppm = 300'000;
    world_.SetFaultPlan(last);
  });
  for (int i = 0; i < 20; ++i) {
    world_.At(peace_ns - random.Between(0, 50'000),
              [this, one = random.Fork()]() mutable { load_->StartOne(&one); });
  }
}

// Bits flip only where one of our checksums covers them: in messages, and in tensors if digests are
// on; never in an ack page. They come from a random generator of their own, so that earlier seeds
// keep their runs.
void Cluster::DrawFlips(FaultPlan* plan) {
  SimRandom random(options_.seed * 0x9e3779b97f4a7c15u + 11);
  if (random.Below(100) >= options_.weights.of(Trouble::kFlip)) return;
  flips_ = true;
  load_->NoteFlips();
  if (gathers_ != nullptr) gathers_->NoteFlips();
  plan->flip_ppm = static_cast<uint32_t>(1 + random.Below(3000));
  if (random.Below(2) == 0) FlipBeforeThePeace(random.Fork());
  const auto has_checksum = [tensors = pool_options_.link.digests](SendOp op, uint32_t immediate) {
    const uint32_t kind = immediate >> 30;
    // The word of 4 bytes behind a write, and the ack page, have no checksum of ours.
    if (op == SendOp::kSend || kind == static_cast<uint32_t>(wire::ImmediateKind::kAck)) {
      return false;
    }
    if (op != SendOp::kWriteWithImmediate) return tensors;
    return kind == static_cast<uint32_t>(wire::ImmediateKind::kMessage) ||
           (tensors && kind == static_cast<uint32_t>(wire::ImmediateKind::kTensor));
  };
  plan->may_flip = [this, has_checksum](SendOp op, uint32_t immediate) {
    if (has_checksum(op, immediate)) return true;
    if (quiet_) TRYST_REACHED("sim: a work of before the peace would flip a bit unseen");
    return false;
  };
}

void Cluster::LosePath(size_t index, uint32_t rail, uint64_t kind) {
  if (losable_ == 0) return;
  const uint32_t place = PlaceOf(index, rail);
  const SimNic* nic = world_.nic(place);
  if (nic == nullptr || nic->lost()) return;
  ++report_.paths_lost;
  if (kind == 0) return world_.DeviceFatal(place);  // For ever.
  const int64_t until_ns = world_.NowNs() + random_.Between(20 * kMs, 220 * kMs);
  if (kind < 5) {
    world_.SetSilent(place, true);
    world_.At(until_ns, [this, place] { world_.SetSilent(place, false); });
    return;
  }
  for (uint8_t port = 1; port <= nic_ports_; ++port) {
    world_.SetPort(place, port, false);
    world_.At(until_ns, [this, place, port] { world_.SetPort(place, port, true); });
  }
}

// The process of a worker ends without a message, and another one takes its place.
void Cluster::Kill(size_t index) {
  Worker* worker = workers_[index].get();
  ++report_.kills;
  load_->NoteKill();
  if (gathers_ != nullptr) gathers_->NoteKill();
  if (options_.verify) dumps_.push_back(worker->Dump());
  // The fetches of the dead process itself have no owner any more.
  for (uint32_t rail = 0; rail < rails_; ++rail) world_.Kill(PlaceOf(index, rail));
  if (has_shm_) {
    EndShmSockets(*worker->pools);
    worker->buried_at_ns = world_.NowNs() + kUnburiedNs;
  } else {
    worker->pools->Close(absl::UnavailableError("killed"));
  }
  // The simulated process is still an object that must be destroyed. Works of a dead NIC never
  // complete, so they are destroyed after the drain deadline.
  dying_.push_back(std::move(workers_[index]));
  workers_[index] = std::make_unique<Worker>(this, index, next_incarnation_++);
}

bool Cluster::TurnAll() {
  bool worked = false;
  const size_t first = Draw(workers_.size());
  const bool soon = world_.next_ns() - world_.NowNs() < kMs;
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker* worker = workers_[(first + i) % workers_.size()].get();
    if (worker->paused_until_ns > world_.NowNs()) continue;
    // If the next event is soon, some workers get no turn before it.
    if (soon && Chance(40)) continue;
    if (options_.load.faults && !quiet_ && Draw(2000) == 0) {
      worker->paused_until_ns = world_.NowNs() + static_cast<int64_t>(Draw(10 * kMs));
      continue;
    }
    worked |= worker->Turn();
  }
  for (auto& worker : dying_) {
    worked |= TurnsDying(worker.get());
    if (worker->pools->Drained()) worker.reset();
  }
  dying_.erase(std::remove(dying_.begin(), dying_.end(), nullptr), dying_.end());
  return worked;
}

// What a dead process has shared is as it has left it, until all others have seen its end.
bool Cluster::TurnsDying(Worker* worker) {
  if (worker->buried_at_ns > world_.NowNs()) return false;
  if (has_shm_ && !std::exchange(worker->is_over, true)) {
    worker->pools->Close(absl::UnavailableError("killed"));
  }
  buries_ = true;
  const bool worked = worker->Turn();
  buries_ = false;
  return worked;
}

// Advances to the next event, of whatever kind.
void Cluster::Advance(int64_t until_ns) {
  int64_t next_ns = until_ns;
  for (const auto& worker : workers_) {
    next_ns = std::min(next_ns, std::max(worker->NextTimerNs(), worker->paused_until_ns));
    if (worker->paused_until_ns > world_.NowNs()) {
      next_ns = std::min(next_ns, worker->paused_until_ns);
    }
  }
  for (const auto& worker : dying_) {
    next_ns = std::min(next_ns, std::max(worker->NextTimerNs(), worker->buried_at_ns));
  }
  if (has_shm_ && std::any_of(workers_.begin(), workers_.end(),
                              [](const auto& worker) { return SocketsWait(*worker->pools); })) {
    next_ns = std::min(next_ns, world_.NowNs() + kSocketPauseNs);
  }
  if (world_.next_ns() <= next_ns) {
    world_.Step();
  } else {
    world_.RunUntil(std::max(next_ns, world_.NowNs()));
  }
}

void Cluster::RunUntil(int64_t until_ns) {
  int idle_turns = 0;
  while (world_.NowNs() < until_ns && report_.violations.empty()) {
    if (quiet_ && Open() == 0 && ++idle_turns > 50) return;
    // What a turn has caused may be the next turn's work, so the clock must not run ahead.
    const bool worked = TurnAll();
    if (options_.load.aim_seed != 0) StrikeBeforeTheDrain();
    if (options_.forgets) StrikeTheForgetful();
    AuditLandings();
    if (worked && (world_.next_ns() - world_.NowNs() >= kMs || !Chance(30))) continue;
    Advance(until_ns);
  }
}

ChannelClusterReport Cluster::Run() {
  PlanFaults();
  load_->Plan();
  if (gathers_ != nullptr) gathers_->Plan();
  RunUntil(world_.NowNs() + options_.load.load_ns);
  Settle();
  load_->CheckEnds();
  if (gathers_ != nullptr) gathers_->CheckEnds();
  CheckNothingKept();
  const bool clean = report_.violations.empty();
  CountAndCheckConnections();
  VerifyWhatIsTraced();
  TakeDown();
  if (clean) load_->CheckNothingLost();
  if (clean && gathers_ != nullptr) gathers_->CheckNothingLost();
  report_.load = load_->counts();
  if (gathers_ != nullptr) report_.gathers = gathers_->counts();
  report_.slot_edges = replay_.taken();
  report_.tables = watch_.counts();
  report_.tables += bare_watch_.counts();
  report_.troubles = TroublesOfRun();
  report_.faults = world_.faults_done() + renewals_ + shm_breaks_ + shm_stops_ + peer_breaks_ +
                   forbidden_ + strays_;
  report_.events = world_.events();
  report_.trace_hash = world_.trace().hash();
  for (const std::string& violation : world_.violations()) {
    report_.violations.push_back(absl::StrCat("memory: ", violation));
  }
  return report_;
}

Troubles Cluster::TroublesOfRun() const {
  static constexpr std::pair<Trouble, FaultKind> kOfFaults[] = {
      {Trouble::kBreak, FaultKind::kBreak},
      {Trouble::kFail, FaultKind::kFail},
      {Trouble::kDelay, FaultKind::kDelay},
      {Trouble::kLose, FaultKind::kLose},
      {Trouble::kLoseForEver, FaultKind::kLoseForEver},
      {Trouble::kDuplicate, FaultKind::kDuplicate},
      {Trouble::kFlip, FaultKind::kFlip},
      {Trouble::kRegistration, FaultKind::kRegistration},
      {Trouble::kPort, FaultKind::kPort},
      {Trouble::kAddress, FaultKind::kAddress},
      {Trouble::kSilence, FaultKind::kSilence},
      {Trouble::kSlowLink, FaultKind::kSlowLink},
      {Trouble::kLossyLink, FaultKind::kLossyLink},
      {Trouble::kOverrun, FaultKind::kOverrun},
      {Trouble::kJump, FaultKind::kJump},
  };
  Troubles troubles;
  const auto note = [&troubles](Trouble trouble, bool was) {
    troubles[static_cast<size_t>(trouble)] = was;
  };
  for (const auto& [trouble, fault] : kOfFaults) note(trouble, world_.times(fault) > 0);
  if (shm_breaks_ > 0) note(Trouble::kBreak, true);
  note(Trouble::kKills, report_.kills > 0);
  note(Trouble::kPaths, report_.paths_lost > 0);
  note(Trouble::kAborts, load_->counts().aborts > 0);
  note(Trouble::kAim, options_.load.aim_seed != 0);
  note(Trouble::kRenew, renewals_ > 0);
  note(Trouble::kForget, options_.forgets);
  note(Trouble::kStray, strays_ > 0);
  return troubles;
}

// A broken queue pair drains within some 20 us. In that time fetches are cancelled, memory is
// refused, and the process at one end may die.
void Cluster::StrikeBeforeTheDrain() {
  if (quiet_) return;
  for (const auto& worker : workers_) {
    uint64_t& seen = breaks_seen_[worker->incarnation];
    uint64_t breaks = 0;
    for (const auto& pool : worker->pools->all()) breaks += RdmaFetched(*pool).breaks;
    if (std::exchange(seen, breaks) >= breaks) continue;
    const size_t index = worker->index;
    const int64_t within_ns = 1 + aim_.Between(0, 20'000);
    load_->CancelSoon(index, within_ns);
    const int64_t at_ns = world_.NowNs() + aim_.Between(0, within_ns);
    const uint64_t kind = aim_.Below(20);
    if (kind < 5) world_.At(at_ns, [this, index] { RefuseRegistration(index); });
    if (kind == 19 && options_.kills) {
      const size_t killed = aim_.Below(workers_.size());
      world_.At(at_ns, [this, killed] {
        if (!quiet_) Kill(killed);
      });
    }
  }
}

// Its links break soon after they open, and fetches are cancelled between two of them: what it has
// forgotten then is not named, and may be asked for anew.
void Cluster::StrikeTheForgetful() {
  if (quiet_) return;
  const ChannelPools& pools = *workers_[forgetful_]->pools;
  uint64_t links = 0;
  for (const FetchSession* session : FetchingOf(pools)) links += session->Counted().links;
  if (std::exchange(links_seen_, links) >= links || peers_random_.Below(4) == 0) return;
  world_.At(world_.NowNs() + peers_random_.Between(0, peers_random_.Below(2) == 0 ? 3'000 : 50'000),
            [this] {
              if (quiet_) return;
              load_->CancelSoon(forgetful_, 5 * kMs);
              for (FetchSession* session : FetchingOf(*workers_[forgetful_]->pools)) {
                if (!session->open()) continue;
                session->link()->Break(absl::UnavailableError("the simulation ends a link"));
                ++peer_breaks_;
              }
            });
}

// Their answers are of slots that are asked for anew: over a NIC the consumer passes them over, and
// over shared memory it ends the link.
void Cluster::PlanStrays() {
  if (!options_.strays) return;
  const int64_t end_ns = world_.NowNs() + options_.load.load_ns;
  const int64_t every_ns = peers_random_.Between(kMs / 20, 4 * kMs);
  for (int64_t at_ns = world_.NowNs(); at_ns < end_ns; at_ns += every_ns) {
    world_.At(at_ns + peers_random_.Between(0, every_ns), [this] {
      if (quiet_) return;
      const Worker& worker = *workers_[peers_random_.Below(workers_.size())];
      strays_ += SayStrayCancel(*worker.pools, &peers_random_);
    });
  }
}

void Cluster::RefuseRegistration(size_t index) {
  const SimNic* nic = world_.nic(PlaceOf(index, 0));
  if (!quiet_ && nic != nullptr && !nic->lost()) world_.FailRegistrations(PlaceOf(index, 0), 1);
}

// After every step, checks the sums of landing memory, lent and waited for, over all pollers of a
// worker.
void Cluster::AuditLandings() {
  for (const auto& worker : workers_) {
    LandingBytes known;
    for (const auto& pool : worker->pools->all()) AddLandings(*pool, &known);
    for (const auto& [landings, bytes] : known) {
      const auto [lent, waiting] = bytes;
      if (waiting == landings->waiting_bytes() && lent <= landings->in_use_bytes()) continue;
      Violate(absl::StrCat("worker ", worker->index, ": the landing memory has ",
                           landings->in_use_bytes(), " bytes in use and lends ",
                           landings->waiting_bytes(), " to who waits; its channels know of ", lent,
                           " and ", waiting));
    }
  }
}

// All tensors were fetched. Without a broken connection nobody keeps any of them, once standing
// receives have been given up.
void Cluster::CheckNothingKept() {
  if (options_.load.faults || !report_.violations.empty()) return;
  const int64_t until_ns = world_.NowNs() + pool_options_.standing_ms * kMs + 1000 * kMs;
  while (world_.NowNs() < until_ns) {
    if (!TurnAll()) Advance(until_ns);
  }
  for (const auto& worker : workers_) {
    LiveOps ops(1);
    for (const auto& pool : worker->pools->all()) pool->ListOpsNow(&ops);
    const size_t left_out = ops.left_out();
    const std::vector<LiveOp> kept = ops.Take();
    if (kept.empty()) continue;
    Violate(absl::StrCat("worker ", worker->index, " keeps ", kept.size() + left_out,
                         " operations although all has been accepted: ", kept[0].key.text(), ", ",
                         kept[0].detail));
  }
}

// Ends all outages, so that every tensor that was requested can come.
void Cluster::Settle() {
  // A work that was posted before keeps its fault, so the bits that may flip are limited for it,
  // too.
  FaultPlan peace;
  peace.may_flip = world_.faults().plan().may_flip;
  world_.SetFaultPlan(peace);
  quiet_ = true;
  for (uint32_t place = 0; place < workers_.size() * rails_; ++place) {
    world_.SetSilent(place, false);
    if (world_.EndFailRegistrations(place) > 0) {
      TRYST_REACHED("sim: a registration was still to fail when peace came");
    }
    for (uint8_t port = 1; port <= nic_ports_; ++port) world_.SetPort(place, port, true);
  }
  RunUntil(world_.NowNs() + 100 * kMs);
  // For each edge of a living producer, sends as many tensors as are still waited for; several
  // times, because a consumer that died may have taken some with it.
  for (int round = 0; round < 4 && load_->open() > 0; ++round) {
    load_->SendWhatIsWaitedFor(round > 0);
    RunUntil(world_.NowNs() + kRestNs);
  }
  // Once, unless the first fetches of a restarted producer find the link of its former life.
  for (int round = 0; round < (report_.kills == 0 ? 1 : 3) && load_->FetchWhatIsLeft() > 0;
       ++round) {
    RunUntil(world_.NowNs() + kRestNs);
  }
  // A fetch of what the forgetful one has lost waits still.
  if (options_.forgets && load_->open() > 0) {
    load_->SendWhatIsWaitedFor(/*anyhow=*/true);
    RunUntil(world_.NowNs() + kRestNs);
  }
  for (int round = 0; gathers_ != nullptr && round < 3 && gathers_->GatherWhatIsLeft() > 0;
       ++round) {
    RunUntil(world_.NowNs() + kRestNs);
  }
}

void Cluster::CountAndCheckConnections() {
  for (const auto& worker : workers_) {
    FetchCounters counters;
    for (const auto& pool : worker->pools->all()) {
      counters += RdmaFetched(*pool);
      report_.shm += ShmFetched(*pool);
    }
    report_.epochs += counters.links;
    report_.breaks += counters.breaks;
    report_.replays += counters.replays;
    report_.in_runs += counters.in_runs;
    report_.standing_claimed += counters.standing_claimed;
    report_.standing_dropped += counters.standing_dropped;
    report_.moved += counters.moved;
  }
  // The NIC refuses bytes that arrive too late for a region that is gone, and that breaks a
  // connection without any other fault.
  const uint64_t broken = report_.breaks + report_.shm.breaks;
  if (!options_.load.faults && broken > 0) {
    Violate(absl::StrCat(broken, " connections broke and no fault was there"));
  }
}

// As `tryst verify` does it to a job, and more exactly: here a turn takes no time.
void Cluster::VerifyWhatIsTraced() {
  if (!options_.verify) return;
  for (const auto& worker : workers_) dumps_.push_back(worker->Dump());
  const TraceVerdict verdict = VerifyTraces(dumps_, 0);
  report_.traced = verdict.operations;
  report_.pairs = verdict.pairs;
  for (const TraceBreach& breach : verdict.breaches) {
    // What was sent for a fetch that its consumer has given up and forgotten.
    if (options_.forgets && absl::EndsWith(breach.what, "it is lost")) continue;
    report_.violations.push_back(
        absl::StrCat("at ", breach.at_ns / 1000, " us, by the traces: ", breach.what));
  }
}

bool Cluster::Drained() const {
  return dying_.empty() && std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) {
           return worker->pools == nullptr || worker->pools->Drained();
         });
}

// All that consumers had by reference has come back.
void Cluster::CheckArena(const Worker& worker) {
  if (worker.arena == nullptr || !report_.violations.empty()) return;
  const uint64_t used = worker.arena->counters().used_bytes;
  if (used > 0) {
    Violate(absl::StrCat("worker ", worker.index, " has ", used, " bytes of shared memory left"));
  }
}

void Cluster::TakeDown() {
  load_->NoteKill();
  if (gathers_ != nullptr) gathers_->NoteKill();
  for (const auto& worker : workers_) {
    worker->pools->Close(absl::UnavailableError("the simulation is over"));
  }
  const int64_t until_ns = world_.NowNs() + 20'000 * kMs;
  while (!Drained() && world_.NowNs() < until_ns) {
    if (!TurnAll()) Advance(until_ns);
  }
  world_.RunUntil(world_.NowNs() + 10 * kMs);  // For work that waits in executors.
  load_->DropHeld();
  if (gathers_ != nullptr) gathers_->Drop();
  if (!Drained()) {
    for (const auto* line : {&workers_, &dying_}) {
      for (const auto& worker : *line) {
        if (worker->pools->Drained()) continue;
        Violate(absl::StrCat("worker ", worker->index, " of incarnation ", worker->incarnation,
                             " has not drained: ", worker->pools->ExplainNow("")));
      }
    }
    return;
  }
  for (auto& worker : workers_) {
    worker->pools.reset();
    for (uint32_t rail = 0; rail < rails_; ++rail) {
      const SimNic* nic = world_.nic(PlaceOf(worker->index, rail));
      if (nic == nullptr) continue;
      if (nic->queue_pairs() != 0) Violate("queue pairs are left");
      if (nic->regions() != 0) Violate(absl::StrCat(nic->regions(), " regions are left"));
    }
    worker->steps.clear();  // Tensors that nobody has fetched.
    CheckArena(*worker);
    worker->nics.clear();
  }
}

}  // namespace

ChannelClusterReport& ChannelClusterReport::operator+=(const ChannelClusterReport& other) {
  load += other.load;
  gathers += other.gathers;
  faults += other.faults;
  events += other.events;
  epochs += other.epochs;
  breaks += other.breaks;
  replays += other.replays;
  in_runs += other.in_runs;
  standing_claimed += other.standing_claimed;
  standing_dropped += other.standing_dropped;
  kills += other.kills;
  paths_lost += other.paths_lost;
  moved += other.moved;
  shm += other.shm;
  traced += other.traced;
  pairs += other.pairs;
  for (const auto& [edge, times] : other.slot_edges) slot_edges[edge] += times;
  return *this;
}

ChannelClusterReport RunChannelCluster(const ChannelClusterOptions& options) {
  FixKeyHashes();
  auto cluster = std::make_unique<Cluster>(options);
  const ChannelClusterReport report = cluster->Run();
  // What has not drained cannot be destroyed safely, so it is leaked.
  if (!cluster->Drained()) cluster.release();  // NOLINT
  return report;
}

const char* SimLinksName(SimLinks links) {
  switch (links) {
    case SimLinks::kNics:
      return "nics";
    case SimLinks::kShm:
      return "shm";
    case SimLinks::kShmAndNics:
      return "shm,nics";
  }
  return "unknown";
}

const char* SimNicKindName(SimNicKind kind) {
  switch (kind) {
    case SimNicKind::kOrdered:
      return "ordered";
    case SimNicKind::kUnordered:
      return "unordered";
    case SimNicKind::kNoImmediates:
      return "no-immediates";
  }
  return "unknown";
}

ChannelClusterOptions OptionsOfSeed(uint64_t seed, const SimWeights& weights) {
  SimRandom random(seed);
  ChannelClusterOptions options;
  options.seed = seed;
  options.weights = weights;
  const auto weigh = [&weights, seed](Trouble trouble, bool drawn) {
    return weights.Weigh(trouble, seed, drawn);
  };
  options.workers = static_cast<int>(random.Between(2, 4));
  // Mostly short runs, so that many worlds are seen; some long ones, so that counters wrap around.
  const bool is_long = random.Below(32) == 0;
  options.load.operations = static_cast<int>(random.Between(50, is_long ? 5000 : 300));
  options.load.load_ns = is_long ? 600'000'000 : 60'000'000;
  options.load.faults = random.Below(10) != 0;
  options.load.aborts = weigh(Trouble::kAborts, random.Below(4) == 0);
  options.kills = options.load.faults && weigh(Trouble::kKills, random.Below(2) == 0);
  options.paths = options.load.faults && weigh(Trouble::kPaths, random.Below(3) == 0) ? 2 : 1;
  // From a generator of its own, so that earlier seeds keep their runs.
  SimRandom aside(seed * 0x9e3779b97f4a7c15u + 23);
  if (weigh(Trouble::kAim, aside.Below(3) == 0))
    options.load.aim_seed = 1 + aside.Below(UINT32_MAX);
  if (aside.Below(3) == 0) options.load.run_seed = 1 + aside.Below(UINT32_MAX);
  options.takes_here = aside.Below(2) == 0;
  static constexpr uint32_t kMostKeys[] = {5, 9, 20, 70};
  if (aside.Below(3) == 0) options.max_keys = kMostKeys[aside.Below(4)];
  if (aside.Below(2) == 0) options.load.text_seed = 1 + aside.Below(UINT32_MAX);
  SimRandom peers(seed * 0x9e3779b97f4a7c15u + 37);
  const auto draw = [&](Trouble trouble) {
    return weigh(trouble, peers.Below(100) < weights.of(trouble));
  };
  options.forgets = draw(Trouble::kForget);
  options.strays = draw(Trouble::kStray);
  return options;
}

ChannelClusterOptions StormOfSeed(uint64_t seed, const SimWeights& weights) {
  ChannelClusterOptions options = OptionsOfSeed(seed, weights);
  options.load.cancel_storm = true;
  options.load.aim_seed = options.load.run_seed = 0;
  options.load.operations = 400;
  options.load.load_ns = 60'000'000;
  options.load.faults = seed % 3 != 0;
  options.load.aborts = options.kills = false;
  options.paths = 1;
  options.forgets = false;
  if (seed % 4 == 1) options.load.deadline_seed = seed;
  return options;
}

ChannelClusterOptions GathersOfSeed(uint64_t seed, const SimWeights& weights) {
  ChannelClusterOptions options = OptionsOfSeed(seed, weights);
  options.load.gather_seed = 1 + seed * 0x9e3779b97f4a7c15u;
  options.load.aborts = options.forgets = false;
  return options;
}

void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 512 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

}  // namespace tryst
