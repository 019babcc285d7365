#ifndef TRYST_EXAMPLES_LOOPBACK_H_
#define TRYST_EXAMPLES_LOOPBACK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/server.h"

namespace tryst {

// A cluster on one machine: servers on 127.0.0.1, on any free ports. They learn of each other from
// the server that they join. No security: every process of this machine may connect.

// The flags of such a server. Later flags on a command line override them.
std::vector<std::string> LoopbackFlags(absl::string_view job, int task);

// Lets only errors of the log reach standard error.
void LogErrorsOnly();

// Starts a server by flags and TRYST_* variables. Arguments that are not flags go to `rest`; if
// that is null, there must be none.
absl::StatusOr<std::unique_ptr<Server>> StartServer(const std::vector<std::string>& args,
                                                    std::vector<std::string>* rest);

// "/job:ps/replica:0/task:1@127.0.0.1:40123", for another server's --join.
std::string Seed(const Server& server);

// A key from CPU to CPU. REQUIRES: the workers' names and the edge are valid.
TensorKey LoopbackKey(absl::string_view producer, uint64_t incarnation, absl::string_view consumer,
                      absl::string_view edge, uint64_t iter);

// The part of Explain() that is about the peer.
std::string ExplainPath(Server* server, const std::string& peer);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_LOOPBACK_H_
