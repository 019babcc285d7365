#include "channel/shm/fetch_receiving.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/mutex.h"
#include "base/reached.h"
#include "channel/ops/limits.h"
#include "channel/ops/peer_words.h"
#include "channel/shm/landing_memory.h"
#include "channel/shm/stream_copy.h"
#include "channel/string_codec.h"

namespace tryst {

namespace {

// What one thread reads at once: a huge page, whose count of users several threads would fight for.
constexpr uint64_t kReadBytes = 2 << 20;

absl::Status Changed() {
  return absl::DataLossError(
      "the bytes of the tensor changed after it was sent: its digest is wrong; look for a program "
      "that writes into what it has sent, or faulty memory");
}

absl::Status NotLent() {
  TRYST_REACHED("shm: a read that ends beside its producer's end");
  return absl::UnavailableError("the producer has ended the session while its memory was read");
}

}  // namespace

using shm_wire::CellType;
using shm_wire::Placed;
using shm_wire::ReplyCell;

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
    if (count.ok()) session_->OnHere(absl::MakeConstSpan(tickets, *count));
    return count.status();
  }
  if (cell.head.slot >= session_->slots().size())
    return absl::DataLossError(
        "the producer broke the protocol: it answers a slot that does not exist");
  ShmAsk* ask = ShmAsk::Of(session_->slots().at(cell.head.slot));
  if (ask == nullptr || ask->generation != cell.head.generation) {
    return absl::DataLossError(
        "the producer broke the protocol: it answers a fetch that is not under way");
  }
  switch (cell.head.type) {
    case CellType::kInline:
    case CellType::kReference:
    case CellType::kPull:
    case CellType::kChunk:
      return OnWord(ask, FetchEvent::kTensor, cell);
    case CellType::kFailed:
      return StartFailedText(ask, cell);
    case CellType::kGone:
      return OnWord(ask, FetchEvent::kGone, cell);
    case CellType::kParked:
      return session_->OnParked(ask);
    default:
      return absl::DataLossError(
          "the producer broke the protocol: it sent an answer of no known type");
  }
}

absl::Status ShmReceiver::OnWord(ShmAsk* ask, FetchEvent event, const ReplyCell& cell) {
  const FetchRow* row = session_->Hear(ask, event);
  if (row == nullptr) return OutOfPlace(ask->state, event);
  if (row->action == FetchAction::kLastWord) {
    ask->DropTensor();
    session_->FinishLeaving(ask);
    return absl::OkStatus();
  }
  return cell.head.type == CellType::kInline ? OnInline(ask, cell) : OnPlaced(ask, cell);
}

// Begins an error text. Its length and its bytes follow as the body.
absl::Status ShmReceiver::StartFailedText(ShmAsk* ask, const ReplyCell& cell) {
  if (FindFetchRow(ask->state, FetchEvent::kFailed) == nullptr) {
    return OutOfPlace(ask->state, FetchEvent::kFailed);
  }
  uint16_t bytes;
  memcpy(&bytes, cell.body, sizeof(bytes));
  if (bytes > limits::kMaxErrorBytes)
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
  ShmAsk* ask = ShmAsk::Of(session_->slots().at(failed_head_.slot));
  // It may have been cancelled, or have ended, between the parts of the text.
  if (ask == nullptr || ask->generation != failed_head_.generation) return absl::OkStatus();
  if (ask->state == FetchState::kAsked) {
    Complete(ask,
             FailureTold(failed_head_.number, failed_text_,
                         (failed_head_.flags & shm_wire::kDerived) != 0),
             Tensor(), false);
  }
  return absl::OkStatus();
}

