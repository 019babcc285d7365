// Runs the simulated cluster over many seeds: `./run sim --seeds N --from S`.
//
// Prints the first seed that breaks a promise, and what it broke; exits with 1 then.

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/log.h"
#include "tests/sim/channel_cluster.h"

namespace {

void Quiet(tryst::LogSeverity severity, const char*, int, absl::string_view text) {
  if (severity == tryst::LogSeverity::kFatal) {
    fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
  }
}

uint64_t Number(const char* text) { return strtoull(text, nullptr, 10); }

}  // namespace

int main(int argc, char** argv) {
  uint64_t seeds = 2000;
  uint64_t from = 1;
  bool verbose = false;
  bool go_on = false;
  bool cancels = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--seeds" && i + 1 < argc) {
      seeds = Number(argv[++i]);
    } else if (arg == "--from" && i + 1 < argc) {
      from = Number(argv[++i]);
    } else if (arg == "--verbose") {
      verbose = true;
    } else if (arg == "--cancels") {
      cancels = true;
    } else if (arg == "--keep-going") {
      go_on = true;
    } else {
      fprintf(stderr,
              "usage: channel_sim [--seeds N] [--from S] [--verbose] [--cancels] [--keep-going]\n");
      return 2;
    }
  }
  if (!verbose) tryst::SetLogSink(&Quiet);
  tryst::ChannelClusterReport sum;
  uint64_t bad = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t seed = from; seed < from + seeds; ++seed) {
    if (verbose) fprintf(stderr, "seed %" PRIu64 "\n", seed);
    tryst::ChannelClusterOptions options = tryst::OptionsOfSeed(seed);
    if (cancels) {
      options.cancel_storm = true;
      options.kills = false;
    }
    const tryst::ChannelClusterReport report = tryst::RunChannelCluster(options);
    sum.fetches += report.fetches;
    sum.delivered += report.delivered;
    sum.failed += report.failed;
    sum.early += report.early;
    sum.faults += report.faults;
    sum.events += report.events;
    sum.epochs += report.epochs;
    sum.replays += report.replays;
    sum.bytes += report.bytes;
    sum.kills += report.kills;
    if (report.violations.empty()) continue;
    ++bad;
    printf("seed %" PRIu64 " breaks a promise; replay with: ./run sim --seeds 1 --from %" PRIu64
           " --verbose\n",
           seed, seed);
    for (const std::string& violation : report.violations) printf("  %s\n", violation.c_str());
    fflush(stdout);
    if (!go_on) break;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  printf("%" PRIu64 " seeds from %" PRIu64 " in %.1f s: %" PRIu64 " fetches (%" PRIu64
         " delivered, %" PRIu64 " ended with a status, %" PRIu64 " of them early), %" PRIu64
         " MiB, %" PRIu64 " faults, %" PRIu64 " restarts, %" PRIu64 " connections, %" PRIu64
         " replays, %" PRIu64 " events; %" PRIu64 " seeds broke a promise\n",
         seeds, from, seconds, sum.fetches, sum.delivered, sum.failed, sum.early, sum.bytes >> 20,
         sum.faults, sum.kills, sum.epochs, sum.replays, sum.events, bad);
  return bad == 0 ? 0 : 1;
}
