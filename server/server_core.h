#ifndef TRYST_SERVER_SERVER_CORE_H_
#define TRYST_SERVER_SERVER_CORE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/grpc_bootstrap.h"
#include "channel/poller/poller.h"
#include "channel/signing/caller.h"
#include "rendezvous/step_registry.h"
#include "rendezvous/thread_alarms.h"
#include "server/data_plane/data_plane.h"
#include "server/etcd/etcd_members.h"
#include "server/listener/listener.h"
#include "server/members/announcer.h"
#include "server/members/cluster_file.h"
#include "server/members/membership.h"
#include "server/members/peer_calls.h"
#include "server/members/repeating.h"
#include "server/regions/region_grants.h"
#include "server/security/why_unreachable.h"
#include "server/server_parts.h"
#include "server/services/health_service.h"
#include "server/services/samples.h"
#include "server/services/transport_service.h"
#include "server/status/insight.h"
#include "server/status/status_page.h"

namespace tryst {

// The parts of a server. All of them live from Open() until destruction, so that a late call finds
// them ended, not freed. The owner (server.cc) calls Open() and End() at most once each. The rest
// is thread-safe.
class ServerCore {
 public:
  explicit ServerCore(ServerParts parts);
  // REQUIRES: Open() was not called or failed, or End() was called; drained(); not OnOwnThread().
  ~ServerCore();

  // The server serves when it returns OK. On failure it has ended what it had begun.
  absl::Status Open();
  // As Server::Stop(). REQUIRES: Open() returned OK; not OnOwnThread().
  absl::Status End(absl::Duration deadline);
  // False: a NIC may still write into memory that this holds, so it must never be destroyed.
  bool drained() const { return drained_; }
  // Whether the caller runs on a thread that End() waits for: in a callback, for example.
  bool OnOwnThread() const;

  const ServerParts& parts() const { return parts_; }
  uint64_t incarnation() const { return incarnation_; }
  Executor* executor() const {
    return parts_.executor != nullptr ? parts_.executor : own_executor_.get();
  }
  Executor* own_executor() const { return own_executor_.get(); }
  Membership* members() { return &members_; }
  PeerCalls* calls() { return &calls_; }

  // Null or empty before Open() has made them.
  const std::string& address() const;
  int port() const { return listening_ ? port_ : 0; }
  StepRegistry* steps() const { return made_ ? steps_.get() : nullptr; }
  Allocator* allocator() const { return made_ ? data_plane_->allocator() : nullptr; }
  DeviceEngine* gpu(int ordinal) const { return made_ ? data_plane_->gpu(ordinal) : nullptr; }
  const Insight* insight() const { return made_ ? insight_.get() : nullptr; }
  WeightViews* weight_views() { return &weight_views_; }
  RegionGrants* grants() { return &grants_; }
  std::string status_address() const;
  // Reads certificates and the cluster's file anew, soon. REQUIRES: it serves, and End() has not
  // begun.
  void Reload();

 private:
  absl::Status Make();
  void MakePollers();
  void RenewConnections();
  void GiveBurstsBack();
  absl::Status OpenDataPlane();
  absl::Status MakeSteps();
  void MakeInsight();
  absl::Status ShowStatus();
  TransportServiceParts ServiceParts();
  absl::Status Listen();
  void KeepUp();
  absl::StatusOr<Caller> Authenticate(const grpc::ServerContextBase& context,
                                      absl::string_view method, absl::string_view request);
  void DrainFetches(std::chrono::steady_clock::time_point until);
  void CloseDataPlane(std::chrono::steady_clock::time_point until);
  void StopListening();

  // Constant after construction.
  const ServerParts parts_;
  const uint64_t incarnation_;
  const SteadyClock clock_;
  Security security_;
  UnreachablePeers unreachable_;
  ThreadAlarms alarms_;
  Membership members_;
  WeightViews weight_views_;
  RegionGrants grants_;
  CallSigner signer_;
  CallVerifier verifier_;
  GuardedSource source_;
  PeerCalls calls_;
  std::unique_ptr<ThreadPoolExecutor> own_executor_;  // End() waits for what it runs.

  // Constant once made_ is set.
  std::unique_ptr<GrpcBootstrap> bootstrap_;
  std::vector<std::unique_ptr<Poller>> pollers_;
  std::unique_ptr<EventThread> events_;           // For the calls to peers and from them.
  grpc::ServerCompletionQueue* queue_ = nullptr;  // `events_` turns it.
  std::unique_ptr<DataPlane> data_plane_;
  std::unique_ptr<StepRegistry> steps_;
  std::unique_ptr<SampleSender> samples_;
  std::unique_ptr<Insight> insight_;
  std::unique_ptr<ThreadPoolExecutor> control_executor_;
  std::atomic<bool> made_{false};

  // Constant once listening_ is set.
  std::string address_;
  int port_ = 0;
  std::atomic<bool> listening_{false};

  // Used by Open(), End() and the destructor only.
  std::unique_ptr<grpc::ServerBuilder> builder_;  // Reset after it has built the server.
  HealthService health_;
  std::unique_ptr<TransportService> service_;
  std::unique_ptr<Listener> listener_;  // Null until Listen().
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<PeerCalls::HeartbeatsOn> heartbeats_;
  std::unique_ptr<Announcer> announcer_;
  std::unique_ptr<ClusterFileWatch> cluster_file_;
  // Only upkeep_ uses these.
  uint64_t certificates_met_ = security_.certificates_read();   // That connections were made with,
  uint64_t certificates_seen_ = security_.certificates_read();  // and that there were when it ran.
  uint64_t bursts_given_back_ = 0;
  bool gives_back_again_ = false;
  std::unique_ptr<Repeating> upkeep_;
  bool drained_ = true;

  mutable Mutex mu_;
  std::unique_ptr<StatusPage> status_page_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<EtcdMembers> etcd_ ABSL_GUARDED_BY(mu_);  // Null: etcd is not in use.
};

}  // namespace tryst

#endif  // TRYST_SERVER_SERVER_CORE_H_
