// Shows where the processor time of a pull over shared memory goes. One thread turns both ends,
// which have no server around them. So neither the time of a cache line from core to core nor the
// noise of a busy machine counts.
//
//   shm_bench [--json FILE] [--rounds N] [--only pull|many|match|seeing] [--bytes N] [--keys N]
//             [--millions N]
//
// pull    nanoseconds of each stage of a pull of one key
// many    nanoseconds a tensor, with 64 keys in one RecvManyAsync
// match   nanoseconds of the table alone: Send and RecvAsync in one process
// seeing  pulls of three pairs by turns: one neither counts nor traces, one only counts, and one
//         does both as a server does by default

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
#include "bench/turned_pair.h"
#include "channel/trace/trace.h"
#include "rendezvous/local_rendezvous.h"

namespace tryst {
namespace {

double ProcessorNs() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

class Pair {
 public:
  Pair(uint64_t bytes, int keys, uint32_t sample_every = TraceOptions().sample_every)
      : key_count_(keys), pair_(OptionsFor(bytes, keys, sample_every)) {}

  // Nanoseconds of each stage of one pull: Send, ask, answer, deliver, and a turn of both ends
  // that finds no work. Answer and deliver each contain such a turn.
  struct Stages {
    double send = 0, ask = 0, answer = 0, deliver = 0, empty = 0;
  };
  Stages Pull(int64_t count) {
    // Runs a stage for many keys between two readings of the clock, so that the clock costs little.
    constexpr int kAtOnce = 48;
    Stages stages;
    for (int64_t done = 0; done < count; done += kAtOnce) {
      double at = ProcessorNs();
      const auto lap = [&at](double* sum) {
        const double now = ProcessorNs();
        *sum += now - at;
        at = now;
      };
      for (int i = 0; i < kAtOnce; ++i) pair_.Send(i);
      lap(&stages.send);
      for (int i = 0; i < kAtOnce; ++i) pair_.Ask(i);
      lap(&stages.ask);
      pair_.Answer();
      lap(&stages.answer);
      pair_.Deliver();
      lap(&stages.deliver);
      pair_.WaitFor(kAtOnce);
      at = ProcessorNs();
      for (int i = 0; i < kAtOnce; ++i) pair_.TurnIdle();
      lap(&stages.empty);
    }
    for (double* sum :
         {&stages.send, &stages.ask, &stages.answer, &stages.deliver, &stages.empty}) {
      *sum /= static_cast<double>(count);
    }
    return stages;
  }
  // Nanoseconds of a whole pull, with its Send, one after the other as for a lone consumer.
  double PullOneByOne(int64_t count) {
    const double began = ProcessorNs();
    for (int64_t i = 0; i < count; ++i) {
      const int key = static_cast<int>(i % key_count_);
      pair_.Send(key);
      pair_.Ask(key);
      pair_.Answer();
      pair_.Deliver();
      pair_.WaitFor(1);
    }
    return (ProcessorNs() - began) / static_cast<double>(count);
  }
  double PullMany(int64_t count) {
    const double began = ProcessorNs();
    for (int64_t done = 0; done < count; done += kMany) {
      const int first = static_cast<int>(done % key_count_);
      for (int i = 0; i < kMany; ++i) pair_.Send(first + i);
      pair_.AskMany(first, kMany);
      pair_.WaitFor(kMany);
    }
    return (ProcessorNs() - began) / static_cast<double>(count);
  }
  // Within one worker: a send that a receive of the same worker meets.
  double Match(int64_t count) {
    LocalRendezvous::Options options;
    options.check_immutable = false;
    LocalRendezvous step(options, pair_.alarms());
    int landed = 0;
    const double began = ProcessorNs();
    for (int64_t i = 0; i < count; ++i) {
      const TensorKey& key = pair_.key(static_cast<int>(i % key_count_));
      TRYST_CHECK(step.Send(key, SendArgs(), pair_.source(), false).ok());
      step.RecvAsync(key, RecvArgs(), [&landed](Received&&) { ++landed; });
    }
    const double ns = ProcessorNs() - began;
    TRYST_CHECK(landed == count);
    return ns / static_cast<double>(count);
  }

 private:
  static constexpr int kMany = 64;
  static TurnedPairOptions OptionsFor(uint64_t bytes, int keys, uint32_t sample_every) {
    TurnedPairOptions options;
    options.bytes = bytes;
    options.keys = keys;
    options.sample_every = sample_every;
    return options;
  }

  const int key_count_;  // A multiple of kMany.
  TurnedPair pair_;
};

struct Figure {
  std::string name;
  std::vector<double> values;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// What counting and tracing cost a pull. Each round begins with another pair.
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
  pair.PullOneByOne(
      std::max(5000, 5 * keys));  // Until both are connected and all tables have grown.
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
