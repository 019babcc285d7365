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

struct RdmaFetchOptions : FetchOpsOptions {
  LinkOptions link;
  uint64_t landing_bytes = 256 << 10;  // Offered for a tensor of unknown size.
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

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FETCH_OPTIONS_H_