absl::Status ShmReceiver::OnInline(ShmAsk* ask, const ReplyCell& cell) {
  const uint8_t rank = cell.body[1];
  const uint64_t bytes = cell.head.number;
  if (rank > TensorShape::kMaxRank || bytes > shm_wire::InlineRoom(rank)) {
    return absl::DataLossError(
        "the producer broke the protocol: a tensor is larger than the answer that it lies in");
  }
  if (ask->state == FetchState::kLeaving) return absl::OkStatus();
  if ((cell.head.flags & shm_wire::kIsDead) != 0) {
    Complete(ask, absl::OkStatus(), Tensor(), true);
    return absl::OkStatus();
  }
  int64_t dims[TensorShape::kMaxRank];
  shm_wire::CopyDims(cell.body + 2, rank, dims);
  const char* const payload = reinterpret_cast<const char*>(cell.body) + 2 + size_t{8} * rank;
  const TensorInside inside = {static_cast<DType>(cell.body[0]), absl::MakeConstSpan(dims, rank),
                               absl::string_view(payload, bytes)};
  if (session_->FillDestination(*ask, inside)) {
    Complete(ask, absl::OkStatus(), ask->TakeDestination(), false);
    return absl::OkStatus();
  }
  Tensor tensor;
  const absl::Status taken = session_->TakeInside(ask, inside, &tensor);
  if (!taken.ok() || !tensor.valid()) return taken;
  Complete(ask, absl::OkStatus(), std::move(tensor), false);
  return absl::OkStatus();
}

absl::Status ShmReceiver::OnPlaced(ShmAsk* ask, const ReplyCell& cell) {
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
  if (ask->state == FetchState::kLeaving) {
    ask->into = Tensor();
    return absl::OkStatus();
  }
  const bool has_digest = (cell.head.flags & shm_wire::kHasDigest) != 0;
  if (!is_part || placed->position == 0) {
    ask->dtype = static_cast<DType>(placed->dtype);
    ask->shape = shape;
    ask->bytes = placed->bytes;
    ask->position = 0;
    ask->digest_so_far = 0;
    ask->has_digest = has_digest;
    ask->digest = placed->digest;
    ask->pulls = false;
  }
  switch (cell.head.type) {
    case CellType::kReference:
      return OnReference(ask, *placed, std::move(view));
    case CellType::kPull:
      OnPull(ask, *placed);
      return absl::OkStatus();
    default:
      return OnPart(ask, *placed, std::move(view), has_digest);
  }
}

absl::Status ShmReceiver::OnReference(ShmAsk* ask, const Placed& placed, StorageRef view) {
  absl::Status status = session_->MayTake(*ask, ask->dtype, ask->shape, ask->bytes);
  const bool copies =
      ask->dtype == DType::kString || (ask->destination().valid() && !ask->wants().prefers_view);
  if (!status.ok() || !copies) {
    Tensor tensor;
    if (status.ok() && ask->has_digest && Crc32c(0, view->data(), placed.bytes) != ask->digest) {
      TRYST_REACHED("shm: a wrong digest of what is referred to");
      ++link_->counters->digests_wrong;
      status = Changed();
    }
    if (status.ok()) {
      auto made = Tensor::FromStorage(std::move(view), 0, ask->dtype, ask->shape);
      if (!made.ok()) return absl::DataLossError(made.status().message());
      tensor = *std::move(made);
      ++link_->counters->by_reference;
      link_->counters->bytes += placed.bytes;
      return CompleteWhole(ask, std::move(tensor));
    }
    session_->EndAsk(ask, status);
    return absl::OkStatus();
  }
  auto from =
      Tensor::FromStorage(std::move(view), 0, DType::kUint8, {static_cast<int64_t>(placed.bytes)});
  if (!from.ok()) return absl::DataLossError(from.status().message());
  ask->from = *std::move(from);
  status = Prepare(ask);
  if (!status.ok()) {
    session_->EndAsk(ask, status);
    return absl::OkStatus();
  }
  ++link_->counters->copied;
  ask->Enter(WaitsFor::kCopy, now_ns());
  session_->Advance(ask, FetchEvent::kCopy);
  if (ask->bytes <= kTurnBytes && copies_.empty()) {
    return EndCopy(ask, CopySome(ask));
  }
  copies_.push_back(ask);
  return absl::OkStatus();
}

