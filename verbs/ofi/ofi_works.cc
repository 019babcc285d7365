#include "verbs/ofi/ofi_works.h"

#include <algorithm>
#include <cstring>

namespace tryst {

OfiWorks::OfiWorks(const OfiRegionTable* regions, const QueuePairOptions& options)
    : regions_(regions),
      max_entries_(std::max<uint32_t>(options.max_entries, 1)),
      max_inline_bytes_(options.max_inline_bytes),
      works_(options.send_depth),
      pieces_(options.send_depth * max_entries_),
      descriptors_(options.send_depth * max_entries_) {}

void OfiWorks::KeepInlineAt(uint8_t* memory, void* descriptor) {
  inline_ = memory;
  inline_descriptor_ = descriptor;
}

void OfiWorks::Add(const SendWork& from) {
  const uint64_t index = tail_++;
  OfiWork& work = At(index);
  work = OfiWork();
  work.context.index = static_cast<uint32_t>(index % works_.size());
  work.id = from.id;
  work.op = from.op;
  work.signaled = from.signaled;
  work.immediate = from.immediate;
  work.remote_key = from.remote_key;
  work.remote_address = from.remote_address;
  iovec* const pieces = &pieces_[FirstPart(index)];
  void** const descriptors = Descriptors(index);
  uint8_t* const inline_begin = inline_ + work.context.index * max_inline_bytes_;
  uint8_t* inline_at = inline_begin;
  for (const Entry& entry : from.entries) {
    if (entry.bytes == 0) continue;
    work.bytes += entry.bytes;
    if (from.inline_data) {
      memcpy(inline_at, reinterpret_cast<const void*>(entry.address), entry.bytes);
      inline_at += entry.bytes;
      continue;
    }
    if (!regions_->Find(entry, from.op == SendOp::kRead, &descriptors[work.pieces])) {
      work.status = CompletionStatus::kLocalProtection;
      return;
    }
    pieces[work.pieces++] = {reinterpret_cast<void*>(entry.address), entry.bytes};
  }
  if (!work.is_send() && work.remote_address > ~uint64_t{0} - work.bytes) {
    // Address plus length overflows. libfabric 1.17 at the peer adds them without a check, finds
    // the wrapped sum small, and writes there. So we refuse the write here, with the status that a
    // refusal by the peer has.
    work.status = CompletionStatus::kRetryExceeded;
    return;
  }
  if (from.inline_data && work.bytes > 0) {
    descriptors[0] = inline_descriptor_;
    pieces[work.pieces++] = {inline_begin, work.bytes};
  }
}

absl::Span<const iovec> OfiWorks::Pieces(uint64_t index) const {
  return {&pieces_[FirstPart(index)], works_[index % works_.size()].pieces};
}

void OfiWorks::Copy(uint64_t index, uint64_t from, uint64_t count, uint8_t* out) const {
  for (const iovec& piece : Pieces(index)) {
    const uint64_t skip = std::min<uint64_t>(from, piece.iov_len);
    const uint64_t here = std::min<uint64_t>(count, piece.iov_len - skip);
    memcpy(out, static_cast<const uint8_t*>(piece.iov_base) + skip, here);
    out += here;
    from -= skip;
    count -= here;
  }
}

}  // namespace tryst
