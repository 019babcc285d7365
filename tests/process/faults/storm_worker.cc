#include "tests/process/faults/storm_worker.h"

#include <time.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/crew.h"
#include "base/log.h"
#include "base/mutex.h"
#include "channel/trace/trace.h"
#include "channel/transports.h"
#include "tests/process/faults/socket_bootstrap.h"
#include "tests/process/history/history_file.h"
#include "tests/process/history/kept_traces.h"
#include "tests/process/pair/pool_counters.h"
#include "verbs/ibv/ibv_nic.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

constexpr size_t kEdges = 4;
constexpr size_t kInFlight = 16;
constexpr int64_t kHangNs = 30'000'000'000;
constexpr int64_t kLateNs = 10'000'000'000;  // By which a stopped process may miss a deadline.

std::string WorkerName(const std::string& letter) {
  return absl::StrCat("/job:storm/replica:0/task:", letter == "a" ? 0 : 1);
}

// Helpers of the software NIC, which carry the largest tensors.
constexpr int kHelpers = 2;
constexpr size_t kTraced = 1 << 16;  // The newest of a life are kept, in 24 MiB.

// Mostly small enough for a message, some larger, some large, and a few so large that helpers carry
// them.
uint64_t WordsOf(uint64_t serial) {
  if (serial % 128 == 127) return (2 << 20) / 8 + serial % 100;
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

uint64_t SerialIn(const Tensor& tensor, int64_t step) {
  return (*tensor.data_as<uint64_t>() ^ static_cast<uint64_t>(step)) >> 20;
}

std::string HistoryKey(uint64_t producer, int64_t step, absl::string_view edge) {
  return absl::StrCat(producer, "/", step, "/", edge);
}

// Makes each tensor when it is taken: the n-th take of a key gets number n.
class NumberedSource final : public TensorSource {
 public:
  NumberedSource(uint64_t incarnation, HistoryFile* history)
      : incarnation_(incarnation), history_(history) {}
  void Take(int64_t step, const TensorKey& key, const RecvArgs&, DoneFn done) override {
    if (key.src_incarnation() != incarnation_) {
      return std::move(done)({absl::AbortedError("another incarnation")});
    }
    Line& line = lines_[{step, std::string(key.edge())}];
    if (!line.given_back.empty()) {
      Tensor tensor = std::move(line.given_back.begin()->second);
      line.given_back.erase(line.given_back.begin());
      return std::move(done)({absl::OkStatus(), std::move(tensor)});
    }
    const uint64_t serial = line.next++;
    SentTensor sent;
    sent.number = static_cast<int64_t>(serial);
    sent.before = NextStamp();
    sent.after = NextStamp();
    history_->Sent(HistoryKey(incarnation_, step, key.edge()), sent);
    const uint64_t words = WordsOf(serial);
    Tensor tensor = *Tensor::Allocate(DType::kUint64, {static_cast<int64_t>(words)});
    uint64_t* at = static_cast<uint64_t*>(tensor.mutable_data());
    for (uint64_t i = 0; i < words; ++i) at[i] = WordAt(static_cast<uint64_t>(step), serial, i);
    std::move(done)({absl::OkStatus(), std::move(tensor)});
  }
  void GiveBack(int64_t step, const TensorKey& key, Received taken) override {
    if (!taken.tensor.valid()) return;
    const uint64_t serial = SerialIn(taken.tensor, step);
    lines_[{step, std::string(key.edge())}].given_back[serial] = std::move(taken.tensor);
  }

 private:
  struct Line {
    uint64_t next = 0;
    std::map<uint64_t, Tensor> given_back;  // By number.
  };
  const uint64_t incarnation_;
  HistoryFile* const history_;
  std::map<std::pair<int64_t, std::string>, Line> lines_;  // Poller thread only.
};

// Fetches from one incarnation of the peer.
class Consumer {
 public:
  Consumer(ChannelPool* pool, const Clock* clock, const StormWorkerOptions& options,
           HistoryFile* history)
      : pool_(pool), clock_(clock), options_(options), history_(history) {}

  // Begins with an incarnation of the peer, in a step of its own. REQUIRES: idle().
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
    RecvArgs args;
    const int64_t deadline_ns = clock_->NowNs() + kHangNs;
    args.deadline = Deadline::AtNs(deadline_ns);
    MadeReceive made;
    made.before = NextStamp();
    // It is done after this call or, on the poller, before it is left.
    made.after = NextStamp();
    made.ends_by_ns = deadline_ns + kLateNs;
    const std::string name = HistoryKey(keys_[edge].src_incarnation(), step, keys_[edge].edge());
    pool_->Fetch(step, keys_[edge], args,
                 [this, edge, step, serial, made, name](Received&& received) {
                   Remember(name, step, made, received.status, received.tensor);
                   OnDone(edge, step, serial, received.status, received.tensor);
                 });
  }

  // The number is that of the tensor which came, whatever was expected.
  void Remember(const std::string& name, int64_t step, MadeReceive made, const absl::Status& status,
                const Tensor& tensor) {
    made.calls = 1;
    made.code = status.code();
    made.ended_ns = clock_->NowNs();
    // The producer's life is over.
    const bool over = absl::IsAborted(status) || absl::IsUnavailable(status);
    made.may_fail_with = over ? status.code() : absl::StatusCode::kOk;
    made.fails_from_ns = 0;
    if (status.ok()) {
      made.whole = tensor.dtype() == DType::kUint64 && tensor.bytes() > 0;
      const uint64_t serial = made.whole ? SerialIn(tensor, step) : 0;
      made.number = static_cast<int64_t>(serial);
      made.whole = made.whole && IsWhole(tensor, step, serial);
    }
    history_->Received(name, made);
  }

  static bool IsWhole(const Tensor& tensor, int64_t step, uint64_t serial) {
    if (tensor.bytes() != WordsOf(serial) * sizeof(uint64_t)) return false;
    const uint64_t base = WordAt(static_cast<uint64_t>(step), serial, 0);
    const uint64_t* at = tensor.data_as<uint64_t>();
    for (uint64_t i = 0; i < WordsOf(serial); ++i) {
      if (at[i] != base + i * 0x9e3779b97f4a7c15u) return false;
    }
    return true;
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
  HistoryFile* const history_;
  Mutex mu_;
  int64_t step_ ABSL_GUARDED_BY(mu_) = 0;
  bool over_ ABSL_GUARDED_BY(mu_) = true;  // That incarnation has ended.
  size_t out_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<TensorKey> keys_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> next_ ABSL_GUARDED_BY(mu_);
};

std::shared_ptr<Nic> OpenNic(const StormWorkerOptions& options) {
  if (options.nic == "soft") {
    SoftNicOptions soft;
    soft.listen_address = absl::StrCat(options.address, ":0");
    soft.UseCrew(std::make_shared<Crew>(kHelpers, &Crew::Never));
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

std::vector<LiveOp> UnderWay(ChannelPool* pool) {
  LiveOps ops(std::numeric_limits<size_t>::max());
  pool->poller()->RunAndWait([&] { pool->ListOpsNow(&ops); });
  return ops.Take();
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
  HistoryFile history(options.history);
  NumberedSource source(options.incarnation, &history);
  SocketBootstrap bootstrap(options.listen, options.peer, options.incarnation);
  TransportsOptions pool_options;
  pool_options.self = WorkerName(options.name);
  pool_options.incarnation = options.incarnation;
  pool_options.seed = options.incarnation;
  Trace trace(EveryOperation(kTraced));
  pool_options.trace = &trace;
  std::vector<NicPath> paths = {{"rdma/storm", OpenNic(options)}};
  const auto pool =
      MakeChannelPool(&poller, &bootstrap, &source, std::move(paths), nullptr, pool_options);
  const absl::Status opened = pool->Open();
  TRYST_CHECK(opened.ok()) << opened;
  poller.Start();
  bootstrap.Start(pool.get());
  page->ready_ns.store(clock.NowNs());

  Consumer consumer(pool.get(), &clock, options, &history);
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
  // Fetches under way end by themselves, because the peer still serves.
  const int64_t until_ns = clock.NowNs() + kHangNs;
  while (!consumer.idle() && clock.NowNs() < until_ns) SleepMs(5);
  if (!consumer.idle()) page->NoteWrong("fetches hang at the end");
  page->stop.store(2);
  while (page->stop.load() != 3) SleepMs(5);
  const std::vector<LiveOp> under_way = UnderWay(pool.get());
  KeepTraces(options.history,
             DumpOf(trace, pool_options.self, options.incarnation, clock.NowNs(), under_way));
  const absl::Status stopped =
      pool->Stop(absl::CancelledError("the storm is over"), absl::Seconds(10));
  if (!stopped.ok()) page->NoteWrong(absl::StrCat("not drained: ", stopped.ToString()));
  bootstrap.Stop();
  poller.Stop();
  if (!stopped.ok()) _exit(1);
  return page->wrong.load() == 0 ? 0 : 1;
}

}  // namespace tryst
