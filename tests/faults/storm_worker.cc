#include "tests/faults/storm_worker.h"

#include <time.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "channel/transports.h"
#include "tests/faults/socket_bootstrap.h"
#include "tests/pair/pool_counters.h"
#include "verbs/ibv/ibv_nic.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

constexpr size_t kEdges = 4;
constexpr size_t kInFlight = 16;
constexpr int64_t kHangNs = 30'000'000'000;

std::string WorkerName(const std::string& letter) {
  return absl::StrCat("/job:storm/replica:0/task:", letter == "a" ? 0 : 1);
}

// Mostly small enough for a message, some in between, some large.
uint64_t WordsOf(uint64_t serial) {
  switch (serial % 8) {
    case 7:
      return (256 << 10) / 8 + serial % 100;
    case 6:
    case 5:
      return (32 << 10) / 8 + serial % 1000;
    default:
      return 1 + serial % 500;
  }
}
uint64_t WordAt(uint64_t step, uint64_t serial, uint64_t i) {
  return (step ^ (serial << 20)) + i * 0x9e3779b97f4a7c15u;
}

// Makes each tensor when it is asked for: number n to the nth who asks for a key of a step.
class NumberedSource final : public TensorSource {
 public:
  explicit NumberedSource(uint64_t incarnation) : incarnation_(incarnation) {}
  void Take(int64_t step, const TensorKey& key, uint64_t, const Args& args, DoneFn done) override {
    if (key.src_incarnation() != incarnation_) {
      return std::move(done)(absl::AbortedError("another incarnation"), Args(), args, Tensor(),
                             false);
    }
    Line& line = lines_[{step, std::string(key.edge())}];
    if (!line.given_back.empty()) {
      Tensor tensor = std::move(line.given_back.begin()->second);
      line.given_back.erase(line.given_back.begin());
      return std::move(done)(absl::OkStatus(), Args(), args, std::move(tensor), false);
    }
    const uint64_t serial = line.next++;
    const uint64_t words = WordsOf(serial);
    Tensor tensor = *Tensor::Allocate(DType::kUint64, {static_cast<int64_t>(words)});
    uint64_t* at = static_cast<uint64_t*>(tensor.mutable_data());
    for (uint64_t i = 0; i < words; ++i) at[i] = WordAt(static_cast<uint64_t>(step), serial, i);
    std::move(done)(absl::OkStatus(), Args(), args, std::move(tensor), false);
  }
  void GiveBack(int64_t step, const TensorKey& key, Taken taken) override {
    if (!taken.tensor.valid()) return;
    const uint64_t serial = (*taken.tensor.data_as<uint64_t>() ^ static_cast<uint64_t>(step)) >> 20;
    lines_[{step, std::string(key.edge())}].given_back[serial] = std::move(taken.tensor);
  }

 private:
  struct Line {
    uint64_t next = 0;
    std::map<uint64_t, Tensor> given_back;  // By number.
  };
  const uint64_t incarnation_;
  std::map<std::pair<int64_t, std::string>, Line> lines_;  // Poller thread only.
};

// Fetches from one life of the peer.
class Consumer {
 public:
  Consumer(ChannelPool* pool, const Clock* clock, const StormWorkerOptions& options)
      : pool_(pool), clock_(clock), options_(options) {}

  // Begins with a life of the peer, under a step of its own. REQUIRES: idle().
  void Begin(uint64_t peer_incarnation, uint64_t step) {
    MutexLock lock(&mu_);
    step_ = static_cast<int64_t>(step);
    over_ = false;
    keys_.clear();
    next_.assign(kEdges, 0);
    for (size_t edge = 0; edge < kEdges; ++edge) {
      keys_.push_back(
          TensorKeyPrefix::Make(
              absl::StrCat(WorkerName(options_.name == "a" ? "b" : "a"), "/device:CPU:0"),
              peer_incarnation, absl::StrCat(WorkerName(options_.name), "/device:CPU:0"),
              absl::StrCat("edge", edge))
              ->At(0, 0));
    }
    for (size_t i = 0; i < kInFlight; ++i) Start(i % kEdges);
  }
  bool idle() {
    MutexLock lock(&mu_);
    return out_ == 0;
  }

