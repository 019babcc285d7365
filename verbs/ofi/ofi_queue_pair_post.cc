// The works of a queue pair, from posting to completion.
#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "verbs/ofi/ofi_queue_pair.h"

namespace tryst {
namespace {

bool IsSend(SendOp op) { return op == SendOp::kSend || op == SendOp::kSendWithImmediate; }

}  // namespace

absl::Status OfiQueuePair::CheckWork(const SendWork& work) const {
  if (work.op == SendOp::kBindWindow || work.op == SendOp::kInvalidateWindow) {
    return absl::InvalidArgumentError("libfabric has no memory windows");
  }
  if (work.op == SendOp::kWriteWithImmediate && !device_->limits().write_with_immediate) {
    return absl::InvalidArgumentError(absl::StrCat(
        "libfabric's provider ", device_->provider().full_name, " has no write with immediate"));
  }
  uint64_t bytes = 0;
  for (const Entry& entry : work.entries) {
    bytes += entry.bytes;
    if (bytes < entry.bytes) return absl::InvalidArgumentError("the entries' sizes wrap around");
  }
  if (work.entries.size() > options_.max_entries || bytes > device_->limits().max_message_bytes ||
      (work.inline_data && (bytes > options_.max_inline_bytes || work.op == SendOp::kRead))) {
    return absl::InvalidArgumentError(
        absl::StrCat("a work of ", bytes, " bytes in ", work.entries.size(),
                     " entries is over the limits of its queue pair"));
  }
  return absl::OkStatus();
}

absl::Status OfiQueuePair::PostSend(absl::Span<const SendWork> works) {
  if (!connected_ || broken_) {
    return absl::FailedPreconditionError(broken_ ? "the queue pair is broken"
                                                 : "the queue pair is not connected");
  }
  if (works.size() > send_room()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(works.size(), " works do not fit into a room of ", send_room()));
  }
  for (const SendWork& work : works) {
    const absl::Status checked = CheckWork(work);
    if (!checked.ok()) return checked;
  }
  for (const SendWork& work : works) Queue(work);
  Issue();
  Retire();
  return absl::OkStatus();
}

void OfiQueuePair::Queue(const SendWork& from) {
  const uint64_t index = tail_++;
  ++sends_used_;
  Work& work = WorkAt(index);
  work = Work();
  work.context.index = static_cast<uint32_t>(index % works_.size());
  work.id = from.id;
  work.op = from.op;
  work.signaled = from.signaled;
  work.fence = from.fence;
  work.immediate = from.immediate;
  work.remote_key = from.remote_key;
  work.remote_address = from.remote_address;
  iovec* const pieces = PiecesOf(index);
  void** const descriptors = &piece_descriptors_[index % works_.size() * options_.max_entries];
  uint8_t* inline_at = InlineOf(index);
  for (const Entry& entry : from.entries) {
    if (entry.bytes == 0) continue;
    work.bytes += entry.bytes;
    if (from.inline_data) {
      memcpy(inline_at, reinterpret_cast<const void*>(entry.address), entry.bytes);
      inline_at += entry.bytes;
      continue;
    }
    if (!device_->regions()->Find(entry, from.op == SendOp::kRead, &descriptors[work.pieces])) {
      work.status = CompletionStatus::kLocalProtection;
      return;
    }
    pieces[work.pieces++] = {reinterpret_cast<void*>(entry.address), entry.bytes};
  }
  if (!IsSend(from.op) && work.remote_address > ~uint64_t{0} - work.bytes) {
    // Address plus length overflows. libfabric 1.17 at the peer adds them without a check, finds
    // the wrapped sum small, and writes there. So we refuse the write here, with the status that a
    // refusal by the peer has.
    work.status = CompletionStatus::kRetryExceeded;
    return;
  }
  if (from.inline_data && work.bytes > 0) {
    descriptors[0] = descriptor_;
    pieces[work.pieces++] = {InlineOf(index), work.bytes};
  }
}

void OfiQueuePair::Issue() {
  stalled_ = false;
  while (issue_ != tail_ && peer_ready_ && !broken_ && !failed_) {
    Work& work = WorkAt(issue_);
    if (work.status != CompletionStatus::kOk) return;  // Those before it end first.
    if (work.fence && reads_out_ > 0) return;
    const int64_t returned = IssueOne(&work, issue_);
    if (returned == -FI_EAGAIN) {
      stalled_ = true;
      return;
    }
    if (returned < 0) {
      work.status = CompletionStatus::kRetryExceeded;
      work.vendor_error = static_cast<uint32_t>(-returned);
      return;
    }
    ++issue_;
  }
}

