#ifndef TRYST_CHANNEL_SHM_SERVE_SENDING_H_
#define TRYST_CHANNEL_SHM_SERVE_SENDING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "channel/ops/serve_session.h"
#include "channel/poller/poller.h"
#include "channel/shm/local_socket.h"
#include "channel/shm/references.h"
#include "channel/shm/ring.h"
#include "channel/shm/shm_hub.h"
#include "channel/shm/wire.h"

namespace tryst {

struct ShmServeOptions : ServeSessionOptions {
  ShmServeOptions() { path = "shm"; }
  shm_wire::LinkSizes most;  // A consumer's sizes are accepted up to these.
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
  std::function<absl::Status()> may_open;  // Whether there may be another link to it.
  // The link is over, and the consumer holds tensors that came over it.
  std::function<void(const std::shared_ptr<const GivenReferences>&)> on_kept;
};

// The present link of a session as its producer sees it: what the connection (ShmServeLink) and the
// answers (ShmAnswers) share. Poller thread only.
struct ShmServeSender {
  ShmServeSender(ShmHub* hub, ShmServeOptions options, PollerFlush* flush, ServeCounters* counters)
      : hub(hub), options(std::move(options)), flush(flush), counters(*counters) {}

  ShmHub* const hub;
  const ShmServeOptions options;
  // Runs at the end of a turn in which something was written.
  PollerFlush* const flush;
  shm_wire::LinkSizes sizes;
  bool digests = false;
  bool can_pull = false;
  bool apart = true;  // ShmServeOptions::apart, or another user's process.
  std::shared_ptr<LocalSocket> socket;
  std::shared_ptr<GivenReferences> given;
  RingReader<shm_wire::kRequestCellBytes> requests;
  RingWriter<shm_wire::kReplyCellBytes> replies;
  ServeCounters& counters;

  int64_t now_ns() const { return hub->poller()->now_ns(); }
  void FlushSoon() { hub->poller()->FlushThisTurn(flush); }
  // Writes a cell that is only a head. False: there is no room.
  bool Say(shm_wire::CellType type, uint16_t slot, uint32_t generation, uint32_t about = 0);
  // Whether the consumer has accepted the answer of `op` over this link.
  bool Accepted(const ServeOp& op) const {
    return shm_wire::Accepted(given->view(), op.slot, op.generation);
  }
  // Wakes a sleeping consumer, after the ring was written or read.
  void WakeConsumer();
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SERVE_SENDING_H_
