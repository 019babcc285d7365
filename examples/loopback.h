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

// A cluster of one machine: servers on 127.0.0.1, on whatever ports are free, who learn
// of each other from whom they join. Without security: nobody but this machine gets in.

// The flags of such a server; what comes later in a command line prevails.
std::vector<std::string> LoopbackFlags(absl::string_view job, int task);

// Of the log, writes errors to standard error and nothing else.
void LogErrorsOnly();

// Started, by flags and TRYST_* variables. Arguments that are no flags go to `rest`;
// when that is null there must be none.
absl::StatusOr<std::unique_ptr<Server>> StartServer(const std::vector<std::string>& args,
                                                    std::vector<std::string>* rest);

// "/job:ps/replica:0/task:1@127.0.0.1:40123", for another's --join.
std::string Seed(const Server& server);

// From CPU to CPU. REQUIRES: workers' names, an edge that is one.
TensorKey LoopbackKey(absl::string_view producer, uint64_t incarnation, absl::string_view consumer,
                      absl::string_view edge, uint64_t iter);

// What Explain() says of the peer, without what it says of ourselves.
std::string ExplainPath(Server* server, const std::string& peer);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_LOOPBACK_H_
