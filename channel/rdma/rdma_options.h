#ifndef TRYST_CHANNEL_RDMA_RDMA_OPTIONS_H_
#define TRYST_CHANNEL_RDMA_RDMA_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "channel/rdma/message_link.h"
#include "verbs/nic.h"

namespace tryst {

// A NIC that peers may be reached by.
struct NicPath {
  std::string path;  // "rdma/soft", "rdma/ibv": both ends must have one of that name.
  std::shared_ptr<Nic> nic;
  // Payloads carry a CRC-32C, as LinkOptions::digests says; false: never, because the link
  // has a checksum of its own on every hop and between its ends.
  bool digests = true;
};

// Of each NIC.
struct RdmaOptions {
  LinkOptions link;
  uint64_t eager_bytes = 8192;
  uint64_t stripe_bytes = 1 << 20;
  uint64_t write_bytes = 16 << 20;
  uint64_t landing_bytes = 256 << 10;
  uint64_t landing_cap_bytes = 1 << 30;
  uint32_t completion_depth = 16384;  // Bounds how many links it carries.
  uint32_t max_consumers = 4096;      // That may be connected to us.
  int64_t retain_ms = 60'000;
  int64_t patience_ms = 60'000;      // How long a fetch goes on while its peer says nothing.
  uint32_t max_waiting = 1'000'000;  // Fetches from one peer that wait for a Send, without a slot.
  uint32_t standing = 16;            // Standing receives from one peer: see Args::recurring.
  int64_t standing_ms = 30'000;
  int64_t heartbeat_ms = 250;
  int64_t silence_ms = 900;
  // How long a path may fail while its peer is up and somebody waits, before what waits goes
  // to the next one.
  int64_t give_up_ms = 2000;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_RDMA_OPTIONS_H_
