// The works of a queue pair, from posting to completion.
#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "verbs/ofi/ofi_queue_pair.h"

namespace tryst {
absl::Status OfiQueuePair::CheckWork(const SendWork& work) const {
  if (work.op == SendOp::kWriteWithImmediate && !device_->limits().write_with_immediate) {
    return absl::InvalidArgumentError(absl::StrCat(
        "libfabric's provider ", device_->provider().full_name, " has no write with immediate"));
  }
  uint64_t bytes = 0;
  for (const Entry& entry : work.entries) {
    bytes += entry.bytes;
    if (bytes < entry.bytes)
      return absl::InvalidArgumentError(
          "the sizes of a transfer's pieces add up to more than 2^64");
  }
  if (work.entries.size() > options_.max_entries || bytes > device_->limits().max_message_bytes ||
      (work.inline_data && (bytes > options_.max_inline_bytes || work.op == SendOp::kRead))) {
    return absl::InvalidArgumentError(absl::StrCat("a transfer of ", bytes, " bytes in ",
                                                   work.entries.size(),
                                                   " pieces exceeds the limits of its queue pair"));
  }
  return absl::OkStatus();
}

absl::Status OfiQueuePair::PostSend(absl::Span<const SendWork> works) {
  if (!connected_ || broken_) {
    return absl::FailedPreconditionError(broken_ ? "the queue pair is broken"
                                                 : "the queue pair is not connected");
  }
  if (works.size() > send_room()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        works.size(), " transfers are posted, and the queue pair has room for ", send_room()));
  }
  for (const SendWork& work : works) {
    const absl::Status checked = CheckWork(work);
    if (!checked.ok()) return checked;
  }
  for (const SendWork& work : works) works_.Add(work);
  sends_used_ += static_cast<uint32_t>(works.size());
  Issue();
  Retire();
  return absl::OkStatus();
}

void OfiQueuePair::Issue() {
  stalled_ = false;
  while (works_.any_waits() && tokens_.met() && !broken_ && !failed_) {
    OfiWork& work = works_.At(works_.next());
    if (work.status != CompletionStatus::kOk) return;  // Those before it end first.
    const int64_t returned = IssueOne(&work, works_.next());
    if (returned == -FI_EAGAIN) {
      stalled_ = true;
      return;
    }
    if (returned < 0) {
      work.status = CompletionStatus::kRetryExceeded;
      work.vendor_error = static_cast<uint32_t>(-returned);
      return;
    }
    works_.Issued();
  }
}

int64_t OfiQueuePair::IssueOne(OfiWork* work, uint64_t index) {
  if (work->is_send() || (work->op == SendOp::kWriteWithImmediate && work->bytes == 0)) {
    return IssueFrames(work, index);
  }
  if (work->bytes == 0) {
    work->done = true;
    return 0;
  }
  const absl::Span<const iovec> pieces = works_.Pieces(index);
  void** const descriptors = works_.Descriptors(index);
  if (work->op == SendOp::kRead) {
    return endpoint_->Read(pieces, descriptors, work->remote_address, work->remote_key,
                           &work->context);
  }
  uint64_t immediate = work->immediate;
  if (device_->tells_length()) immediate |= work->bytes << 32;
  return endpoint_->Write(pieces, descriptors, work->remote_address, work->remote_key,
                          work->op == SendOp::kWriteWithImmediate ? &immediate : nullptr,
                          &work->context);
}

int64_t OfiQueuePair::IssueFrames(OfiWork* work, uint64_t index) {
  do {
    OfiFrame frame;
    frame.kind = work->is_send() ? OfiFrameKind::kSend : OfiFrameKind::kImmediate;
    frame.token = tokens_.ours();
    frame.total_bytes = work->bytes;
    frame.immediate = work->immediate;
    const uint64_t count = std::min<uint64_t>(work->bytes - work->sent, kOfiFramePayloadBytes);
    frame.payload_bytes = static_cast<uint32_t>(count);
    if (work->sent == 0) frame.flags |= kOfiFirst;
    if (work->sent + count == work->bytes) frame.flags |= kOfiLast;
    const int64_t returned = PostFrame(frame, nullptr, index);
    if (returned != 0) return returned;
    work->sent += count;
    ++work->frames_out;
  } while (work->sent < work->bytes);
  return 0;
}

// Sends `payload`, or the work's own bytes.
int64_t OfiQueuePair::PostFrame(const OfiFrame& frame, const void* payload, uint64_t index) {
  OfiFrames::Out* const out = frames_.Free();
  if (out == nullptr) return -FI_EAGAIN;
  uint8_t* const bytes = frames_.BytesOf(*out);
  EncodeOfiFrame(frame, bytes);
  uint8_t* const behind = bytes + kOfiFrameHeaderBytes;
  if (payload != nullptr) {
    memcpy(behind, payload, frame.payload_bytes);
  } else if (frame.payload_bytes > 0) {
    works_.Copy(index, works_.At(index).sent, frame.payload_bytes, behind);
  }
  const int64_t returned = endpoint_->Send(bytes, kOfiFrameHeaderBytes + frame.payload_bytes,
                                           frames_.descriptor(), &out->context);
  out->busy = returned == 0;
  out->work = index;
  return returned;
}

void OfiQueuePair::Retire() {
  while (!works_.empty() && !broken_) {
    const OfiWork& work = works_.oldest();
    if (work.status != CompletionStatus::kOk) return Break();
    if (!work.done) return;
    works_.Pop();
    ++silent_;
    if (!work.signaled) continue;
    Completion completion;
    completion.id = work.id;
    completion.op = work.op == SendOp::kRead ? CompletionOp::kRead : CompletionOp::kSend;
    Complete(completion, silent_);
    silent_ = 0;
  }
}

// The oldest work tells the reason; all later ones are flushed.
void OfiQueuePair::FailOldest(CompletionStatus status, uint32_t vendor_error) {
  if (!works_.empty() && works_.oldest().status == CompletionStatus::kOk) {
    works_.oldest().status = status;
    works_.oldest().vendor_error = vendor_error;
  }
  Break();
}

}  // namespace tryst
