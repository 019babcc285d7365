#ifndef TRYST_SERVER_SERVER_H_
#define TRYST_SERVER_SERVER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/allocator.h"
#include "rendezvous/executor.h"
#include "rendezvous/step_registry.h"
#include "server/config/config.h"
#include "server/members/cluster_spec.h"
#include "server/members/peer_calls.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace tryst {

class DeviceEngine;
class Gpu;
class Insight;
class Membership;
struct EtcdAccess;
struct Protocol;
struct RegionGrants;
struct ServerParts;
class Transport;
struct TransportContext;
class WeightViews;

// One worker of a cluster: its steps, what it serves to peers, and its paths to them. A process may
// hold several. A server that has started does not survive a fork (docs/SDK.md).
//
// Thread-safe except for destruction. Every call returns an answer at any time: before Start(),
// after a Start() that failed, while the server stops, afterwards, and in callbacks. What it
// returns by pointer, and the steps' rendezvous, must not be used after its destruction.
class Server {
 public:
  // Stops the server if it runs, within config.stop_deadline. In a callback on one of the server's
  // own threads the destructor returns first, and another thread then stops the server. Until that
  // has happened it still uses what it was given by pointer.
  virtual ~Server() = default;

  // The server serves when this returns OK. Peers need not be up: it connects to each when it first
  // needs it, and waits for it. kUnavailable: the address is taken. kFailedPrecondition: Start() or
  // Stop() was called before.
  virtual absl::Status Start() = 0;
  // Refuses new work, lets transfers finish until the deadline, and ends everything else. When it
  // returns, every callback has returned: for those on the server's own executor it waits without
  // limit, for those on an embedder's executor it does not wait. kDeadlineExceeded: something had
  // to be cut off. kFailedPrecondition, and nothing has happened: it was called in a callback on
  // one of the server's own threads. A server stops once; later calls wait for that and return the
  // same status.
  virtual absl::Status Stop(absl::Duration deadline) = 0;
  // Looks now for new certificates and a new file of the cluster, in place of when their time
  // comes. It returns at once; what could not be read is logged. Does nothing unless the server
  // serves.
  virtual void Reload() = 0;
  // Waits until Stop() has returned. In a callback of this server, for which Stop() waits, it logs
  // that and returns at once.
  virtual void Join() = 0;

  virtual const std::string& worker() const = 0;
  virtual uint64_t incarnation() const = 0;        // Random; never 0.
  virtual const std::string& address() const = 0;  // Where peers reach it; empty until it listens.
  virtual int port() const = 0;                    // 0 until it listens.
  // Null before Start(). After Stop() has begun, no step starts (kAborted).
  virtual StepRegistry* steps() = 0;
  virtual Executor* executor() = 0;   // Pass it as RecvArgs::executor.
  virtual Membership* members() = 0;  // server/members/membership.h
  // Calls to peers; a server that has not started can make them, too. kCancelled after Stop().
  virtual PeerCalls* calls() = 0;
  // Includes what the cluster's resolver found out about this worker.
  virtual const ServerConfig& config() const = 0;
  virtual const EtcdAccess* etcd() const = 0;  // Null: the members do not come from etcd.

  // Tensors in this memory reach workers of this host without a copy. Null: there is none, or not
  // yet.
  virtual Allocator* allocator() = 0;
  // GpuContext::Make() takes it (channel/device/device_engine.h), for sends and receives of device
  // tensors. Null: not one of the server's GPUs, or not started.
  virtual DeviceEngine* gpu(int ordinal) = 0;
  // Which path leads to the peer, and why. An empty `peer`: all peers.
  virtual std::string Explain(const std::string& peer) = 0;
  // Empty before Start(); keeps the last values after Stop().
  virtual std::map<std::string, int64_t> Stats() = 0;
  // Further views (server/status/insight.h); null before Start().
  virtual const Insight* insight() const = 0;
  // Where open sets of weights show themselves (server/status/weight_views.h).
  virtual WeightViews* weight_views() = 0;
  // By which regions are copied without asking (server/regions/region_grants.h).
  virtual RegionGrants* grants() = 0;
  // Runs what works with the server's parts, and no callbacks unless it is executor(), too: Stop()
  // waits for it without limit.
  virtual Executor* own_executor() = 0;
  // The status page's "127.0.0.1:41234"; empty: there is none, or it has stopped.
  virtual std::string status_address() const = 0;
};

using TransportFactory = std::function<std::unique_ptr<Transport>(const TransportContext& context)>;

// Builds a server. Everything but the config has a default. What is given by pointer outlives the
// server.
class ServerBuilder {
 public:
  ServerBuilder();  // Knows "grpc" and "grpc+verbs".
  ~ServerBuilder();

  // Adds a protocol, or replaces one (server/data_plane/open_nics.h).
  ServerBuilder& AddProtocol(const std::string& name, std::shared_ptr<const Protocol> protocol);
  // Adds a transport (channel/transport.h), which is tried before those of the protocol. The
  // factory is called for each poller.
  ServerBuilder& AddTransport(TransportFactory transport);
  // Runs receivers' callbacks instead of threads of ours. Callbacks on it may stop and destroy the
  // server, which does not wait for them.
  ServerBuilder& SetExecutor(Executor* executor);
  // Serves it beside TransportService, on the same port. Its handlers must not stop or destroy the
  // server, which waits for them. The server does not know who calls it alone, and closes that
  // caller's connection `longest_stream` after it began; gRPC opens another for the next call. Of
  // several services the longest counts.
  ServerBuilder& AddService(grpc::Service* service,
                            absl::Duration longest_stream = absl::Seconds(10));
  // Adds a device of this worker beside /device:CPU:0, whose incarnation is the server's.
  ServerBuilder& AddDevice(const std::string& type_and_index, uint64_t incarnation);
  // Moves tensors of this GPU's memory, in place of the GPUs of config.gpus; its device is
  // /device:GPU:ordinal. It outlives every tensor of the server. Call it once for each GPU.
  ServerBuilder& UseGpu(const Gpu* gpu);
  // Replaces what the config's resolver would find.
  ServerBuilder& SetCluster(ClusterSpec cluster);
  // Replaces the process's environment: TF_CONFIG, SLURM_*, RDMA_* and so on.
  ServerBuilder& SetEnvironment(Environment environment);

  // kInvalidArgument: a setting is wrong, or the limits do not add up. kNotFound: no such protocol;
  // the message names those there are.
  absl::StatusOr<std::unique_ptr<Server>> Build(const ServerConfig& config) const;
  // Build() without its last step, MakeServer() (server/server_parts.h), for tests and benchmarks.
  absl::StatusOr<ServerParts> Prepare(const ServerConfig& config) const;

 private:
  std::map<std::string, std::shared_ptr<const Protocol>> protocols_;
  std::vector<TransportFactory> transports_;
  Executor* executor_ = nullptr;
  std::vector<grpc::Service*> services_;
  absl::Duration longest_stream_;
  absl::flat_hash_map<std::string, uint64_t> devices_;
  std::vector<const Gpu*> gpus_;
  std::unique_ptr<ClusterSpec> cluster_;
  std::unique_ptr<Environment> environment_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_SERVER_H_
