#ifndef TRYST_CHANNEL_SHM_SERVE_ANSWERS_H_
#define TRYST_CHANNEL_SHM_SERVE_ANSWERS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "channel/arena/arena.h"
#include "channel/ops/ring_line.h"
#include "channel/shm/copy_gauge.h"
#include "channel/shm/parts_room.h"
#include "channel/shm/read_gauge.h"
#include "channel/shm/serve_link.h"
#include "channel/shm/serve_op.h"
#include "channel/shm/wire.h"

namespace tryst {

// How the producer answers over shared memory: inside the cell, by reference, or with a copy.
// Poller thread only.
class ShmAnswers {
 public:
  class User {
   public:
    virtual ~User() = default;
    // The tensor was sent. The user keeps it until it cannot come back.
    virtual void OnSent(ShmServeOp* op) = 0;
    virtual void OnFailureSent(ShmServeOp* op) = 0;
  };
  // Both outlive it.
  ShmAnswers(ShmServeLink* link, User* user) : link_(link), user_(user) {}

  // Answers now, or when there is room. REQUIRES: the outcome is known (kReady).
  void Answer(ShmServeOp* op);
  // Sends waiting answers, as far as there is room, and copies a bounded amount.
  void AnswerWaiting();
  bool CopySome();  // False: there is nothing to copy.
  // `op` ends. `accepted`: the consumer has its tensor.
  void Forget(ShmServeOp* op, bool accepted);
  bool any_wait() const { return !ready_line_.empty(); }
  // The arena has given segments back to the system. They are really gone only when the consumer
  // unmaps them, too, so it is told.
  void TellGoneSegments();

 private:
  // Each returns false if there is no room now.
  bool TryAnswer(ShmServeOp* op);
  bool AnswerFailed(ShmServeOp* op);
  void AnswerInline(ShmServeOp* op, const void* payload, uint64_t bytes);
  bool AnswerResident(ShmServeOp* op);
  bool AnswerByCopy(ShmServeOp* op, const void* payload, uint64_t bytes);
  bool ConsumerReads(ShmServeOp* op, uint64_t bytes);
  ReadGauge* GaugeOf(uint64_t bytes);
  bool StartStage(ShmServeOp* op, uint64_t bytes);
  bool CopyToStage(ShmServeOp* op, uint64_t most);
  bool AnswerStaged(ShmServeOp* op);
  void AnswerPull(ShmServeOp* op, const void* payload, uint64_t bytes);
  bool AnswerInParts(ShmServeOp* op);
  bool OpenPartsRoom();
  void CopyForReader(void* to, const void* from, uint64_t bytes);
  bool SegmentIndex(uint64_t segment_id, uint16_t* index);
  shm_wire::Placed Describe(const ShmServeOp& op, uint64_t bytes) const;
  const void* Payload(const ShmServeOp& op, uint64_t* bytes) const;
  void PutReply(shm_wire::CellType type, uint8_t flags, const ShmServeOp& op, uint32_t number,
                shm_wire::ReplyCell* cell);
  void PutPlaced(shm_wire::CellType type, const ShmServeOp& op, const shm_wire::Placed& placed);

  ShmServeLink* const link_;
  User* const user_;
  RingLine<ShmServeOp*> ready_line_;  // In states kReady and kInParts.
  RingLine<ShmServeOp*> stage_line_;  // In state kStaging.
  uint64_t staging_bytes_ = 0;        // The bytes of the ops in stage_line_.
  absl::flat_hash_map<uint64_t, uint16_t> segment_index_;
  std::vector<uint64_t> segment_ids_;  // By index; 0: the segment is gone.
  std::vector<uint16_t> gone_segments_;
  uint64_t segments_dropped_ = 0;
  // Memory for tensors that are sent in parts; made when first needed.
  std::shared_ptr<Arena> parts_;
  StorageRef parts_block_;  // All of that memory.
  PartsRoom parts_room_{link_->options.parts_room_bytes};
  CopyGauge gauge_{static_cast<int64_t>(link_->options.parts_room_bytes)};
  // By size; which sizes are whose says GaugeOf().
  ReadGauge small_gauge_{ReadGauge::Mode::kParts, ReadGauge::kMeasureSmallBytes};
  ReadGauge middle_gauge_{ReadGauge::Mode::kParts, ReadGauge::kMeasureSmallBytes};
  ReadGauge helped_gauge_{ReadGauge::Mode::kParts};
  ReadGauge large_gauge_{ReadGauge::Mode::kRead};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SERVE_ANSWERS_H_
