#include "tests/process/pair/worker_pair.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "channel/trace/trace.h"
#include "tests/process/history/kept_traces.h"
#include "tests/process/pair/one_step.h"

namespace tryst {
namespace {

std::string ProducerName(size_t i) { return absl::StrCat("/job:ps/replica:0/task:", i); }
constexpr char kConsumer[] = "/job:worker/replica:0/task:0";
constexpr uint64_t kIncarnation = 0xab;

LocalRendezvous::Options StepOptions(int64_t max_held_bytes) {
  LocalRendezvous::Options options;
  options.check_immutable = false;
  options.max_held_bytes = max_held_bytes;
  return options;
}

}  // namespace

class WorkerPair::Hellos final : public Bootstrap {
 public:
  explicit Hellos(std::function<void(Hello*)> tamper) : tamper_(std::move(tamper)) {}
  void Exchange(const std::string& peer, const Hello& hello, Deadline, HelloDone done) override {
    if (tamper_) {
      done = [this, done = std::move(done)](absl::StatusOr<Hello> answer) mutable {
        if (answer.ok()) tamper_(&*answer);
        std::move(done)(std::move(answer));
      };
    }
    handlers.at(peer)->OnHello(hello, std::move(done));
  }
  std::map<std::string, HelloHandler*> handlers;  // Complete before the first fetch.

 private:
  const std::function<void(Hello*)> tamper_;
};

struct WorkerPair::Worker {
  struct Source final : OpenSource {
    explicit Source(LocalRendezvous* step) : step(step) {}
    LocalRendezvous* StepOf(int64_t) override { return step; }
    LocalRendezvous* const step;
  };

  Worker(const WorkerPairOptions& options, const Clock* clock, LocalRendezvous* step,
         Hellos* hellos, const std::string& name, uint64_t incarnation)
      : name(name),
        incarnation(incarnation),
        trace(EveryOperation()),
        poller(clock, PollerOptions{name, options.spin_us}),
        source(step) {
    nic = options.open_nic();
    TransportsOptions pool_options;
    pool_options.self = name;
    pool_options.incarnation = incarnation;
    pool_options.seed = std::hash<std::string>()(name);  // Its sessions' numbers are its own.
    if (options.traced) pool_options.trace = &trace;
    if (options.adjust) options.adjust(&pool_options);
    pool = MakeChannelPool(&poller, hellos, &source, std::vector<NicPath>{{"rdma/pair", nic}},
                           nullptr, std::move(pool_options));
    const absl::Status opened = pool->Open();
    TRYST_CHECK(opened.ok()) << opened;
    if (options.threads) poller.Start();
    hellos->handlers[name] = pool.get();
  }

  const std::string name;
  const uint64_t incarnation;
  Trace trace;
  Poller poller;
  Source source;
  std::shared_ptr<Nic> nic;
  std::unique_ptr<ChannelPool> pool;
};

WorkerPair::WorkerPair(const WorkerPairOptions& options)
    : threads_(options.threads), step_(StepOptions(options.max_held_bytes), &alarms_) {
  hellos_ = std::make_unique<Hellos>(options.tamper);
  for (size_t i = 0; i < static_cast<size_t>(options.producers); ++i) {
    producers_.push_back(std::make_unique<Worker>(options, &clock_, &step_, hellos_.get(),
                                                  ProducerName(i), kIncarnation));
  }
  consumer_ = std::make_unique<Worker>(options, &clock_, &step_, hellos_.get(), kConsumer, 0xc0);
}

WorkerPair::~WorkerPair() {
  const absl::Status why = absl::CancelledError("the pair is taken down");
  const std::vector<Worker*> workers = Workers();
  if (threads_) {
    for (Worker* worker : workers) {
      const absl::Status stopped = worker->pool->Stop(why, absl::Seconds(10));
      TRYST_CHECK(stopped.ok()) << stopped;
      worker->poller.Stop();
    }
  } else {
    for (Worker* worker : workers) worker->pool->Close(why);
    const auto drained = [](Worker* worker) { return worker->pool->Drained(); };
    do {
      Turn();
    } while (!std::all_of(workers.begin(), workers.end(), drained));
  }
  JudgeWhatIsTraced();
  for (Worker* worker : workers) worker->pool.reset();
}

std::vector<WorkerPair::Worker*> WorkerPair::Workers() {
  std::vector<Worker*> workers = {consumer_.get()};
  for (auto& producer : producers_) workers.push_back(producer.get());
  return workers;
}

// Nothing is under way any more.
void WorkerPair::JudgeWhatIsTraced() {
  std::vector<TraceDump> dumps;
  for (const Worker* worker : Workers()) {
    dumps.push_back(DumpOf(worker->trace, worker->name, worker->incarnation, clock_.NowNs()));
  }
  const TracesJudgement judged = JudgeTraces(dumps);
  TRYST_CHECK(judged.breaches.empty()) << judged.breaches;
}

ChannelPool* WorkerPair::producer(size_t i) { return producers_[i]->pool.get(); }
ChannelPool* WorkerPair::consumer() { return consumer_->pool.get(); }

uint64_t WorkerPair::consumer_tasks() const { return consumer_->poller.tasks_run(); }

TensorKey WorkerPair::Key(absl::string_view edge, int producer) {
  const std::string worker = ProducerName(static_cast<size_t>(producer));
  return TensorKeyPrefix::Make(absl::StrCat(worker, "/device:CPU:0"), kIncarnation,
                               absl::StrCat(kConsumer, "/device:CPU:0"), edge)
      ->At(0, 0);
}

void WorkerPair::Turn() {
  consumer_->poller.Turn();
  for (auto& producer : producers_) producer->poller.Turn();
}

}  // namespace tryst
