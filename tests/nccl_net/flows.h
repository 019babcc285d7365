#ifndef TRYST_TESTS_NCCL_NET_FLOWS_H_
#define TRYST_TESTS_NCCL_NET_FLOWS_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "tests/nccl_net/world.h"

namespace tryst::nccl_net {

// What a collective asks of a net plugin: several connections, polled by one thread.
struct FlowOptions {
  size_t bytes = 1 << 20;          // Of a message,
  size_t comms = 1;                // of each of so many pairs of comms,
  bool both = false;               // in both directions at once, as in a ring of two;
  size_t total = size_t{1} << 30;  // so many bytes in each direction over all comms.
};

// Two ranks move them; a JSON line says how fast, and what it took of processors and of sleep.
int RunFlows(const std::string& file, const FlowOptions& options);

}  // namespace tryst::nccl_net

#endif  // TRYST_TESTS_NCCL_NET_FLOWS_H_
