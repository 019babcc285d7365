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
  std::string encoded;  // The bytes of a string tensor.
  // Makes it as new, except for `written`, which Send sets.
  void Clear() {
    region.Reset();
    tensor.Reset();
    encoded.clear();
    tickets.fill(0);
  }

  LaneTickets tickets{};  // The last write on each queue pair.
  // How many bytes of its part each queue pair has been given.
  std::array<uint64_t, kMaxLanes> written{};
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
  TraceSpan span;  // The times at which it entered its states.
  uint16_t slot = 0;
  ServeRequest request;
  bool in_ready_line = false;
  uint32_t replayed_epoch = 0;  // The epoch in which the consumer last requested it.

  // The outcome of the take, kept until it is accepted.
  absl::Status status;
  Args send_args;     // With `turn`: what gives the tensor back
  uint64_t turn = 0;  // in its old place.
  bool is_dead = false;
  bool has_digest = false;
  uint32_t digest = 0;
  ServeSource source;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SERVE_OP_H_
