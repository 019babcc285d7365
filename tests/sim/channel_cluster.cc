#include "tests/sim/channel_cluster.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "rendezvous/local_rendezvous.h"
#include "verbs/sim/sim_nic.h"

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;
// How long after the load and the faults everything that can be had may take to come.
constexpr int64_t kRestNs = 30'000 * kMs;
// By how much a fetch whose memory is the caller's may miss its deadline: the time to
// notice a silent peer and to drain the queue pair that could write it.
constexpr int64_t kFenceNs = 8'000 * kMs;

std::string WorkerNameOf(size_t index) { return absl::StrCat("/job:w/replica:0/task:", index); }

class Cluster;

// One process.
struct Worker {
  Worker(Cluster* cluster, size_t index, uint64_t incarnation);
  ~Worker();

  LocalRendezvous* step(int64_t step_id);

  Cluster* const cluster;
  const size_t index;
  const uint64_t incarnation;
  Poller poller;
  std::map<int64_t, std::unique_ptr<LocalRendezvous>> steps;
  struct Source final : TensorSource {
    explicit Source(Worker* worker) : worker(worker) {}
    void Take(int64_t step_id, const TensorKey& key, uint64_t, const Args& args,
              DoneFn done) override {
      if (key.src_incarnation() != worker->incarnation) {
        return std::move(done)(absl::AbortedError("another incarnation"), Args(), args, Tensor(),
                               false);
      }
      worker->step(step_id)->RecvAsync(key, args, std::move(done));
    }
    Worker* const worker;
  } source;
  std::shared_ptr<Nic> nic;
  std::unique_ptr<ChannelPool> pool;
  int64_t paused_until_ns = 0;  // The machine has other things to do.
};

// One fetch and what became of it.
struct Fetch {
  size_t id = 0;
  size_t consumer = 0;
  size_t producer = 0;
  uint64_t consumer_incarnation = 0;
  uint64_t producer_incarnation = 0;
  size_t edge = 0;
  int64_t deadline_ns = std::numeric_limits<int64_t>::max();
  bool has_destination = false;
  bool may_end_early = false;
  Tensor destination;
  std::unique_ptr<Cancellation> cancellation;
  size_t turn = 0;      // Which fetch of its key it is, from 0.
  uint64_t serial = 0;  // What it got.
  int ends = 0;
  absl::Status status;
};

// What was sent on one edge, in order, and what arrived.
struct Edge {
  std::vector<uint64_t> sent;       // Serials.
  std::vector<uint64_t> delivered;  // In the order of delivery.
  std::set<uint64_t> sent_set;
  size_t fetched = 0;
  size_t ended_early = 0;
};

class Cluster {
 public:
  explicit Cluster(const ChannelClusterOptions& options);
  ~Cluster();

  ChannelClusterReport Run();
  void Violate(const std::string& what) {
    report_.violations.push_back(absl::StrCat("at ", world_.NowNs() / 1000, " us: ", what));
  }

  SimWorld world_;
  VirtualAlarms alarms_;  // Never moves: takes have no deadline.
  std::mt19937_64 random_;

  uint64_t Draw(uint64_t below) { return random_() % below; }
  bool Chance(uint32_t percent) { return Draw(100) < percent; }

  // Hellos cross at the speed of a loaded machine, and some are lost either way.
  class Wire final : public Bootstrap {
   public:
    explicit Wire(Cluster* cluster) : cluster(cluster) {}
    void Exchange(const std::string& peer, const Hello& hello, Deadline deadline,
                  HelloDone done) override;
    Cluster* const cluster;
  };

  const ChannelClusterOptions options_;
  Wire wire_{this};
  ChannelPoolOptions pool_options_;
  uint8_t nic_ports_ = 1;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Worker>> dying_;
  bool quiet_ = false;  // No faults any more.

