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
#include "channel/shm/serve_link.h"
#include "channel/shm/serve_op.h"
#include "channel/shm/wire.h"

namespace tryst {

// How the producer answers over shared memory: in the cell, by reference, or with a copy. Poller
// thread only.
class ShmAnswers {
 public:
  class User {
   public:
    virtual ~User() = default;
    // The tensor: it is kept until it cannot come back.
    virtual void OnSent(ShmServeOp* op) = 0;
    virtual void OnFailureSent(ShmServeOp* op) = 0;
  };
  // Both outlive it.
  ShmAnswers(ShmServeLink* link, User* user) : link_(link), user_(user) {}

  // Now, or when there is room. REQUIRES: the outcome is here (kReady).
  void Answer(ShmServeOp* op);
  // Those that wait for room, and a part of the copies.
  void AnswerWaiting();
  bool CopySome();  // False: there is nothing to copy.
  // `op` ends otherwise.
  void Forget(ShmServeOp* op);
  bool any_wait() const { return !ready_line_.empty(); }
  // The arena has given segments back to the system. They are really gone only when the consumer
  // unmaps them too.
  void TellGoneSegments();

 private:
  static constexpr uint64_t kPartsRoomBytes = 2 << 20;

  // Each false where there is no room now.
  bool TryAnswer(ShmServeOp* op);
  bool AnswerFailed(ShmServeOp* op);
  void AnswerInline(ShmServeOp* op, const void* payload, uint64_t bytes);
  bool AnswerResident(ShmServeOp* op);
  bool AnswerByCopy(ShmServeOp* op, const void* payload, uint64_t bytes);
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
  RingLine<ShmServeOp*> ready_line_;  // kReady, kInParts.
  RingLine<ShmServeOp*> stage_line_;  // kStaging.
  uint64_t staging_bytes_ = 0;        // Of stage_line_.
  absl::flat_hash_map<uint64_t, uint16_t> segment_index_;
  std::vector<uint64_t> segment_ids_;  // By index; 0: gone.
  std::vector<uint16_t> gone_segments_;
  uint64_t segments_dropped_ = 0;
  std::shared_ptr<Arena> parts_;  // Memory for tensors that go in parts; made when first needed.
  StorageRef parts_block_;        // All of it.
  PartsRoom parts_room_{kPartsRoomBytes};
  CopyGauge gauge_{kPartsRoomBytes};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SERVE_ANSWERS_H_
