// Measures sends and receives that meet in one process: medians, minima and maxima.
//
//   rendezvous_bench [--json FILE] [Google Benchmark's flags]

#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "bench/flags.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/thread_alarms.h"

namespace {
// Counts this thread's allocations alone, and not those of the library's own threads.
thread_local int64_t allocations = 0;
}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  if (void* p = malloc(bytes)) return p;
  abort();
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  ++allocations;
  const size_t align = static_cast<size_t>(alignment);
  if (void* p = aligned_alloc(align, (bytes + align - 1) / align * align)) return p;
  abort();
}
void operator delete(void* p) noexcept { free(p); }
void operator delete(void* p, size_t) noexcept { free(p); }
void operator delete(void* p, std::align_val_t) noexcept { free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { free(p); }

namespace tryst {
namespace {

constexpr int kManyKeys = 100'000;
constexpr int kBatchKeys = 1000;
constexpr int kTensorBytes = 64;

Tensor SmallTensor() { return *Tensor::Allocate(DType::kUint8, {kTensorBytes}); }

std::vector<TensorKey> Keys(int count, int thread = 0) {
  std::vector<TensorKey> keys;
  for (int i = 0; i < count; ++i) {
    keys.push_back(
        *TensorKey::Parse(absl::StrCat("/job:worker/replica:0/task:0/device:CPU:0;0000000000001ed2;"
                                       "/job:worker/replica:0/task:0/device:CPU:0;edge_",
                                       thread, "_", i, ";0:0")));
  }
  return keys;
}

// Shared by all threads of a benchmark; made before each run and destroyed after it.
struct World {
  ThreadAlarms alarms;
  std::shared_ptr<HeldBytes> process;
  std::unique_ptr<LocalRendezvous> rendezvous;
};
World* world = nullptr;

enum Caps { kNoCaps, kCaps };

void Open(Caps caps) {
  world = new World;
  LocalRendezvous::Options options;
  if (caps == kCaps) {
    options.max_held_bytes = int64_t{1} << 30;
    world->process = std::make_shared<HeldBytes>(int64_t{4} << 30);
  }
  world->rendezvous = std::make_unique<LocalRendezvous>(options, &world->alarms, world->process);
}

void Close() {
  world->rendezvous.reset();
  delete world;
  world = nullptr;
}

void Check(bool ok) {
  if (!ok) abort();
}

void Receive(const TensorKey& key, const RecvArgs& args, int64_t* bytes) {
  world->rendezvous->RecvAsync(key, args, [bytes](Received&& received) {
    Check(received.status.ok());
    *bytes += received.tensor.bytes();
  });
}

// Each thread sends and receives on another key.
template <Caps caps, bool receive_first>
void BM_Pair(benchmark::State& state) {
  if (state.thread_index() == 0) Open(caps);
  const TensorKey key = Keys(1, state.thread_index())[0];
  const Tensor tensor = SmallTensor();
  const RecvArgs args;
  int64_t bytes = 0;
  int64_t allocations_before = 0;
  int64_t pairs = -1;  // The first pair fills the free lists.
  for (auto _ : state) {
    if (receive_first) Receive(key, args, &bytes);
    Check(world->rendezvous->Send(key, {}, tensor, false).ok());
    if (!receive_first) Receive(key, args, &bytes);
    if (++pairs == 0) allocations_before = allocations;
  }
  Check(bytes == (pairs + 1) * kTensorBytes);
  state.counters["allocations"] = benchmark::Counter(
      pairs > 0 ? static_cast<double>(allocations - allocations_before) / pairs : 0,
      benchmark::Counter::kAvgThreads);
  if (state.thread_index() == 0) Close();
}

// Sends all before it receives any, so that 10^5 tensors wait at once.
void BM_ManyKeys(benchmark::State& state) {
  Open(kNoCaps);
  const std::vector<TensorKey> keys = Keys(kManyKeys);
  std::vector<Tensor> tensors;
  for (int i = 0; i < kManyKeys; ++i) tensors.push_back(SmallTensor());
  const RecvArgs args;
  int64_t bytes = 0;
  for (auto _ : state) {
    for (int i = 0; i < kManyKeys; ++i) {
      Check(world->rendezvous->Send(keys[i], {}, tensors[i], false).ok());
    }
    for (int i = 0; i < kManyKeys; ++i) Receive(keys[i], args, &bytes);
  }
  state.SetItemsProcessed(state.iterations() * kManyKeys);
  Close();
}

// The least work of a pair: two rounds of a lock and one reading of the clock. It is measured in
// the same run, so that the ratio holds on a busy machine, too.
void BM_Floor(benchmark::State& state) {
  Mutex mu;
  const SteadyClock clock;
  for (auto _ : state) {
    { MutexLock lock(&mu); }
    benchmark::DoNotOptimize(clock.NowNs());
    { MutexLock lock(&mu); }
  }
}

// Times RecvMany alone, or with the SendMany before it.
template <bool with_send>
void BM_Batch(benchmark::State& state) {
  Open(kNoCaps);
  const std::vector<TensorKey> keys = Keys(kBatchKeys);
  const Tensor tensor = SmallTensor();
  std::vector<SendItem> items(kBatchKeys);
  const RecvArgs args;
  int64_t received = 0;
  for (auto _ : state) {
    for (int i = 0; i < kBatchKeys; ++i) items[i] = {keys[i], tensor, false};
    const auto begin = std::chrono::steady_clock::now();
    Check(world->rendezvous->SendMany(absl::MakeSpan(items), {}).ok());
    const auto sent = std::chrono::steady_clock::now();
    world->rendezvous->RecvManyAsync(
        keys, args, [&received](absl::Status status, absl::Span<Received> results) {
          Check(status.ok());
          received += results.size();
        });
    const auto end = std::chrono::steady_clock::now();
    state.SetIterationTime(std::chrono::duration<double>(end - (with_send ? begin : sent)).count());
  }
  Check(received == static_cast<int64_t>(state.iterations()) * kBatchKeys);
  state.SetItemsProcessed(state.iterations() * kBatchKeys);
  Close();
}

BENCHMARK_TEMPLATE(BM_Pair, kNoCaps, false)->Name("pair")->UseRealTime();
BENCHMARK_TEMPLATE(BM_Pair, kNoCaps, false)->Name("pair")->Threads(2)->UseRealTime();
BENCHMARK_TEMPLATE(BM_Pair, kNoCaps, true)->Name("pair_receive_first")->UseRealTime();
BENCHMARK_TEMPLATE(BM_Pair, kCaps, false)->Name("pair_capped")->UseRealTime();
BENCHMARK_TEMPLATE(BM_Pair, kCaps, false)->Name("pair_capped")->Threads(2)->UseRealTime();
BENCHMARK(BM_Floor)->Name("floor")->UseRealTime();
BENCHMARK(BM_ManyKeys)->Name("many_keys")->UseRealTime();
BENCHMARK_TEMPLATE(BM_Batch, false)->Name("batch_receive")->UseManualTime();
BENCHMARK_TEMPLATE(BM_Batch, true)->Name("batch_pair")->UseManualTime();

// Keeps the values of each repetition, in addition to the library's table.
class Figures : public benchmark::ConsoleReporter {
 public:
  Figures() : ConsoleReporter(OO_None) {}  // No colours: JSON lines follow on stdout.

  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration || run.error_occurred) continue;
      const double total_ns = run.real_accumulated_time * 1e9;
      const std::string name =
          absl::StrCat(run.run_name.function_name, run.threads > 1 ? "_2_threads" : "");
      double units = static_cast<double>(run.iterations);
      if (name == "many_keys") units *= kManyKeys;
      if (name.rfind("batch", 0) == 0) units *= kBatchKeys;
      ns_[name].push_back(total_ns / units);
      cpu_ns_[name].push_back(run.cpu_accumulated_time * 1e9 / units);
      const auto allocations = run.counters.find("allocations");
      if (name == "pair" && allocations != run.counters.end()) {
        ns_["allocations"].push_back(allocations->second.value);
      }
    }
    ConsoleReporter::ReportRuns(runs);
  }

  std::string JsonLines() {
    std::string out;
    Line(&out, "pair_ns", ns_["pair"], "ns", kTensorBytes);
    Line(&out, "floor_ns", ns_["floor"], "ns", 0);
    Line(&out, "pair_receive_first_ns", ns_["pair_receive_first"], "ns", kTensorBytes);
    Line(&out, "pair_capped_ns", ns_["pair_capped"], "ns", kTensorBytes);
    Line(&out, "pair_ns_100k_keys", ns_["many_keys"], "ns", kTensorBytes);
    Line(&out, "batch_ns_per_key", ns_["batch_receive"], "ns", kTensorBytes);
    Line(&out, "batch_pair_ns_per_key", ns_["batch_pair"], "ns", kTensorBytes);
    Line(&out, "allocations_per_pair", ns_["allocations"], "allocations", kTensorBytes);
    Line(&out, "pair_cpu_ns", cpu_ns_["pair"], "ns", kTensorBytes);
    for (const std::string name : {"pair", "pair_capped"}) {
      const std::string suffix = name == "pair" ? "" : "_capped";
      Line(&out, "scaling_2_threads" + suffix, Scaling(ns_, name, 1), "ratio", kTensorBytes);
      // Processor time, which other programs disturb less. It does not include the time in which a
      // thread sleeps for a lock.
      Line(&out, "scaling_2_threads_cpu" + suffix, Scaling(cpu_ns_, name, 2), "ratio",
           kTensorBytes);
    }
    return out;
  }

 private:
  using Times = std::map<std::string, std::vector<double>>;

  // How many pairs two threads make in the time in which one makes a pair. It compares medians,
  // because repetitions run in mixed order. The library reports real time as the mean over the
  // threads, and processor time as their sum, each for the iterations of both.
  static std::vector<double> Scaling(const Times& times, const std::string& name, double factor) {
    const auto one = times.find(name);
    const auto two = times.find(name + "_2_threads");
    if (one == times.end() || two == times.end()) return {};
    return {factor * Median(one->second) / Median(two->second)};
  }

  static double Median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }

  static void Line(std::string* out, const std::string& figure, std::vector<double> values,
                   const std::string& unit, int size_bytes) {
    if (values.empty()) return;
    std::sort(values.begin(), values.end());
    absl::StrAppend(out, "{\"figure\":\"", figure, "\",\"system\":\"tryst_rendezvous\",",
                    "\"size_bytes\":", size_bytes, ",\"value\":", values[values.size() / 2],
                    ",\"unit\":\"", unit, "\",\"min\":", values.front(), ",\"max\":", values.back(),
                    ",\"runs\":", values.size(), "}\n");
  }

  Times ns_;
  Times cpu_ns_;
};

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  std::string json_file;
  // Repetitions in mixed order, so that a slow spell of the machine hits all alike.
  std::vector<std::string> words = {
      argv[0], "--benchmark_repetitions=9", "--benchmark_enable_random_interleaving=true",
      "--benchmark_report_aggregates_only=false", "--benchmark_min_time=0.1"};
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--json" && i + 1 < argc) {
      json_file = argv[++i];
    } else if (arg.rfind("--json=", 0) == 0) {
      json_file = arg.substr(7);
    } else {
      words.push_back(arg);
    }
  }
  std::vector<char*> args;
  for (std::string& word : words) args.push_back(&word[0]);
  int count = static_cast<int>(args.size());
  benchmark::Initialize(&count, args.data());
  if (benchmark::ReportUnrecognizedArguments(count, args.data())) return 2;
  tryst::Figures figures;
  benchmark::RunSpecifiedBenchmarks(&figures);
  const std::string lines = figures.JsonLines();
  fputs(lines.c_str(), stdout);
  return tryst::WriteLines(json_file, lines) ? 0 : 1;
}
