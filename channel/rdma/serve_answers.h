#ifndef TRYST_CHANNEL_RDMA_SERVE_ANSWERS_H_
#define TRYST_CHANNEL_RDMA_SERVE_ANSWERS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "channel/ops/serve_session.h"
#include "channel/ops/serve_slots.h"
#include "channel/ops/slot_array.h"
#include "channel/rdma/message_link.h"
#include "channel/rdma/queue_hub.h"
#include "channel/rdma/rdma_options.h"
#include "channel/rdma/serve_source.h"
#include "channel/rdma/wire.h"

namespace tryst {

// How the producer answers over rdma: inside the message, with a write to the consumer's
// destination, or with the size of the destination that it needs. Poller thread only.
class RdmaAnswers {
 public:
  // The arguments outlive it.
  RdmaAnswers(QueueHub* hub, const RdmaOptions* options, ServeSlots* slots, ServeCounters* counters)
      : hub_(hub), options_(*options), slots_(slots), counters_(counters) {}

  void Make(size_t slots) {
    if (sending_.empty()) sending_.Make(slots + 1);
  }
  ServeSending* Of(const ServeOp& op) { return &sending_[op.slot]; }
  // Where a request on `slot` is read. The last place is for slots that do not exist, so that a
  // request is read before it is looked at.
  ServeSending* PlaceOf(uint16_t slot) {
    return &sending_[std::min<size_t>(slot, sending_.size() - 1)];
  }
  // Answers go over `link` from now on.
  void Use(MessageLink* link, bool digests) {
    link_ = link;
    digests_ = digests;
  }
  // Before the first Send() of an outcome, and of one that is sent again.
  void Begin(const ServeOp& op) { Of(op)->written.fill(0); }
  // False: there is no room now.
  bool Send(ServeOp* op);
  // No queue pair that knew the tickets of works is left.
  void OnDrained() {
    for (ServeSending& sending : sending_) sending.source.tickets.fill(0);
  }

 private:
  bool SendFailed(ServeOp* op);
  bool FailTaken(ServeOp* op, const absl::Status& why);
  bool SendEager(ServeOp* op, const wire::TensorMeta& meta, const void* payload);
  bool SendWrites(ServeOp* op, wire::TensorMeta meta, const void* payload);
  bool PutMeta(const wire::Record& record, const wire::TensorMeta& meta);
  bool SendNeedDestination(ServeOp* op, const wire::TensorMeta& meta);
  absl::Status PrepareSource(const ServeOp& op, const void* payload, uint64_t bytes);
  uint64_t PiecesOf(uint64_t bytes, uint64_t part_bytes, size_t parts) const;
  uint64_t WorkBytes() const;
  bool IsBare(const ServeSending& sending, const wire::TensorMeta& meta) const;
  bool WritePart(const ServeOp& op, size_t lane, uint64_t begin, uint64_t end, bool immediate);
  wire::Record Word(const ServeOp& op, wire::RecordType type) const;

  QueueHub* const hub_;
  const RdmaOptions& options_;
  ServeSlots* const slots_;
  ServeCounters* const counters_;
  SlotArray<ServeSending> sending_;  // By slot.
  MessageLink* link_ = nullptr;
  bool digests_ = true;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SERVE_ANSWERS_H_
