#ifndef TRYST_SERVER_TESTING_H_
#define TRYST_SERVER_TESTING_H_

#include <memory>
#include <string>

#include "server/server.h"

namespace tryst {

// For tests: a server of an open cluster, by gRPC alone, which serves on this host and joins that
// of `seed`, if there is one.
std::unique_ptr<Server> StartTestServer(const std::string& job, int task, const Server* seed,
                                        const std::string& resolver = "");

}  // namespace tryst

#endif  // TRYST_SERVER_TESTING_H_
