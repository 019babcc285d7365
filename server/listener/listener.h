#ifndef TRYST_SERVER_LISTENER_LISTENER_H_
#define TRYST_SERVER_LISTENER_LISTENER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/listener/connection_table.h"
#include "server/listener/listening_sockets.h"

namespace tryst {

// Accepts a server's connections in gRPC's place. It limits how many there are and how much arrives
// on each until a call has authenticated the caller, and closes those that exceed a limit. Only
// gRPC reads the bytes. Unlike gRPC's own listener, it survives when no descriptor is left
// (docs/SECURITY.md).
//
// Uses two descriptors for each connection, gRPC's and its own. Thread-safe.
class Listener {
 public:
  // Takes over a connected socket. Runs on a thread of the listener that does nothing else, because
  // gRPC makes the calling thread read whatever has arrived, for as long as more arrives.
  using Deliver = std::function<void(int listener_fd, int fd)>;

  // Listens, but accepts nobody yet.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::string& address,
                                                        ConnectionLimits limits);
  ~Listener();  // Delivered connections stay with their gRPC server.

  void Start(Deliver deliver);
  // Accepts no more; peers can no longer connect. Idempotent.
  void Stop();
  int port() const { return listening_.port; }
  // A call whose grpc::ServerContext::peer() is `peer` was authenticated.
  void Authenticated(absl::string_view peer);
  ConnectionCounts counts() const;

 private:
  using Id = ConnectionTable::Id;
  Listener(ListeningSockets listening, ConnectionLimits limits, OwnedFd epoll, OwnedFd wake);
  void Run();
  void RunDeliveries();
  void Accept(int listener);
  void TakeIn(int listener, OwnedFd fd, const std::string& address);
  void Look(Id id);
  void LookAtActive();
  void End(const std::vector<Id>& ids);
  void Resume(const std::vector<Id>& ids);
  void Forget(Id id);
  void Rest();
  int64_t NextTurnNs() const;
  struct Delivery {
    int listener_fd;
    OwnedFd fd;
  };
  void HandOver(Id id, Delivery delivery);
  void DeliverDelayed(int64_t now_ns);

  // Constant after construction and Start().
  Deliver deliver_;
  const SteadyClock clock_;
  const OwnedFd epoll_;
  const OwnedFd wake_;

  ListeningSockets listening_;  // Its sockets are open until Stop().

  // Used by the listener's thread only.
  std::map<Id, OwnedFd> sockets_;  // Our descriptors, beside gRPC's.
  std::set<Id> active_;            // Bytes have arrived on them; they are checked again soon.
  int64_t next_look_ns_ = INT64_MAX;
  int64_t rests_until_ns_ = 0;
  // Connections whose delivery is delayed, by its time.
  std::multimap<int64_t, std::pair<Id, Delivery>> delayed_;

  mutable Mutex mu_;
  ConnectionTable table_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::map<Id, Delivery> deliveries_ ABSL_GUARDED_BY(mu_);
  CondVar delivery_;

  std::thread thread_;
  std::thread delivering_;
};

// Lowers `limits` to what the process's descriptor limit allows: two for each connection, of half
// of all descriptors.
ConnectionLimits WithinDescriptors(ConnectionLimits limits);

}  // namespace tryst

#endif  // TRYST_SERVER_LISTENER_LISTENER_H_
