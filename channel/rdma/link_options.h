#ifndef TRYST_CHANNEL_RDMA_LINK_OPTIONS_H_
#define TRYST_CHANNEL_RDMA_LINK_OPTIONS_H_

#include <cstddef>
#include <cstdint>

namespace tryst {

// Receives are posted again in groups of this size, so a queue pair has that many more receives
// than arrivals can need.
inline constexpr uint32_t kReceivesInARun = 16;

struct LinkOptions {
  uint32_t slots = 128;      // Fetches that may be under way at once: the credits.
  uint32_t ring_slots = 16;  // Messages that the peer may have under way to us.
  // The size of one message. The largest tensor inside it is 136 bytes smaller, so one of 8 KiB
  // fits.
  uint32_t message_bytes = 8192 + 256;
  uint32_t queue_pairs = 1;
  uint32_t send_depth = 128;
  int64_t stall_ms = 10'000;    // A link on which no work completes for so long is broken.
  int64_t ack_delay_us = 1000;  // How long an ack may wait for a message to ride on.
  bool digests = true;
  uint8_t ack_timeout = 14;  // As QueuePairOptions::ack_timeout.
  uint8_t retry_count = 6;
  bool dials = false;  // As QueuePairOptions::dials: the consumer's end.
};

// The receives that a queue pair needs: one for everything that the peer may have under way on it,
// and one for each arrival that was not posted again yet. The first carries all messages and one
// ack; each carries at most one part of each slot's tensor.
inline uint32_t ReceiveDepth(const LinkOptions& options, size_t lane) {
  return options.slots + (lane == 0 ? options.ring_slots + 1 : 0) + kReceivesInARun;
}

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_LINK_OPTIONS_H_
