#ifndef TRYST_TESTS_SIM_CHANNEL_CLUSTER_H_
#define TRYST_TESTS_SIM_CHANNEL_CLUSTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "channel/ops/fetch_op.h"
#include "tests/model/slot_edges.h"
#include "tests/sim/channel_load.h"
#include "tests/sim/gather_load.h"
#include "tests/sim/sim_coverage.h"
#include "tests/sim/sim_weights.h"

// Many workers on one thread and virtual time, running the channel code that ships over
// simulated NICs, with a load of Sends and Fetches drawn from a seed, while everything
// that can break does.
namespace tryst {

// What the simulated NICs promise.
enum class SimNicKind { kOrdered, kUnordered, kNoImmediates };
const char* SimNicKindName(SimNicKind kind);

// By which kinds of link the workers reach each other.
enum class SimLinks { kNics, kShm, kShmAndNics };
const char* SimLinksName(SimLinks links);

struct ChannelClusterOptions {
  uint64_t seed = 1;
  SimNicKind nic = SimNicKind::kOrdered;
  SimLinks links = SimLinks::kNics;
  int workers = 2;
  LoadOptions load;
  SimWeights weights;     // Faults are drawn by them while it runs.
  bool kills = true;      // Processes die and others take their places.
  int paths = 1;          // 2: to each worker; whole paths are lost, some for ever.
  int pollers = 1;        // Each worker has so many, each turned when the seed says so.
  uint32_t slots = 0;     // Each channel has so many; 0: the seed says it.
  uint32_t max_keys = 0;  // So many keys have a number at a time; 0: more than there are.
  // Producers take what is here without a callback, as programs do.
  bool takes_here = false;
  bool forgets = false;  // One worker only fetches, and soon forgets what it has given up.
  bool strays = false;   // Consumers cancel what is over.
  // As seeds were before any of these was drawn: without runs of keys, links that are made anew and
  // consumers that forget, with a callback for each take, a number for each key, and one text for
  // all failures.
  ChannelClusterOptions& WithoutRuns() {
    takes_here = forgets = strays = false;
    load.run_seed = load.text_seed = 0;
    max_keys = 0;
    weights.Set(Trouble::kRenew, 0);
    return *this;
  }
  // Everything is traced, and what was traced is held against the tables (verify_traces.h).
  bool verify = true;
};

struct ChannelClusterReport {
  LoadCounts load;
  GatherCounts gathers;
  uint64_t faults = 0;
  uint64_t events = 0;
  uint64_t epochs = 0;
  uint64_t breaks = 0;
  uint64_t replays = 0;
  uint64_t in_runs = 0;
  uint64_t standing_claimed = 0;  // Standing receives that their fetch found.
  uint64_t standing_dropped = 0;
  uint64_t kills = 0;
  uint64_t paths_lost = 0;
  uint64_t moved = 0;    // Fetches that went on by another path.
  FetchCounters shm;     // What came over shared memory, and how.
  uint64_t traced = 0;   // Ends of operations of which the traces tell.
  uint64_t pairs = 0;    // Fetches of which both ends' traces tell.
  SlotEdges slot_edges;  // How often each edge of the model of slots was taken.
  TableCounts tables;
  Troubles troubles;
  uint64_t trace_hash = 0;  // Everything that happened goes into it.
  // What must never happen; empty when all is well.
  std::vector<std::string> violations;

  // Does not add the fields below slot_edges.
  ChannelClusterReport& operator+=(const ChannelClusterReport& other);
};

// Runs one seed to its end.
ChannelClusterReport RunChannelCluster(const ChannelClusterOptions& options);

// The options that a seed stands for: sizes, limits and kinds of faults vary with it.
ChannelClusterOptions OptionsOfSeed(uint64_t seed, const SimWeights& weights = SimWeights());
// Likewise of a storm of fenced cancels, one in three without a fault.
ChannelClusterOptions StormOfSeed(uint64_t seed, const SimWeights& weights = SimWeights());

// The options of a seed with gathers, and few other fetches.
ChannelClusterOptions GathersOfSeed(uint64_t seed, const SimWeights& weights = SimWeights());

// Freed memory is used again by this process, not given back: most of the time would go
// into page faults. For programs that run many seeds.
void KeepFreedMemory();

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_CHANNEL_CLUSTER_H_
