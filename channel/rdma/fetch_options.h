#ifndef TRYST_CHANNEL_RDMA_FETCH_OPTIONS_H_
#define TRYST_CHANNEL_RDMA_FETCH_OPTIONS_H_

#include <cstdint>
#include <vector>

#include "channel/bootstrap.h"
#include "channel/channel.h"
#include "channel/ops/connector.h"
#include "channel/ops/fetch_ops.h"
#include "channel/rdma/message_link.h"
#include "channel/trace/trace.h"

namespace tryst {

struct FetchChannelOptions : FetchOpsOptions {
  FetchChannelOptions() {
    max_key_bytes = wire::kMaxKeyBytes;
    max_keys = wire::kMaxKeys;
    max_keys_bytes = wire::kKeysLapBytes;
    max_parked = 1'000'000;  // Each costs a FetchAsk here and a ServeTake at the peer.
  }
  LinkOptions link;
  uint64_t offered_bytes = 256 << 10;  // Offered for a tensor of unknown size.
  int64_t heartbeat_ms = 250;          // Between pings, while a request is open and nothing comes.
  // After this silence the link counts as broken; if the peer's NIC still answers, after
  // link.stall_ms.
  int64_t silence_ms = 900;
  // How long to wait for parts that may still be written into the memory of a fetch that was given
  // up.
  int64_t given_up_ms = 2000;
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
