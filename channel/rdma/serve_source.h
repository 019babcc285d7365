#ifndef TRYST_CHANNEL_RDMA_SERVE_SOURCE_H_
#define TRYST_CHANNEL_RDMA_SERVE_SOURCE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "channel/rdma/source_regions.h"
#include "channel/rdma/wire.h"
#include "rendezvous/tensor.h"

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
  // Only once the slot has let go of them while the NIC still reads.
  Tensor tensor;
  std::string encoded;
  LaneTickets tickets{};  // The last write on each queue pair.
};

// What a NIC needs of a slot, beside ServeOp. Poller thread only.
struct ServeSending {
  uint8_t flags = 0;
  wire::RequestBody body;
  bool has_digest = false;
  uint32_t digest = 0;
  ServeSource source;
  // How many bytes of its part each queue pair has been given.
  std::array<uint64_t, kMaxLanes> written{};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SERVE_SOURCE_H_
