#ifndef TRYST_CHANNEL_GRPC_PEER_DIRECTORY_H_
#define TRYST_CHANNEL_GRPC_PEER_DIRECTORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace tryst {

// Finds the gRPC channel to a worker. The answer may change at any time, so callers ask again for
// each attempt. Thread-safe.
class PeerDirectory {
 public:
  virtual ~PeerDirectory() = default;
  // The gRPC channel connects on its first call. kNotFound: the cluster has no such worker, and
  // waiting will not help. kUnavailable: it has left, or has not joined yet.
  virtual absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(absl::string_view peer) = 0;
  // Adds to `status`, with which a call to `peer` failed, what else is known about the reason.
  // Never waits; a reason may be known only at a later failure.
  virtual absl::Status Explain(absl::string_view peer, absl::Status status) {
    (void)peer;
    return status;
  }
  // `peer` has answered in this incarnation.
  virtual void NoteIncarnation(absl::string_view peer, uint64_t incarnation) {
    (void)peer;
    (void)incarnation;
  }
  // A call to `peer` had no answer in its time, although a connection to it is open.
  virtual void NoteNoAnswer(absl::string_view peer) { (void)peer; }
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_PEER_DIRECTORY_H_
