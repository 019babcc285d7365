#include "tests/contract/pool_world.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "channel/trace/trace.h"
#include "rendezvous/thread_alarms.h"
#include "tests/contract/breakable_nic.h"
#include "tests/contract/pool_audit.h"
#include "tests/process/pair/pool_counters.h"

namespace tryst {
namespace {

constexpr char kProducer[] = "/job:ps/replica:0/task:0";
constexpr char kConsumer[] = "/job:worker/replica:0/task:0";

class MemoryBootstrap final : public Bootstrap {
 public:
  void Set(const std::string& worker, HelloHandler* handler) {
    MutexLock lock(&mu_);
    handlers_[worker] = handler;
  }

  void Exchange(const std::string& peer, const Hello& hello, Deadline, HelloDone done) override {
    // Held during the call, so that no call runs in a worker that was removed. The handler only
    // posts.
    MutexLock lock(&mu_);
    HelloHandler* handler = handlers_[peer];
    if (handler == nullptr) {
      return std::move(done)(absl::UnavailableError(absl::StrCat(peer, " is not up")));
    }
    handler->OnHello(hello, std::move(done));
  }

 private:
  Mutex mu_;
  std::map<std::string, HelloHandler*> handlers_ ABSL_GUARDED_BY(mu_);
};

struct Worker {
  Worker(const PoolWorldOptions& options, Alarms* alarms, MemoryBootstrap* bootstrap,
         const std::string& name, uint64_t incarnation)
      : steps(alarms), name(name), incarnation(incarnation), bootstrap(bootstrap) {
    std::vector<Poller*> turned;
    std::vector<Trace*> traced;
    TraceOptions all;
    all.sample_every = 1;
    for (int i = 0; i < options.pollers; ++i) {
      pollers.push_back(std::make_unique<Poller>(&clock));
      turned.push_back(pollers.back().get());
      traces.push_back(std::make_unique<Trace>(all));
      traced.push_back(traces.back().get());
    }
    std::vector<NicPath> paths;
    for (int i = 0; i < options.paths; ++i) {
      nics.push_back(std::make_shared<BreakableNic>(options.open_nic()));
      paths.push_back({absl::StrCat("rdma/soft", i), nics.back()});
    }
    TransportsOptions pool_options;
    pool_options.self = name;
    pool_options.incarnation = incarnation;
    pool_options.seed = incarnation;
#ifdef __SANITIZE_THREAD__
    // A turn with thousands of fetches takes half a second, in which nobody answers the peer.
    pool_options.link.ack_timeout = 17;
    pool_options.silence_ms = 5000;
#endif
    if (options.adjust) options.adjust(&pool_options);
    if (options.wrap) {
      wrap = options.wrap(name == kProducer, incarnation, pool_options, turned[0], &steps);
    }
    TensorSource* source = &steps;
    if (wrap != nullptr) source = wrap->source();
    pools = MakeChannelPools(turned, traced, bootstrap, source, std::move(paths), nullptr,
                             std::move(pool_options));
    const absl::Status opened = pools->Open();
    TRYST_CHECK(opened.ok()) << opened;
    if (wrap != nullptr) wrap->SetChannels(pools.get());
    for (const auto& poller : pollers) poller->Start();
    bootstrap->Set(name, pools.get());
  }

  ~Worker() { Stop(); }

  // A peer's poller may go on using ours until it has stopped, too: it answers hellos in place.
  void Stop() {
    if (pools == nullptr) return;
    bootstrap->Set(name, nullptr);
    const absl::Status stopped =
        pools->Stop(absl::CancelledError("the worker is stopping"), absl::Seconds(20));
    EXPECT_TRUE(stopped.ok()) << stopped;
    if (wrap != nullptr) {
      const absl::Status unwrapped = wrap->Stop();
      EXPECT_TRUE(unwrapped.ok()) << unwrapped;
    }
    for (const auto& poller : pollers) poller->Stop();
    wrap.reset();
    pools.reset();
  }

  AuditedWorker Audited() const {
    AuditedWorker audited{name, incarnation, pools.get(), {}};
    for (const auto& trace : traces) audited.traces.push_back(trace.get());
    return audited;
  }

