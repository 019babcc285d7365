#ifndef TRYST_CHANNEL_COMPAT_GRPC_CHANNEL_OPTIONS_H_
#define TRYST_CHANNEL_COMPAT_GRPC_CHANNEL_OPTIONS_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "channel/trace/trace.h"

namespace tryst {

struct GrpcChannelOptions {
  // A tensor that is larger, by its producer's word, is refused.
  uint64_t max_tensor_bytes = uint64_t{64} << 30;
  // How many fetches may wait in calls of their own. Further ones are requested in batches, and get
  // a call when the producer says that their tensors are there. A producer of an earlier release
  // takes no batches; then they wait in line.
  size_t max_asked = 1024;
  // How many fetches may be requested from the peer at once, in calls and batches. Further ones
  // wait in line.
  size_t max_waiting = 1'000'000;
  // How long a fetch retries while nobody answers. Shorter than the time for which the producer
  // keeps a tensor whose consumer is gone (FetchServerOptions).
  absl::Duration patience = absl::Seconds(30);
  // How long gRPC's keepalive waits for an answer before it gives the peer up.
  absl::Duration answer_within = absl::Seconds(10);
  absl::Duration first_retry = absl::Milliseconds(20);
  absl::Duration longest_retry = absl::Seconds(1);
  bool digests = false;  // Requests them. A digest that arrives is always checked.
  // Answers must be sealed with the token that we share with the peer.
  bool seals = false;
  Trace* trace = nullptr;  // The poller's; may be null.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_COMPAT_GRPC_CHANNEL_OPTIONS_H_
