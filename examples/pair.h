#ifndef TRYST_EXAMPLES_PAIR_H_
#define TRYST_EXAMPLES_PAIR_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/server.h"

namespace tryst {

// One of two processes: worker /job:NAME/replica:0/task:0, and what it runs.
struct Role {
  std::string name;
  std::function<absl::Status(Server* server)> run;
};

// The whole program. Starts itself twice; the second process joins the first. When the second has
// ended, the first one's standard input is closed. `args` are flags of both servers (and in the two
// processes, at the end, the role). Returns the exit code: 0 when both ended well.
int RunPair(const std::vector<std::string>& args, const Role& first, const Role& second);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PAIR_H_