  const SteadyClock clock;
  StepTable steps;
  std::vector<std::unique_ptr<Trace>> traces;
  std::vector<std::unique_ptr<Poller>> pollers;
  const std::string name;
  const uint64_t incarnation;
  MemoryBootstrap* const bootstrap;
  std::vector<std::shared_ptr<BreakableNic>> nics;
  std::unique_ptr<PoolWorldWrap> wrap;  // May be null.
  std::unique_ptr<ChannelPools> pools;
};

class PoolWorld final : public ChannelWorld {
 public:
  explicit PoolWorld(PoolWorldOptions options) : options_(std::move(options)) {
    producer_ = std::make_unique<Worker>(options_, &alarms_, &bootstrap_, kProducer, incarnation_);
    consumer_ = std::make_unique<Worker>(options_, &alarms_, &bootstrap_, kConsumer, 0xc0);
  }

  ~PoolWorld() override {
    const std::string way = consumer_->pools->Explain(kProducer);
    EXPECT_TRUE(way.empty() || way.find(options_.path) != std::string::npos) << way;
    consumer_->Stop();
    producer_->Stop();
  }

  StepTable* producer() override { return &producer_->steps; }
  TensorFetcher* consumer() override {
    if (consumer_->wrap != nullptr) return consumer_->wrap->fetcher();
    return consumer_->pools.get();
  }
  uint64_t producer_incarnation() const override { return incarnation_; }

  std::string Audit() override {
    AuditedWorker consumer = consumer_->Audited();
    if (!options_.states) consumer.traces.clear();
    return tryst::Audit(consumer, producer_->Audited(), !troubled_);
  }

  bool BreakLink() override {
    troubled_ = true;
    if (options_.paths == 0 && !options_.break_link) return false;
    // Breaks at each side in turn, because each must notice either break.
    Worker* worker = ++breaks_ % 2 == 0 ? producer_.get() : consumer_.get();
    PollerOf(worker)->RunAndWait([&] {
      if (options_.break_link) return options_.break_link(worker == producer_.get());
      for (auto& nic : worker->nics) nic->BreakAll();
    });
    return true;
  }

  bool LosePath(bool lost) override {
    if (options_.paths < 2) return false;
    troubled_ = true;
    // Loses the path at one end, then at the other.
    if (lost) ++losses_;
    Worker* worker = losses_ % 2 == 0 ? producer_.get() : consumer_.get();
    PollerOf(worker)->RunAndWait([&] { worker->nics[0]->SetLost(lost); });
    return true;
  }

  bool RestartProducer() override {
    troubled_ = true;
    producer_.reset();
    ++incarnation_;
    producer_ = std::make_unique<Worker>(options_, &alarms_, &bootstrap_, kProducer, incarnation_);
    return true;
  }
  absl::StatusCode EndOfALife() const override { return options_.end_of_a_life; }

  std::string Explain() override {
    std::string devices;
    for (Worker* worker : {consumer_.get(), producer_.get()}) {
      if (worker->wrap == nullptr) continue;
      worker->pollers[0]->RunAndWait([&] { devices += worker->wrap->ExplainNow(); });
    }
    return absl::StrCat(devices, "consumer:\n", consumer_->pools->Explain(""), "producer:\n",
                        producer_->pools->Explain(""));
  }
  std::pair<uint64_t, uint64_t> PinnedBytes() override {
    return Ask(consumer_->pools->all()[0].get(), &tryst::PinnedBytes);
  }

 private:
  // The poller that owns everything between the two.
  Poller* PollerOf(Worker* worker) {
    const char* const peer = worker == producer_.get() ? kConsumer : kProducer;
    return worker->pollers[ChannelPools::PlaceOf(peer, worker->pollers.size())].get();
  }

  const PoolWorldOptions options_;
  ThreadAlarms alarms_;
  MemoryBootstrap bootstrap_;
  uint64_t incarnation_ = 0xab;
  bool troubled_ = false;  // By the test.
  int breaks_ = 0;
  int losses_ = 0;
  std::unique_ptr<Worker> producer_;
  std::unique_ptr<Worker> consumer_;
};

}  // namespace

std::unique_ptr<ChannelWorld> OpenPoolWorld(const PoolWorldOptions& options) {
  return std::make_unique<PoolWorld>(options);
}

}  // namespace tryst
