#ifndef TRYST_SERVER_SERVER_PARTS_H_
#define TRYST_SERVER_SERVER_PARTS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "channel/compat/grpc_channel_options.h"
#include "channel/device/device_proxy.h"
#include "channel/poller/poller.h"
#include "channel/trace/trace.h"
#include "channel/transports.h"
#include "server/etcd/etcd_client.h"
#include "server/security/allow_list.h"
#include "server/security/security.h"
#include "server/server.h"
#include "server/status/status_page.h"

namespace tryst {

// Options of the parts inside a server that no setting changes: each default stands beside its
// reason, where the part is. Tests and benchmarks give a server others between
// ServerBuilder::Prepare() and MakeServer().
struct InnerOptions {
  PollerOptions poller;
  TransportsOptions transports;
  GrpcChannelOptions grpc;
  TraceOptions trace;
  DeviceProxyOptions devices;
  // A peer that asks more often for a sign of life is disconnected.
  absl::Duration least_ping = absl::Seconds(5);
};

// What ServerBuilder has decided, and a server is made from.
struct ServerParts {
  ServerConfig config;
  InnerOptions inner;
  Resolver resolver;
  ClusterSpec cluster;
  std::string worker;
  std::string listen;     // host:port
  std::string advertise;  // host:port. Port 0: the port on which it listens.
  SecurityOptions security;
  StatusPageOptions status;  // An empty `listen`: no page.
  AllowList allow;
  ControlList control;
  Environment environment;
  EtcdAccess etcd;  // No endpoints: etcd is not in use.
  std::shared_ptr<const Protocol> protocol;
  std::vector<TransportFactory> transports;  // Tried before those of the protocol.
  Executor* executor = nullptr;
  std::vector<grpc::Service*> services;
  absl::Duration longest_stream;  // The longest that those services ask for.
  // Full name -> incarnation; 0: the server's own.
  absl::flat_hash_map<std::string, uint64_t> devices;
  std::vector<const Gpu*> gpus;
};

// Fills everything except the protocol, executor, services and devices. `cluster`, if set, replaces
// what the resolver finds. kInvalidArgument: a setting is wrong.
absl::StatusOr<ServerParts> MakeServerParts(const ServerConfig& config,
                                            const Environment& environment,
                                            const ClusterSpec* cluster = nullptr);

std::unique_ptr<Server> MakeServer(ServerParts parts);

uint64_t RandomIncarnation();  // Never 0.

}  // namespace tryst

#endif  // TRYST_SERVER_SERVER_PARTS_H_
