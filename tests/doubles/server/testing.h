#ifndef TRYST_TESTS_DOUBLES_SERVER_TESTING_H_
#define TRYST_TESTS_DOUBLES_SERVER_TESTING_H_

#include <functional>
#include <memory>
#include <string>

#include "server/server.h"

namespace tryst {

// For tests: a server of an open cluster, by gRPC alone unless `change` says otherwise, which
// serves on this host and joins that of `seed`, if there is one. `executor`: an embedder's; null:
// there is none.
std::unique_ptr<Server> StartTestServer(const std::string& job, int task, const Server* seed,
                                        const std::string& resolver = "",
                                        const std::function<void(ServerConfig*)>& change = nullptr,
                                        Executor* executor = nullptr);

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SERVER_TESTING_H_