 private:
  void Start(size_t edge) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (over_ || options_.page->stop.load() != 0) return;
    ++out_;
    const uint64_t serial = next_[edge]++;
    const int64_t step = step_;
    Args args;
    args.deadline = Deadline::AtNs(clock_->NowNs() + kHangNs);
    pool_->Fetch(
        step, keys_[edge], args,
        [this, edge, step, serial](absl::Status status, const Args&, const Args&, Tensor tensor,
                                   bool) { OnDone(edge, step, serial, status, tensor); });
  }

  void OnDone(size_t edge, int64_t step, uint64_t serial, const absl::Status& status,
              const Tensor& tensor) {
    WorkerPage* page = options_.page;
    if (status.ok()) {
      Check(edge, step, serial, tensor);
      page->delivered.fetch_add(1);
      page->bytes.fetch_add(tensor.bytes());
      page->last_delivery_ns.store(clock_->NowNs());
    } else if (status.code() == absl::StatusCode::kAborted) {
      page->aborted.fetch_add(1);
    } else if (status.code() == absl::StatusCode::kUnavailable) {
      page->unavailable.fetch_add(1);
    } else {
      page->NoteWrong(absl::StrCat("fetch ", serial, " of edge ", edge, ": ", status.ToString()));
    }
    MutexLock lock(&mu_);
    --out_;
    if (!status.ok()) over_ = true;
    Start(edge);
  }

  void Check(size_t edge, int64_t step, uint64_t serial, const Tensor& tensor) {
    const uint64_t words = WordsOf(serial);
    const uint64_t base = WordAt(static_cast<uint64_t>(step), serial, 0);
    const bool whole = tensor.dtype() == DType::kUint64 &&
                       tensor.shape() == TensorShape({static_cast<int64_t>(words)});
    const uint64_t* at = whole ? tensor.data_as<uint64_t>() : nullptr;
    for (uint64_t i = 0; whole && i < words; ++i) {
      if (at[i] == base + i * 0x9e3779b97f4a7c15u) continue;
      return options_.page->NoteWrong(absl::StrCat("edge ", edge, ": in place of number ", serial,
                                                   " came other bytes, at ", i, " of ", words));
    }
    if (!whole) {
      options_.page->NoteWrong(absl::StrCat("edge ", edge, ": in place of number ", serial,
                                            " came ", tensor.shape().ToString(),
                                            ", lost or doubled"));
    }
  }

  ChannelPool* const pool_;
  const Clock* const clock_;
  const StormWorkerOptions& options_;
  Mutex mu_;
  int64_t step_ ABSL_GUARDED_BY(mu_) = 0;
  bool over_ ABSL_GUARDED_BY(mu_) = true;  // That life of the peer is.
  size_t out_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<TensorKey> keys_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> next_ ABSL_GUARDED_BY(mu_);
};

std::shared_ptr<Nic> OpenNic(const StormWorkerOptions& options) {
  if (options.nic == "soft") {
    SoftNicOptions soft;
    soft.listen_address = absl::StrCat(options.address, ":0");
    auto nic = OpenSoftNic(soft);
    TRYST_CHECK(nic.ok()) << nic.status();
    return *std::move(nic);
  }
  IbvNicOptions ibv;
  ibv.choice.settings.device = options.nic;
  auto nic = OpenIbvNic(ibv);
  TRYST_CHECK(nic.ok()) << nic.status();
  return *std::move(nic);
}

void SleepMs(int64_t ms) {
  const timespec time = {ms / 1000, ms % 1000 * 1'000'000};
  nanosleep(&time, nullptr);
}

}  // namespace

int RunStormWorker(const StormWorkerOptions& options) {
  const SteadyClock clock;
  WorkerPage* page = options.page;
  Poller poller(&clock);
  NumberedSource source(options.incarnation);
  SocketBootstrap bootstrap(options.listen, options.peer, options.incarnation);
  TransportsOptions pool_options;
  pool_options.self = WorkerName(options.name);
  pool_options.incarnation = options.incarnation;
  pool_options.seed = options.incarnation;
  std::vector<NicPath> paths = {{"rdma/storm", OpenNic(options)}};
  const auto pool =
      MakeChannelPool(&poller, &bootstrap, &source, std::move(paths), nullptr, pool_options);
  const absl::Status opened = pool->Open();
  TRYST_CHECK(opened.ok()) << opened;
  poller.Start();
  bootstrap.Start(pool.get());
  page->ready_ns.store(clock.NowNs());

  Consumer consumer(pool.get(), &clock, options);
  std::mt19937_64 random(options.incarnation);
  uint64_t breaks = 0;
  while (page->stop.load() == 0) {
    if (consumer.idle()) {
      const absl::StatusOr<uint64_t> peer = bootstrap.AskIncarnation();
      if (peer.ok()) consumer.Begin(*peer, random() >> 2 | 1);
    }
    const uint64_t now = Ask(pool.get(), &RdmaFetched).breaks;
    if (now != breaks) {
      page->last_break_ns.store(clock.NowNs());
      page->breaks.fetch_add(now - breaks);
      breaks = now;
    }
    SleepMs(5);
  }
  // What is under way ends by itself: the peer still serves.
  const int64_t until_ns = clock.NowNs() + kHangNs;
  while (!consumer.idle() && clock.NowNs() < until_ns) SleepMs(5);
  if (!consumer.idle()) page->NoteWrong("fetches hang at the end");
  page->stop.store(2);
  while (page->stop.load() != 3) SleepMs(5);
  const absl::Status stopped =
      pool->Stop(absl::CancelledError("the storm is over"), absl::Seconds(10));
  if (!stopped.ok()) page->NoteWrong(absl::StrCat("not drained: ", stopped.ToString()));
  bootstrap.Stop();
  poller.Stop();
  if (!stopped.ok()) _exit(1);
  return page->wrong.load() == 0 ? 0 : 1;
}

}  // namespace tryst
