#ifndef TRYST_SERVER_POLLERS_H_
#define TRYST_SERVER_POLLERS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "server/config.h"

namespace tryst {

// Processors that this process may use.
int UsableCpus();

// How many pollers a server of `config` starts where it may use `cpus` processors.
int PollerCount(const ServerConfig& config, int cpus);
// How many threads run its callbacks.
int CallbackThreads(const ServerConfig& config, int pollers);

// What config.poller_cpus names, "0,2,4-7". kInvalidArgument: it does not parse.
absl::StatusOr<std::vector<int>> PollerCpus(const ServerConfig& config);

}  // namespace tryst

#endif  // TRYST_SERVER_POLLERS_H_
