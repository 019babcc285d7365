// Runs fleets of seeds, or of one seed with every fault at every message: ./run sim --fleet. With
// --chain it runs seeds of chain_sim.h.
//
// Prints the first that breaks a promise, and exits with 1 then.

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "tests/weights/chain_sim.h"
#include "tests/weights/fleet_sim.h"

namespace tryst {
namespace {

struct Sum {
  uint64_t runs = 0, operations = 0, events = 0, sealed = 0, active = 0, barriers = 0, dropped = 0,
           terms = 0, reigns = 0, kills = 0, lives = 0, held = 0;
};

bool Good(const FleetOptions& options, Sum* sum) {
  const FleetReport report = RunFleet(options);
  ++sum->runs;
  sum->operations += report.operations;
  sum->events += report.events;
  sum->sealed += report.sealed;
  sum->active += report.active;
  sum->barriers += report.barriers;
  sum->dropped += report.dropped;
  sum->terms += report.terms;
  sum->reigns += report.reigns;
  sum->kills += report.kills;
  sum->lives += report.lives;
  sum->held += report.held;
  if (report.violations.empty()) return true;
  printf("seed %" PRIu64 ", %s at message %" PRIu64 "%s:\n", options.seed,
         FleetFaultName(options.fault), options.at_message,
         options.worker_decides ? ", a worker decides" : "");
  for (const std::string& violation : report.violations) printf("  %s\n", violation.c_str());
  return false;
}

bool EveryMessage(uint64_t seed, uint64_t stride, bool worker, bool slow, Sum* sum) {
  FleetOptions options;
  options.seed = seed;
  options.worker_decides = worker;
  options.leaders = worker ? 1 : 2;
  options.slow_member = slow;
  const uint64_t messages = RunFleet(options).messages_with_faults;
  for (uint64_t at = 1; at <= messages; at += stride) {
    for (int fault = 1; fault < kFleetFaultCount; ++fault) {
      options.at_message = at;
      options.fault = static_cast<FleetFault>(fault);
      if (!Good(options, sum)) return false;
    }
  }
  return true;
}

int Chains(uint64_t from, uint64_t seeds, bool verbose) {
  uint64_t events = 0, sent_on = 0, rescued = 0, by_parts = 0, unled = 0, out_of_reach = 0;
  for (uint64_t seed = from; seed < from + seeds; ++seed) {
    ChainOptions options = ChainOfSeed(seed);
    options.verbose = verbose;
    const ChainReport report = RunChain(options);
    events += report.events;
    sent_on += report.sent_on;
    rescued += report.rescued;
    by_parts += report.by_parts;
    unled += report.unled;
    out_of_reach += report.out_of_reach;
    if (report.violations.empty()) continue;
    printf("seed %" PRIu64 ":\n", seed);
    for (const std::string& violation : report.violations) printf("  %s\n", violation.c_str());
    return 1;
  }
  printf("%" PRIu64 " runs: %" PRIu64 " events, %" PRIu64 " parts sent on, %" PRIu64
         " rescued, %" PRIu64 " of them where nobody led, %" PRIu64
         " put together of parts, %" PRIu64 " members out of reach\n",
         seeds, events, sent_on, rescued, unled, by_parts, out_of_reach);
  return 0;
}

int Main(int argc, char** argv) {
  uint64_t seeds = 200, from = 7'000'000'001, stride = 0, at = 0, fault = 0;
  bool verbose = false, worker = false, slow = false, chain = false;
  for (int i = 1; i < argc; ++i) {
    const auto number = [&](const char* name, uint64_t* value) {
      if (strcmp(argv[i], name) != 0 || i + 1 >= argc) return false;
      *value = strtoull(argv[++i], nullptr, 10);
      return true;
    };
    if (number("--seeds", &seeds) || number("--from", &from) || number("--every", &stride) ||
        number("--at", &at) || number("--fault", &fault)) {
      continue;
    }
    verbose = verbose || strcmp(argv[i], "--verbose") == 0;
    chain = chain || strcmp(argv[i], "--chain") == 0;
    slow = slow || strcmp(argv[i], "--slow") == 0;
    worker = worker || strcmp(argv[i], "--worker") == 0;
  }
  SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});
  if (chain) return Chains(from, seeds, verbose);
  Sum sum;
  bool good = true;
  if (at != 0) {
    FleetOptions options;
    options.seed = from;
    options.worker_decides = worker;
    options.leaders = worker ? 1 : 2;
    options.slow_member = slow;
    options.at_message = at;
    options.fault = static_cast<FleetFault>(fault);
    options.verbose = verbose;
    good = Good(options, &sum);
  } else if (stride != 0) {
    for (uint64_t seed = from; good && seed < from + seeds; ++seed) {
      good = EveryMessage(seed, stride, worker, slow, &sum);
    }
  } else {
    for (uint64_t seed = from; good && seed < from + seeds; ++seed) {
      FleetOptions options = FleetOfSeed(seed);
      options.verbose = verbose;
      good = Good(options, &sum);
    }
  }
  printf("%" PRIu64 " runs: %" PRIu64 " operations, %" PRIu64 " events, %" PRIu64
         " sealed, %" PRIu64 " active (%" PRIu64 " by a barrier, %" PRIu64 " holds), %" PRIu64
         " dropped, %" PRIu64 " terms, %" PRIu64 " reigns, %" PRIu64 " kills, %" PRIu64 " logs\n",
         sum.runs, sum.operations, sum.events, sum.sealed, sum.active, sum.barriers, sum.held,
         sum.dropped, sum.terms, sum.reigns, sum.kills, sum.lives);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) { return tryst::Main(argc, argv); }
