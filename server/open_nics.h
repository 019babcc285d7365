#ifndef TRYST_SERVER_OPEN_NICS_H_
#define TRYST_SERVER_OPEN_NICS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "channel/rdma/rdma_options.h"
#include "server/cluster_spec.h"
#include "server/config.h"

namespace tryst {

// What an OpenNicsFn is told beside the config.
struct NicPlace {
  std::string listen_host;  // Where gRPC listens.
  std::string reach_host;   // Where peers reach it.
  Environment environment;  // RDMA_* and so on.
};

// The NICs that a worker reaches peers by, the best one first.
using OpenNicsFn = std::function<absl::StatusOr<std::vector<NicPath>>(const ServerConfig& config,
                                                                      const NicPlace& place)>;

// What a protocol string stands for (ServerBuilder::AddProtocol). Shared memory is before its NICs
// and gRPC behind them: they are all there is when there are none.
struct Protocol {
  OpenNicsFn open_nics;
};
inline std::shared_ptr<const Protocol> OverNics(OpenNicsFn open) {
  return std::make_shared<Protocol>(Protocol{std::move(open)});
}

// The NICs of "grpc+verbs" by config.nic: an RDMA device first, then the soft NIC, which
// listens on `listen_host` unless config.nic_listen says otherwise and is advertised by
// `reach_host`; or libfabric's provider alone, for nic = ofi:PROVIDER. kInvalidArgument; what
// opening the device says, for nic = ibv or ofi:PROVIDER.
absl::StatusOr<std::vector<NicPath>> OpenNics(const ServerConfig& config,
                                              const Environment& environment,
                                              const std::string& listen_host,
                                              const std::string& reach_host);

// What the config, and RDMA_QP_QUEUE_DEPTH as far as it makes sense, say of each connection.
// kInvalidArgument: an RDMA_* variable.
absl::StatusOr<LinkOptions> LinkFrom(const ServerConfig& config, const Environment& environment);

}  // namespace tryst

#endif  // TRYST_SERVER_OPEN_NICS_H_
