// Where the processor time of one keyed pull over shared memory goes. Both ends, whole but for
// the server around them, are turned by one thread: what is left out is the time that a cache
// line takes from core to core, and all that a busy machine adds.
//
//   shm_bench [--json FILE] [--rounds N] [--only pull|many|match|seeing] [--bytes N] [--keys N]
//             [--millions N]
//
// pull    one key, asked for and answered, again and again: the nanoseconds of each stage
// many    64 keys in one RecvManyAsync: nanoseconds a tensor
// match   Send and RecvAsync in one process: what the table alone costs
// seeing  pulls of three such pairs in turn: neither counted nor traced, counted alone, both
//         as a server does by default

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/arena/arena.h"
#include "channel/transports.h"
#include "rendezvous/step_registry.h"
#include "rendezvous/thread_alarms.h"

namespace tryst {
namespace {

constexpr char kProducer[] = "/job:ps/replica:0/task:0";
constexpr char kConsumer[] = "/job:worker/replica:0/task:0";
constexpr uint64_t kIncarnation = 0xab;

double ProcessorNs() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

// Hellos go straight to the other pool.
class Hellos final : public Bootstrap {
 public:
  void Exchange(const std::string&, const Hello& hello, Deadline, HelloDone done) override {
    producer->OnHello(hello, std::move(done));
  }
  HelloHandler* producer = nullptr;
};

// A worker as a server makes it: a poller, a pool over shared memory, a registry of steps.
struct Worker {
  Worker(const char* name, uint64_t incarnation, const Clock* clock, Alarms* alarms, Hellos* hellos,
         uint32_t sample_every)
      : poller(clock) {
    TraceOptions tracing;
    tracing.sample_every = sample_every;
    if (sample_every > 0) trace = std::make_unique<Trace>(tracing);
    auto source = std::make_unique<Source>();
    TransportsOptions options;
    options.self = name;
    options.incarnation = incarnation;
    options.trace = trace.get();
    ArenaOptions arena;
    arena.seed = incarnation << 32;
    options.shm_arena = Arena::Make(arena);
    pool = MakeChannelPool(&poller, hellos, source.get(), std::vector<NicPath>{}, nullptr,
                           std::move(options));
    StepRegistry::Options steps_options;
    steps_options.worker = name;
    steps_options.incarnations[absl::StrCat(name, "/device:CPU:0")] = incarnation;
    steps_options.step.check_immutable = false;
    steps_options.max_held_bytes = int64_t{1} << 30;
    auto made = StepRegistry::Make(steps_options, alarms, pool.get());
    TRYST_CHECK(made.ok()) << made.status();
    steps = *std::move(made);
    source->steps = steps.get();
    this->source = std::move(source);
    const absl::Status opened = pool->Open();
    TRYST_CHECK(opened.ok()) << opened;
  }

  struct Source final : TensorSource {
    void Take(int64_t step_id, const TensorKey& key, uint64_t request_id, const Args& args,
              DoneFn done) override {
      steps->Take(step_id, key, request_id, args, std::move(done));
    }
    bool TakeHere(int64_t step_id, TensorKey* key, Place* place, Taken* taken) override {
      return steps->TakeHere(step_id, key, place, taken);
    }
    bool MayTake(const TensorKey& key) const override { return steps->MayTake(key); }
    void GiveBack(int64_t step_id, const TensorKey& key, Taken taken) override {
      steps->GiveBack(step_id, key, std::move(taken));
    }
    StepRegistry* steps = nullptr;
  };

