#ifndef TRYST_CHANNEL_RDMA_FETCH_OPTIONS_H_
#define TRYST_CHANNEL_RDMA_FETCH_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "channel/bootstrap.h"
#include "channel/channel.h"
#include "channel/ops/connector.h"
#include "channel/ops/fetch_ops.h"
#include "channel/rdma/message_link.h"
#include "channel/trace/trace.h"

namespace tryst {

struct FetchChannelOptions : ConnectorOptions {
  LinkOptions link;
  uint64_t landing_bytes = 256 << 10;  // Offered for a tensor of unknown size.
  std::function<void()> on_refused;    // The peer turned the path down; may call TakeWaiting().
  Trace* trace = nullptr;              // The poller's; may be null.
  // Called when the path is left (give_up_ms); gets all fetches that wait, in order.
  std::function<void(std::vector<WaitingFetch>)> on_left;
  std::function<void()> on_usable;  // Called when Probe() has shown that the path works.
  // Gets a fetch whose tensor is larger than the landing memory and has no destination, and those
  // that follow it, to bring them by another path. Null: the fetch fails.
  std::function<void(std::vector<WaitingFetch>)> on_too_large;
  // How long the peer may be silent before the fetches that wait for it fail. 0: for ever.
  int64_t patience_ms = 60'000;
  // The most fetches that may wait for the peer's Send without a slot. Each costs a FetchAsk here
  // and a ServeTake at the peer.
  uint32_t max_parked = 1'000'000;
  uint64_t max_tensor_bytes = UINT64_MAX;
  int64_t heartbeat_ms = 250;  // Between pings, while a request is open and nothing comes.
  // After this silence the link counts as broken; if the peer's NIC still answers, after
  // link.stall_ms.
  int64_t silence_ms = 900;
  // How long to wait for parts that may still be written into the memory of a fetch that was given
  // up.
  int64_t given_up_ms = 2000;
  int64_t retain_ms = 60'000;  // As in ServeChannelOptions.
  // The most standing receives at one time; never more than half the slots.
  uint32_t standing = 16;
  int64_t standing_ms = 30'000;  // How long one waits for its fetch.
};

struct FetchCounters : FetchCounts {
  uint64_t bytes = 0;
  uint64_t epochs = 0;  // Connections made.
  uint64_t breaks = 0;
  uint64_t digests_wrong = 0;
  uint64_t ghosts = 0;            // Messages about a slot that has been used again since.
  uint64_t standing = 0;          // Standing receives made.
  uint64_t standing_claimed = 0;  // Standing receives that a fetch claimed.
  // Standing receives given up; their tensors went back to the producer.
  uint64_t standing_dropped = 0;

  FetchCounters& operator+=(const FetchCounters& other);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FETCH_OPTIONS_H_
