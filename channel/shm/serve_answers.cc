#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/crc32c.h"
#include "channel/shm/serve_channel.h"
#include "channel/string_codec.h"
#include "rendezvous/derived_status.h"

// How a ShmServeChannel answers: in the cell, by reference, or with a copy.
namespace tryst {

using shm_wire::CellType;
using shm_wire::Placed;
using shm_wire::ReplyCell;

void ShmServeChannel::AnswerSoon(ShmServeOp* op) {
  // Those that wait keep their turn.
  if (ready_line_.empty() && Answer(op)) return hub_->poller()->FlushThisTurn(this);
  if (op->state == ServeState::kStaging || op->in_ready_line) return;
  op->in_ready_line = true;
  ready_line_.push_back(op);
}

void ShmServeChannel::AnswerWaiting() {
  SayParked();
  if (!gone_line_.empty()) return;
  // What lacks room lets others pass that need less.
  for (size_t i = 0; i < ready_line_.size();) {
    ShmServeOp* op = ready_line_[i];
    if (!replies_.HasRoom(1)) return;
    const bool answered = Answer(op);
    hub_->poller()->FlushThisTurn(this);
    // Answer() may have released it, and taken it out of the line with that; or it is staged.
    if (i < ready_line_.size() && ready_line_[i] == op) {
      if (answered || op->state == ServeState::kStaging) {
        ready_line_.Remove(op);
        op->in_ready_line = false;
      } else {
        ++i;
      }
    }
  }
}

const void* ShmServeChannel::Payload(const ShmServeOp& op, uint64_t* bytes) const {
  if (op.taken.tensor.dtype() == DType::kString) {
    *bytes = op.encoded.size();
    return op.encoded.data();
  }
  *bytes = op.taken.tensor.bytes();
  return op.taken.tensor.data();
}

bool ShmServeChannel::Answer(ShmServeOp* op) {
  if (!replies_.HasRoom(1)) return false;
  if (!op->status.ok()) return AnswerFailed(op);
  if (op->taken.is_dead) {
    AnswerInline(op, nullptr, 0);
    return true;
  }
  if (op->stage) return AnswerStaged(op);
  if (op->state == ServeState::kInParts) return AnswerInParts(op);
  if (op->taken.tensor.dtype() == DType::kString && op->encoded.empty()) {
    op->encoded = EncodeStrings(op->taken.tensor);
  } else if (!op->taken.tensor.on_host()) {
    op->status = absl::UnimplementedError("shared memory carries host tensors only");
    return AnswerFailed(op);
  }
  uint64_t bytes;
  const void* payload = Payload(*op, &bytes);
  if (bytes <= shm_wire::InlineRoom(op->taken.tensor.shape().rank())) {
    AnswerInline(op, payload, bytes);
    return true;
  }
  return AnswerResident(op) || AnswerByCopy(op, payload, bytes);
}

void ShmServeChannel::PutReply(CellType type, uint8_t flags, const ShmServeOp& op, uint32_t number,
                               ReplyCell* cell) {
  cell->head.type = type;
  cell->head.flags = flags;
  cell->head.slot = op.slot;
  cell->head.generation = op.request.generation;
  cell->head.number = number;
}

// Fields go straight into the ring, where they are never read back; the sequence comes last.
void ShmServeChannel::AnswerInline(ShmServeOp* op, const void* payload, uint64_t bytes) {
  ReplyCell* cell = reinterpret_cast<ReplyCell*>(replies_.cell());
  PutReply(CellType::kInline, op->taken.is_dead ? shm_wire::kIsDead : 0, *op,
           static_cast<uint32_t>(bytes), cell);
  const TensorShape& shape = op->taken.tensor.shape();
  const size_t rank = static_cast<size_t>(shape.rank());
  cell->body[0] = static_cast<uint8_t>(op->taken.tensor.dtype());
  cell->body[1] = static_cast<uint8_t>(rank);
  shm_wire::CopyDims(shape.dims().data(), rank, cell->body + 2);
  if (bytes > 0) memcpy(cell->body + 2 + 8 * rank, payload, bytes);
  const size_t used = offsetof(ReplyCell, body) + 2 + 8 * rank + bytes;
  cell->is_long = used > kCacheLine ? 1 : 0;
  replies_.Publish();
  ++counters_.in_cells;
  counters_.bytes += op->sent_bytes = bytes;
  Sent(op);
}

bool ShmServeChannel::AnswerFailed(ShmServeOp* op) {
  const absl::string_view text = op->status.message().substr(0, shm_wire::kMaxErrorBytes);
  constexpr size_t kRoom = sizeof(ReplyCell::body);
  const size_t cells = 1 + (text.size() + 2) / kRoom;
  if (!replies_.HasRoom(static_cast<uint32_t>(cells))) return false;
  const uint16_t length = static_cast<uint16_t>(text.size());
  size_t done = 0;
  for (size_t i = 0; i < cells; ++i) {
    ReplyCell* cell = reinterpret_cast<ReplyCell*>(replies_.cell());
    PutReply(i == 0 ? CellType::kFailed : CellType::kMore,
             IsDerived(op->status) ? shm_wire::kDerived : 0, *op,
             static_cast<uint32_t>(op->status.code()), cell);
    cell->is_long = 1;
    const size_t head = i == 0 ? sizeof(length) : 0;
    if (i == 0) memcpy(cell->body, &length, sizeof(length));
    const size_t part = std::min(kRoom - head, text.size() - done);
    memcpy(cell->body + head, text.data() + done, part);
    done += part;
    replies_.Publish();
  }
  ++counters_.failed;
  Release(op);
  return true;
}

bool ShmServeChannel::SayOfSlot(CellType type, uint16_t slot, uint32_t generation) {
  if (!replies_.HasRoom(1)) return false;
  ReplyCell* cell = reinterpret_cast<ReplyCell*>(replies_.cell());
  cell->head.type = type;
  cell->head.flags = 0;
  cell->head.slot = slot;
  cell->head.generation = generation;
  cell->is_long = 0;
  replies_.Publish();
  return true;
}

// PARKED before the GONE of the same slot.
void ShmServeChannel::SayParked() {
  for (; !parked_line_.empty(); parked_line_.pop_back()) {
    const auto& [slot, generation] = parked_line_.back();
    if (!SayOfSlot(CellType::kParked, slot, generation)) return;
  }
  for (; !gone_line_.empty(); gone_line_.pop_back()) {
    const auto& [slot, generation] = gone_line_.back();
    if (!SayOfSlot(CellType::kGone, slot, generation)) return;
  }
  takes_.TellHere(shm_wire::kReplyTickets, [this](absl::Span<const uint64_t> tickets) {
    if (!replies_.HasRoom(1)) return false;
    ReplyCell* cell = reinterpret_cast<ReplyCell*>(replies_.cell());
    cell->head.type = CellType::kHere;
    cell->head.flags = 0;
    cell->head.slot = 0;
    cell->head.generation = 0;
    WriteTickets(tickets, cell);
    replies_.Publish();
    return true;
  });
}

// Where there is no room, the cells that fill the ring say as much.
void ShmServeChannel::SayPong() {
  if (SayOfSlot(CellType::kPong, 0, 0)) hub_->poller()->FlushThisTurn(this);
}

Placed ShmServeChannel::Describe(const ShmServeOp& op, uint64_t bytes) const {
  Placed placed;
  placed.dtype = static_cast<uint8_t>(op.taken.tensor.dtype());
  placed.rank = static_cast<uint8_t>(op.taken.tensor.shape().rank());
  placed.bytes = bytes;
  placed.digest = op.digest;
  std::copy(op.taken.tensor.shape().dims().begin(), op.taken.tensor.shape().dims().end(),
            placed.dims);
  return placed;
}

void ShmServeChannel::PutPlaced(CellType type, const ShmServeOp& op, const Placed& placed) {
  ReplyCell* cell = reinterpret_cast<ReplyCell*>(replies_.cell());
  PutReply(type, digests_ ? shm_wire::kHasDigest : 0, op, 0, cell);
  WritePlaced(placed, cell);
  replies_.Publish();
}

// ---- Segments ----

bool ShmServeChannel::SegmentIndex(uint64_t segment_id, uint16_t* index) {
  auto found = segment_index_.find(segment_id);
  if (found != segment_index_.end()) {
    *index = found->second;
    return true;
  }
  std::shared_ptr<SharedMemory> memory = hub_->arena()->FindSegment(segment_id);
  if (memory == nullptr && parts_ != nullptr) memory = parts_->FindSegment(segment_id);
  if (memory == nullptr) return false;
  uint16_t free = static_cast<uint16_t>(segment_ids_.size());
  if (!gone_segments_.empty()) free = gone_segments_.back();
  if (free >= shm_wire::kMaxSegments) return false;
  shm_wire::Packet packet;
  packet.type = shm_wire::PacketType::kSegment;
  packet.segment = free;
  packet.segment_id = segment_id;
  packet.segment_bytes = memory->bytes();
  if (!socket_->Send(packet, memory->fd())) return false;
  if (gone_segments_.empty()) {
    segment_ids_.push_back(segment_id);
  } else {
    gone_segments_.pop_back();
    segment_ids_[free] = segment_id;
  }
  segment_index_[segment_id] = free;
  *index = free;
  return true;
}

// The arena has given segments back to the system. They are really gone only when the
// consumer unmaps them too.
void ShmServeChannel::TellGoneSegments() {
  const uint64_t dropped = hub_->arena()->segments_dropped();
  for (size_t i = 0; i < segment_ids_.size(); ++i) {
    if (segment_ids_[i] == 0 || hub_->arena()->FindSegment(segment_ids_[i]) != nullptr) continue;
    if (parts_ != nullptr && parts_->FindSegment(segment_ids_[i]) != nullptr) continue;
    if (!replies_.HasRoom(1)) return;  // The rest in another turn.
    ReplyCell* cell = reinterpret_cast<ReplyCell*>(replies_.cell());
    cell->head.type = CellType::kSegmentGone;
    cell->head.flags = 0;
    cell->head.slot = 0;
    cell->head.generation = 0;
    cell->head.number = static_cast<uint32_t>(i);
    cell->is_long = 0;
    replies_.Publish();
    segment_index_.erase(segment_ids_[i]);
    segment_ids_[i] = 0;
    gone_segments_.push_back(static_cast<uint16_t>(i));
  }
  segments_dropped_ = dropped;
  hub_->poller()->FlushThisTurn(this);
}

// ---- Without a copy ----

bool ShmServeChannel::AnswerResident(ShmServeOp* op) {
  if (apart_ || op->taken.tensor.dtype() == DType::kString) return false;
  const MemorySpace space = op->taken.tensor.space();
  if (space.kind != MemorySpace::Kind::kShared || !given_->HasFree(false)) return false;
  const std::shared_ptr<SharedMemory> memory = hub_->arena()->FindSegment(space.segment_id);
  // An id says little: the bytes must be where the segment has them.
  if (memory == nullptr || memory->data() + space.segment_offset != op->taken.tensor.data())
    return false;
  Placed placed = Describe(*op, op->taken.tensor.bytes());
  if (!SegmentIndex(space.segment_id, &placed.segment)) return false;
  if (digests_) placed.digest = Crc32c(0, op->taken.tensor.data(), placed.bytes);
  placed.offset = space.segment_offset;
  given_->Give(op->taken.tensor.storage(), 0, &placed.reference, &placed.reference_generation);
  PutPlaced(CellType::kReference, *op, placed);
  ++counters_.by_reference;
  counters_.bytes += op->sent_bytes = placed.bytes;
  Sent(op);
  return true;
}

// ---- With a copy ----

bool ShmServeChannel::AnswerByCopy(ShmServeOp* op, const void* payload, uint64_t bytes) {
  const bool has_destination = (op->request.flags & shm_wire::kHasDestination) != 0;
  if (has_destination) {
    // Two copies by turns, in less time than the kernel's one.
    const bool pull = can_pull_ && bytes > options_.pull_bytes && bytes <= options_.parts_bytes;
    if (!pull) return AnswerInParts(op);
    AnswerPull(op, payload, bytes);
    return true;
  }
  if (StartStage(op, bytes)) return op->state != ServeState::kStaging && AnswerStaged(op);
  // The consumer holds all that we may lend it, or it is too much at once. Whatever it
  // holds, parts go through.
  return AnswerInParts(op);
}

// A small one is copied at once and in state kReady then; a large one gets into the line.
bool ShmServeChannel::StartStage(ShmServeOp* op, uint64_t bytes) {
  if (apart_ || !given_->HasFree(false)) return false;
  if (given_->charged_bytes() + staging_bytes_ + bytes > options_.stage_bytes) return false;
  auto stage = hub_->arena()->Allocate(bytes);
  if (!stage.ok()) return false;
  op->stage = *std::move(stage);
  op->position = 0;
  if (bytes <= kTurnBytes) {
    CopyToStage(op, kTurnBytes);
    return true;
  }
  op->state = ServeState::kStaging;
  op->span.Enter(WaitsFor::kCopy, hub_->poller()->now_ns());
  staging_bytes_ += op->stage->bytes();
  stage_line_.push_back(op);
  return true;
}

bool ShmServeChannel::CopyToStage(ShmServeOp* op, uint64_t most) {
  uint64_t bytes;
  const uint8_t* payload = static_cast<const uint8_t*>(Payload(*op, &bytes)) + op->position;
  uint8_t* to = static_cast<uint8_t*>(op->stage->data()) + op->position;
  const uint64_t part = std::min(most, bytes - op->position);
  if (digests_) {
    op->digest = CopyCrc32c(op->digest, to, payload, part);
  } else if (bytes >= kAroundCachesBytes) {
    hub_->crew()->Copy(to, payload, part, /*streaming=*/true);
  } else {
    CopyForReader(to, payload, part);
  }
  op->position += part;
  return op->position == bytes;
}

bool ShmServeChannel::AnswerStaged(ShmServeOp* op) {
  // References may have run out while it was copied.
  if (!given_->HasFree(false)) return false;
  uint64_t bytes;
  Payload(*op, &bytes);
  Placed placed = Describe(*op, bytes);
  const MemorySpace space = op->stage->space();
  if (!SegmentIndex(space.segment_id, &placed.segment)) return false;
  placed.offset = space.segment_offset;
  const uint64_t charge = op->stage->bytes();
  given_->Give(std::move(op->stage), charge, &placed.reference, &placed.reference_generation);
  PutPlaced(CellType::kReference, *op, placed);
  ++counters_.staged;
  counters_.bytes += op->sent_bytes = bytes;
  Sent(op);
  return true;
}

void ShmServeChannel::AnswerPull(ShmServeOp* op, const void* payload, uint64_t bytes) {
  if (digests_) op->digest = Crc32c(0, payload, bytes);
  Placed placed = Describe(*op, bytes);
  placed.offset = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(payload));
  PutPlaced(CellType::kPull, *op, placed);
  counters_.bytes += op->sent_bytes = bytes;
  op->state = ServeState::kPulled;
  op->span.Enter(WaitsFor::kAcceptance, hub_->poller()->now_ns());
}