  std::unique_ptr<Trace> trace;
  Poller poller;
  std::unique_ptr<Source> source;
  std::unique_ptr<ChannelPool> pool;
  std::unique_ptr<StepRegistry> steps;
};

class Pair {
 public:
  // One operation in `sample_every` is traced, as a server's default is. 0: nothing is even
  // counted.
  Pair(uint64_t bytes, int keys, uint32_t sample_every = TraceOptions().sample_every)
      : key_count_(keys),
        producer_(kProducer, kIncarnation, &clock_, &alarms_, &hellos_, sample_every),
        consumer_(kConsumer, 0xc0, &clock_, &alarms_, &hellos_, sample_every) {
    hellos_.producer = producer_.pool.get();
    sends_ = *producer_.steps->StartStep(1);
    receives_ = *consumer_.steps->StartStep(1);
    for (int i = 0; i < key_count_; ++i) {
      keys_.push_back(TensorKeyPrefix::Make(absl::StrCat(kProducer, "/device:CPU:0"), kIncarnation,
                                            absl::StrCat(kConsumer, "/device:CPU:0"),
                                            absl::StrCat("edge_", i, "_w/read"))
                          ->At(0, 0));
    }
    source_ = *Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(bytes)});
    args_.destination = *Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(bytes)});
  }
  ~Pair() {
    const absl::Status why = absl::CancelledError("over");
    consumer_.pool->Close(why);
    producer_.pool->Close(why);
    do {
      Turn();
    } while (!consumer_.pool->Drained() || !producer_.pool->Drained());
    sends_ = receives_ = nullptr;
    for (Worker* worker : {&consumer_, &producer_}) {
      worker->steps.reset();
      worker->pool.reset();
    }
  }

  void Turn() {
    consumer_.poller.Turn();
    producer_.poller.Turn();
  }
  void Send(int key) {
    const absl::Status sent = sends_->Send(keys_[key], Args(), source_, false);
    TRYST_CHECK(sent.ok()) << sent;
  }
  void Ask(int key) {
    receives_->RecvAsync(
        keys_[key], args_,
        [this](const absl::Status& status, const Args&, const Args&, const Tensor&, bool) {
          TRYST_CHECK(status.ok()) << status;
          ++landed_;
        });
  }

  // Nanoseconds of each stage of one pull: Send, ask, answer, deliver, and an empty turn of
  // both, which is in each of the two before.
  struct Stages {
    double send = 0, ask = 0, answer = 0, deliver = 0, empty = 0;
  };
  Stages Pull(int64_t count) {
    // So many of each stage at once that the clock does not count.
    constexpr int kAtOnce = 48;
    Stages stages;
    for (int64_t done = 0; done < count; done += kAtOnce) {
      double at = ProcessorNs();
      const auto lap = [&at](double* sum) {
        const double now = ProcessorNs();
        *sum += now - at;
        at = now;
      };
      for (int i = 0; i < kAtOnce; ++i) Send(i);
      lap(&stages.send);
      for (int i = 0; i < kAtOnce; ++i) Ask(i);
      lap(&stages.ask);
      producer_.poller.Turn();
      lap(&stages.answer);
      consumer_.poller.Turn();
      lap(&stages.deliver);
      while (landed_ < kAtOnce) Turn();
      landed_ = 0;
      at = ProcessorNs();
      for (int i = 0; i < kAtOnce; ++i) Turn();
      lap(&stages.empty);
    }
    for (double* sum :
         {&stages.send, &stages.ask, &stages.answer, &stages.deliver, &stages.empty}) {
      *sum /= static_cast<double>(count);
    }
    return stages;
  }
  // One after the other, as a lone consumer has it: nanoseconds a pull, Send and all.
  double PullOneByOne(int64_t count) {
    const double began = ProcessorNs();
    for (int64_t i = 0; i < count; ++i) {
      const int key = static_cast<int>(i % key_count_);
      Send(key);
      Ask(key);
      producer_.poller.Turn();
      consumer_.poller.Turn();
      while (landed_ == 0) Turn();
      landed_ = 0;
    }
    return (ProcessorNs() - began) / static_cast<double>(count);
  }
  double PullMany(int64_t count) {
    const double began = ProcessorNs();
    for (int64_t done = 0; done < count; done += kMany) {
      const int first = static_cast<int>(done % key_count_);
      for (int i = 0; i < kMany; ++i) Send(first + i);
      receives_->RecvManyAsync(absl::MakeConstSpan(keys_).subspan(first, kMany), Args(),
                               [this](const absl::Status& status, absl::Span<Received> all) {
                                 TRYST_CHECK(status.ok()) << status;
                                 landed_ += static_cast<int>(all.size());
                               });
      while (landed_ == 0) Turn();
      landed_ = 0;
    }
    return (ProcessorNs() - began) / static_cast<double>(count);
  }
  // In one process: a send met by a receive of its own worker.
  double Match(int64_t count) {
    LocalRendezvous::Options options;
    options.check_immutable = false;
    LocalRendezvous step(options, &alarms_);
    const double began = ProcessorNs();
    for (int64_t i = 0; i < count; ++i) {
      const TensorKey& key = keys_[static_cast<size_t>(i % key_count_)];
      TRYST_CHECK(step.Send(key, Args(), source_, false).ok());
      step.RecvAsync(key, Args(),
                     [this](const absl::Status&, const Args&, const Args&, const Tensor&, bool) {
                       ++landed_;
                     });
    }
    landed_ = 0;
    return (ProcessorNs() - began) / static_cast<double>(count);
  }

 private:
  static constexpr int kMany = 64;

  const int key_count_;  // A multiple of kMany.
  const SteadyClock clock_;
  ThreadAlarms alarms_;
  Hellos hellos_;
  Worker producer_, consumer_;
  std::shared_ptr<Rendezvous> sends_, receives_;
  std::vector<TensorKey> keys_;
  Tensor source_;
  Args args_;
  int landed_ = 0;
};

