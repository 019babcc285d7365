#ifndef TRYST_CHANNEL_GRPC_PEER_DIRECTORY_H_
#define TRYST_CHANNEL_GRPC_PEER_DIRECTORY_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace tryst {

// Worker name -> connection. The answer may change while the process runs, so callers
// ask anew for each attempt. Thread-safe.
class PeerDirectory {
 public:
  virtual ~PeerDirectory() = default;
  // Connects lazily. kNotFound: the cluster has no such worker, and waiting will not
  // help. kUnavailable: it has left or has not joined yet.
  virtual absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(absl::string_view peer) = 0;
  // `status`, with which a call to `peer` has failed, and what else is known of why. Never
  // waits: what is not known at the first failure may be at the next.
  virtual absl::Status Explain(absl::string_view peer, absl::Status status) {
    (void)peer;
    return status;
  }
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_PEER_DIRECTORY_H_
