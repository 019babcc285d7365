#ifndef TRYST_CHANNEL_SHM_SERVE_LINK_H_
#define TRYST_CHANNEL_SHM_SERVE_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "channel/ops/serve_op.h"
#include "channel/poller/poller.h"
#include "channel/shm/local_socket.h"
#include "channel/shm/references.h"
#include "channel/shm/ring.h"
#include "channel/shm/shm_hub.h"
#include "channel/shm/wire.h"
#include "channel/trace/trace.h"

namespace tryst {

struct ShmServeOptions {
  shm_wire::LinkSizes most;  // A consumer's sizes are accepted up to these.
  std::string self;
  uint64_t self_incarnation = 0;
  bool digests = false;
  // The bound on what is staged in the arena for this consumer and not returned yet.
  uint64_t stage_bytes = 512 << 20;
  // Tensors for the caller's memory are sent in parts or read from our memory by the consumer,
  // whichever the link has measured to be faster (docs/decisions/0024-large-copies.md). Where
  // parts_bytes is more than pull_bytes, those between the two are read and the others go in parts,
  // unless helpers take part.
  uint64_t pull_bytes = 64 << 10;
  uint64_t parts_bytes = 64 << 10;
  // Of one consumer; at least as much as a part takes (ShmAnswers).
  uint64_t parts_room_bytes = 2 << 20;
  bool allow_pull = true;
  // The consumer gets only copies, in memory of its own link, because in our segments it could read
  // tensors that are for others. A process of another user is always treated so.
  bool apart = false;
  std::function<void()> on_drained;  // Called after its end. May be null.
  Trace* trace = nullptr;            // The poller's; may be null.
  // For tests: called after the requests were read and before the acceptances are.
  std::function<void()> before_accepted;
};

// A shared-memory link as its producer sees it: what the connection (ShmServeChannel), the requests
// (ShmRequests) and the answers (ShmAnswers) share. Poller thread only.
struct ShmServeLink {
  ShmServeLink(ShmHub* hub, ShmServeOptions options, PollerFlush* flush)
      : hub(hub), options(std::move(options)), flush(flush) {}

  ShmHub* const hub;
  const ShmServeOptions options;
  // The channel's; runs at the end of a turn in which something was written.
  PollerFlush* const flush;
  shm_wire::LinkSizes sizes;
  bool digests = false;
  bool open = false;    // The consumer is connected.
  uint64_t number = 0;  // Identifies the link to both ends, for traces.
  bool can_pull = false;
  bool apart = true;  // ShmServeOptions::apart, or another user's process.
  std::shared_ptr<LocalSocket> socket;
  std::shared_ptr<GivenReferences> given;
  RingReader<shm_wire::kRequestCellBytes> requests;
  RingWriter<shm_wire::kReplyCellBytes> replies;
  ServeCounters counters;

  int64_t now_ns() const { return hub->poller()->now_ns(); }
  void FlushSoon() { hub->poller()->FlushThisTurn(flush); }
  // Writes a cell that is only a head. False: there is no room.
  bool Say(shm_wire::CellType type, uint16_t slot, uint32_t generation, uint32_t about = 0);
  // Wakes a sleeping consumer, after the ring was written or read.
  void WakeConsumer();
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SERVE_LINK_H_