void ShmReceiver::OnPull(ShmAsk* ask, const Placed& placed) {
  absl::Status status = session_->MayTake(*ask, ask->dtype, ask->shape, ask->bytes);
  if (status.ok()) status = Prepare(ask);
  if (!status.ok()) return session_->EndAsk(ask, status);
  ask->pulls = true;
  ask->from_address = placed.offset;
  ask->Enter(WaitsFor::kCopy, now_ns());
  session_->Advance(ask, FetchEvent::kCopy);
  copies_.push_back(ask);
}

// Parts come in order. Each is copied out at once, so that its room is free again.
absl::Status ShmReceiver::OnPart(ShmAsk* ask, const Placed& placed, StorageRef view,
                                 bool has_digest) {
  if (placed.position != ask->position || placed.bytes != ask->bytes ||
      (placed.position != 0 && !ask->into.valid())) {
    return absl::DataLossError(
        "the producer broke the protocol: it sent the parts of a tensor in the wrong order");
  }
  if (placed.position == 0) {
    absl::Status status = session_->MayTake(*ask, ask->dtype, ask->shape, ask->bytes);
    if (status.ok()) status = Prepare(ask);
    if (!status.ok()) {
      session_->EndAsk(ask, status);  // The rest need not come.
      return absl::OkStatus();
    }
  }
  uint8_t* to = static_cast<uint8_t*>(ask->into.mutable_data()) + ask->position;
  bool good = true;
  if (has_digest) {
    good = CopyCrc32c(0, to, view->data(), placed.piece_bytes) == placed.digest;
  } else {
    CrewCopy(link_->hub->crew(), to, view->data(), placed.piece_bytes,
             placed.bytes >= kStreamBytes);
  }
  view = StorageRef();
  ask->position += placed.piece_bytes;
  ask->has_digest = false;
  ask->announced = true;
  ++link_->parts_taken;
  if (!good) {
    TRYST_REACHED("shm: a wrong digest of a part");
    ++link_->counters->digests_wrong;
    session_->EndAsk(ask, Changed());
  } else if (ask->position == ask->bytes) {
    ++link_->counters->in_parts;
    return EndCopy(ask, absl::OkStatus());
  }
  return absl::OkStatus();
}

// ---- Copying ----

// Finds where the bytes go: the caller's memory, or new memory for the tensor.
absl::Status ShmReceiver::Prepare(ShmAsk* ask) {
  if (ask->dtype != DType::kString && ask->destination().valid()) {
    ask->into = ask->destination();
    return absl::OkStatus();
  }
  auto made = ask->dtype == DType::kString
                  ? AllocateLanding(DType::kUint8, {static_cast<int64_t>(ask->bytes)})
                  : AllocateLanding(ask->dtype, ask->shape);
  if (!made.ok()) return made.status();
  ask->into = *std::move(made);
  return absl::OkStatus();
}

absl::Status ShmReceiver::RunCopy() {
  ShmAsk* ask = copies_.front();
  const absl::Status status = CopySome(ask);
  if (status.ok() && ask->position < ask->bytes) return absl::OkStatus();
  copies_.pop_front();
  return EndCopy(ask, status);
}

absl::Status ShmReceiver::CopySome(ShmAsk* ask) {
  const bool helped = ask->pulls && link_->hub->crew()->helps();
  const uint64_t part =
      std::min(helped ? kHelpedTurnBytes : kTurnBytes, ask->bytes - ask->position);
  uint8_t* to = static_cast<uint8_t*>(ask->into.mutable_data()) + ask->position;
  if (ask->pulls) {
    const absl::Status read = ReadPeer(ask, to, part);
    if (!read.ok()) return read;
    if (ask->has_digest) ask->digest_so_far = Crc32c(ask->digest_so_far, to, part);
  } else {
    const uint8_t* from = ask->from.data_as<uint8_t>() + ask->position;
    if (ask->has_digest) {
      ask->digest_so_far = CopyCrc32c(ask->digest_so_far, to, from, part);
    } else {
      CrewCopy(link_->hub->crew(), to, from, part, ask->bytes >= kStreamBytes);
    }
  }
  ask->position += part;
  return absl::OkStatus();
}

