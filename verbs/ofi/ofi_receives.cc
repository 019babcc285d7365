#include "verbs/ofi/ofi_receives.h"

#include <algorithm>
#include <cstring>

namespace tryst {

OfiReceives::OfiReceives(const OfiRegionTable* regions, uint32_t depth, uint32_t max_entries)
    : regions_(regions),
      depth_(depth),
      max_entries_(max_entries),
      posted_(depth),
      entries_(size_t{depth} * max_entries) {}

void OfiReceives::Post(const ReceiveWork& work) {
  const size_t at = tail_++ % depth_;
  posted_[at].id = work.id;
  posted_[at].entries = static_cast<uint32_t>(work.entries.size());
  std::copy(work.entries.begin(), work.entries.end(), &entries_[at * max_entries_]);
}

absl::Span<const Entry> OfiReceives::EntriesOfFirst() const {
  const size_t at = head_ % depth_;
  return absl::MakeConstSpan(&entries_[at * max_entries_], posted_[at].entries);
}

Completion OfiReceives::Take() {
  Completion completion;
  completion.id = posted_[head_++ % depth_].id;
  filled_ = 0;
  return completion;
}

Completion OfiReceives::TakeForImmediate(uint32_t immediate, uint64_t bytes) {
  Completion completion = Take();
  completion.op = CompletionOp::kReceiveWriteImmediate;
  completion.immediate = immediate;
  completion.bytes = bytes;
  return completion;
}

Completion OfiReceives::Flush() {
  Completion completion = Take();
  completion.status = CompletionStatus::kFlushed;
  return completion;
}

CompletionStatus OfiReceives::CheckFirst(uint64_t bytes) const {
  uint64_t room = 0;
  for (const Entry& entry : EntriesOfFirst()) {
    void* descriptor;
    if (room < bytes && entry.bytes > 0 && !regions_->Find(entry, /*to_write=*/true, &descriptor)) {
      return CompletionStatus::kLocalProtection;
    }
    room += entry.bytes;
  }
  return room < bytes ? CompletionStatus::kLocalLength : CompletionStatus::kOk;
}

bool OfiReceives::Fill(const OfiFrame& frame, const uint8_t* payload, Completion* out) {
  CompletionStatus status = CompletionStatus::kOk;
  if ((frame.flags & kOfiFirst) != 0) {
    status = CheckFirst(frame.total_bytes);
  }
  // A peer of ours never sends more than it announced.
  if (filled_ + frame.payload_bytes > frame.total_bytes) status = CompletionStatus::kLocalLength;
  if (status != CompletionStatus::kOk) {
    *out = Take();
    out->status = status;
    return true;
  }
  uint64_t skip = filled_;
  uint64_t left = frame.payload_bytes;
  for (const Entry& entry : EntriesOfFirst()) {
    const uint64_t from = std::min(skip, entry.bytes);
    const uint64_t count = std::min(left, entry.bytes - from);
    if (count > 0) {
      memcpy(reinterpret_cast<uint8_t*>(entry.address) + from, payload, count);
      payload += count;
      left -= count;
    }
    skip -= from;
  }
  filled_ += frame.payload_bytes;
  if ((frame.flags & kOfiLast) == 0) return false;
  const uint64_t bytes = filled_;
  *out = Take();
  out->op = CompletionOp::kReceive;
  out->bytes = bytes;
  return true;
}

}  // namespace tryst
