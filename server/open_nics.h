#ifndef TRYST_SERVER_OPEN_NICS_H_
#define TRYST_SERVER_OPEN_NICS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "channel/channel_pool.h"
#include "server/cluster_spec.h"
#include "server/config.h"

namespace tryst {

// What an OpenNicsFn (server/server.h) is told beside the config.
struct NicPlace {
  std::string listen_host;  // Where gRPC listens.
  std::string reach_host;   // Where peers reach it.
  Environment environment;  // RDMA_* and so on.
};

// The NICs of "grpc+verbs" by config.nic: an RDMA device first, then the soft NIC, which
// listens on `listen_host` unless config.nic_listen says otherwise and is advertised by
// `reach_host`. kInvalidArgument; what opening the device says, for nic = ibv.
absl::StatusOr<std::vector<NicPath>> OpenNics(const ServerConfig& config,
                                              const Environment& environment,
                                              const std::string& listen_host,
                                              const std::string& reach_host);

// What the config, and RDMA_QP_QUEUE_DEPTH as far as it makes sense, say of each connection.
// kInvalidArgument: an RDMA_* variable.
absl::StatusOr<LinkOptions> LinkFrom(const ServerConfig& config, const Environment& environment);

}  // namespace tryst

#endif  // TRYST_SERVER_OPEN_NICS_H_
