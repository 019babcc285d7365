#ifndef TRYST_VERBS_IBV_IWARP_CONNECTOR_H_
#define TRYST_VERBS_IBV_IWARP_CONNECTOR_H_

#include <rdma/rdma_cma.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "verbs/ibv/iwarp_address.h"
#include "verbs/ibv/rdma_cm_calls.h"

namespace tryst {

// The connection of one queue pair to its peer. The queue pair makes and ends it; the connector
// advances it.
class IwarpLink {
 public:
  enum class State : uint8_t { kIdle, kConnecting, kEstablished, kFailed };
  State state() const { return state_.load(std::memory_order_acquire); }

 private:
  friend class IwarpConnector;
  std::atomic<State> state_{State::kIdle};
  // The fields below are guarded by the connector's mutex.
  uint32_t number_ = 0;
  uint64_t token_ = 0;
  uint64_t peer_token_ = 0;
  int wake_fd_ = -1;
  rdma_cm_id* id_ = nullptr;       // Ours, or the peer's request that we accepted.
  rdma_cm_id* waiting_ = nullptr;  // A request that came before Connect().
  uint64_t waiting_from_ = 0;      // The token in that request.
};

// Connects the queue pairs of one iWARP device, which only the RDMA connection manager can do. A
// thread takes the manager's events. Of two ends, the one with the smaller token sends the request.
// The other accepts it after Connect() has named that token, so either end may begin first. Thread-
// safe.
class IwarpConnector {
 public:
  static constexpr uint8_t kReads = 16;  // RDMA reads under way at once, in each direction.

  // Listens on the first address of this machine by which the connection manager finds `device`.
  static absl::StatusOr<std::unique_ptr<IwarpConnector>> Open(RdmaCmCalls calls,
                                                              const std::string& device);
  ~IwarpConnector();  // REQUIRES: every link was removed.

  const sockaddr_in6& host() const { return host_; }

  // `wake_fd` is written to when the link's state has changed.
  std::unique_ptr<IwarpLink> Add(uint32_t number, uint64_t token, int wake_fd);
  absl::Status Connect(IwarpLink* link, const IwarpAddress& peer);
  // When it returns, the connection is gone, and the queue pair may be destroyed.
  void Remove(IwarpLink* link);

 private:
  IwarpConnector(RdmaCmCalls calls, std::string device)
      : calls_(std::move(calls)), device_(std::move(device)) {}
  absl::Status Listen();
  bool ListenOn(const sockaddr* address);
  void Run();
  void TakeEvents();
  bool WakeThoseWhoWait();
  void OnEvent(const rdma_cm_event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnRequest(rdma_cm_id* id, absl::string_view data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int Ask(rdma_cm_id* id, const IwarpLink& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Accept(IwarpLink* link, rdma_cm_id* id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refuse(rdma_cm_id* id);
  void SetState(IwarpLink* link, IwarpLink::State state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(rdma_cm_id** id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RdmaCmCalls calls_;
  const std::string device_;
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* listener_ = nullptr;
  sockaddr_in6 host_ = {};
  int stir_fd_ = -1;  // Written to, to wake the thread.
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::map<uint64_t, IwarpLink*> links_ ABSL_GUARDED_BY(mutex_);     // By token.
  std::map<rdma_cm_id*, IwarpLink*> by_id_ ABSL_GUARDED_BY(mutex_);  // By their id_.
  std::thread thread_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_IWARP_CONNECTOR_H_
