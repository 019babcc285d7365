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
#include "server/cluster_spec.h"
#include "server/config.h"
#include "server/peer_calls.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace tryst {

class DeviceEngine;
class Gpu;
class Insight;
class Membership;
struct Protocol;
class Transport;
struct TransportContext;

// One worker of a cluster: its steps, what it serves to peers, and its paths to them. Several may
// live in one process. A server that has started does not survive a fork (docs/SDK.md).
//
// Thread-safe but for destruction, and every call has an answer at any time: before
// Start(), after a Start() that failed, while it stops and afterwards, and in callbacks.
// What it gives out by pointer lasts until its destruction, and so must not be used later;
// nor must the steps' rendezvous.
class Server {
 public:
  // Stops the server if it runs, within config.stop_deadline. When called in a callback on one of
  // the server's own threads, another thread stops it after the destructor has returned, and uses
  // until then what the server was given by pointer.
  virtual ~Server() = default;

  // Serves when it returns. Peers need not be up: each is connected to when it is first
  // needed, and waited for. kUnavailable: the address is taken. kFailedPrecondition: it was
  // called before, or Stop() was.
  virtual absl::Status Start() = 0;
  // Refuses new work, lets transfers finish until the deadline, and ends everything else. Every
  // callback has returned when it returns, but for those on an executor of the embedder's: for its
  // own executor it waits without limit. kDeadlineExceeded: something had to be cut off.
  // kFailedPrecondition, and nothing has happened: in a callback of this server, on a thread of its
  // own. A server stops once; whoever calls it again waits for that and gets the same status.
  virtual absl::Status Stop(absl::Duration deadline) = 0;
  // Waits until Stop() has returned. In a callback of this server, which Stop() waits for,
  // it logs so and returns at once.
  virtual void Join() = 0;

  virtual const std::string& worker() const = 0;
  virtual uint64_t incarnation() const = 0;        // Random; never 0.
  virtual const std::string& address() const = 0;  // For peers; empty until it listens.
  virtual int port() const = 0;                    // 0 until it listens.
  // Null before Start(). Once it stops no step starts any more (kAborted).
  virtual StepRegistry* steps() = 0;
  virtual Executor* executor() = 0;   // For Args::executor.
  virtual Membership* members() = 0;  // server/membership.h
  // To peers, also of a server that has not started. kCancelled once it has stopped.
  virtual PeerCalls* calls() = 0;
  virtual const ServerConfig& config() const = 0;  // Also what the resolver said we are.

  // Memory from which tensors reach workers of this host without a copy; null: there is
  // none, or not yet.
  virtual Allocator* allocator() = 0;
  // What GpuContext::Make() takes (channel/device/device_engine.h), for sends and receives of
  // device tensors. Null: not one of the server's GPUs, or not started.
  virtual DeviceEngine* gpu(int ordinal) = 0;
  // Which path leads to the peer, and why; all peers when empty.
  virtual std::string Explain(const std::string& peer) = 0;
  // Empty before Start(); at their last after Stop().
  virtual std::map<std::string, int64_t> Stats() = 0;
  // What else there is to see (server/insight.h); null before Start().
  virtual const Insight* insight() const = 0;
  // "127.0.0.1:41234" of the status page; empty: there is none, or it has stopped.
  virtual std::string status_address() const = 0;
};

using TransportFactory = std::function<std::unique_ptr<Transport>(const TransportContext& context)>;

// Puts a server together. Everything has a default but the config; what is given by
// pointer outlives the server.
class ServerBuilder {
 public:
  ServerBuilder();  // Knows "grpc" and "grpc+verbs".
  ~ServerBuilder();

  // Another protocol, or another way to do one (server/open_nics.h).
  ServerBuilder& AddProtocol(const std::string& name, std::shared_ptr<const Protocol> protocol);
  // Another way of reaching peers (channel/transport.h), before those of the protocol. Called for
  // each poller of the server.
  ServerBuilder& AddTransport(TransportFactory transport);
  // Runs receivers' callbacks in place of config.callback_threads of our own. Callbacks on it
  // may stop and destroy the server, which does not wait for them.
  ServerBuilder& SetExecutor(Executor* executor);
  // Served beside TransportService, on the same port. Its handlers must not stop or destroy
  // the server, which waits for them.
  ServerBuilder& AddService(grpc::Service* service);
  // A device of this worker beside /device:CPU:0, whose incarnation is the server's.
  ServerBuilder& AddDevice(const std::string& type_and_index, uint64_t incarnation);
  // Device tensors of this GPU, which outlives every tensor of the server's, in place of
  // config.gpus; its device is /device:GPU:ordinal. Once for each.
  ServerBuilder& UseGpu(const Gpu* gpu);
  // In place of what the config's resolver says.
  ServerBuilder& SetCluster(ClusterSpec cluster);
  // TF_CONFIG, SLURM_*, RDMA_* and so on, in place of the process's.
  ServerBuilder& SetEnvironment(Environment environment);

  // kInvalidArgument: a setting, or limits that do not add up. kNotFound: no such
  // protocol; names those there are.
  absl::StatusOr<std::unique_ptr<Server>> Build(const ServerConfig& config) const;

 private:
  std::map<std::string, std::shared_ptr<const Protocol>> protocols_;
  std::vector<TransportFactory> transports_;
  Executor* executor_ = nullptr;
  std::vector<grpc::Service*> services_;
  absl::flat_hash_map<std::string, uint64_t> devices_;
  std::vector<const Gpu*> gpus_;
  std::unique_ptr<ClusterSpec> cluster_;
  std::unique_ptr<Environment> environment_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_SERVER_H_
