#ifndef TRYST_SERVER_PEER_CLIENT_H_
#define TRYST_SERVER_PEER_CLIENT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/config.h"
#include "server/membership.h"
#include "server/peer_calls.h"

namespace tryst {

// Calls workers without being one: what an operator's tool needs. Thread-safe.
class PeerClient {
 public:
  virtual ~PeerClient() = default;
  virtual Membership* members() = 0;  // Knows config.join and config.cluster_spec.
  virtual PeerCalls* calls() = 0;

  // Speaks as config.job, task (default "cli", 0). kInvalidArgument.
  static absl::StatusOr<std::unique_ptr<PeerClient>> Make(const ServerConfig& config);
};

}  // namespace tryst

#endif  // TRYST_SERVER_PEER_CLIENT_H_
