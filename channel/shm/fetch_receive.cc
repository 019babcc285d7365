#include "channel/shm/fetch_receive.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/reached.h"
#include "channel/crc32c.h"
#include "channel/ops/peer_words.h"
#include "channel/shm/landing_memory.h"
#include "channel/shm/stream_copy.h"
#include "channel/string_codec.h"

namespace tryst {

namespace {

// What one thread reads at once: a huge page, whose count of users several threads would fight for.
constexpr uint64_t kReadBytes = 2 << 20;

}  // namespace

using shm_wire::CellType;
using shm_wire::Placed;
using shm_wire::ReplyCell;

ShmReceiver::ShmReceiver(FetchOps* ops, ShmFetchLink* link, BackOff* back_off, User* user)
    : ops_(ops),
      link_(link),
      back_off_(back_off),
      user_(user),
      small_(new SmallStorage(ops->poller()->shared_thread())) {}

void ShmReceiver::Reset() {
  copies_.clear();
  in_failed_text_ = false;
}

absl::Status ShmReceiver::OnCell(const ReplyCell& cell) {
  if (in_failed_text_) {
    if (cell.head.type != CellType::kMore)
      return absl::DataLossError(
          "the producer broke the protocol: the text of a failure is incomplete");
    return OnFailedText(cell.body, sizeof(cell.body));
  }
  if (cell.head.type == CellType::kSegmentGone) return link_->held->DropSegment(cell.head.number);
  if (cell.head.type == CellType::kPong) return absl::OkStatus();
  if (cell.head.type == CellType::kHere) {
    uint64_t tickets[shm_wire::kReplyTickets];
    const auto count = ReadTickets(cell, tickets);
    if (count.ok()) ops_->OnHere(absl::MakeConstSpan(tickets, *count));
    return count.status();
  }
  if (cell.head.slot >= ops_->slots().size())
    return absl::DataLossError(
        "the producer broke the protocol: it answers a slot that does not exist");
  ShmFetchOp* op = ShmFetchOp::Of(ops_->slots().at(cell.head.slot));
  if (op == nullptr || op->generation != cell.head.generation) {
    return absl::DataLossError(
        "the producer broke the protocol: it answers a fetch that is not under way");
  }
  back_off_->Reset();  // The connection works.
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
        return absl::DataLossError(
            "the producer broke the protocol: it let a fetch wait without a slot that did not "
            "allow it");
      return OnWord(op, FetchEvent::kParked, cell);
    default:
      return absl::DataLossError(
          "the producer broke the protocol: it sent an answer of no known type");
  }
}

absl::Status ShmReceiver::OnWord(ShmFetchOp* op, FetchEvent event, const ReplyCell& cell) {
  const FetchRow* row = ops_->Hear(op, event);
  if (row == nullptr) return OutOfPlace(op->state, event);
  switch (row->action) {
    case FetchAction::kGiveSlot:
    case FetchAction::kUnwant:
      ops_->OnParked(op, row->action == FetchAction::kGiveSlot);
      return absl::OkStatus();
    case FetchAction::kLastWord:
      Complete(op, op->end_status, Tensor(), false);
      return absl::OkStatus();
    default:
      return cell.head.type == CellType::kInline ? OnInline(op, cell) : OnPlaced(op, cell);
  }
}

// Begins an error text. Its length and its bytes follow as the body.
absl::Status ShmReceiver::StartFailedText(ShmFetchOp* op, const ReplyCell& cell) {
  if (FindFetchRow(op->state, FetchEvent::kFailed) == nullptr) {
    return OutOfPlace(op->state, FetchEvent::kFailed);
  }
  uint16_t bytes;
  memcpy(&bytes, cell.body, sizeof(bytes));
  if (bytes > shm_wire::kMaxErrorBytes)
    return absl::DataLossError(
        "the producer broke the protocol: the text of a failure is too long");
  in_failed_text_ = true;
  failed_head_ = cell.head;
  failed_bytes_ = bytes;
  failed_text_.clear();
  return OnFailedText(cell.body + sizeof(bytes), sizeof(cell.body) - sizeof(bytes));
}

