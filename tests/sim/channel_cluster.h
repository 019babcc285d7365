#ifndef TRYST_TESTS_SIM_CHANNEL_CLUSTER_H_
#define TRYST_TESTS_SIM_CHANNEL_CLUSTER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "channel/channel_pool.h"
#include "rendezvous/virtual_alarms.h"
#include "verbs/sim/sim_world.h"

// Many workers on one thread and virtual time, running the channel code that ships over
// simulated NICs, with a load of Sends and Fetches drawn from a seed, while everything
// that can break does.
namespace tryst {

struct ChannelClusterOptions {
  uint64_t seed = 1;
  int workers = 2;
  int operations = 300;          // Sends, and as many fetches.
  int64_t load_ns = 60'000'000;  // The time over which they are started.
  bool faults = true;
  bool kills = true;  // Producers die and come back.
  // Nearly every fetch is of a large tensor into the caller's memory, which is there
  // already, and is cancelled while the bytes are on their way.
  bool cancel_storm = false;
};

struct ChannelClusterReport {
  uint64_t fetches = 0;
  uint64_t delivered = 0;
  uint64_t early = 0;   // Of those that failed: cancelled or past their deadline.
  uint64_t failed = 0;  // Ended with a status.
  uint64_t faults = 0;
  uint64_t events = 0;
  uint64_t epochs = 0;
  uint64_t replays = 0;
  uint64_t bytes = 0;
  uint64_t kills = 0;
  // What must never happen; empty when all is well.
  std::vector<std::string> violations;
};

// Runs one seed to its end.
ChannelClusterReport RunChannelCluster(const ChannelClusterOptions& options);

// The options that a seed stands for: sizes, limits and kinds of faults vary with it.
ChannelClusterOptions OptionsOfSeed(uint64_t seed);

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_CHANNEL_CLUSTER_H_
