// Runs the simulated cluster over many seeds: `./run sim --seeds N --from S`.
//
// Prints each seed that breaks a promise, and what it broke, and stops at the first
// unless told to go on; exits with 1 then.

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"
#include "tests/model/slot_replay.h"
#include "tests/sim/channel_cluster.h"

namespace tryst {
namespace {

struct Settings {
  uint64_t seeds = 2000;
  uint64_t from = 1;
  uint64_t cancels_wanted = 0;  // Until so many; 0: until the seeds are through.
  bool verbose = false;
  bool keep_going = false;
  bool cancels = false;
  bool gathers = false;
  bool coverage = false;
  std::string weights;  // Files; empty: none.
  std::string learn;
  SimNicKind nic = SimNicKind::kOrdered;
  SimLinks links = SimLinks::kNics;
  uint64_t pollers = 1;
  uint64_t slots = 0;
};

constexpr char kUsage[] =
    "channel_sim [--seeds N] [--from S] [--cancels [--until-cancels N] | --gathers] [--keep-going] "
    "[--links KINDS] [--nic KIND] [--pollers N] [--slots N] [--coverage [--learn FILE]] [--weights "
    "FILE] "
    "[--verbose]\n"
    "  --links          nics, shm or shm,nics: what the workers reach each other by\n"
    "  --nic            ordered, unordered or no-immediates: what the NICs promise\n"
    "  --pollers        of each worker\n"
    "  --slots          of each channel; without it the seed says how many\n"
    "  --cancels        storms of cancels while the bytes are on their way, buffers used again\n"
    "  --gathers        sends with selections, gathers, and groups of them that are cancelled; not "
    "with --cancels\n"
    "  --coverage       prints which states and events, guards and pairs of faults the seeds "
    "reach\n"
    "  --learn          writes weights by which another run reaches the least reached more often\n"
    "  --weights        draws faults by such weights; a seed and its weights replay exactly\n"
    "  --until-cancels  goes on until so many have hit an open fetch of a tensor that was sent\n";

void Quiet(LogSeverity severity, const char*, int, absl::string_view text) {
  if (severity == LogSeverity::kFatal) {
    fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
  }
}

bool ParseKind(const std::string& name, SimNicKind* kind) {
  for (SimNicKind one : {SimNicKind::kOrdered, SimNicKind::kUnordered, SimNicKind::kNoImmediates}) {
    if (name != SimNicKindName(one)) continue;
    *kind = one;
    return true;
  }
  return false;
}

bool ParseLinks(const std::string& name, SimLinks* links) {
  for (SimLinks one : {SimLinks::kNics, SimLinks::kShm, SimLinks::kShmAndNics}) {
    if (name != SimLinksName(one)) continue;
    *links = one;
    return true;
  }
  return false;
}

bool Parse(int argc, char** argv, Settings* settings) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--nic" && i + 1 < argc) {
      if (!ParseKind(argv[++i], &settings->nic)) return false;
      continue;
    }
    if (word == "--links" && i + 1 < argc) {
      if (!ParseLinks(argv[++i], &settings->links)) return false;
      continue;
    }
    std::string* file = word == "--weights" ? &settings->weights
                        : word == "--learn" ? &settings->learn
                                            : nullptr;
    if (file != nullptr && i + 1 < argc) {
      *file = argv[++i];
      continue;
    }
    uint64_t* number = word == "--seeds"           ? &settings->seeds
                       : word == "--from"          ? &settings->from
                       : word == "--until-cancels" ? &settings->cancels_wanted
                       : word == "--pollers"       ? &settings->pollers
                       : word == "--slots"         ? &settings->slots
                                                   : nullptr;
    bool* flag = word == "--verbose"      ? &settings->verbose
                 : word == "--cancels"    ? &settings->cancels
                 : word == "--gathers"    ? &settings->gathers
                 : word == "--coverage"   ? &settings->coverage
                 : word == "--keep-going" ? &settings->keep_going
                                          : nullptr;
    if (number != nullptr && i + 1 < argc) {
      char* end = nullptr;
      *number = strtoull(argv[++i], &end, 10);
      if (*end != 0 || settings->pollers < 1 || settings->pollers > 64 || settings->slots > 4096) {
        return false;
      }
    } else if (flag != nullptr) {
      *flag = true;
    } else {
      return false;
    }
  }
  if (!settings->learn.empty() && !settings->coverage) return false;
  if (settings->cancels && settings->gathers) return false;  // Each is a load of its own.
  if (settings->cancels_wanted > 0) settings->seeds = UINT64_MAX - settings->from;
  return true;
}

