#ifndef TRYST_SERVER_SECURITY_H_
#define TRYST_SERVER_SECURITY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace grpc {
class AuthContext;
class Channel;
class ServerCredentials;
}  // namespace grpc

namespace tryst {

// How workers know each other. Exactly one way.
struct SecurityOptions {
  // Mutual TLS. The files are read again when they change. A worker's certificate names it
  // by a URI among its subject alternative names: "tryst://CLUSTER/job:J/replica:R/task:T",
  // or "tryst://CLUSTER/job:J" for every task of a job, or "tryst://CLUSTER".
  std::string certificate_file;
  std::string key_file;
  std::string ca_file;
  absl::Duration reload_period = absl::Seconds(10);
  // For a trusted network: a caller that knows the token is a member, and nothing is encrypted.
  std::string token;
  // For one machine: everybody on the loopback is in.
  bool insecure = false;
  // ... and wherever else we listen.
  bool insecure_anywhere = false;
  // How long a connection stays open on which nobody calls. At least a second.
  absl::Duration idle = absl::Seconds(10);
  // How long a peer on which calls wait may be silent.
  absl::Duration patience = absl::Minutes(1);
};

// How a silent peer is found on a connection on which calls wait: it is asked for a sign, and
// given some time to answer. In this order, within the patience if that is not shorter than 8 s:
// peers take it ill when they are asked more often than every 5 s.
struct Keepalive {
  absl::Duration ask_after;
  absl::Duration answer_within;
};
Keepalive KeepaliveFor(absl::Duration patience);

// The credentials of one server and of its channels. Thread-safe.
class Security {
 public:
  // kInvalidArgument: not exactly one way, a file that cannot be read, or an insecure
  // server that would listen on `address`, which others can reach.
  static absl::Status Check(const SecurityOptions& options, absl::string_view address);

  // REQUIRES: `options` pass Check().
  Security(SecurityOptions options, std::string cluster);
  ~Security();

  std::shared_ptr<grpc::ServerCredentials> ForServer() const;
  // A lazily connected channel to `worker` at `address`, which must prove to be it.
  std::shared_ptr<grpc::Channel> Connect(const std::string& worker,
                                         const std::string& address) const;
  // TLS: the call's certificate must name `worker`. Otherwise OK. kUnauthenticated.
  absl::Status CheckCertificate(const grpc::AuthContext& context, absl::string_view worker) const;

  const std::string& token() const { return options_.token; }
  bool is_tls() const { return files_ != nullptr; }

 private:
  class Files;
  const SecurityOptions options_;
  const std::string cluster_;
  const std::unique_ptr<Files> files_;  // TLS: watched by one thread. Null otherwise.
};

// Whether a certificate with these URIs may speak as `worker` of `cluster`.
bool UriNames(const std::vector<std::string>& uris, absl::string_view cluster,
              absl::string_view worker);

}  // namespace tryst

#endif  // TRYST_SERVER_SECURITY_H_