absl::Status ShmReceiver::OnFailedText(const uint8_t* text, size_t bytes) {
  failed_text_.append(reinterpret_cast<const char*>(text),
                      std::min(bytes, failed_bytes_ - failed_text_.size()));
  if (failed_text_.size() < failed_bytes_) return absl::OkStatus();
  in_failed_text_ = false;
  ShmFetchOp* op = ShmFetchOp::Of(ops_->slots().at(failed_head_.slot));
  // It may have been cancelled, or have ended, between the parts of the text.
  if (op == nullptr || op->generation != failed_head_.generation) return absl::OkStatus();
  if (op->state == FetchState::kAsked) {
    Complete(op,
             FailureTold(failed_head_.number, failed_text_,
                         (failed_head_.flags & shm_wire::kDerived) != 0),
             Tensor(), false);
  }
  return absl::OkStatus();
}

// The fast way for a tensor of the type and shape that the caller announced, as nearly all are.
bool ShmReceiver::FillDestination(ShmFetchOp* op, const ReplyCell& cell) {
  if (!op->destination().valid()) return false;
  const Tensor& wanted = op->destination();
  const uint8_t rank = cell.body[1];
  const size_t dims = size_t{8} * rank;
  if (wanted.dtype() != static_cast<DType>(cell.body[0]) || wanted.dtype() == DType::kString ||
      wanted.shape().rank() != rank || wanted.bytes() != cell.head.number ||
      cell.head.number > link_->options.max_tensor_bytes ||
      memcmp(wanted.shape().dims().data(), cell.body + 2, dims) != 0) {
    return false;
  }
  memcpy(wanted.mutable_data(), cell.body + 2 + dims, cell.head.number);
  ++link_->counters->in_cells;
  link_->counters->bytes += cell.head.number;
  Complete(op, absl::OkStatus(), Tensor(wanted), false);
  return true;
}

static_assert(shm_wire::InlineRoom(0) <= SmallStorage::kBytes, "what a cell holds fits a piece");

// The fast way for a small tensor of numbers, if the caller gave no memory.
bool ShmReceiver::FillSmall(ShmFetchOp* op, const ReplyCell& cell) {
  if (op->destination().valid() || cell.head.number > link_->options.max_tensor_bytes) return false;
  const uint8_t rank = cell.body[1];
  int64_t dims[TensorShape::kMaxRank];
  shm_wire::CopyDims(cell.body + 2, rank, dims);
  StorageRef memory = small_->Take();
  Tensor tensor;
  if (!tensor.TakeView(&memory, static_cast<DType>(cell.body[0]),
                       absl::MakeConstSpan(dims, rank)) ||
      tensor.bytes() != cell.head.number) {
    return false;
  }
  memcpy(tensor.mutable_data(), cell.body + 2 + size_t{8} * rank, cell.head.number);
  ++link_->counters->in_cells;
  link_->counters->bytes += cell.head.number;
  Complete(op, absl::OkStatus(), std::move(tensor), false);
  return true;
}

