#ifndef TRYST_SERVER_SECURITY_WHY_UNREACHABLE_H_
#define TRYST_SERVER_SECURITY_WHY_UNREACHABLE_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "server/security/security.h"

namespace tryst {

// gRPC says of a failed connection only that it failed. This connects to `worker` at `address` once
// more, and says in a sentence or two what it met and what to do: nobody listens, no TLS, or a
// certificate that one side rejects, and why. Empty: nothing seems wrong. Waits up to `timeout`,
// and for the name to resolve.
std::string WhyUnreachable(const std::string& worker, const std::string& address,
                           const SecurityOptions& options, const std::string& cluster,
                           absl::Duration timeout);

// Asks WhyUnreachable() on a thread of its own, for callers that cannot wait. Thread-safe.
class UnreachablePeers {
 public:
  UnreachablePeers(SecurityOptions options, std::string cluster);
  // Waits for the try that is under way, two seconds at most. One that waits longer for DNS goes on
  // alone.
  ~UnreachablePeers();

  // What the last try of `worker` found; may start another. Never waits.
  std::string Why(const std::string& worker, const std::string& address);

 private:
  class Looker;
  const std::shared_ptr<Looker> looker_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_SECURITY_WHY_UNREACHABLE_H_
