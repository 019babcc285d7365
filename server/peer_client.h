#ifndef TRYST_SERVER_PEER_CLIENT_H_
#define TRYST_SERVER_PEER_CLIENT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/config/config.h"
#include "server/members/membership.h"
#include "server/members/peer_calls.h"

namespace tryst {

// Calls workers without being a worker: for an operator's tools. Thread-safe.
class PeerClient {
 public:
  virtual ~PeerClient() = default;
  virtual Membership* members() = 0;  // Knows the workers of config.join and config.cluster_spec.
  virtual PeerCalls* calls() = 0;

  // Signs calls as config.job and task (by default "cli", 0). kInvalidArgument: a setting is wrong.
  static absl::StatusOr<std::unique_ptr<PeerClient>> Make(const ServerConfig& config);
};

}  // namespace tryst

#endif  // TRYST_SERVER_PEER_CLIENT_H_
