#ifndef TRYST_SERVER_DATA_PLANE_OPEN_NICS_H_
#define TRYST_SERVER_DATA_PLANE_OPEN_NICS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/crew.h"
#include "channel/rdma/rdma_options.h"
#include "server/config/config.h"
#include "server/members/cluster_spec.h"

namespace tryst {

// What an OpenNicsFn gets besides the config.
struct NicPlace {
  std::string listen_host;     // The host on which gRPC listens.
  std::string reach_host;      // The host by which peers reach it.
  Environment environment;     // Holds RDMA_* and others.
  std::shared_ptr<Crew> crew;  // The server's helpers.
  std::string secret;          // Token mode: the cluster's token.
};

// Opens the NICs by which a worker reaches peers, the best one first.
using OpenNicsFn = std::function<absl::StatusOr<std::vector<NicPath>>(const ServerConfig& config,
                                                                      const NicPlace& place)>;

// What a protocol's name stands for (ServerBuilder::AddProtocol). A server tries shared memory
// before these NICs and gRPC after them; a protocol without NICs has only those two.
struct Protocol {
  OpenNicsFn open_nics;
};
inline std::shared_ptr<const Protocol> OverNics(OpenNicsFn open) {
  return std::make_shared<Protocol>(Protocol{std::move(open)});
}

// Opens the NICs of "grpc+verbs" as config.nic says. By default: an RDMA device first, then the
// soft NIC. The soft NIC listens on `place.listen_host` unless config.nic_listen names another, and
// is advertised as `place.reach_host`. For ofi:PROVIDER only that provider of libfabric.
//
// Where the config encrypts, the soft NIC speaks TLS and its path has another name, so an end that
// does not encrypt, and one of an earlier release, has no such path. NICs that cannot encrypt are
// refused unless encrypt=trusted_nic: one that config.nic names with kFailedPrecondition.
// kInvalidArgument: a setting is wrong. For ibv or ofi:PROVIDER also the error of opening the
// device.
absl::StatusOr<std::vector<NicPath>> OpenNics(const ServerConfig& config, const NicPlace& place);

// `link` as the config and RDMA_QP_QUEUE_DEPTH change it, as far as that variable's value makes
// sense. kInvalidArgument: an RDMA_* variable does not parse.
absl::StatusOr<LinkOptions> LinkFrom(LinkOptions link, const ServerConfig& config,
                                     const Environment& environment);

}  // namespace tryst

#endif  // TRYST_SERVER_DATA_PLANE_OPEN_NICS_H_
