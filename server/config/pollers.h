#ifndef TRYST_SERVER_CONFIG_POLLERS_H_
#define TRYST_SERVER_CONFIG_POLLERS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/config/config.h"

namespace tryst {

// How many processors this process may use.
int UsableCpus();

// What the setting `pollers` asks for: "auto", "4" or "cpus:0,2,4-7".
struct PollerPlan {
  // kInvalidArgument: it does not parse.
  static absl::StatusOr<PollerPlan> Parse(absl::string_view text);

  int count = 0;          // 0: as many as suit the processors.
  std::vector<int> cpus;  // One poller on each. Empty: the system moves them.
};

// The processors in a list such as "0,2,4-7". kInvalidArgument: it does not parse.
absl::StatusOr<std::vector<int>> ParseCpus(absl::string_view list);

// How many pollers a server of `config` starts on `cpus` processors.
int PollerCount(const ServerConfig& config, int cpus);
// How many helpers its pollers have together.
int HelperCount(int cpus);

}  // namespace tryst

#endif  // TRYST_SERVER_CONFIG_POLLERS_H_
