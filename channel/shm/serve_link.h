#ifndef TRYST_CHANNEL_SHM_SERVE_LINK_H_
#define TRYST_CHANNEL_SHM_SERVE_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "channel/poller/poller.h"
#include "channel/shm/local_socket.h"
#include "channel/shm/references.h"
#include "channel/shm/ring.h"
#include "channel/shm/shm_hub.h"
#include "channel/shm/wire.h"
#include "channel/trace/trace.h"

namespace tryst {

struct ShmServeOptions {
  shm_wire::LinkSizes most;  // The consumer's sizes are taken up to these.
  std::string self;
  uint64_t self_incarnation = 0;
  bool digests = false;
  // Of what is copied into the arena for this consumer and not yet returned.
  uint64_t stage_bytes = 512 << 20;
  // Into the caller's memory tensors go in parts, which takes less time
  // (docs/decisions/0024-large-copies.md). Of more than pull_bytes and up to parts_bytes the
  // consumer reads them out of ours.
  uint64_t pull_bytes = 64 << 10;
  uint64_t parts_bytes = 64 << 10;
  bool allow_pull = true;
  // The consumer gets copies alone, in memory of its own link: it could read in our segments what
  // is meant for others. So does a process of another user in any case.
  bool apart = false;
  uint32_t link_newest = shm_wire::kLinkNewest;  // The newest version that we speak.
  std::function<void()> on_drained;              // After its end. May be null.
  Trace* trace = nullptr;                        // Of the poller; may be null.
};

struct ShmServeCounters {
  uint64_t requests = 0;
  uint64_t in_cells = 0;      // Inside the message.
  uint64_t by_reference = 0;  // Without a copy.
  uint64_t staged = 0;        // With one copy, into the arena.
  uint64_t pulled = 0;        // With one copy, by the consumer.
  uint64_t in_parts = 0;      // With two.
  uint64_t failed = 0;
  uint64_t cancelled = 0;
  uint64_t given_back = 0;
  uint64_t bytes = 0;
  uint64_t messages = 0;  // Cells written.

  ShmServeCounters& operator+=(const ShmServeCounters& other);
};

// One link of shared memory as its producer has it: what the connection (ShmServeChannel), the
// requests (ShmRequests) and the answers (ShmAnswers) share. Poller thread only.
struct ShmServeLink {
  ShmServeLink(ShmHub* hub, ShmServeOptions options, PollerFlush* flush)
      : hub(hub), options(std::move(options)), flush(flush) {}

  ShmHub* const hub;
  const ShmServeOptions options;
  PollerFlush* const flush;  // The channel's, at the end of a turn in which something was said.
  shm_wire::LinkSizes sizes;
  bool digests = false;
  bool open = false;    // The consumer is heard and answered.
  uint64_t number = 0;  // By which both ends know it, for traces.
  uint32_t version = 0;
  bool can_pull = false;
  bool apart = true;  // ShmServeOptions::apart, or another user's process.
  std::shared_ptr<LocalSocket> socket;
  std::shared_ptr<GivenReferences> given;
  RingReader<shm_wire::kRequestCellBytes> requests;
  RingWriter<shm_wire::kReplyCellBytes> replies;
  ShmServeCounters counters;

  int64_t now_ns() const { return hub->poller()->now_ns(); }
  void FlushSoon() { hub->poller()->FlushThisTurn(flush); }
  // A cell with a head alone. False: there is no room.
  bool Say(shm_wire::CellType type, uint16_t slot, uint32_t generation, uint32_t about = 0);
  // Wakes a consumer that sleeps, after the ring was written or read.
  void WakeConsumer();
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SERVE_LINK_H_
