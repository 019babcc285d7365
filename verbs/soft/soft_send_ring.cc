#include "verbs/soft/soft_send_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "verbs/soft/soft_ring.h"

namespace tryst {
namespace {

constexpr uint32_t kFirstSlots = 8;

}  // namespace

SoftSendRing::SoftSendRing(SoftContext* context, const QueuePairOptions& options)
    : context_(context),
      max_entries_(options.max_entries),
      max_inline_bytes_(options.max_inline_bytes),
      mask_(RingMask(std::min(options.send_depth, kFirstSlots))),
      slots_(mask_ + 1),
      entries_((mask_ + 1) * options.max_entries),
      inline_bytes_(mask_ + 1) {}

absl::Status SoftSendRing::Check(const SendWork& work) const {
  if (work.entries.size() > max_entries_) {
    return absl::InvalidArgumentError(absl::StrCat(
        work.entries.size(), " pieces of memory are in a transfer, and the queue pair takes ",
        max_entries_));
  }
  uint64_t total = 0;
  const uint64_t limit = context_->options.limits.max_message_bytes;
  if (!AddUp(work.entries, limit, &total)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a transfer may have at most ", limit, " bytes: send it in pieces"));
  }
  if (work.inline_data && (total > max_inline_bytes_ || work.op == SendOp::kRead)) {
    return absl::InvalidArgumentError(
        absl::StrCat(total, " bytes are inline in a transfer, and the queue pair was made for ",
                     max_inline_bytes_, ", and for none in a READ"));
  }
  if (work.op == SendOp::kRead && context_->options.limits.max_reads_in_flight == 0) {
    return absl::InvalidArgumentError("this NIC has no RDMA READ");
  }
  return absl::OkStatus();
}

void SoftSendRing::Post(const SendWork& work) {
  if (end_ - oldest_ > mask_) Grow();
  SoftSend& send = at(end_);
  send = SoftSend();
  send.id = work.id;
  send.owner = work.inline_data ? nullptr : work.owner;
  send.op = work.op;
  send.signaled = work.signaled;
  send.remote_address = work.remote_address;
  send.remote_key = work.remote_key;
  send.immediate = work.immediate;
  send.entries = static_cast<int>(work.entries.size());
  AddUp(work.entries, ~uint64_t{0}, &send.total);
  if (work.inline_data) {
    CopyInline(work, &send);
  } else {
    std::copy(work.entries.begin(), work.entries.end(), entries(end_));
  }
  ++end_;
}

void SoftSendRing::CopyInline(const SendWork& work, SoftSend* send) {
  std::unique_ptr<uint8_t[]>& bytes = inline_bytes_[end_ & mask_];
  if (bytes == nullptr) bytes.reset(new uint8_t[max_inline_bytes_]);
  uint64_t copied = 0;
  for (const Entry& entry : work.entries) {
    memcpy(bytes.get() + copied, reinterpret_cast<const void*>(entry.address), entry.bytes);
    copied += entry.bytes;
  }
  *entries(end_) = {reinterpret_cast<uint64_t>(bytes.get()), copied, 0};
  send->entries = 1;
  send->inline_data = true;
}

void SoftSendRing::Grow() {
  const uint64_t mask = 2 * mask_ + 1;
  std::vector<SoftSend> slots(mask + 1);
  std::vector<Entry> moved((mask + 1) * max_entries_);
  std::vector<std::unique_ptr<uint8_t[]>> inline_bytes(mask + 1);
  for (uint64_t i = oldest_; i < end_; ++i) {
    slots[i & mask] = at(i);
    std::copy_n(entries(i), max_entries_, &moved[(i & mask) * max_entries_]);
    // Bytes that are being sent must stay where they are.
    inline_bytes[i & mask] = std::move(inline_bytes_[i & mask_]);
  }
  slots_.swap(slots);
  entries_.swap(moved);
  inline_bytes_.swap(inline_bytes);
  mask_ = mask;
}

bool SoftSendRing::AnyUnsignaled() const {
  for (uint64_t i = oldest_; i < end_; ++i) {
    if (!at(i).signaled) return true;
  }
  return false;
}

uint64_t SoftSendRing::Find(uint32_t sequence) const {
  for (uint64_t i = oldest_; i < end_; ++i) {
    const SoftSend& send = at(i);
    if (!send.started) break;
    if (send.sequence == sequence) return i;
  }
  return kNone;
}

}  // namespace tryst
