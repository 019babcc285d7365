// Runs fleets of seeds, or of one seed with every fault at every message: ./run sim --fleet.
//
// Prints the first that breaks a promise, and exits with 1 then.

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
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

int Main(int argc, char** argv) {
  uint64_t seeds = 200, from = 7'000'000'001, stride = 0, at = 0, fault = 0;
  bool verbose = false, worker = false, slow = false;
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
    slow = slow || strcmp(argv[i], "--slow") == 0;
    worker = worker || strcmp(argv[i], "--worker") == 0;
  }
  SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});
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