 private:
  void PlanFaults();
  void PlanLoad();
  void Send(size_t producer, size_t consumer, size_t edge);
  void StartFetch(size_t producer, size_t consumer, size_t edge);
  void OnDone(Fetch* fetch, absl::Status status, const Tensor& tensor, bool is_dead);
  void CheckContent(Fetch* fetch, Edge* edge, const Tensor& tensor);
  void Kill(size_t index);
  bool TurnAll();
  void Advance(int64_t until_ns);
  void RunUntil(int64_t until_ns);
  void Finish();
  TensorKey KeyOf(size_t producer, uint64_t incarnation, size_t consumer, size_t edge);
  Tensor MakeTensor(uint64_t serial);
  uint64_t ElementsOf(uint64_t serial) const;
  std::string EdgeName(const Fetch& fetch) const;
  std::string KeyTextOf(const Fetch& fetch);

  uint64_t next_incarnation_ = 1000;
  uint64_t next_serial_ = 1;
  std::deque<Fetch> fetches_;
  std::map<std::string, Edge> edges_;  // By full key: an incarnation has its own.
  size_t open_ = 0;
  uint64_t size_class_ = 0;
  ChannelClusterReport report_;
};

Worker::Worker(Cluster* cluster, size_t index, uint64_t incarnation)
    : cluster(cluster),
      index(index),
      incarnation(incarnation),
      poller(&cluster->world_.clock()),
      source(this) {
  SimNicOptions nic_options;
  nic_options.ports = cluster->nic_ports_;
  nic = cluster->world_.OpenNic(static_cast<uint32_t>(index), nic_options);
  ChannelPoolOptions options = cluster->pool_options_;
  options.self = WorkerNameOf(index);
  options.incarnation = incarnation;
  options.seed = incarnation * 7919;
  pool = std::make_unique<ChannelPool>(&poller, &cluster->wire_, &source,
                                       std::vector<NicPath>{{"rdma/sim", nic}}, nullptr, options);
  const absl::Status opened = pool->Open();
  TRYST_CHECK(opened.ok()) << opened;
}

Worker::~Worker() {
  pool.reset();
  nic.reset();
}

LocalRendezvous* Worker::step(int64_t step_id) {
  auto& step = steps[step_id];
  if (step == nullptr) {
    LocalRendezvous::Options options;
    options.shards = 1;
    step = std::make_unique<LocalRendezvous>(options, &cluster->alarms_);
  }
  return step.get();
}

