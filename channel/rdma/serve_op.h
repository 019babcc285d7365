#ifndef TRYST_CHANNEL_RDMA_SERVE_OP_H_
#define TRYST_CHANNEL_RDMA_SERVE_OP_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "channel/ops/serve_table.h"
#include "channel/ops/takes.h"
#include "channel/rdma/source_regions.h"
#include "channel/rdma/wire.h"
#include "channel/trace/trace_span.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

inline constexpr size_t kMaxLanes = 8;
using LaneTickets = std::array<uint64_t, kMaxLanes>;

// What the NIC reads while it sends a tensor.
struct ServeSource {
  ServeSource() = default;
  ~ServeSource() { region.Reset(); }
  ServeSource(ServeSource&&) = default;
  ServeSource& operator=(ServeSource&&) = default;

  SourceRegion region;  // Over one of the next two: goes before they do.
  Tensor tensor;
  std::string encoded;                        // A string tensor's bytes.
  LaneTickets tickets{};                      // The last write on each queue pair.
  std::array<uint64_t, kMaxLanes> written{};  // How much of its part is on its way.
};

struct ServeRequest {
  uint16_t generation = 0;
  uint8_t flags = 0;
  TensorKey key;
  wire::RequestBody body;
};

// One slot of the producer: from a request to the word that its tensor was accepted.
// Poller thread only.
struct ServeOp : TakingOp {
  ServeState state = ServeState::kFree;
  TraceSpan span;  // The same with times.
  uint16_t slot = 0;
  ServeRequest request;
  bool in_ready_line = false;
  uint32_t replayed_epoch = 0;  // In which the consumer last asked for it.

  // The outcome of the take, kept until it is accepted.
  absl::Status status;
  Args send_args;     // For giving it back,
  uint64_t turn = 0;  // in its place.
  bool is_dead = false;
  bool has_digest = false;
  uint32_t digest = 0;
  ServeSource source;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SERVE_OP_H_