int64_t OfiQueuePair::IssueOne(Work* work, uint64_t index) {
  if (IsSend(work->op) || (work->op == SendOp::kWriteWithImmediate && work->bytes == 0)) {
    return IssueFrames(work, index);
  }
  if (work->bytes == 0) {
    work->done = true;
    return 0;
  }
  const auto pieces = absl::MakeConstSpan(PiecesOf(index), work->pieces);
  void** const descriptors = &piece_descriptors_[index % works_.size() * options_.max_entries];
  if (work->op == SendOp::kRead) {
    const int64_t returned = endpoint_->Read(pieces, descriptors, work->remote_address,
                                             work->remote_key, &work->context);
    if (returned == 0) ++reads_out_;
    return returned;
  }
  uint64_t immediate = work->immediate;
  if (device_->tells_length()) immediate |= work->bytes << 32;
  return endpoint_->Write(pieces, descriptors, work->remote_address, work->remote_key,
                          work->op == SendOp::kWriteWithImmediate ? &immediate : nullptr,
                          &work->context);
}

int64_t OfiQueuePair::IssueFrames(Work* work, uint64_t index) {
  do {
    OfiFrame frame;
    frame.kind = IsSend(work->op) ? OfiFrameKind::kSend : OfiFrameKind::kImmediate;
    frame.token = token_;
    frame.total_bytes = work->bytes;
    frame.immediate = work->immediate;
    const uint64_t count = std::min<uint64_t>(work->bytes - work->sent, kOfiFramePayloadBytes);
    frame.payload_bytes = static_cast<uint32_t>(count);
    if (work->sent == 0) frame.flags |= kOfiFirst;
    if (work->sent + count == work->bytes) frame.flags |= kOfiLast;
    if (work->op != SendOp::kSend) frame.flags |= kOfiHasImmediate;
    const int64_t returned = PostFrame(frame, nullptr, index);
    if (returned != 0) return returned;
    work->sent += count;
    ++work->frames_out;
  } while (work->sent < work->bytes);
  return 0;
}

// `payload`, or the work's own bytes.
int64_t OfiQueuePair::PostFrame(const OfiFrame& frame, const void* payload, uint64_t index) {
  for (FrameOut& out : frames_out_) {
    if (out.busy) continue;
    uint8_t* const bytes = FrameOutBytes(out.context.index);
    EncodeOfiFrame(frame, bytes);
    uint8_t* const behind = bytes + kOfiFrameHeaderBytes;
    if (payload != nullptr) {
      memcpy(behind, payload, frame.payload_bytes);
    } else if (frame.payload_bytes > 0) {
      CopyPieces(WorkAt(index), index, WorkAt(index).sent, frame.payload_bytes, behind);
    }
    const int64_t returned = endpoint_->Send(bytes, kOfiFrameHeaderBytes + frame.payload_bytes,
                                             descriptor_, &out.context);
    out.busy = returned == 0;
    out.work = index;
    return returned;
  }
  return -FI_EAGAIN;
}

void OfiQueuePair::CopyPieces(const Work& work, uint64_t index, uint64_t from, uint64_t count,
                              uint8_t* out) const {
  const iovec* const pieces = PiecesOf(index);
  for (uint32_t i = 0; i < work.pieces && count > 0; ++i) {
    const uint64_t skip = std::min<uint64_t>(from, pieces[i].iov_len);
    const uint64_t here = std::min<uint64_t>(count, pieces[i].iov_len - skip);
    memcpy(out, static_cast<const uint8_t*>(pieces[i].iov_base) + skip, here);
    out += here;
    from -= skip;
    count -= here;
  }
}

void OfiQueuePair::Retire() {
  while (head_ != tail_ && !broken_) {
    const Work& work = WorkAt(head_);
    if (work.status != CompletionStatus::kOk) return Break();
    if (!work.done) return;
    ++head_;
    ++silent_;
    if (!work.signaled) continue;
    Completion completion;
    completion.id = work.id;
    completion.op = work.op == SendOp::kRead ? CompletionOp::kRead : CompletionOp::kSend;
    Complete(completion, silent_);
    silent_ = 0;
  }
}

// The oldest one tells why; all behind it are flushed.
void OfiQueuePair::FailOldest(CompletionStatus status, uint32_t vendor_error) {
  if (head_ != tail_ && WorkAt(head_).status == CompletionStatus::kOk) {
    WorkAt(head_).status = status;
    WorkAt(head_).vendor_error = vendor_error;
  }
  Break();
}

uint8_t* OfiQueuePair::FrameOutBytes(size_t index) {
  return &memory_[(kFramesIn + index) * kOfiFrameBytes];
}

uint8_t* OfiQueuePair::InlineOf(uint64_t index) {
  return memory_.data() + (kFramesIn + kFramesOut) * kOfiFrameBytes +
         index % works_.size() * options_.max_inline_bytes;
}

}  // namespace tryst
