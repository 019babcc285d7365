#ifndef TRYST_CHANNEL_GRPC_GRPC_CHANNEL_OPTIONS_H_
#define TRYST_CHANNEL_GRPC_GRPC_CHANNEL_OPTIONS_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "channel/trace/trace.h"

namespace tryst {

struct GrpcChannelOptions {
  // A tensor that its producer says is larger is refused.
  uint64_t max_tensor_bytes = uint64_t{64} << 30;
  // Fetches that wait at once in a call of their own. More are asked for in batches, and take a
  // call when the producer says that they are there; a producer of an earlier release takes no
  // batches, and more wait in line.
  size_t max_asked = 1024;
  // Fetches asked of the peer at once, in calls and batches; more wait in line.
  size_t max_waiting = 1'000'000;
  // How long a fetch goes on trying while nobody answers. Shorter than the time for which
  // the producer keeps a tensor whose consumer is gone (FetchServerOptions).
  absl::Duration patience = absl::Seconds(30);
  // How long the peer had been silent when gRPC's keepalive gives it up.
  absl::Duration silence = absl::Seconds(30);
  absl::Duration first_retry = absl::Milliseconds(20);
  absl::Duration longest_retry = absl::Seconds(1);
  bool digests = false;    // Asks for them. What comes with one is checked in any case.
  Trace* trace = nullptr;  // Of the poller; may be null.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_GRPC_CHANNEL_OPTIONS_H_
