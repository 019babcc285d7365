#include "channel/shm/serve_answers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "channel/ops/limits.h"
#include "channel/shm/stream_copy.h"
#include "rendezvous/derived_status.h"

namespace tryst {
namespace {

constexpr uint64_t kTurnBytes = 512 << 10;  // How much of a large tensor one turn copies.
// A copy of this size in one part would leave the caches before it is read.
constexpr uint64_t kAroundCachesBytes = 2 << 20;
// A part is small enough that both sides soon have work, and large enough for its fixed cost.
constexpr uint64_t kLeastPartBytes = 16 << 10;
constexpr uint64_t kPartBytes = 64 << 10;

}  // namespace

using shm_wire::CellType;
using shm_wire::Placed;
using shm_wire::ReplyCell;

void ShmAnswers::Answer(ServeOp* op) {
  // Answers that wait go first.
  if (ready_line_.empty() && TryAnswer(op)) return link_->FlushSoon();
  const bool waits = op->state == ServeState::kReady || op->state == ServeState::kInParts;
  if (!waits || op->in_ready_line) return;
  op->in_ready_line = true;
  ready_line_.push_back(op);
}

void ShmAnswers::AnswerWaiting() {
  // An answer that lacks room lets smaller ones pass.
  for (size_t i = 0; i < ready_line_.size();) {
    ServeOp* op = ready_line_[i];
    if (!link_->replies.HasRoom(1)) return;
    const bool answered = TryAnswer(op);
    link_->FlushSoon();
    // The user may have ended the op in the call, which also takes it out of the line; or it is
    // staged now.
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

bool ShmAnswers::CopySome() {
  if (stage_line_.empty()) return false;
  ServeOp* op = stage_line_.front();
  if (CopyToStage(op, kTurnBytes)) {
    stage_line_.pop_front();
    staging_bytes_ -= Of(*op)->stage->bytes();
    slots_->Staged(op);
    Answer(op);
  }
  return true;
}

void ShmAnswers::Forget(ServeOp* op) {
  Sending* const sending = Of(*op);
  if (sending->gauge != nullptr) {
    std::exchange(sending->gauge, nullptr)
        ->End(sending->trip, ServeSlots::Answered(*op) ? sending->sent_bytes : 0, link_->now_ns());
  }
  if (op->in_ready_line) {
    ready_line_.Remove(op);
    op->in_ready_line = false;
  }
  if (op->state == ServeState::kStaging) {
    stage_line_.Remove(op);
    staging_bytes_ -= sending->stage->bytes();
  }
  if (sending->stage) sending->stage = StorageRef();
}

// The tensor was sent. It is kept until it cannot come back.
void ShmAnswers::OnSent(ServeOp* op, uint64_t bytes) {
  Sending* const sending = Of(*op);
  link_->counters.bytes += sending->sent_bytes = bytes;
  slots_->Said(op);
  // Sent again, it keeps its place: a consumer may ask for it without end.
  if (sending->in_sent_line == op->generation) return;
  sending->in_sent_line = op->generation;
  if (!sent_line_.empty() && sent_line_.back().op == op) {
    sent_line_.back().generation = op->generation;  // What was sent before was accepted.
    accepted_by_request_ = true;
    return;
  }
  if (sent_line_.size() >= 4 * slots_->size()) ForgetMovedOn();
  sent_line_.push_back({op, op->generation});
}

Tensor ShmAnswers::MakeRunTensor(uint64_t bytes) {
  const TensorShape shape = {static_cast<int64_t>(bytes)};
  if (bytes > shm_wire::InlineRoom(1)) {
    auto made = link_->hub->arena()->AllocateTensor(DType::kUint8, shape);
    if (made.ok()) return *std::move(made);
  }
  return *Tensor::Allocate(DType::kUint8, shape);
}

// While every turn finds requests, acceptances are not read, and slots may be used again many
// times.
void ShmAnswers::ForgetMovedOn() {
  for (size_t count = sent_line_.size(); count > 0; --count) {
    const Sent sent = sent_line_.front();
    sent_line_.pop_front();
    if (MovedOn(sent)) {
      NoteOutOfLine(sent);
    } else {
      sent_line_.push_back(sent);
    }
  }
}

bool ShmAnswers::ReleaseAccepted() {
  bool any = std::exchange(accepted_by_request_, false);
  for (; !sent_line_.empty(); any = true) {
    const Sent sent = sent_line_.front();
    const bool moved_on = MovedOn(sent);
    if (!moved_on && !link_->Accepted(*sent.op)) break;
    sent_line_.pop_front();
    NoteOutOfLine(sent);
    if (!moved_on) slots_->OnAccepted(sent.op);
  }
  return any;
}

void ShmAnswers::OnLinkOver() {
  for (Sending& sending : sending_) {
    if (sending.gauge != nullptr) {
      std::exchange(sending.gauge, nullptr)->End(sending.trip, 0, link_->now_ns());
    }
    sending.stage = StorageRef();
    sending.in_sent_line = kNotInLine;
  }
  for (size_t i = 0; i < ready_line_.size(); ++i) ready_line_[i]->in_ready_line = false;
  ready_line_.clear();
  stage_line_.clear();
  sent_line_.clear();
  accepted_by_request_ = false;
  staging_bytes_ = 0;
  segment_index_.clear();
  segment_ids_.clear();
  gone_segments_.clear();
  parts_room_.Clear();
}

bool ShmAnswers::TryAnswer(ServeOp* op) {
  if (!link_->replies.HasRoom(1)) return false;
  if (!op->status.ok()) return AnswerFailed(op);
  if (op->is_dead) {
    AnswerInline(op, nullptr, 0);
    return true;
  }
  if (Of(*op)->stage) return AnswerStaged(op);
  if (op->state == ServeState::kInParts) return AnswerInParts(op);
  if (!op->tensor.on_host()) {
    return slots_->FailTaken(
               op, absl::UnimplementedError("shared memory carries tensors of host memory only")) &&
           AnswerFailed(op);
  }
  const auto [payload, bytes] = PayloadOf(op);
  if (bytes <= shm_wire::InlineRoom(op->tensor.shape().rank())) {
    AnswerInline(op, payload, bytes);
    return true;
  }
  return AnswerResident(op) || AnswerByCopy(op, payload, bytes);
}

void ShmAnswers::PutReply(CellType type, uint8_t flags, const ServeOp& op, uint32_t number,
                          ReplyCell* cell) {
  cell->head.type = type;
  cell->head.flags = flags;
  cell->head.slot = op.slot;
  cell->head.generation = op.generation;
  cell->head.number = number;
}

// Fields are written straight into the ring and never read back; the sequence number comes last.
void ShmAnswers::AnswerInline(ServeOp* op, const void* payload, uint64_t bytes) {
  ReplyCell* cell = reinterpret_cast<ReplyCell*>(link_->replies.cell());
  PutReply(CellType::kInline, op->is_dead ? shm_wire::kIsDead : 0, *op,
           static_cast<uint32_t>(bytes), cell);
  const TensorShape& shape = op->tensor.shape();
  const size_t rank = static_cast<size_t>(shape.rank());
  cell->body[0] = static_cast<uint8_t>(op->tensor.dtype());
  cell->body[1] = static_cast<uint8_t>(rank);
  shm_wire::CopyDims(shape.dims().data(), rank, cell->body + 2);
  if (bytes > 0) memcpy(cell->body + 2 + 8 * rank, payload, bytes);
  const size_t used = offsetof(ReplyCell, body) + 2 + 8 * rank + bytes;
  cell->is_long = used > kCacheLine ? 1 : 0;
  link_->replies.Publish();
  ++link_->counters.in_message;
  OnSent(op, bytes);
}

bool ShmAnswers::AnswerFailed(ServeOp* op) {
  const absl::string_view text = op->status.message().substr(0, limits::kMaxErrorBytes);
  constexpr size_t kRoom = sizeof(ReplyCell::body);
  const size_t cells = (sizeof(uint16_t) + text.size() + kRoom - 1) / kRoom;
  if (!link_->replies.HasRoom(static_cast<uint32_t>(cells))) return false;
  const uint16_t length = static_cast<uint16_t>(text.size());
  size_t done = 0;
  for (size_t i = 0; i < cells; ++i) {
    ReplyCell* cell = reinterpret_cast<ReplyCell*>(link_->replies.cell());
    PutReply(i == 0 ? CellType::kFailed : CellType::kMore,
             IsDerived(op->status) ? shm_wire::kDerived : 0, *op,
             static_cast<uint32_t>(op->status.code()), cell);
    cell->is_long = 1;
    const size_t head = i == 0 ? sizeof(length) : 0;
    if (i == 0) memcpy(cell->body, &length, sizeof(length));
    const size_t part = std::min(kRoom - head, text.size() - done);
    memcpy(cell->body + head, text.data() + done, part);
    done += part;
    link_->replies.Publish();
  }
  ++link_->counters.failed;
  OnSent(op, 0);
  return true;
}

Placed ShmAnswers::Describe(const ServeOp& op, uint64_t bytes) {
  Placed placed;
  placed.dtype = static_cast<uint8_t>(op.tensor.dtype());
  placed.rank = static_cast<uint8_t>(op.tensor.shape().rank());
  placed.bytes = bytes;
  placed.digest = Of(op)->digest;
  std::copy(op.tensor.shape().dims().begin(), op.tensor.shape().dims().end(), placed.dims);
  return placed;
}

void ShmAnswers::PutPlaced(CellType type, const ServeOp& op, const Placed& placed) {
  ReplyCell* cell = reinterpret_cast<ReplyCell*>(link_->replies.cell());
  PutReply(type, link_->digests ? shm_wire::kHasDigest : 0, op, 0, cell);
  WritePlaced(placed, cell);
  link_->replies.Publish();
}

// ---- Segments ----

bool ShmAnswers::SegmentIndex(uint64_t segment_id, uint16_t* index) {
  auto found = segment_index_.find(segment_id);
  if (found != segment_index_.end()) {
    *index = found->second;
    return true;
  }
  std::shared_ptr<SharedMemory> memory = link_->hub->arena()->FindSegment(segment_id);
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
  if (!link_->socket->Send(packet, memory->fd())) return false;
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

void ShmAnswers::TellGoneSegments() {
  const uint64_t dropped = link_->hub->arena()->segments_dropped();
  if (segments_dropped_ == dropped) return;
  for (size_t i = 0; i < segment_ids_.size(); ++i) {
    if (segment_ids_[i] == 0 || link_->hub->arena()->FindSegment(segment_ids_[i]) != nullptr) {
      continue;
    }
    if (parts_ != nullptr && parts_->FindSegment(segment_ids_[i]) != nullptr) continue;
    // The others in another turn.
    if (!link_->Say(CellType::kSegmentGone, 0, 0, static_cast<uint32_t>(i))) return;
    segment_index_.erase(segment_ids_[i]);
    segment_ids_[i] = 0;
    gone_segments_.push_back(static_cast<uint16_t>(i));
  }
  segments_dropped_ = dropped;
  link_->FlushSoon();
}

// ---- Without a copy ----

bool ShmAnswers::AnswerResident(ServeOp* op) {
  if (link_->apart || op->tensor.dtype() == DType::kString) return false;
  const MemorySpace space = op->tensor.space();
  if (space.kind != MemorySpace::Kind::kShared || !link_->given->HasFree(false)) return false;
  const std::shared_ptr<SharedMemory> memory = link_->hub->arena()->FindSegment(space.segment_id);
  // A segment's id is not enough: the tensor's bytes must really lie in that segment.
  if (memory == nullptr || memory->data() + space.segment_offset != op->tensor.data()) return false;
  Placed placed = Describe(*op, op->tensor.bytes());
  if (!SegmentIndex(space.segment_id, &placed.segment)) return false;
  if (link_->digests) placed.digest = Crc32c(0, op->tensor.data(), placed.bytes);
  placed.offset = space.segment_offset;
  link_->given->Give(op->tensor.storage(), 0, &placed.reference, &placed.reference_generation);
  PutPlaced(CellType::kReference, *op, placed);
  ++link_->counters.by_reference;
  OnSent(op, placed.bytes);
  return true;
}

// ---- With a copy ----

bool ShmAnswers::AnswerByCopy(ServeOp* op, const void* payload, uint64_t bytes) {
  if (op->has_destination) {
    if (!ConsumerReads(op, bytes)) return AnswerInParts(op);
    AnswerPull(op, payload, bytes);
    return true;
  }
  if (StartStage(op, bytes)) return op->state != ServeState::kStaging && AnswerStaged(op);
  // The consumer holds as much as we may lend it, or the tensor is too large. Parts work whatever
  // the consumer holds.
  return AnswerInParts(op);
}

// Whether the consumer reads the tensor from our memory, in one copy, or both sides copy it in
// parts.
bool ShmAnswers::ConsumerReads(ServeOp* op, uint64_t bytes) {
  if (!link_->can_pull) return false;
  const bool decided = link_->options.parts_bytes > link_->options.pull_bytes;
  ReadGauge* const gauge = gauges_.Of(bytes, link_->hub->crew()->helps(), decided);
  if (gauge == nullptr) {
    return bytes > link_->options.pull_bytes && bytes <= link_->options.parts_bytes;
  }
  const bool reads = gauge->Next() == ReadGauge::Mode::kRead;
  Of(*op)->gauge = gauge;
  Of(*op)->trip = gauge->Begin(link_->now_ns());
  return reads;
}

// Copies a small tensor at once; it is then in state kReady. A large one gets into the line.
bool ShmAnswers::StartStage(ServeOp* op, uint64_t bytes) {
  if (link_->apart || !link_->given->HasFree(false)) return false;
  if (link_->given->charged_bytes() + staging_bytes_ + bytes > link_->options.stage_bytes)
    return false;
  auto stage = link_->hub->arena()->Allocate(bytes);
  if (!stage.ok()) return false;
  Sending* const sending = Of(*op);
  sending->stage = *std::move(stage);
  sending->position = 0;
  sending->digest = 0;
  if (bytes <= kTurnBytes) {
    CopyToStage(op, kTurnBytes);
    return true;
  }
  slots_->Stages(op);
  staging_bytes_ += sending->stage->bytes();
  stage_line_.push_back(op);
  return true;
}

bool ShmAnswers::CopyToStage(ServeOp* op, uint64_t most) {
  const auto [data, bytes] = PayloadOf(op);
  Sending* const sending = Of(*op);
  const uint8_t* payload = static_cast<const uint8_t*>(data) + sending->position;
  uint8_t* to = static_cast<uint8_t*>(sending->stage->data()) + sending->position;
  const uint64_t part = std::min(most, bytes - sending->position);
  if (link_->digests) {
    sending->digest = CopyCrc32c(sending->digest, to, payload, part);
  } else if (bytes >= kAroundCachesBytes) {
    CrewCopy(link_->hub->crew(), to, payload, part, /*streaming=*/true);
  } else {
    CopyForReader(to, payload, part);
  }
  sending->position += part;
  return sending->position == bytes;
}

bool ShmAnswers::AnswerStaged(ServeOp* op) {
  // References may have run out during the copy.
  if (!link_->given->HasFree(false)) return false;
  const uint64_t bytes = PayloadOf(op).bytes;
  Sending* const sending = Of(*op);
  Placed placed = Describe(*op, bytes);
  const MemorySpace space = sending->stage->space();
  if (!SegmentIndex(space.segment_id, &placed.segment)) return false;
  placed.offset = space.segment_offset;
  const uint64_t charge = sending->stage->bytes();
  link_->given->Give(std::move(sending->stage), charge, &placed.reference,
                     &placed.reference_generation);
  PutPlaced(CellType::kReference, *op, placed);
  ++link_->counters.staged;
  OnSent(op, bytes);
  return true;
}

void ShmAnswers::AnswerPull(ServeOp* op, const void* payload, uint64_t bytes) {
  if (link_->digests) Of(*op)->digest = Crc32c(0, payload, bytes);
  Placed placed = Describe(*op, bytes);
  placed.offset = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(payload));
  link_->given->view().slots[op->slot].loan.store(shm_wire::kLent, std::memory_order_relaxed);
  PutPlaced(CellType::kPull, *op, placed);
  link_->counters.bytes += Of(*op)->sent_bytes = bytes;
  slots_->Lent(op);
}

// Copies into memory that another process reads next.
void ShmAnswers::CopyForReader(void* to, const void* from, uint64_t bytes) {
  if (bytes < CopyGauge::kLeastBytes) {
    if (bytes > 0) memcpy(to, from, bytes);
    return;
  }
  const Clock& clock = link_->hub->poller()->clock();
  const bool streams = gauge_.Next();
  const int64_t began_ns = clock.NowNs();
  CrewCopy(link_->hub->crew(), to, from, bytes, streams);
  gauge_.Took(bytes, clock.NowNs() - began_ns);
}

// False: there is no memory for it now.
bool ShmAnswers::OpenPartsRoom() {
  if (parts_block_) return true;
  if (parts_ == nullptr) {
    ArenaOptions room;
    room.cap_bytes = room.segment_bytes = room.first_segment_bytes =
        link_->options.parts_room_bytes;
    FillSecret(&room.seed, sizeof(room.seed));
    parts_ = Arena::Make(room);
  }
  auto block = parts_->Allocate(link_->options.parts_room_bytes);
  if (block.ok()) parts_block_ = *std::move(block);
  return block.ok();
}

// Sends as many parts as there is room for; true: the last one was sent.
bool ShmAnswers::AnswerInParts(ServeOp* op) {
  Sending* const sending = Of(*op);
  if (op->state != ServeState::kInParts) {
    slots_->SendsParts(op);
    sending->position = 0;
    ++link_->counters.in_parts;
  }
  if (!OpenPartsRoom()) return false;
  const auto [data, bytes] = PayloadOf(op);
  const uint8_t* payload = static_cast<const uint8_t*>(data);
  Placed placed = Describe(*op, bytes);
  const MemorySpace space = parts_block_->space();
  if (!SegmentIndex(space.segment_id, &placed.segment)) return false;
  // If nothing waits behind it, the tensor is cut so that both sides copy at the same time; several
  // tensors overlap anyway.
  const uint64_t quarter = (bytes / 4 + PartsRoom::kGranule - 1) & ~(PartsRoom::kGranule - 1);
  const uint64_t part =
      link_->requests.Ready() ? kPartBytes : std::clamp(quarter, kLeastPartBytes, kPartBytes);
  for (bool first = true; sending->position < bytes; first = false) {
    if (!link_->replies.HasRoom(1) || !link_->given->HasFree(true)) return false;
    placed.position = sending->position;
    placed.piece_bytes = static_cast<uint32_t>(std::min(part, bytes - sending->position));
    const uint64_t offset = parts_room_.Find(placed.piece_bytes, *link_->given);
    if (offset == PartsRoom::kNone) return false;
    uint8_t* to = static_cast<uint8_t*>(parts_block_->data()) + offset;
    if (link_->digests) {
      placed.digest = CopyCrc32c(0, to, payload + sending->position, placed.piece_bytes);
    } else {
      CopyForReader(to, payload + sending->position, placed.piece_bytes);
    }
    placed.offset = space.segment_offset + offset;
    link_->given->GivePart(parts_block_, &placed.reference, &placed.reference_generation);
    parts_room_.Gave(offset, placed.piece_bytes, placed.reference, placed.reference_generation);
    PutPlaced(CellType::kChunk, *op, placed);
    sending->position += placed.piece_bytes;
    if (first && sending->position < bytes)
      link_->WakeConsumer();  // It copies at the same time, if it is awake.
  }
  OnSent(op, bytes);
  return true;
}

}  // namespace tryst
