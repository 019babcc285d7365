#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/crc32c.h"
#include "channel/shm/fetch_channel.h"
#include "channel/shm/landing_memory.h"
#include "channel/string_codec.h"

// What the producer answers, and where its bytes go.
namespace tryst {

using shm_wire::CellType;
using shm_wire::Placed;
using shm_wire::ReplyCell;

bool ShmFetchChannel::PollLink() {
  if (state_ != State::kOpen) return false;
  int cells = 0;
  for (; cells < kCellsPerTurn && replies_.Ready(); ++cells) {
    ReplyCell cell;
    replies_.Take(reinterpret_cast<uint8_t*>(&cell), shm_wire::kIsLongAt);
    const absl::Status understood = OnCell(cell);
    if (!understood.ok()) {
      NoteMisanswered(cell);
      Break(understood);
    }
    if (state_ != State::kOpen) return true;  // A callback may have closed us, too.
  }
  const bool copied = !copies_.empty();
  if (copied) RunCopy();
  // A producer may wait for the room in its ring, and we may have waited for some in ours.
  if (cells > 0 || SomebodyWaits() || HasWords() || !words_.empty()) FlushSoon();
  return cells > 0 || copied;
}

// Asked again, it may be answered better; but not for ever.
void ShmFetchChannel::NoteMisanswered(const ReplyCell& cell) {
  if (state_ != State::kOpen || cell.head.slot >= slots_.size()) return;
  ShmFetchOp* op = Own(slots_.at(cell.head.slot));
  if (op != nullptr) ++op->misanswered;
}

absl::Status ShmFetchChannel::OnCell(const ReplyCell& cell) {
  if (in_failed_text_) {
    if (cell.head.type != CellType::kMore) return absl::DataLossError("a text that breaks off");
    return OnFailedText(cell.body, sizeof(cell.body));
  }
  if (cell.head.type == CellType::kSegmentGone) return held_->DropSegment(cell.head.number);
  if (cell.head.type == CellType::kPong) return absl::OkStatus();
  if (cell.head.type == CellType::kHere) {
    uint64_t tickets[shm_wire::kReplyTickets];
    const auto count = ReadTickets(cell, tickets);
    if (count.ok()) OnHere(absl::MakeConstSpan(tickets, *count));
    return count.status();
  }
  if (cell.head.slot >= slots_.size()) return absl::DataLossError("a slot out of range");
  ShmFetchOp* op = Own(slots_.at(cell.head.slot));
  if (op == nullptr || op->generation != cell.head.generation) {
    return absl::DataLossError("the producer answered what nobody asks");
  }
  back_off_.Reset();  // The connection works.
  switch (cell.head.type) {
    case CellType::kInline:
    case CellType::kReference:
    case CellType::kPull:
    case CellType::kChunk:
      return OnWord(op, FetchEvent::kTensor, cell);
    case CellType::kFailed:
      return StartFailedText(op, cell);
    case CellType::kGone:
      return OnWord(op, FetchEvent::kGone, cell);
    case CellType::kParked:
      if (!op->park_asked)
        return absl::DataLossError("the producer parked what it was not asked to");
      return OnWord(op, FetchEvent::kParked, cell);
    default:
      return absl::DataLossError("an unknown cell in the reply ring");
  }
}

absl::Status ShmFetchChannel::OnWord(ShmFetchOp* op, FetchEvent event, const ReplyCell& cell) {
  const FetchRow* row = Hear(op, event);
  if (row == nullptr) return OutOfPlace(op->state, event);
  switch (row->action) {
    case FetchAction::kGiveSlot:
    case FetchAction::kUnwant:
      OnParked(op, row->action == FetchAction::kGiveSlot);
      return absl::OkStatus();
    case FetchAction::kLastWord:
      Complete(op, op->end_status, Tensor(), false);
      return absl::OkStatus();
    default:
      return cell.head.type == CellType::kInline ? OnInline(op, cell) : OnPlaced(op, cell);
  }
}

// Before version 3 an answer that crosses a CANCEL is the answer to that, too.
bool ShmFetchChannel::CountsAsGone(const FetchOp& op) const {
  return op.state == FetchState::kLeaving && link_version_ < shm_wire::kLinkParks;
}

// The length and the text are the body.
absl::Status ShmFetchChannel::StartFailedText(ShmFetchOp* op, const ReplyCell& cell) {
  if (FindFetchRow(op->state, FetchEvent::kFailed) == nullptr) {
    return OutOfPlace(op->state, FetchEvent::kFailed);
  }
  uint16_t bytes;
  memcpy(&bytes, cell.body, sizeof(bytes));
  if (bytes > shm_wire::kMaxErrorBytes) return absl::DataLossError("a text that is too long");
  in_failed_text_ = true;
  failed_head_ = cell.head;
  failed_bytes_ = bytes;
  failed_text_.clear();
  return OnFailedText(cell.body + sizeof(bytes), sizeof(cell.body) - sizeof(bytes));
}

absl::Status ShmFetchChannel::OnFailedText(const uint8_t* text, size_t bytes) {
  failed_text_.append(reinterpret_cast<const char*>(text),
                      std::min(bytes, failed_bytes_ - failed_text_.size()));
  if (failed_text_.size() < failed_bytes_) return absl::OkStatus();
  in_failed_text_ = false;
  ShmFetchOp* op = Own(slots_.at(failed_head_.slot));
  // It may have been cancelled, or have ended, between the parts of the text.
  if (op == nullptr || op->generation != failed_head_.generation) return absl::OkStatus();
  if (CountsAsGone(*op)) {
    Complete(op, op->end_status, Tensor(), false);
  } else if (op->state == FetchState::kAsked) {
    Complete(op,
             FailureTold(failed_head_.number, failed_text_,
                         (failed_head_.flags & shm_wire::kDerived) != 0),
             Tensor(), false);
  }
  return absl::OkStatus();
}

// A tensor that is what the caller said it would be, which is to say nearly every one.
bool ShmFetchChannel::FillDestination(ShmFetchOp* op, const ReplyCell& cell) {
  if (!op->wants().destination.valid()) return false;
  const Tensor& wanted = op->wants().destination;
  const uint8_t rank = cell.body[1];
  const size_t dims = size_t{8} * rank;
  if (wanted.dtype() != static_cast<DType>(cell.body[0]) || wanted.dtype() == DType::kString ||
      wanted.shape().rank() != rank || wanted.bytes() != cell.head.number ||
      cell.head.number > options_.max_tensor_bytes ||
      memcmp(wanted.shape().dims().data(), cell.body + 2, dims) != 0) {
    return false;
  }
  memcpy(wanted.mutable_data(), cell.body + 2 + dims, cell.head.number);
  ++counters_.in_cells;
  counters_.bytes += cell.head.number;
  Complete(op, absl::OkStatus(), wanted, false);
  return true;
}

absl::Status ShmFetchChannel::OnInline(ShmFetchOp* op, const ReplyCell& cell) {
  const uint8_t rank = cell.body[1];
  const uint64_t bytes = cell.head.number;
  if (rank > TensorShape::kMaxRank || bytes > shm_wire::InlineRoom(rank)) {
    return absl::DataLossError("a tensor that does not fit its cell");
  }
  if (op->state == FetchState::kLeaving) {
    if (CountsAsGone(*op)) Complete(op, op->end_status, Tensor(), false);
    return absl::OkStatus();
  }
  if ((cell.head.flags & shm_wire::kIsDead) != 0) {
    Complete(op, absl::OkStatus(), Tensor(), true);
    return absl::OkStatus();
  }
  if (FillDestination(op, cell)) return absl::OkStatus();
  int64_t dims[TensorShape::kMaxRank];
  shm_wire::CopyDims(cell.body + 2, rank, dims);
  auto shape = TensorShape::Make(absl::MakeConstSpan(dims, rank));
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  const DType dtype = static_cast<DType>(cell.body[0]);
  const uint8_t* payload = cell.body + 2 + size_t{8} * rank;
  absl::Status status = MayTake(*op, dtype, *shape, bytes);
  Tensor tensor;
  if (dtype == DType::kString) {
    auto decoded =
        DecodeStrings(absl::string_view(reinterpret_cast<const char*>(payload), bytes), *shape);
    if (!decoded.ok()) return decoded.status();
    if (status.ok()) tensor = *std::move(decoded);
  } else {
    auto due = TensorBytes(dtype, *shape);
    if (!due.ok() || *due != bytes) {
      return absl::DataLossError("the bytes are not what their type and shape say");
    }
    if (status.ok() && op->wants().destination.valid()) {
      tensor = op->wants().destination;
    } else if (status.ok()) {
      auto made = Tensor::FromStorage(small_->Take(), 0, dtype, *shape);
      if (!made.ok()) return absl::DataLossError(made.status().message());
      tensor = *std::move(made);
    }
    if (status.ok() && bytes > 0) memcpy(tensor.mutable_data(), payload, bytes);
  }
  if (!status.ok()) {
    TurnDown(op, std::move(status));
    return absl::OkStatus();
  }
  ++counters_.in_cells;
  counters_.bytes += bytes;
  Complete(op, absl::OkStatus(), std::move(tensor), false);
  return absl::OkStatus();
}

absl::Status ShmFetchChannel::OnPlaced(ShmFetchOp* op, const ReplyCell& cell) {
  TensorShape shape;
  auto placed = ReadPlaced(cell, &shape);
  if (!placed.ok()) return placed.status();
  const bool is_part = cell.head.type == CellType::kChunk;
  StorageRef view;
  if (cell.head.type != CellType::kPull) {
    if (!held_->has_segment(placed->segment)) {
      // Its descriptor was sent before and is still in the socket.
      absl::StatusOr<LocalSocket::Received> read;
      do {
        read = ReadPacket();
        if (!read.ok()) return read.status();
      } while (*read == LocalSocket::Received::kPacket);
    }
    auto seen = held_->View(*placed, is_part ? placed->piece_bytes : placed->bytes);
    if (!seen.ok()) return seen.status();
    view = *std::move(seen);
  }
  if (op->state == FetchState::kLeaving) {
    op->into = Tensor();
    const bool last = !is_part || placed->position + placed->piece_bytes == placed->bytes;
    if (last && CountsAsGone(*op)) Complete(op, op->end_status, Tensor(), false);
    return absl::OkStatus();
  }
  const bool has_digest = (cell.head.flags & shm_wire::kHasDigest) != 0;
  if (!is_part || placed->position == 0) {
    op->dtype = static_cast<DType>(placed->dtype);
    op->shape = shape;
    op->bytes = placed->bytes;
    op->position = 0;
    op->digest_so_far = 0;
    op->has_digest = has_digest;
    op->digest = placed->digest;
    op->pulls = false;
    op->cell = replies_.taken() - 1;
  }
  switch (cell.head.type) {
    case CellType::kReference:
      return OnReference(op, *placed, std::move(view));
    case CellType::kPull:
      OnPull(op, *placed);
      return absl::OkStatus();
    default:
      return OnPart(op, *placed, std::move(view), has_digest);
  }
}

absl::Status ShmFetchChannel::OnReference(ShmFetchOp* op, const Placed& placed, StorageRef view) {
  absl::Status status = MayTake(*op, op->dtype, op->shape, op->bytes);
  const bool copies =
      op->dtype == DType::kString || (op->wants().destination.valid() && !op->wants().by_reference);
  if (!status.ok() || !copies) {
    Tensor tensor;
    if (status.ok() && op->has_digest && Crc32c(0, view->data(), placed.bytes) != op->digest) {
      ++counters_.digests_wrong;
      status = absl::DataLossError("the digest of the tensor is wrong");
    }
    if (status.ok()) {
      auto made = Tensor::FromStorage(std::move(view), 0, op->dtype, op->shape);
      if (!made.ok()) return absl::DataLossError(made.status().message());
      tensor = *std::move(made);
      ++counters_.by_reference;
      counters_.bytes += placed.bytes;
      Complete(op, absl::OkStatus(), std::move(tensor), false);
    } else {
      TurnDown(op, std::move(status));
    }
    return absl::OkStatus();
  }
  auto from =
      Tensor::FromStorage(std::move(view), 0, DType::kUint8, {static_cast<int64_t>(placed.bytes)});
  if (!from.ok()) return absl::DataLossError(from.status().message());
  op->from = *std::move(from);
  status = Prepare(op);
  if (!status.ok()) {
    op->from = Tensor();
    TurnDown(op, std::move(status));
    return absl::OkStatus();
  }
  ++counters_.copied;
  op->span.Enter(WaitsFor::kCopy, now_ns());
  Advance(op, FetchEvent::kCopy);
  if (op->bytes <= kTurnBytes && copies_.empty()) {
    EndCopy(op, CopySome(op));
  } else {
    copies_.push_back(op);
  }
  return absl::OkStatus();
}

void ShmFetchChannel::OnPull(ShmFetchOp* op, const Placed& placed) {
  absl::Status status = MayTake(*op, op->dtype, op->shape, op->bytes);
  if (status.ok()) status = Prepare(op);
  if (!status.ok()) return TurnDown(op, std::move(status));
  op->pulls = true;
  op->from_address = placed.offset;
  op->span.Enter(WaitsFor::kCopy, now_ns());
  Advance(op, FetchEvent::kCopy);
  copies_.push_back(op);
}

// Parts come in order, and each is copied out at once, so that its room is free again.
absl::Status ShmFetchChannel::OnPart(ShmFetchOp* op, const Placed& placed, StorageRef view,
                                     bool has_digest) {
  if (placed.position != op->position || placed.bytes != op->bytes ||
      (placed.position != 0 && !op->into.valid())) {
    return absl::DataLossError("a part of a tensor out of turn");
  }
  if (placed.position == 0) {
    absl::Status status = MayTake(*op, op->dtype, op->shape, op->bytes);
    if (status.ok()) status = Prepare(op);
    if (!status.ok()) {
      if (placed.piece_bytes == placed.bytes) {
        TurnDown(op, std::move(status));
      } else {
        EndEarly(op, status);  // The rest need not come.
      }
      return absl::OkStatus();
    }
  }
  uint8_t* to = static_cast<uint8_t*>(op->into.mutable_data()) + op->position;
  bool good = true;
  if (has_digest) {
    good = CopyCrc32c(0, to, view->data(), placed.piece_bytes) == placed.digest;
  } else {
    hub_->crew()->Copy(to, view->data(), placed.piece_bytes,
                       placed.bytes >= CopyCrew::kStreamBytes);
  }
  view = StorageRef();
  op->position += placed.piece_bytes;
  op->has_digest = false;
  if (!good) {
    ++counters_.digests_wrong;
    const absl::Status wrong = absl::DataLossError("the digest of the tensor is wrong");
    if (op->position == op->bytes) {
      op->into = Tensor();
      TurnDown(op, wrong);
    } else {
      EndEarly(op, wrong);
    }
  } else if (op->position == op->bytes) {
    ++counters_.in_parts;
    EndCopy(op, absl::OkStatus());
  }
  return absl::OkStatus();
}

// ---- Copying ----

// Where the bytes go: the caller's memory, or what will be the tensor's.
absl::Status ShmFetchChannel::Prepare(ShmFetchOp* op) {
  if (op->dtype != DType::kString && op->wants().destination.valid()) {
    op->into = op->wants().destination;
    return absl::OkStatus();
  }
  auto made = op->dtype == DType::kString
                  ? AllocateLanding(DType::kUint8, {static_cast<int64_t>(op->bytes)})
                  : AllocateLanding(op->dtype, op->shape);
  if (!made.ok()) return made.status();
  op->into = *std::move(made);
  return absl::OkStatus();
}

void ShmFetchChannel::RunCopy() {
  ShmFetchOp* op = copies_.front();
  const absl::Status status = CopySome(op);
  if (status.ok() && op->position < op->bytes) return;
  copies_.pop_front();
  EndCopy(op, status);
}

absl::Status ShmFetchChannel::CopySome(ShmFetchOp* op) {
  const uint64_t part = std::min(kTurnBytes, op->bytes - op->position);
  uint8_t* to = static_cast<uint8_t*>(op->into.mutable_data()) + op->position;
  if (op->pulls) {
    const absl::Status read = peer_memory_->Read(op->from_address + op->position, to, part);
    if (!read.ok()) return read;
    if (op->has_digest) op->digest_so_far = Crc32c(op->digest_so_far, to, part);
  } else {
    const uint8_t* from = op->from.data_as<uint8_t>() + op->position;
    if (op->has_digest) {
      op->digest_so_far = CopyCrc32c(op->digest_so_far, to, from, part);
    } else {
      hub_->crew()->Copy(to, from, part, op->bytes >= CopyCrew::kStreamBytes);
    }
  }
  op->position += part;
  return absl::OkStatus();
}

void ShmFetchChannel::EndCopy(ShmFetchOp* op, absl::Status status) {
  op->from = Tensor();
  if (op->pulls && absl::IsPermissionDenied(status)) {  // The producer answers another way.
    SaySoon(*op, CellType::kPulled, shm_wire::kPullFailed);
    op->pulls = false;
    op->into = Tensor();
    Advance(op, FetchEvent::kRetry);
    return;
  }
  if (op->pulls && status.ok() && link_version_ >= shm_wire::kLinkSettles) {
    // What was read is what was sent only if the producer still kept it behind the reading: the
    // word is read by changing it by nothing, which no reading moves behind. If it did not, the
    // end of the link is in the socket, and is this fetch's, too.
    const uint32_t settlement =
        held_->view().header->settlement.fetch_add(0, std::memory_order_acq_rel);
    if (settlement == shm_wire::kNotKept) return;
  }
  if (absl::IsUnavailable(status)) {
    status = absl::AbortedError(absl::StrCat(options_.peer, ": ", status.message()));
  }
  if (status.ok() && op->has_digest && op->digest_so_far != op->digest) {
    ++counters_.digests_wrong;
    status = absl::DataLossError("the digest of the tensor is wrong");
  }
  Tensor tensor;
  if (status.ok()) {
    auto finished = Finish(op);
    status = finished.status();
    if (finished.ok()) tensor = *std::move(finished);
  }
  op->into = Tensor();
  if (!status.ok()) return TurnDown(op, std::move(status));
  counters_.bytes += op->bytes;
  if (op->pulls) {
    ++counters_.pulled;
    SaySoon(*op, CellType::kPulled, 0);
  }
  Complete(op, absl::OkStatus(), std::move(tensor), false);
}

absl::StatusOr<Tensor> ShmFetchChannel::Finish(ShmFetchOp* op) {
  if (op->dtype != DType::kString) return op->into;
  return DecodeStrings(absl::string_view(static_cast<const char*>(op->into.data()), op->bytes),
                       op->shape);
}

}  // namespace tryst
