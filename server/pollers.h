#ifndef TRYST_SERVER_POLLERS_H_
#define TRYST_SERVER_POLLERS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/config.h"

namespace tryst {

// How many processors this process may use.
int UsableCpus();

// How many pollers a server of `config` starts on `cpus` processors.
int PollerCount(const ServerConfig& config, int cpus);
// How many helpers its pollers have together.
int HelperCount(const ServerConfig& config, int cpus);
// How many threads run the server's callbacks.
int CallbackThreads(const ServerConfig& config, int pollers);

// The processors that a list in the form of poller_cpus names, "0,2,4-7". kInvalidArgument: it does
// not parse.
absl::StatusOr<std::vector<int>> PollerCpus(absl::string_view list);

}  // namespace tryst

#endif  // TRYST_SERVER_POLLERS_H_
