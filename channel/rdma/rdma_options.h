#ifndef TRYST_CHANNEL_RDMA_RDMA_OPTIONS_H_
#define TRYST_CHANNEL_RDMA_RDMA_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "channel/ops/session_options.h"
#include "channel/rdma/message_link.h"
#include "verbs/nic.h"

namespace tryst {

// A NIC by which peers can be reached.
struct NicPath {
  std::string path;  // "rdma/soft", "rdma/ibv": both ends must have one with this name.
  std::shared_ptr<Nic> nic;
  // True: LinkOptions::digests decides whether payloads carry a CRC-32C. False: they never do,
  // because the link has checksums on every hop and between its ends.
  bool digests = true;
  // True: a poller does not look at the NIC before it has a peer there. For one that few peers
  // need, and whose every look costs a system call.
  bool polled_once_used = false;
  // True: one queue pair takes a large message over several flows by itself, better than a part for
  // each of LinkOptions::queue_pairs is.
  bool one_queue_pair = false;
  uint8_t ack_timeout = 0;       // In place of LinkOptions::ack_timeout, if it is longer.
  uint64_t landing_divisor = 1;  // It has this part of RdmaOptions::landing_bytes.
};

// The options of each NIC.
struct RdmaOptions : SessionOptions {
  LinkOptions link;  // Our sizes bound those that a consumer asks for; for slots see kUsedSlots.
  // Up to this size a tensor travels inside the message, if it fits.
  uint64_t eager_bytes = 8192;
  // Tensors from here on are spread over all queue pairs. A smaller part of a tensor takes less
  // time than a message costs.
  uint64_t stripe_bytes = 1 << 20;
  // The most that one work writes, so that completions show progress.
  uint64_t write_bytes = 16 << 20;
  // The memory that goes with a request for a tensor of unknown size. A larger tensor costs a round
  // trip more, the first time; what is offered lies idle until the tensor comes.
  uint64_t offered_bytes = 256 << 10;
  uint64_t landing_bytes = 1 << 30;   // The most memory for tensors without a destination.
  uint32_t completion_depth = 16384;  // Limits the number of links.
  // Standing receives from one peer, and never more than half the slots; see RecvArgs::recurring.
  uint32_t standing = 16;
  int64_t standing_ms = 30'000;  // How long one waits for its fetch.
  int64_t heartbeat_ms = 250;    // Between pings, while a request is open and nothing comes.
  // After this silence the link counts as broken; if the peer's NIC still answers, after
  // link.stall_ms.
  int64_t silence_ms = 900;
  // How long the caller of a fetch that was given up waits while its memory may still be written:
  // for the peer's last word, and then for parts. At most link.stall_ms each.
  int64_t given_up_ms = 2000;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_RDMA_OPTIONS_H_