struct Figure {
  std::string name;
  std::vector<double> values;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// What being seen costs a pull. Whose turn is first changes from round to round.
template <typename Add>
void AddSeeing(uint64_t bytes, int keys, int rounds, int64_t count, const Add& add) {
  struct Seen {
    const char* name;
    Pair pair;
  };
  Seen all[] = {{"pull_unseen", Pair(bytes, keys, 0)},
                {"pull_counted", Pair(bytes, keys, UINT32_MAX)},
                {"pull_traced", Pair(bytes, keys)}};
  for (Seen& seen : all) seen.pair.PullOneByOne(5000);
  for (int turn = 0; turn < 3 * rounds; ++turn) {
    Seen& seen = all[(turn + turn / 3) % 3];
    add(seen.name, seen.pair.PullOneByOne(count));
  }
}

int Run(const std::string& json_file, int rounds, const std::string& only, uint64_t bytes, int keys,
        int64_t count) {
  std::vector<Figure> figures;
  const auto add = [&figures](const std::string& name, double value) {
    for (Figure& figure : figures) {
      if (figure.name == name) return figure.values.push_back(value);
    }
    figures.push_back({name, {value}});
  };
  const auto wanted = [&only](const char* what) { return only.empty() || only == what; };
  Pair pair(bytes, keys);
  pair.PullOneByOne(std::max(5000, 5 * keys));  // Connects, and all tables have grown.
  if (only == "seeing") AddSeeing(bytes, keys, rounds, count, add);
  for (int round = 0; round < rounds; ++round) {
    if (wanted("pull")) {
      const Pair::Stages stages = pair.Pull(count / 48 * 48);
      add("send", stages.send);
      add("ask", stages.ask);
      add("answer", stages.answer);
      add("deliver", stages.deliver);
      add("empty_turns", stages.empty);
      add("pull_one_by_one", pair.PullOneByOne(count));
    }
    if (wanted("many")) add("pull_many", pair.PullMany(count));
    if (wanted("match")) add("match", pair.Match(count));
  }
  std::ofstream file;
  if (!json_file.empty()) file.open(json_file);
  for (const Figure& figure : figures) {
    const double least = *std::min_element(figure.values.begin(), figure.values.end());
    const double most = *std::max_element(figure.values.begin(), figure.values.end());
    printf("%-16s %6zu B %8.1f ns  (%.1f to %.1f)\n", figure.name.c_str(),
           static_cast<size_t>(bytes), Median(figure.values), least, most);
    file << absl::StrCat("{\"figure\":\"shm_turn_", figure.name,
                         "\",\"system\":\"tryst_shm_copy\",\"size_bytes\":", bytes,
                         ",\"value\":", Median(figure.values), ",\"unit\":\"ns\",\"min\":", least,
                         ",\"max\":", most, ",\"runs\":", figure.values.size(), "}\n");
  }
  return 0;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  std::string json_file, only;
  int rounds = 5;
  uint64_t bytes = 8;
  int keys = 64;
  double millions = 0.2;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (i + 1 >= argc) {
      fprintf(stderr, "usage: see the head of bench/shm_bench.cc\n");
      return 2;
    }
    const char* value = argv[++i];
    if (arg == "--json") json_file = value;
    if (arg == "--rounds") rounds = std::max(1, atoi(value));
    if (arg == "--only") only = value;
    if (arg == "--bytes") bytes = strtoull(value, nullptr, 10);
    if (arg == "--keys") keys = std::max(1, atoi(value) / 64) * 64;
    if (arg == "--millions") millions = std::max(0.001, atof(value));
  }
  return tryst::Run(json_file, rounds, only, bytes, keys, static_cast<int64_t>(millions * 1e6));
}