absl::Status ShmReceiver::ReadPeer(ShmAsk* ask, uint8_t* to, uint64_t bytes) {
  if (link_->options.forbids_read && link_->options.forbids_read()) {
    return absl::PermissionDeniedError("the test forbids it");
  }
  Mutex mu;
  absl::Status first;  // Guarded by mu.
  const uint64_t address = ask->from_address + ask->position;
  link_->hub->crew()->Share(bytes, kReadBytes, [&](uint64_t begin, uint64_t count) {
    const absl::Status read = link_->peer_memory->Read(address + begin, to + begin, count);
    if (read.ok()) return;
    MutexLock lock(&mu);
    first.Update(read);
  });
  return first;
}

absl::Status ShmReceiver::EndCopy(ShmAsk* ask, absl::Status status) {
  ask->from = Tensor();
  // Only a read of the producer's memory fails so.
  if (absl::IsPermissionDenied(status)) {  // The producer answers another way.
    link_->SaySoon(*ask, CellType::kPulled, shm_wire::kPullFailed);
    ask->pulls = false;
    ask->into = Tensor();
    ask->announced = true;
    session_->Advance(ask, FetchEvent::kRetry);
    return absl::OkStatus();
  }
  if (ask->pulls && link_->options.before_check) link_->options.before_check();
  if (absl::IsUnavailable(status)) {
    TRYST_REACHED("rare: a read finds the producer's process gone");
    return absl::OkStatus();  // The socket says so, too, and that ends all its fetches alike.
  }
  if (status.ok() && ask->has_digest && ask->digest_so_far != ask->digest) {
    TRYST_REACHED("shm: a wrong digest of what was copied");
    ++link_->counters->digests_wrong;
    status = Changed();
  }
  Tensor tensor;
  if (status.ok()) {
    auto finished = Finish(ask);
    status = finished.status();
    if (finished.ok()) tensor = *std::move(finished);
  }
  if (!status.ok()) {
    // What was read may be anything, if the producer no longer keeps it.
    if (ask->pulls && !link_->IsLent(*ask)) return NotLent();
    session_->EndAsk(ask, status);  // The tensor stays with the producer.
    return absl::OkStatus();
  }
  if (ask->pulls) {
    if (!link_->TakeLoan(*ask)) return NotLent();
    ++link_->counters->pulled;
    link_->SaySoon(*ask, CellType::kPulled, 0);
  }
  link_->counters->bytes += ask->bytes;
  return CompleteWhole(ask, std::move(tensor));
}

absl::StatusOr<Tensor> ShmReceiver::Finish(ShmAsk* ask) {
  if (ask->dtype != DType::kString) return ask->into;
  return DecodeStrings(absl::string_view(static_cast<const char*>(ask->into.data()), ask->bytes),
                       ask->shape);
}

// ---- Ending ----

// The bytes of `tensor` are all here.
absl::Status ShmReceiver::CompleteWhole(ShmAsk* ask, Tensor&& tensor) {
  if (ask->of->is_run()) {
    Tensor all_of_it;
    const absl::string_view answer(static_cast<const char*>(tensor.data()), tensor.bytes());
    const absl::Status taken = session_->TakeRun(ask, answer, &all_of_it);
    if (!taken.ok() || !all_of_it.valid()) return taken;
    tensor = std::move(all_of_it);
  }
  Complete(ask, absl::OkStatus(), std::move(tensor), false);
  return absl::OkStatus();
}

// The producer's last word on the slot has come, and is accepted.
void ShmReceiver::Complete(ShmAsk* ask, absl::Status&& status, Tensor&& tensor, bool is_dead) {
  link_->Accept(*ask);
  ask->DropTensor();
  session_->Finish(ask, std::move(status), std::move(tensor), is_dead, FetchOps::When::kNow);
}

}  // namespace tryst
