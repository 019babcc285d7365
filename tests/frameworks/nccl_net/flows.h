#ifndef TRYST_TESTS_FRAMEWORKS_NCCL_NET_FLOWS_H_
#define TRYST_TESTS_FRAMEWORKS_NCCL_NET_FLOWS_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "tests/frameworks/nccl_net/world.h"

namespace tryst::nccl_net {

// What a collective asks of a net plugin: several connections, polled by one thread.
struct FlowOptions {
  size_t bytes = 1 << 20;          // The size of a message,
  size_t comms = 1;                // the number of pairs of comms,
  bool both = false;               // whether both directions are used at once, as in a ring of two,
  size_t total = size_t{1} << 30;  // and how many bytes go in each direction over all comms.
};

// Two ranks move the bytes. Prints a JSON line with the rate, the processor time and the time
// asleep.
int RunFlows(const std::string& file, const FlowOptions& options);

}  // namespace tryst::nccl_net

#endif  // TRYST_TESTS_FRAMEWORKS_NCCL_NET_FLOWS_H_
