#ifndef TRYST_CHANNEL_SHM_SERVE_ANSWERS_H_
#define TRYST_CHANNEL_SHM_SERVE_ANSWERS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "channel/arena/arena.h"
#include "channel/ops/ring_line.h"
#include "channel/ops/serve_slots.h"
#include "channel/ops/slot_array.h"
#include "channel/shm/copy_gauge.h"
#include "channel/shm/parts_room.h"
#include "channel/shm/read_gauge.h"
#include "channel/shm/serve_sending.h"
#include "channel/shm/wire.h"

namespace tryst {

// How the producer answers over shared memory: inside the cell, by reference, or with a copy.
// Poller thread only.
class ShmAnswers {
 public:
  // Both outlive it. What it has measured holds for all links.
  ShmAnswers(ShmServeSender* link, ServeSlots* slots) : link_(link), slots_(slots) {}

  void Make(size_t slots) {
    if (sending_.empty()) sending_.Make(slots);
  }
  // Answers now, or when there is room. REQUIRES: the outcome is known (kReady).
  void Answer(ServeOp* op);
  // Sends waiting answers, as far as there is room, and copies a bounded amount.
  void AnswerWaiting();
  bool CopySome();           // False: there is nothing to copy.
  void Forget(ServeOp* op);  // It ends.
  bool any_wait() const { return !ready_line_.empty(); }
  // Nothing was sent over the link yet. REQUIRES: no other one is used.
  void Begin() { segments_dropped_ = link_->hub->arena()->segments_dropped(); }
  // The link is over: what is to be sent waits for another.
  void OnLinkOver();
  // In state kSent, in the order of the answers.
  bool any_sent() const { return !sent_line_.empty(); }
  // Lets go of the first of them that were accepted. False: none was.
  bool ReleaseAccepted();
  // In the arena, where there is room, so that the consumer sees it.
  Tensor MakeRunTensor(uint64_t bytes);
  // The arena has given segments back to the system. They are really gone only when the consumer
  // unmaps them, too, so it is told.
  void TellGoneSegments();
  // How large tensors go, for people.
  std::string Explain() const { return gauges_.Explain(); }

 private:
  static constexpr uint32_t kNotInLine = UINT32_MAX;
  // What shared memory needs of a slot, beside ServeOp.
  struct Sending {
    StorageRef stage;  // Where the bytes are copied to.
    uint64_t position = 0;
    uint64_t sent_bytes = 0;
    uint32_t digest = 0;
    uint32_t in_sent_line = kNotInLine;  // Its generation there.
    ReadGauge* gauge = nullptr;          // Measures its way; null: nobody does.
    ReadGauge::Trip trip;
  };
  struct Sent {
    ServeOp* op;
    uint32_t generation;
  };
  Sending* Of(const ServeOp& op) { return &sending_[op.slot]; }
  static bool MovedOn(const Sent& sent) {
    return sent.op->state != ServeState::kSent || sent.op->generation != sent.generation;
  }
  void NoteOutOfLine(const Sent& sent) {
    Sending* const sending = Of(*sent.op);
    if (sending->in_sent_line == sent.generation) sending->in_sent_line = kNotInLine;
  }
  void OnSent(ServeOp* op, uint64_t bytes);
  void ForgetMovedOn();
  // Each returns false if there is no room now.
  bool TryAnswer(ServeOp* op);
  bool AnswerFailed(ServeOp* op);
  void AnswerInline(ServeOp* op, const void* payload, uint64_t bytes);
  bool AnswerResident(ServeOp* op);
  bool AnswerByCopy(ServeOp* op, const void* payload, uint64_t bytes);
  bool ConsumerReads(ServeOp* op, uint64_t bytes);
  bool StartStage(ServeOp* op, uint64_t bytes);
  bool CopyToStage(ServeOp* op, uint64_t most);
  bool AnswerStaged(ServeOp* op);
  void AnswerPull(ServeOp* op, const void* payload, uint64_t bytes);
  bool AnswerInParts(ServeOp* op);
  bool OpenPartsRoom();
  void CopyForReader(void* to, const void* from, uint64_t bytes);
  bool SegmentIndex(uint64_t segment_id, uint16_t* index);
  shm_wire::Placed Describe(const ServeOp& op, uint64_t bytes);
  void PutReply(shm_wire::CellType type, uint8_t flags, const ServeOp& op, uint32_t number,
                shm_wire::ReplyCell* cell);
  void PutPlaced(shm_wire::CellType type, const ServeOp& op, const shm_wire::Placed& placed);

  ShmServeSender* const link_;
  ServeSlots* const slots_;
  SlotArray<Sending> sending_;        // By slot.
  RingLine<Sent> sent_line_;          // In state kSent, and some whose slot has moved on.
  bool accepted_by_request_ = false;  // A slot was used again since the last look at acceptances.
  RingLine<ServeOp*> ready_line_;     // In states kReady and kInParts.
  RingLine<ServeOp*> stage_line_;     // In state kStaging.
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
  ReadGauges gauges_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SERVE_ANSWERS_H_