void PrintFailure(const Settings& settings, uint64_t seed, const ChannelClusterReport& report,
                  const ChannelClusterReport& again) {
  printf("seed %" PRIu64
         " breaks a promise; replay with: ./run sim%s --links %s --nic %s --pollers %" PRIu64
         "%s%s --seeds 1 --from %" PRIu64 " --verbose\n",
         seed,
         settings.gathers   ? " --gathers"
         : settings.cancels ? " --cancels"
                            : "",
         SimLinksName(settings.links), SimNicKindName(settings.nic), settings.pollers,
         settings.slots == 0 ? "" : absl::StrCat(" --slots ", settings.slots).c_str(),
         settings.weights.empty() ? "" : absl::StrCat(" --weights ", settings.weights).c_str(),
         seed);
  for (size_t i = 0; i < report.violations.size() && i < 5; ++i) {
    printf("  %s\n", report.violations[i].c_str());
  }
  if (report.violations.size() > 5) printf("  and %zu more\n", report.violations.size() - 5);
  if (report.trace_hash != again.trace_hash) {
    printf("  and a second run of it went another way: something is not drawn from the seed\n");
  }
  fflush(stdout);
}

void PrintSum(uint64_t seeds, uint64_t from, double seconds, const ChannelClusterReport& sum,
              uint64_t bad) {
  const LoadCounts& load = sum.load;
  printf("%" PRIu64 " seeds from %" PRIu64 " in %.1f s: %" PRIu64 " operations (%" PRIu64
         " sends, %" PRIu64 " fetches, %" PRIu64 " cancels of which %" PRIu64
         " with bytes landed), %" PRIu64 " aborts; %" PRIu64 " delivered, %" PRIu64
         " ended with a status, %" PRIu64 " of them early; %" PRIu64 " MiB, %" PRIu64
         " faults, %" PRIu64 " restarts, %" PRIu64 " paths lost, %" PRIu64
         " fetches moved, %" PRIu64 " tensors in runs, %" PRIu64 " connections, %" PRIu64
         " replays, %" PRIu64 " events; traces of %" PRIu64 " ends, %" PRIu64
         " pairs, verified; %" PRIu64 " seeds broke a promise\n",
         seeds, from, seconds, load.operations(), load.sends, load.fetches, load.cancels,
         load.cancels_in_flight, load.aborts, load.delivered, load.failed, load.early,
         load.bytes >> 20, sum.faults, sum.kills, sum.paths_lost, sum.moved,
         sum.in_runs + sum.shm.in_runs, sum.epochs, sum.replays, sum.events, sum.traced, sum.pairs,
         bad);
  const GatherCounts& gathers = sum.gathers;
  if (gathers.gathers > 0) {
    printf("  %" PRIu64 " gathers: %" PRIu64 " filled (%" PRIu64 " at the end), %" PRIu64
           " misfits, %" PRIu64 " cancelled, %" PRIu64 " failed; %" PRIu64
           " groups cancelled, %" PRIu64 " with some under way; %" PRIu64 " MiB\n",
           gathers.gathers, gathers.filled, gathers.late, gathers.misfits, gathers.cancelled,
           gathers.failed, gathers.groups, gathers.in_flight, gathers.bytes >> 20);
  }
  if (sum.shm.fetches > 0) {
    printf("  over shared memory %" PRIu64 " fetches: %" PRIu64 " in cells, %" PRIu64
           " by reference, %" PRIu64 " read in place, %" PRIu64 " in parts, %" PRIu64
           " copied; %" PRIu64 " links, %" PRIu64 " ended, %" PRIu64 " replays\n",
           sum.shm.fetches, sum.shm.in_message, sum.shm.by_reference, sum.shm.pulled,
           sum.shm.in_parts, sum.shm.copied, sum.shm.links, sum.shm.breaks, sum.shm.replays);
  }
  fflush(stdout);
}

