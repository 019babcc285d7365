#ifndef TRYST_SERVER_SERVER_PARTS_H_
#define TRYST_SERVER_SERVER_PARTS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/allow_list.h"
#include "server/etcd/etcd_client.h"
#include "server/security.h"
#include "server/server.h"
#include "server/status_page.h"

namespace tryst {

// What ServerBuilder has found out and a server is made from.
struct ServerParts {
  ServerConfig config;
  ClusterSpec cluster;
  std::string worker;
  std::string listen;     // host:port
  std::string advertise;  // host:port; port 0: as listened on.
  SecurityOptions security;
  StatusPageOptions status;  // listen is empty: none.
  AllowList allow;
  ControlList control;
  Environment environment;
  EtcdAccess etcd;  // Without endpoints: no etcd.
  std::shared_ptr<const Protocol> protocol;
  std::vector<TransportFactory> transports;  // Before those of the protocol.
  Executor* executor = nullptr;
  std::vector<grpc::Service*> services;
  absl::flat_hash_map<std::string, uint64_t> devices;  // Full name -> incarnation; 0: the server's.
  std::vector<const Gpu*> gpus;
};

// All but protocol, executor, services and devices. kInvalidArgument. `cluster`, where
// set, is used in place of the resolver's.
absl::StatusOr<ServerParts> MakeServerParts(const ServerConfig& config,
                                            const Environment& environment,
                                            const ClusterSpec* cluster = nullptr);

std::unique_ptr<Server> MakeServer(ServerParts parts);

uint64_t RandomIncarnation();  // Never 0.

// "host:port" -> host. Without a port: all of it.
std::string HostOf(const std::string& address);

}  // namespace tryst

#endif  // TRYST_SERVER_SERVER_PARTS_H_