// Another process reads it next.
void ShmServeChannel::CopyForReader(void* to, const void* from, uint64_t bytes) {
  if (bytes < CopyGauge::kLeastBytes) {
    if (bytes > 0) memcpy(to, from, bytes);
    return;
  }
  const Clock& clock = hub_->poller()->clock();
  const bool streams = gauge_.Next();
  const int64_t began_ns = clock.NowNs();
  hub_->crew()->Copy(to, from, bytes, streams);
  gauge_.Took(bytes, clock.NowNs() - began_ns);
}

// False: there is no memory for it now.
bool ShmServeChannel::OpenPartsRoom() {
  if (parts_block_) return true;
  if (parts_ == nullptr) {
    ArenaOptions room;
    room.cap_bytes = room.segment_bytes = room.first_segment_bytes = kPartsRoomBytes;
    FillSecret(&room.seed, sizeof(room.seed));
    parts_ = Arena::Make(room);
  }
  auto block = parts_->Allocate(kPartsRoomBytes);
  if (block.ok()) parts_block_ = *std::move(block);
  return block.ok();
}

// As many parts as there is room for; true when the last one is out.
bool ShmServeChannel::AnswerInParts(ShmServeOp* op) {
  if (op->state != ServeState::kInParts) {
    op->state = ServeState::kInParts;
    op->position = 0;
    ++counters_.in_parts;
  }
  if (!OpenPartsRoom()) return false;
  uint64_t bytes;
  const uint8_t* payload = static_cast<const uint8_t*>(Payload(*op, &bytes));
  Placed placed = Describe(*op, bytes);
  const MemorySpace space = parts_block_->space();
  if (!SegmentIndex(space.segment_id, &placed.segment)) return false;
  // Of one that nobody stands behind both sides are to copy at once; others overlap anyway.
  const uint64_t quarter = (bytes / 4 + PartsRoom::kGranule - 1) & ~(PartsRoom::kGranule - 1);
  const uint64_t part =
      requests_.Ready() ? kPartBytes : std::clamp(quarter, kLeastPartBytes, kPartBytes);
  for (bool first = true; op->position < bytes; first = false) {
    if (!replies_.HasRoom(1) || !given_->HasFree(true)) return false;
    placed.position = op->position;
    placed.piece_bytes = static_cast<uint32_t>(std::min(part, bytes - op->position));
    const uint64_t offset = parts_room_.Find(placed.piece_bytes, *given_);
    if (offset == PartsRoom::kNone) return false;
    uint8_t* to = static_cast<uint8_t*>(parts_block_->data()) + offset;
    if (digests_) {
      placed.digest = CopyCrc32c(0, to, payload + op->position, placed.piece_bytes);
    } else {
      CopyForReader(to, payload + op->position, placed.piece_bytes);
    }
    placed.offset = space.segment_offset + offset;
    given_->Give(parts_block_, 0, &placed.reference, &placed.reference_generation);
    parts_room_.Gave(offset, placed.piece_bytes, placed.reference, placed.reference_generation);
    PutPlaced(CellType::kChunk, *op, placed);
    op->position += placed.piece_bytes;
    if (first && op->position < bytes) Flush();  // It copies while we do, if it is awake.
  }
  counters_.bytes += op->sent_bytes = bytes;
  Sent(op);
  return true;
}

}  // namespace tryst
