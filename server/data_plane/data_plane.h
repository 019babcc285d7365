#ifndef TRYST_SERVER_DATA_PLANE_DATA_PLANE_H_
#define TRYST_SERVER_DATA_PLANE_DATA_PLANE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/compat/fetch_server.h"
#include "channel/device/device_source.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/grpc_pipes.h"
#include "channel/pool/channel_pools.h"
#include "channel/signing/caller.h"
#include "channel/trace/trace.h"
#include "rendezvous/alarms.h"
#include "rendezvous/host_fetcher.h"
#include "server/data_plane/server_devices.h"
#include "server/members/membership.h"
#include "server/security/allow_list.h"
#include "server/server_parts.h"

namespace tryst {

// Moves a server's tensors. Makes its transports as the config says, registers them
// (channel/transports.h), and opens its devices. No other part of the server names a transport.
class DataPlane {
 public:
  // What it uses; all of it outlives the data plane.
  struct Parts {
    const ServerParts* server = nullptr;
    uint64_t incarnation = 0;
    std::vector<Poller*> pollers;  // They have not started yet.
    EventThread* events = nullptr;
    Bootstrap* bootstrap = nullptr;
    Membership* members = nullptr;
    CallSigner* signer = nullptr;
    Alarms* alarms = nullptr;
    GuardedSource* source = nullptr;
    // Authenticates and authorizes the caller of a method of our gRPC service.
    std::function<absl::StatusOr<Caller>(const grpc::ServerContextBase& context,
                                         absl::string_view method, absl::string_view request)>
        authorize;
    // An authorized caller goes on sending in a call that lasts.
    std::function<void(const grpc::ServerContextBase& context)> heard;
    bool has_tls = false;
  };
  // Whether the server must have one poller whose thread never changes: a GPU's driver keeps state
  // for each thread.
  static bool KeepsItsThread(const ServerParts& parts) {
    return ServerDevices::Wanted(parts.config, parts.gpus);
  }
  static absl::StatusOr<std::unique_ptr<DataPlane>> Open(Parts parts);
  ~DataPlane();  // REQUIRES: EndServing(); the pollers have stopped; Stop() was OK, or not needed.

  ChannelPools* pools() { return pools_.get(); }
  // Fetches from peers, into device memory too if the server has GPUs.
  TensorFetcher* fetcher();
  // Serves the fetches that arrive as calls of the server's gRPC service.
  FetchServer* calls() { return calls_.get(); }
  // The streams of gRPC that carry tensors. Null: there are none.
  GrpcPipes* pipes() { return pipes_.get(); }
  // Tensors in this memory reach workers of this host without a copy. Null: there is none.
  Arena* allocator() const { return arena_.get(); }
  bool has_devices() const { return devices_ != nullptr; }
  std::vector<int> device_ordinals() const;
  DeviceEngine* gpu(int ordinal) const;  // Null: not one of this server's GPUs.
  std::vector<const Trace*> traces() const;
  std::string ExplainDevices() const;
  void AddDeviceStats(std::map<std::string, int64_t>* stats) const;

  // No further tensor of a GPU is lent to peers; how many they may still read.
  size_t EndLending();
  // Waits until no tensor is on its way to a peer over a session, from the copy out of a device on.
  // Returns how many still are when the time is over. One that a peer with GPUs asks for chunk by
  // chunk counts only while a chunk does. REQUIRES: no further one begins.
  size_t AwaitSends(std::chrono::steady_clock::time_point until);
  // Waits until no peer and no device can touch our memory. kDeadlineExceeded: one still may.
  absl::Status Stop(std::chrono::steady_clock::time_point until);
  // Forgets the consumers that fetched over gRPC. REQUIRES: the service has been destroyed.
  void EndServing() { calls_.reset(); }

 private:
  explicit DataPlane(Parts parts);
  absl::Status Open();
  absl::Status OpenDevices(std::vector<NicPath>* nics);
  bool DigestsInCalls() const;  // They cross a wire that nothing else checks from end to end.
  bool SealsCalls() const;
  TensorSource* source();
  void MakeCalls();
  // Copies under way by device contexts of the program. Their ends come to parts of this.
  size_t copying() const;
  void AwaitCopies(std::chrono::steady_clock::time_point until) const;
  absl::Status OpenStreams(std::vector<NicPath>* nics);

  const Parts parts_;
  std::vector<std::unique_ptr<Trace>> poller_traces_;  // One for each poller.
  std::unique_ptr<Trace> calls_trace_;
  std::shared_ptr<Arena> arena_;
  std::unique_ptr<DeviceSource> source_without_gpus_;  // A server with GPUs does not have it,
  std::unique_ptr<FetchServer> calls_;
  std::shared_ptr<GrpcPipes> pipes_;
  std::unique_ptr<ChannelPools> pools_;
  std::unique_ptr<HostFetcher> host_fetcher_;  // nor this.
  std::unique_ptr<ServerDevices> devices_;     // Null: the server has no GPUs.
};

}  // namespace tryst

#endif  // TRYST_SERVER_DATA_PLANE_DATA_PLANE_H_