absl::Status ShmReceiver::OnInline(ShmFetchOp* op, const ReplyCell& cell) {
  const uint8_t rank = cell.body[1];
  const uint64_t bytes = cell.head.number;
  if (rank > TensorShape::kMaxRank || bytes > shm_wire::InlineRoom(rank)) {
    return absl::DataLossError(
        "the producer broke the protocol: a tensor is larger than the answer that it lies in");
  }
  if (op->state == FetchState::kLeaving) return absl::OkStatus();
  if ((cell.head.flags & shm_wire::kIsDead) != 0) {
    Complete(op, absl::OkStatus(), Tensor(), true);
    return absl::OkStatus();
  }
  if (FillDestination(op, cell) || FillSmall(op, cell)) return absl::OkStatus();
  int64_t dims[TensorShape::kMaxRank];
  shm_wire::CopyDims(cell.body + 2, rank, dims);
  auto shape = TensorShape::Make(absl::MakeConstSpan(dims, rank));
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  const DType dtype = static_cast<DType>(cell.body[0]);
  const uint8_t* payload = cell.body + 2 + size_t{8} * rank;
  absl::Status status = ops_->MayTake(*op, dtype, *shape, bytes);
  Tensor tensor;
  if (dtype == DType::kString) {
    auto decoded =
        DecodeStrings(absl::string_view(reinterpret_cast<const char*>(payload), bytes), *shape);
    if (!decoded.ok()) return decoded.status();
    if (status.ok()) tensor = *std::move(decoded);
  } else {
    auto due = TensorBytes(dtype, *shape);
    if (!due.ok() || *due != bytes) {
      return absl::DataLossError(
          "the producer broke the protocol: a tensor's length does not match its type and shape");
    }
    if (status.ok() && op->destination().valid()) {
      tensor = op->destination();
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
  ++link_->counters->in_cells;
  link_->counters->bytes += bytes;
  Complete(op, absl::OkStatus(), std::move(tensor), false);
  return absl::OkStatus();
}

absl::Status ShmReceiver::OnPlaced(ShmFetchOp* op, const ReplyCell& cell) {
  TensorShape shape;
  auto placed = ReadPlaced(cell, &shape);
  if (!placed.ok()) return placed.status();
  const bool is_part = cell.head.type == CellType::kChunk;
  StorageRef view;
  if (cell.head.type != CellType::kPull) {
    if (!link_->held->has_segment(placed->segment)) {
      // Its descriptor was sent before this cell and is still in the socket.
      const absl::Status read = user_->ReadSocketFor(placed->segment);
      if (!read.ok()) return read;
    }
    auto seen = link_->held->View(*placed, is_part ? placed->piece_bytes : placed->bytes);
    if (!seen.ok()) return seen.status();
    view = *std::move(seen);
  }
  if (op->state == FetchState::kLeaving) {
    op->into = Tensor();
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
    op->cell = link_->replies.taken() - 1;
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

absl::Status ShmReceiver::OnReference(ShmFetchOp* op, const Placed& placed, StorageRef view) {
  absl::Status status = ops_->MayTake(*op, op->dtype, op->shape, op->bytes);
  const bool copies =
      op->dtype == DType::kString || (op->destination().valid() && !op->wants().prefers_view);
  if (!status.ok() || !copies) {
    Tensor tensor;
    if (status.ok() && op->has_digest && Crc32c(0, view->data(), placed.bytes) != op->digest) {
      TRYST_REACHED("shm: a wrong digest of what is referred to");
      ++link_->counters->digests_wrong;
      status = absl::DataLossError(
          "the bytes of the tensor changed after it was sent: its digest is wrong; look for a "
          "program that writes into what it has sent, or faulty memory");
    }
    if (status.ok()) {
      auto made = Tensor::FromStorage(std::move(view), 0, op->dtype, op->shape);
      if (!made.ok()) return absl::DataLossError(made.status().message());
      tensor = *std::move(made);
      ++link_->counters->by_reference;
      link_->counters->bytes += placed.bytes;
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
  ++link_->counters->copied;
  op->span.Enter(WaitsFor::kCopy, now_ns());
  ops_->Advance(op, FetchEvent::kCopy);
  if (op->bytes <= kTurnBytes && copies_.empty()) {
    EndCopy(op, CopySome(op));
  } else {
    copies_.push_back(op);
  }
  return absl::OkStatus();
}

void ShmReceiver::OnPull(ShmFetchOp* op, const Placed& placed) {
  absl::Status status = ops_->MayTake(*op, op->dtype, op->shape, op->bytes);
  if (status.ok()) status = Prepare(op);
  if (!status.ok()) return TurnDown(op, std::move(status));
  op->pulls = true;
  op->from_address = placed.offset;
  op->span.Enter(WaitsFor::kCopy, now_ns());
  ops_->Advance(op, FetchEvent::kCopy);
  copies_.push_back(op);
}

// Parts come in order. Each is copied out at once, so that its room is free again.
absl::Status ShmReceiver::OnPart(ShmFetchOp* op, const Placed& placed, StorageRef view,
                                 bool has_digest) {
  if (placed.position != op->position || placed.bytes != op->bytes ||
      (placed.position != 0 && !op->into.valid())) {
    return absl::DataLossError(
        "the producer broke the protocol: it sent the parts of a tensor in the wrong order");
  }
  if (placed.position == 0) {
    absl::Status status = ops_->MayTake(*op, op->dtype, op->shape, op->bytes);
    if (status.ok()) status = Prepare(op);
    if (!status.ok()) {
      if (placed.piece_bytes == placed.bytes) {
        TurnDown(op, std::move(status));
      } else {
        ops_->EndEarly(op, status);  // The rest need not come.
      }
      return absl::OkStatus();
    }
  }
  uint8_t* to = static_cast<uint8_t*>(op->into.mutable_data()) + op->position;
  bool good = true;
  if (has_digest) {
    good = CopyCrc32c(0, to, view->data(), placed.piece_bytes) == placed.digest;
  } else {
    CrewCopy(link_->hub->crew(), to, view->data(), placed.piece_bytes,
             placed.bytes >= kStreamBytes);
  }
  view = StorageRef();
  op->position += placed.piece_bytes;
  op->has_digest = false;
  op->announced = true;
  ++link_->parts_taken;
  if (!good) {
    TRYST_REACHED("shm: a wrong digest of a part");
    ++link_->counters->digests_wrong;
    const absl::Status wrong = absl::DataLossError(
        "the bytes of the tensor changed after it was sent: its digest is wrong; look for a "
        "program that writes into what it has sent, or faulty memory");
    if (op->position == op->bytes) {
      op->into = Tensor();
      TurnDown(op, wrong);
    } else {
      ops_->EndEarly(op, wrong);
    }
  } else if (op->position == op->bytes) {
    ++link_->counters->in_parts;
    EndCopy(op, absl::OkStatus());
  }
  return absl::OkStatus();
}

// ---- Copying ----

// Finds where the bytes go: the caller's memory, or new memory for the tensor.
absl::Status ShmReceiver::Prepare(ShmFetchOp* op) {
  if (op->dtype != DType::kString && op->destination().valid()) {
    op->into = op->destination();
    return absl::OkStatus();
  }
  auto made = op->dtype == DType::kString
                  ? AllocateLanding(DType::kUint8, {static_cast<int64_t>(op->bytes)})
                  : AllocateLanding(op->dtype, op->shape);
  if (!made.ok()) return made.status();
  op->into = *std::move(made);
  return absl::OkStatus();
}

void ShmReceiver::RunCopy() {
  ShmFetchOp* op = copies_.front();
  const absl::Status status = CopySome(op);
  if (status.ok() && op->position < op->bytes) return;
  copies_.pop_front();
  EndCopy(op, status);
}

absl::Status ShmReceiver::CopySome(ShmFetchOp* op) {
  const bool helped = op->pulls && link_->hub->crew()->helps();
  const uint64_t part = std::min(helped ? kHelpedTurnBytes : kTurnBytes, op->bytes - op->position);
  uint8_t* to = static_cast<uint8_t*>(op->into.mutable_data()) + op->position;
  if (op->pulls) {
    const absl::Status read = ReadPeer(op, to, part);
    if (!read.ok()) return read;
    if (op->has_digest) op->digest_so_far = Crc32c(op->digest_so_far, to, part);
  } else {
    const uint8_t* from = op->from.data_as<uint8_t>() + op->position;
    if (op->has_digest) {
      op->digest_so_far = CopyCrc32c(op->digest_so_far, to, from, part);
    } else {
      CrewCopy(link_->hub->crew(), to, from, part, op->bytes >= kStreamBytes);
    }
  }
  op->position += part;
  return absl::OkStatus();
}

absl::Status ShmReceiver::ReadPeer(ShmFetchOp* op, uint8_t* to, uint64_t bytes) {
  Mutex mu;
  absl::Status first;  // Guarded by mu.
  const uint64_t address = op->from_address + op->position;
  link_->hub->crew()->Share(bytes, kReadBytes, [&](uint64_t begin, uint64_t count) {
    const absl::Status read = link_->peer_memory->Read(address + begin, to + begin, count);
    if (read.ok()) return;
    MutexLock lock(&mu);
    first.Update(read);
  });
  return first;
}

void ShmReceiver::EndCopy(ShmFetchOp* op, absl::Status status) {
  op->from = Tensor();
  if (op->pulls && absl::IsPermissionDenied(status)) {  // The producer answers another way.
    link_->SaySoon(*op, CellType::kPulled, shm_wire::kPullFailed);
    op->pulls = false;
    op->into = Tensor();
    op->announced = true;
    ops_->Advance(op, FetchEvent::kRetry);
    return;
  }
  if (op->pulls && status.ok()) {
    // The bytes that we read are the tensor only if the producer still kept them afterwards. An RMW
    // of +0 orders our earlier reads before this check. If the producer no longer kept them, it has
    // ended the link, and the socket says so; that end will reach this fetch, too.
    const uint32_t settlement =
        link_->held->view().header->settlement.fetch_add(0, std::memory_order_acq_rel);
    if (settlement == shm_wire::kNotKept) {
      TRYST_REACHED("shm: a read that ends beside its producer's end");
      return;
    }
  }
  if (op->pulls && absl::IsUnavailable(status)) {
    TRYST_REACHED("rare: a read finds the producer's process gone");
    return;  // The socket says so, too, and that ends all its fetches alike.
  }
  if (status.ok() && op->has_digest && op->digest_so_far != op->digest) {
    TRYST_REACHED("shm: a wrong digest of what was copied");
    ++link_->counters->digests_wrong;
    status = absl::DataLossError(
        "the bytes of the tensor changed after it was sent: its digest is wrong; look for a "
        "program that writes into what it has sent, or faulty memory");
  }
  Tensor tensor;
  if (status.ok()) {
    auto finished = Finish(op);
    status = finished.status();
    if (finished.ok()) tensor = *std::move(finished);
  }
  op->into = Tensor();
  if (!status.ok()) return TurnDown(op, std::move(status));
  link_->counters->bytes += op->bytes;
  if (op->pulls) {
    ++link_->counters->pulled;
    link_->SaySoon(*op, CellType::kPulled, 0);
  }
  Complete(op, absl::OkStatus(), std::move(tensor), false);
}

absl::StatusOr<Tensor> ShmReceiver::Finish(ShmFetchOp* op) {
  if (op->dtype != DType::kString) return op->into;
  return DecodeStrings(absl::string_view(static_cast<const char*>(op->into.data()), op->bytes),
                       op->shape);
}

// ---- Ending ----

// The producer's last word on the slot has come.
void ShmReceiver::Complete(ShmFetchOp* op, absl::Status status, Tensor&& tensor, bool is_dead) {
  if (!status.ok()) link_->NoteRefused(op);
  op->DropTensor();
  ops_->Advance(op, FetchEvent::kComplete);
  // Frees the slot first, because the callback may fetch again.
  ops_->LastWord(op);
  ops_->Report(op, std::move(status), std::move(tensor), is_dead, FetchOps::When::kNow);
}

// Ends a fetch whose tensor was answered but cannot be used here: the producer gets the tensor
// back.
void ShmReceiver::TurnDown(ShmFetchOp* op, absl::Status status) {
  link_->SaySoon(*op, CellType::kRefused, 0);
  Complete(op, std::move(status), Tensor(), false);
}

// Like TurnDown(), for a fetch that ends while its tensor is copied.
void ShmReceiver::Refuse(ShmFetchOp* op) {
  copies_.Remove(op);
  link_->SaySoon(*op, CellType::kRefused, 0);
  link_->NoteRefused(op);
}

}  // namespace tryst
