#ifndef TRYST_CHANNEL_CHANNEL_POOL_OPTIONS_H_
#define TRYST_CHANNEL_CHANNEL_POOL_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "channel/bootstrap.h"
#include "channel/rdma/message_link.h"
#include "channel/shm/shm_path.h"
#include "channel/trace.h"

namespace tryst {

struct ChannelPoolOptions {
  std::string self;          // "/job:worker/replica:0/task:1"
  uint64_t incarnation = 0;  // Not 0.
  LinkOptions link;
  uint64_t eager_bytes = 8192;
  uint64_t stripe_bytes = 1 << 20;
  uint64_t write_bytes = 16 << 20;
  uint64_t landing_bytes = 256 << 10;
  uint64_t landing_cap_bytes = 1 << 30;  // Per NIC.
  uint32_t completion_depth = 16384;     // Per NIC: bounds how many links it carries.
  uint32_t max_consumers = 4096;         // That may be connected to us.
  int64_t retain_ms = 60'000;
  int64_t patience_ms = 60'000;      // How long a fetch goes on while its peer says nothing.
  uint32_t max_waiting = 1'000'000;  // Fetches from one peer that wait for a Send, without a slot.
  uint32_t standing = 16;            // Standing receives from one peer: see Args::recurring.
  int64_t standing_ms = 30'000;
  uint32_t protocol_newest = kProtocolNewest;  // Less: as an older worker.
  int64_t heartbeat_ms = 250;
  int64_t silence_ms = 900;
  // How long a path may fail while its peer is up and somebody waits, before what waits goes
  // to the next one; and how often a path that was left is tried again, from least to most.
  int64_t give_up_ms = 2000;
  int64_t probe_ms = 1000;
  int64_t probe_ms_most = 30'000;
  uint64_t seed = 1;
  // Shared memory with workers of this host, before any NIC. Null: there is none.
  std::shared_ptr<Arena> shm_arena;
  ShmPathOptions shm;      // Its names, seed and trace are the pool's.
  Trace* trace = nullptr;  // Written on the poller thread; outlives the pool. May be null.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_CHANNEL_POOL_OPTIONS_H_
