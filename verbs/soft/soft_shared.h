#ifndef TRYST_VERBS_SOFT_SOFT_SHARED_H_
#define TRYST_VERBS_SOFT_SOFT_SHARED_H_

#include <cstdint>

#include "verbs/nic.h"
#include "verbs/soft/handshake.h"
#include "verbs/soft/soft_completion_queue.h"
#include "verbs/soft/soft_context.h"
#include "verbs/soft/soft_peer_reads.h"
#include "verbs/soft/soft_progress.h"
#include "verbs/soft/soft_receive_ring.h"
#include "verbs/soft/soft_send_ring.h"
#include "verbs/soft/soft_waits.h"

namespace tryst {

// What the parts of a queue pair share: what it was made from, and the works and counts that more
// than one part changes. Its completion queue's thread only.
struct SoftShared {
  SoftShared(SoftContext* its_context, SoftCompletionQueue* its_completions,
             SoftQueuePair* its_queue_pair, const QueuePairOptions& its_options,
             uint32_t its_number)
      : context(its_context),
        completions(its_completions),
        queue_pair(its_queue_pair),
        options(its_options),
        number(its_number),
        token(its_context->NewTokenOf(its_options)),
        sends(its_context, its_options),
        receives(its_options),
        reads(its_context->options.limits.max_reads_in_flight),
        progress(its_options, its_context->options.ack_delay > absl::ZeroDuration(), &receives),
        waits(its_context->options, its_options) {}

  // The peer is owed an acknowledgement, which waits some turns for another frame to carry it.
  void OweAck() {
    if (progress.BeginDebt()) completions->NoteDebt(queue_pair);
  }
  void OweAckIfCreditIsDue() {
    if (progress.CreditDue()) OweAck();
  }

  // A message that all lanes carry comes or goes.
  void NoteStriping() {
    wants_lanes = true;
    completions->NoteStriping();
  }

  SoftContext* const context;
  SoftCompletionQueue* const completions;
  SoftQueuePair* const queue_pair;  // Whom the completion queue is told of.
  const QueuePairOptions options;
  const uint32_t number;
  const Token token;

  SoftSendRing sends;
  SoftReceiveRing receives;
  SoftPeerReads reads;
  SoftProgress progress;
  SoftWaits waits;
  // The later lanes are dialled with the first message that is large enough for them.
  bool wants_lanes = false;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_SHARED_H_