void Cluster::Wire::Exchange(const std::string& peer, const Hello& hello, Deadline deadline,
                             HelloDone done) {
  Cluster* c = cluster;
  // Shared by the answer and the time-out; whichever is first.
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
  const bool lossy = c->options_.faults && !c->quiet_;
  if (lossy && c->Chance(5)) return;  // The request is lost.
  const bool answer_lost = lossy && c->Chance(5);
  const bool doubled = lossy && c->Chance(3);
  const int64_t there_ns = now_ns + 20'000 + static_cast<int64_t>(c->Draw(2 * kMs));
  const int64_t back_ns = 20'000 + static_cast<int64_t>(c->Draw(2 * kMs));
  for (int copy = 0; copy < (doubled ? 2 : 1); ++copy) {
    c->world_.At(there_ns + copy * 100'000, [c, peer, hello, answer, answer_lost, back_ns] {
      for (auto& worker : c->workers_) {
        if (worker == nullptr || WorkerNameOf(worker->index) != peer) continue;
        worker->pool->OnHello(
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
    : world_(options.seed), random_(options.seed * 2654435761u + 1), options_(options) {
  // Sizes from tiny, where everything waits for everything, to ordinary.
  static constexpr uint32_t kSlots[] = {1, 2, 3, 8, 128};
  static constexpr uint32_t kRing[] = {2, 3, 4, 16};
  pool_options_.link.slots = kSlots[Draw(5)];
  pool_options_.link.ring_slots = kRing[Draw(4)];
  pool_options_.link.message_bytes = Chance(50) ? 8192 : 4608;
  pool_options_.link.queue_pairs = Chance(30) ? 1 + static_cast<uint32_t>(Draw(4)) : 1;
  pool_options_.link.send_depth = Chance(50) ? 16 : 128;
  pool_options_.link.digests = Chance(40);
  pool_options_.link.ack_timeout = 12;
  pool_options_.link.retry_count = 3;
  pool_options_.stripe_bytes = 32 << 10;
  pool_options_.write_bytes = Chance(30) ? 8 << 10 : 16 << 20;
  pool_options_.landing_bytes = Chance(50) ? 16 << 10 : 256 << 10;
  pool_options_.landing_cap_bytes = Chance(30) ? 768 << 10 : 16 << 20;
  pool_options_.eager_bytes = Chance(30) ? 64 : 8192;
  pool_options_.retain_ms = 100'000;
  size_class_ = Draw(3);
  if (Chance(25)) nic_ports_ = 2;
  if (options.cancel_storm) pool_options_.link.digests = false;
  for (int i = 0; i < options.workers; ++i) {
    workers_.push_back(std::make_unique<Worker>(this, static_cast<size_t>(i), next_incarnation_++));
  }
}

Cluster::~Cluster() = default;

void Cluster::PlanFaults() {
  if (!options_.faults) return;
  FaultPlan plan;
  const auto some = [&](uint32_t percent, uint64_t most) {
    return Chance(percent) ? static_cast<uint32_t>(1 + Draw(most)) : 0;
  };
  plan.break_ppm = some(50, 3000);
  plan.fail_ppm = some(40, 2000);
  plan.delay_ppm = some(50, 20'000);
  plan.lose_ppm = some(20, 500);
  plan.lose_for_ever_ppm = some(10, 200);
  plan.duplicate_ppm = some(20, 500);
  plan.registration_ppm = some(10, 2000);
  const auto every = [&](uint32_t percent) {
    return Chance(percent) ? static_cast<int64_t>((5 + Draw(40)) * kMs) : 0;
  };
  plan.port_flap_ns = every(15);
  plan.address_change_ns = every(15);
  plan.silence_ns = every(20);
  plan.slow_link_ns = every(20);
  plan.lossy_link_ns = every(20);
  plan.overrun_ns = every(5);
  plan.jump_ns = every(10);
  world_.SetFaultPlan(plan);
}

TensorKey Cluster::KeyOf(size_t producer, uint64_t incarnation, size_t consumer, size_t edge) {
  return TensorKeyPrefix::Make(absl::StrCat(WorkerNameOf(producer), "/device:CPU:0"), incarnation,
                               absl::StrCat(WorkerNameOf(consumer), "/device:CPU:0"),
                               absl::StrCat("edge", edge))
      ->At(0, 0);
}

// The size follows from the serial, and the content from both.
uint64_t Cluster::ElementsOf(uint64_t serial) const {
  const uint64_t hash = (serial * 0x9e3779b97f4a7c15u) >> 20;
  if (options_.cancel_storm) return 1200 + hash % 60'000;
  switch (hash % 8) {
    case 0:
      return 1;  // Besides the serial nothing.
    case 1:
    case 2:
    case 3:
      return 2 + hash % 100;
    case 4:
    case 5:
      return 500 + hash % 1000;
    case 6:
      return 1000 + hash % 9000;
    default:
      return size_class_ == 0 ? 200 : 5000 + hash % 40'000;
  }
}

Tensor Cluster::MakeTensor(uint64_t serial) {
  const uint64_t elements = ElementsOf(serial);
  Tensor tensor = *Tensor::Allocate(DType::kUint64, {static_cast<int64_t>(elements)});
  uint64_t* at = static_cast<uint64_t*>(tensor.mutable_data());
  for (uint64_t i = 0; i < elements; ++i) at[i] = serial + (i << 32);
  return tensor;
}

void Cluster::Send(size_t producer, size_t consumer, size_t edge) {
  Worker* worker = workers_[producer].get();
  if (worker == nullptr) return;
  const TensorKey key = KeyOf(producer, worker->incarnation, consumer, edge);
  const uint64_t serial = next_serial_++;
  Edge& record = edges_[std::string(key.text())];
  record.sent.push_back(serial);
  record.sent_set.insert(serial);
  const absl::Status sent = worker->step(1)->Send(key, Args(), MakeTensor(serial), false);
  if (!sent.ok()) Violate(absl::StrCat("send refused: ", sent.ToString()));
}

void Cluster::StartFetch(size_t producer, size_t consumer, size_t edge) {
  Worker* from = workers_[producer].get();
  Worker* to = workers_[consumer].get();
  if (from == nullptr || to == nullptr) return;
  fetches_.emplace_back();
  Fetch* fetch = &fetches_.back();
  fetch->id = fetches_.size();
  fetch->producer = producer;
  fetch->consumer = consumer;
  fetch->producer_incarnation = from->incarnation;
  fetch->consumer_incarnation = to->incarnation;
  fetch->edge = edge;
  const TensorKey key = KeyOf(producer, from->incarnation, consumer, edge);
  fetch->turn = edges_[std::string(key.text())].fetched++;
  Args args;
  if (Chance(15)) {
    fetch->may_end_early = true;
    fetch->deadline_ns = world_.NowNs() + static_cast<int64_t>(Draw(30 * kMs));
    args.deadline = Deadline::AtNs(fetch->deadline_ns);
  }
  if (Chance(options_.cancel_storm ? 90 : 15)) {
    fetch->may_end_early = true;
    fetch->cancellation = std::make_unique<Cancellation>();
    args.cancellation = fetch->cancellation.get();
    const uint64_t within_ns = options_.cancel_storm ? kMs / 2 : 20 * kMs;
    world_.At(world_.NowNs() + static_cast<int64_t>(Draw(within_ns)),
              [fetch] { fetch->cancellation->StartCancel(); });
  }
  if (Chance(options_.cancel_storm ? 80 : 25)) {
    // The next one sent on this edge is mostly, not always, of this size.
    const Edge& record = edges_[std::string(key.text())];
    // Some have been taken along by fetches that ended early: try all that may be next.
    const size_t next = options_.cancel_storm ? record.sent.size() - 1 : record.delivered.size();
    const uint64_t serial = next < record.sent.size() ? record.sent[next] : next_serial_;
    fetch->has_destination = true;
    fetch->destination =
        *Tensor::Allocate(DType::kUint64, {static_cast<int64_t>(ElementsOf(serial))});
    memset(fetch->destination.mutable_data(), 0xcd, fetch->destination.bytes());
    args.destination = fetch->destination;
  }
  ++open_;
  to->pool->Fetch(
      1, key, args,
      [this, fetch](absl::Status status, const Args&, const Args&, Tensor tensor, bool is_dead) {
        OnDone(fetch, std::move(status), tensor, is_dead);
      });
}

std::string Cluster::KeyTextOf(const Fetch& fetch) {
  return std::string(
      KeyOf(fetch.producer, fetch.producer_incarnation, fetch.consumer, fetch.edge).text());
}

std::string Cluster::EdgeName(const Fetch& fetch) const {
  return absl::StrCat("fetch ", fetch.id, " of edge ", fetch.edge, " from ", fetch.producer, " to ",
                      fetch.consumer);
}

void Cluster::OnDone(Fetch* fetch, absl::Status status, const Tensor& tensor, bool is_dead) {
  if (++fetch->ends > 1) return Violate(absl::StrCat(EdgeName(*fetch), " ended twice"));
  --open_;
  fetch->status = status;
  const int64_t late_ns = world_.NowNs() - fetch->deadline_ns;
  // Time that the machine was away, or the clock jumped, is not the channel's.
  if (late_ns > (fetch->has_destination ? kFenceNs : 500 * kMs)) {
    Violate(absl::StrCat(EdgeName(*fetch), " ended ", late_ns / kMs,
                         " ms after its deadline: ", status.ToString()));
  }
  Edge& edge = edges_[KeyTextOf(*fetch)];
  if (status.ok()) {
    ++report_.delivered;
    if (is_dead) Violate(absl::StrCat(EdgeName(*fetch), " delivered a dead tensor"));
    CheckContent(fetch, &edge, tensor);
  } else {
    ++report_.failed;
    ++edge.ended_early;
    switch (status.code()) {
      case absl::StatusCode::kCancelled:
      case absl::StatusCode::kDeadlineExceeded:
        ++report_.early;
        if (!fetch->may_end_early) {
          Violate(absl::StrCat(EdgeName(*fetch), " ended with ", status.ToString()));
        }
        break;
      case absl::StatusCode::kInvalidArgument:  // The destination was of another size.
        if (!fetch->has_destination) {
          Violate(absl::StrCat(EdgeName(*fetch), " ended with ", status.ToString()));
        }
        break;
      case absl::StatusCode::kAborted:      // The producer was restarted.
      case absl::StatusCode::kUnavailable:  // Or the consumer stopped.
        if (report_.kills == 0) {
          Violate(absl::StrCat(EdgeName(*fetch), " ended with ", status.ToString()));
        }
        break;
      case absl::StatusCode::kResourceExhausted:  // A registration was made to fail.
        if (!options_.faults) {
          Violate(absl::StrCat(EdgeName(*fetch), " ended with ", status.ToString()));
        }
        break;
      case absl::StatusCode::kDataLoss:
      default:
        Violate(absl::StrCat(EdgeName(*fetch), " ended with ", status.ToString()));
    }
    if (fetch->has_destination) {
      // It is the caller's again: whoever writes it now writes what was given back.
      memset(fetch->destination.mutable_data(), 0xab, fetch->destination.bytes());
      world_.Poison(fetch->destination.data(), fetch->destination.bytes());
    }
  }
}

void Cluster::CheckContent(Fetch* fetch, Edge* edge, const Tensor& tensor) {
  if (tensor.dtype() != DType::kUint64 || tensor.shape().rank() != 1 || tensor.shape().dim(0) < 1) {
    return Violate(absl::StrCat(EdgeName(*fetch), " delivered something else"));
  }
  const uint64_t* at = tensor.data_as<uint64_t>();
  const uint64_t serial = at[0];
  fetch->serial = serial;
  report_.bytes += tensor.bytes();
  if (edge->sent_set.count(serial) == 0) {
    return Violate(
        absl::StrCat(EdgeName(*fetch), " delivered serial ", serial, ", never sent on this edge"));
  }
  if (tensor.shape().dim(0) != static_cast<int64_t>(ElementsOf(serial))) {
    Violate(absl::StrCat(EdgeName(*fetch), " delivered a wrong size"));
  }
  for (int64_t i = 0; i < tensor.shape().dim(0); ++i) {
    if (at[i] != serial + (static_cast<uint64_t>(i) << 32)) {
      return Violate(absl::StrCat(EdgeName(*fetch), " delivered wrong bytes at ", i));
    }
  }
  if (std::find(edge->delivered.begin(), edge->delivered.end(), serial) != edge->delivered.end()) {
    Violate(absl::StrCat(EdgeName(*fetch), " delivered serial ", serial, " twice"));
  }
  edge->delivered.push_back(serial);
}

void Cluster::PlanLoad() {
  const int edges = 1 + static_cast<int>(Draw(6));
  const size_t workers = workers_.size();
  for (int i = 0; i < options_.operations; ++i) {
    const size_t producer = Draw(workers);
    const size_t consumer = (producer + 1 + Draw(workers - 1)) % workers;
    const size_t edge = Draw(static_cast<uint64_t>(edges));
    const auto when = [this] {
      return world_.NowNs() + static_cast<int64_t>(Draw(static_cast<uint64_t>(options_.load_ns)));
    };
    if (options_.cancel_storm) {
      world_.At(when(), [this, producer, consumer, edge] {
        Send(producer, consumer, edge);
        StartFetch(producer, consumer, edge);
      });
      continue;
    }
    world_.At(when(), [this, producer, consumer, edge] { Send(producer, consumer, edge); });
    world_.At(when(), [this, producer, consumer, edge] { StartFetch(producer, consumer, edge); });
  }
  if (options_.kills) {
    const uint64_t kills = Draw(4);
    for (uint64_t i = 0; i < kills; ++i) {
      const size_t index = Draw(workers);
      world_.At(
          world_.NowNs() + static_cast<int64_t>(Draw(static_cast<uint64_t>(options_.load_ns))),
          [this, index] { Kill(index); });
    }
  }
}

// The process of a worker ends without a word, and another one takes its place.
void Cluster::Kill(size_t index) {
  Worker* worker = workers_[index].get();
  if (worker == nullptr) return;
  ++report_.kills;
  // What the dead process itself had asked for is nobody's any more.
  world_.Kill(static_cast<uint32_t>(index));
  worker->pool->Close(absl::UnavailableError("killed"));
  // Here it is still an object that has to be taken down: works of a dead NIC never come
  // back, and are destroyed after the drain deadline.
  dying_.push_back(std::move(workers_[index]));
  workers_[index] = std::make_unique<Worker>(this, index, next_incarnation_++);
}

bool Cluster::TurnAll() {
  bool worked = false;
  const size_t first = Draw(workers_.size());
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker* worker = workers_[(first + i) % workers_.size()].get();
    if (worker == nullptr || worker->paused_until_ns > world_.NowNs()) continue;
    if (options_.faults && !quiet_ && Draw(2000) == 0) {
      worker->paused_until_ns = world_.NowNs() + static_cast<int64_t>(Draw(10 * kMs));
      continue;
    }
    worked |= worker->poller.Step();
  }
  for (auto& worker : dying_) {
    worked |= worker->poller.Step();
    if (worker->pool->Drained()) worker.reset();
  }
  dying_.erase(std::remove(dying_.begin(), dying_.end(), nullptr), dying_.end());
  return worked;
}

// Lets the next thing happen, whatever it is.
void Cluster::Advance(int64_t until_ns) {
  int64_t next_ns = until_ns;
  for (const auto& worker : workers_) {
    if (worker == nullptr) continue;
    next_ns = std::min(next_ns, std::max(worker->poller.NextTimerNs(), worker->paused_until_ns));
    if (worker->paused_until_ns > world_.NowNs()) {
      next_ns = std::min(next_ns, worker->paused_until_ns);
    }
  }
  for (const auto& worker : dying_) {
    next_ns = std::min(next_ns, worker->poller.NextTimerNs());
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
    if (quiet_ && open_ == 0 && ++idle_turns > 50) return;
    if (TurnAll() && !Chance(30)) continue;
    Advance(until_ns);
  }
}

ChannelClusterReport Cluster::Run() {
  PlanFaults();
  PlanLoad();
  RunUntil(world_.NowNs() + options_.load_ns);
  Finish();
  report_.faults = world_.faults_done();
  report_.events = world_.events();
  for (const std::string& violation : world_.violations()) {
    report_.violations.push_back(absl::StrCat("memory: ", violation));
  }
  return report_;
}

void Cluster::Finish() {
  // Peace: outages end, and everything that was asked for can be had.
  world_.SetFaultPlan(FaultPlan());
  quiet_ = true;
  for (uint32_t place = 0; place < workers_.size(); ++place) {
    world_.SetSilent(place, false);
    for (uint8_t port = 1; port <= nic_ports_; ++port) world_.SetPort(place, port, true);
  }
  RunUntil(world_.NowNs() + 100 * kMs);
  // For each edge of a living producer as many tensors as are still waited for; and once
  // more, because a fetch that ends early may have taken one along.
  for (int round = 0; round < 4 && open_ > 0; ++round) {
    for (Fetch& fetch : fetches_) {
      if (fetch.ends != 0) continue;
      Worker* producer = workers_[fetch.producer].get();
      if (producer->incarnation != fetch.producer_incarnation) continue;
      Send(fetch.producer, fetch.consumer, fetch.edge);
    }
    RunUntil(world_.NowNs() + kRestNs);
  }
  for (Fetch& fetch : fetches_) {
    if (fetch.ends != 0) continue;
    Worker* producer = workers_[fetch.producer].get();
    Worker* consumer = workers_[fetch.consumer].get();
    if (consumer->incarnation != fetch.consumer_incarnation) continue;
    Violate(absl::StrCat(EdgeName(fetch), " never ended; ",
                         consumer->pool->ExplainNow(WorkerNameOf(fetch.producer)),
                         "; producer: ", producer->pool->ExplainNow(WorkerNameOf(fetch.consumer))));
  }
  // Fetches and sends of a key meet in their order, unless fetches ended early: those may
  // take one along, and their neighbours' turns move up.
  for (const Fetch& fetch : fetches_) {
    const Edge& edge = edges_[KeyTextOf(fetch)];
    if (edge.ended_early > 0 || fetch.ends == 0 || !fetch.status.ok()) continue;
    if (fetch.serial != edge.sent[fetch.turn]) {
      Violate(absl::StrCat(EdgeName(fetch), " was number ", fetch.turn, " and got serial ",
                           fetch.serial, " in place of ", edge.sent[fetch.turn]));
    }
  }
  const bool clean = report_.violations.empty();
  report_.fetches = fetches_.size();
  report_.kills += 1;  // From here on kUnavailable is what fetches may end with.
  for (const auto& worker : workers_) {
    const FetchCounters counters = worker->pool->FetchCountersNow();
    report_.epochs += counters.epochs;
    report_.replays += counters.replays;
    worker->pool->Close(absl::UnavailableError("the simulation is over"));
  }
  report_.kills -= 1;
  const int64_t until_ns = world_.NowNs() + 20'000 * kMs;
  const auto drained = [this] {
    return dying_.empty() && std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) {
             return worker->pool->Drained();
           });
  };
  report_.kills += 1;
  while (!drained() && world_.NowNs() < until_ns) {
    if (!TurnAll()) Advance(until_ns);
  }
  report_.kills -= 1;
  if (!drained()) Violate("not everything drained");
  for (Fetch& fetch : fetches_) {
    if (fetch.ends == 0 && clean) Violate(absl::StrCat(EdgeName(fetch), " lost its callback"));
  }
  if (!drained()) {
    // Cannot be taken down in an orderly way: leave it.
    for (auto& worker : workers_) worker.release();  // NOLINT
    for (auto& worker : dying_) worker.release();    // NOLINT
    return;
  }
  fetches_.clear();
  for (auto& worker : workers_) {
    const SimNic* nic = world_.nic(static_cast<uint32_t>(worker->index));
    worker->pool.reset();
    if (nic != nullptr && nic->queue_pairs() != 0) Violate("queue pairs are left");
    if (nic != nullptr && nic->regions() != 0) {
      Violate(absl::StrCat(nic->regions(), " regions are left"));
    }
    worker->nic.reset();
  }
  workers_.clear();
}

}  // namespace

ChannelClusterReport RunChannelCluster(const ChannelClusterOptions& options) {
  Cluster cluster(options);
  return cluster.Run();
}

ChannelClusterOptions OptionsOfSeed(uint64_t seed) {
  std::mt19937_64 random(seed);
  ChannelClusterOptions options;
  options.seed = seed;
  options.workers = 2 + static_cast<int>(random() % 3);
  options.operations = 50 + static_cast<int>(random() % 250);
  options.faults = random() % 10 != 0;
  options.kills = options.faults && random() % 2 == 0;
  return options;
}

}  // namespace tryst