void PrintGuards() {
  printf("guards reached:\n");
  ForEachGuard(
      [](const char* name, uint64_t times) { printf("%12" PRIu64 "  %s\n", times, name); });
  fflush(stdout);
}

// How often the code took each edge of the model of slots.
void PrintEdges(const Settings& settings, const SlotEdges& taken) {
  const SlotEdges& model = ModelEdges(settings.slots == 1 ? 1 : 2);
  printf("edges of the model of slots, %zu of %zu:\n", taken.size(), model.size());
  for (const auto& [edge, unused] : model) {
    const auto found = taken.find(edge);
    printf("%12" PRIu64 "  %s\n", found == taken.end() ? 0 : found->second, edge.ToText().c_str());
  }
  fflush(stdout);
}

absl::StatusOr<SimWeights> ReadWeights(const std::string& path) {
  if (path.empty()) return SimWeights();
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, " cannot be read"));
  std::stringstream text;
  text << file.rdbuf();
  return SimWeights::Parse(text.str());
}

// What the seeds reached, and what another run should draw more often.
bool PrintCoverage(const Settings& settings, const SimCoverage& coverage,
                   const SimWeights& weights) {
  printf("%s", coverage.ToText().c_str());
  if (settings.learn.empty()) return true;
  std::ofstream file(settings.learn);
  file << coverage.Learn(weights).ToText();
  file.close();
  if (!file) fprintf(stderr, "%s cannot be written\n", settings.learn.c_str());
  return static_cast<bool>(file);
}

int Main(int argc, char** argv) {
  Settings settings;
  if (!Parse(argc, argv, &settings)) {
    fprintf(stderr, "%s", kUsage);
    return 2;
  }
  const absl::StatusOr<SimWeights> weights = ReadWeights(settings.weights);
  if (!weights.ok()) {
    fprintf(stderr, "%s\n", std::string(weights.status().message()).c_str());
    return 2;
  }
  if (!settings.verbose) SetLogSink(&Quiet);
  KeepFreedMemory();
  const auto run = [&](uint64_t seed) {
    ChannelClusterOptions options = settings.gathers   ? GathersOfSeed(seed, *weights)
                                    : settings.cancels ? StormOfSeed(seed, *weights)
                                                       : OptionsOfSeed(seed, *weights);
    options.nic = settings.nic;
    options.links = settings.links;
    options.pollers = static_cast<int>(settings.pollers);
    options.slots = static_cast<uint32_t>(settings.slots);
    return RunChannelCluster(options);
  };
  SimCoverage coverage(settings.links != SimLinks::kNics);
  ChannelClusterReport sum;
  uint64_t bad = 0;
  uint64_t done = 0;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  while (done < settings.seeds) {
    const uint64_t seed = settings.from + done++;
    if (settings.verbose) fprintf(stderr, "seed %" PRIu64 "\n", seed);
    const ChannelClusterReport report = run(seed);
    sum += report;
    if (settings.coverage) coverage.Add(report.tables, report.troubles);
    if (!report.violations.empty()) {
      ++bad;
      PrintFailure(settings, seed, report, run(seed));
      if (!settings.keep_going) break;
    }
    if (settings.cancels_wanted > 0 && sum.load.cancels >= settings.cancels_wanted) {
      break;
    }
    if (done % 10'000 == 0) PrintSum(done, settings.from, seconds(), sum, bad);
  }
  PrintSum(done, settings.from, seconds(), sum, bad);
  if (settings.coverage) {
    if (!PrintCoverage(settings, coverage, *weights)) return 2;
  } else {
    PrintGuards();
  }
  if (settings.links != SimLinks::kShm) PrintEdges(settings, sum.slot_edges);
  return bad == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) { return tryst::Main(argc, argv); }
