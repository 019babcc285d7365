#ifndef TRYST_SERVER_ETCD_ETCD_CLIENT_H_
#define TRYST_SERVER_ETCD_ETCD_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/etcd.grpc.pb.h"

namespace tryst {

// How to reach etcd, and how to authenticate there.
struct EtcdAccess {
  std::vector<std::string> endpoints;  // host:port
  std::string ca;                      // PEM; empty: no TLS.
  std::string certificate;             // PEM, with the key: authenticates us by TLS.
  std::string key;
  std::string user;  // Empty: no user.
  std::string password;
};

// One session with one server of etcd. Each call waits for its answer, and each but Watch() ends
// within kCallTimeout. Watch() may run on one thread while another makes the other calls.
class EtcdClient {
 public:
  static constexpr absl::Duration kCallTimeout = absl::Milliseconds(700);

  EtcdClient(const EtcdAccess& access, const std::string& endpoint);

  // Does nothing without a user.
  absl::Status Authenticate(const EtcdAccess& access);
  absl::StatusOr<int64_t> GrantLease(absl::Duration ttl);
  // False: the lease is lost.
  absl::StatusOr<bool> KeepLease(int64_t lease);
  void RevokeLease(int64_t lease);
  // Writes the key, unless it exists with another value than this and in another revision than
  // `former`, which may be replaced; false: it does.
  absl::StatusOr<bool> PutUnlessOthers(const std::string& key, const std::string& value,
                                       int64_t lease, int64_t former);
  absl::StatusOr<etcdserverpb::TxnResponse> Transact(const etcdserverpb::TxnRequest& request);
  // Up to `most` entries from `key` up to, but not including, `end`.
  absl::StatusOr<etcdserverpb::RangeResponse> Range(const std::string& key, const std::string& end,
                                                    int64_t most);
  // Calls `on_events` with each change since `revision`, until CancelWatch() or an error.
  absl::Status Watch(const std::string& key, const std::string& end, int64_t revision,
                     const std::function<void(const etcdserverpb::WatchResponse&)>& on_events);
  void CancelWatch() { watching_.TryCancel(); }

 private:
  void Prepare(grpc::ClientContext* context) const;

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<etcdserverpb::KV::Stub> kv_;
  std::unique_ptr<etcdserverpb::Lease::Stub> leases_;
  std::unique_ptr<etcdserverpb::Watch::Stub> watches_;
  std::string token_;  // etcd's answer to the user's name and password.
  grpc::ClientContext watching_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_ETCD_ETCD_CLIENT_H_
