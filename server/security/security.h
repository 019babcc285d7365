#ifndef TRYST_SERVER_SECURITY_SECURITY_H_
#define TRYST_SERVER_SECURITY_SECURITY_H_

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

// How workers prove who they are. Exactly one mode is chosen.
struct SecurityOptions {
  // Mutual TLS. The files are read again when they change. A worker's certificate names it by a URI
  // among its subject alternative names: "tryst://CLUSTER/job:J/replica:R/task:T" for one task,
  // "tryst://CLUSTER/job:J" for every task of a job, or "tryst://CLUSTER" for every worker.
  std::string certificate_file;
  std::string key_file;
  std::string ca_file;
  absl::Duration reload_period = absl::Seconds(10);
  // For a trusted network: a caller that knows the token is a member. Nothing is encrypted.
  std::string token;
  // For one machine: every caller from the loopback is a member.
  bool insecure = false;
  // As `insecure`, on other addresses than the loopback, too.
  bool insecure_anywhere = false;
  // How long a connection without calls stays open. At least a second.
  absl::Duration idle = absl::Seconds(10);
  // The longest pause between two attempts to reach a peer that is down.
  absl::Duration longest_pause = absl::Seconds(2);
  // How long a peer may be silent while calls to it wait.
  absl::Duration patience = absl::Minutes(1);
};

// How gRPC finds that a peer is silent while calls wait: it sends a ping and waits for the answer.
// Both together fit in the patience, if that is at least 8 s. A ping more often than every 5 s
// would make the peer close the connection.
struct Keepalive {
  absl::Duration ask_after;
  absl::Duration answer_within;
};
Keepalive KeepaliveFor(absl::Duration patience);

// The credentials of one server and of its channels to peers. Thread-safe.
class Security {
 public:
  // kInvalidArgument: none or several modes are chosen, a file cannot be read, or an insecure
  // server would listen on an `address` that other hosts can reach.
  static absl::Status Check(const SecurityOptions& options, absl::string_view address);

  // REQUIRES: `options` pass Check().
  Security(SecurityOptions options, std::string cluster);
  ~Security();

  // Looks now for new certificates, on a thread of its own.
  void Reload();
  // Grows with each set of certificates that is read, where this object reads them: not where the
  // kernel refuses copies in memory. gRPC uses it for new connections within a second.
  uint64_t certificates_read() const;
  std::shared_ptr<grpc::ServerCredentials> ForServer() const;
  // A channel to `worker` at `address`, where the peer must prove that it is `worker`. It connects
  // on the first call.
  std::shared_ptr<grpc::Channel> Connect(const std::string& worker,
                                         const std::string& address) const;
  // With TLS, the caller's certificate must name `worker`; otherwise OK. kUnauthenticated: it does
  // not.
  absl::Status CheckCertificate(const grpc::AuthContext& context, absl::string_view worker) const;

  const std::string& token() const { return options_.token; }
  bool is_tls() const { return files_ != nullptr; }

 private:
  class Files;
  const SecurityOptions options_;
  const std::string cluster_;
  const std::unique_ptr<Files> files_;  // With TLS, one thread watches the files. Null otherwise.
};

// Whether a certificate with these URIs may speak as `worker` of `cluster`.
bool UriNames(const std::vector<std::string>& uris, absl::string_view cluster,
              absl::string_view worker);

}  // namespace tryst

#endif  // TRYST_SERVER_SECURITY_SECURITY_H_
