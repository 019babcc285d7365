#ifndef TRYST_SERVER_SECURITY_WHY_UNREACHABLE_H_
#define TRYST_SERVER_SECURITY_WHY_UNREACHABLE_H_

#include <map>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
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
  // Waits for the try that is under way, three seconds at most.
  ~UnreachablePeers();

  // What the last try of `worker` found; may start another. Never waits.
  std::string Why(const std::string& worker, const std::string& address);

 private:
  struct Seen {
    std::string address;
    std::string why;
    Deadline until = Deadline::AtNs(0);  // Then another try finds out anew.
    bool wanted = false;
  };
  void Look();

  const SecurityOptions options_;
  const std::string cluster_;
  const SteadyClock clock_;
  Mutex mu_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool has_thread_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Seen> peers_ ABSL_GUARDED_BY(mu_);  // By worker; at most kMostPeers.
  std::thread thread_;                                      // The first question starts it.
};

}  // namespace tryst

#endif  // TRYST_SERVER_SECURITY_WHY_UNREACHABLE_H_
