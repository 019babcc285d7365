#ifndef TRYST_CHANNEL_SHM_SERVE_SENDING_H_
#define TRYST_CHANNEL_SHM_SERVE_SENDING_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "channel/ops/serve_session.h"
#include "channel/poller/poller.h"
#include "channel/shm/local_socket.h"
#include "channel/shm/references.h"
#include "channel/shm/ring.h"
#include "channel/shm/shm_hub.h"
#include "channel/shm/shm_options.h"
#include "channel/shm/wire.h"

namespace tryst {

// The present link of a session as its producer sees it: what the connection (ShmServeLink) and the
// answers (ShmAnswers) share. Poller thread only.
struct ShmServeSender {
  ShmServeSender(ShmHub* hub, const ShmOptions& options, PollerFlush* flush,
                 ServeCounters* counters)
      : hub(hub), options(options), flush(flush), counters(*counters) {}

  ShmHub* const hub;
  const ShmOptions options;
  // Runs at the end of a turn in which something was written.
  PollerFlush* const flush;
  shm_wire::LinkSizes sizes;
  bool digests = false;
  bool can_pull = false;
  bool apart = true;  // ShmOptions::apart, or another user's process.
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
