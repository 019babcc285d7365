// The works of a soft queue pair, from posting until they are given back.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "verbs/soft/soft_queue_pair.h"

namespace tryst {
namespace {

bool MovesBytes(SendOp op) { return op != SendOp::kBindWindow && op != SendOp::kInvalidateWindow; }

CompletionOp OpOf(SendOp op) {
  if (op == SendOp::kRead) return CompletionOp::kRead;
  return MovesBytes(op) ? CompletionOp::kSend : CompletionOp::kWindow;
}

// Sums the entries' bytes; false: the sum exceeds `limit`.
bool AddUp(absl::Span<const Entry> entries, uint64_t limit, uint64_t* total) {
  *total = 0;
  for (const Entry& entry : entries) {
    if (entry.bytes > limit - *total) return false;
    *total += entry.bytes;
  }
  return true;
}

}  // namespace

absl::Status SoftQueuePair::Check(const SendWork& work) const {
  if (!MovesBytes(work.op)) return CheckWindow(work);
  if (work.entries.size() > options_.max_entries) {
    return absl::InvalidArgumentError(absl::StrCat(work.entries.size(),
                                                   " entries in a work; at most ",
                                                   options_.max_entries, " were asked for"));
  }
  uint64_t total = 0;
  const uint64_t limit = context_->options.limits.max_message_bytes;
  if (!AddUp(work.entries, limit, &total)) {
    return absl::InvalidArgumentError(absl::StrCat("a message of more than ", limit, " bytes"));
  }
  if (work.inline_data && (total > options_.max_inline_bytes || work.op == SendOp::kRead)) {
    return absl::InvalidArgumentError(absl::StrCat(total, " bytes inline; at most ",
                                                   options_.max_inline_bytes,
                                                   " were asked for, and none for a READ"));
  }
  if (work.op == SendOp::kRead && context_->options.limits.max_reads_in_flight == 0) {
    return absl::InvalidArgumentError("this NIC has no READ");
  }
  return absl::OkStatus();
}

absl::Status SoftQueuePair::CheckWindow(const SendWork& work) const {
  if (!context_->options.limits.memory_windows) {
    return absl::InvalidArgumentError("this NIC has no memory windows");
  }
  if (work.window == nullptr) return absl::InvalidArgumentError("a window work without a window");
  if (work.op == SendOp::kBindWindow &&
      (work.window_region == nullptr || work.entries.size() != 1)) {
    return absl::InvalidArgumentError("a bind takes a region, and one entry for its bytes");
  }
  return absl::OkStatus();
}

absl::Status SoftQueuePair::PostSend(absl::Span<const SendWork> works) {
  if (state_ != QueuePairState::kReady) {
    return absl::FailedPreconditionError(
        absl::StrCat("a send is posted while the queue pair is ", QueuePairStateName(state_)));
  }
  if (works.size() > send_room()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(works.size(), " sends are posted; there is room for ", send_room()));
  }
  for (const SendWork& work : works) {
    const absl::Status checked = Check(work);
    if (!checked.ok()) return checked;
  }
  // The wait for the peer begins now, not when it last had nothing to do.
  if (!WaitsForPeer()) moved_ = true;
  completions_->NoteActive(this);
  for (const SendWork& work : works) Enqueue(work);
  Pump();
  GiveBackSends();
  completions_->NotePosted();
  return absl::OkStatus();
}

void SoftQueuePair::GrowSends() {
  const uint64_t mask = 2 * send_mask_ + 1;
  std::vector<SendSlot> slots(mask + 1);
  std::vector<Entry> entries((mask + 1) * options_.max_entries);
  std::vector<std::unique_ptr<uint8_t[]>> inline_bytes(mask + 1);
  for (uint64_t i = send_oldest_; i < send_end_; ++i) {
    slots[i & mask] = send(i);
    std::copy_n(send_entries(i), options_.max_entries, &entries[(i & mask) * options_.max_entries]);
    // Bytes that are being sent must stay where they are.
    inline_bytes[i & mask] = std::move(inline_bytes_[i & send_mask_]);
  }
  send_slots_.swap(slots);
  send_entries_.swap(entries);
  inline_bytes_.swap(inline_bytes);
  send_mask_ = mask;
}

void SoftQueuePair::Enqueue(const SendWork& work) {
  if (send_end_ - send_oldest_ > send_mask_) GrowSends();
  SendSlot& slot = send(send_end_);
  Entry* const entries = send_entries(send_end_);
  slot = SendSlot();
  slot.id = work.id;
  slot.op = work.op;
  slot.signaled = work.signaled;
  slot.fence = work.fence;
  slot.remote_address = work.remote_address;
  slot.remote_key = work.remote_key;
  slot.immediate = work.immediate;
  slot.entries = static_cast<int>(work.entries.size());
  if (MovesBytes(work.op)) {
    std::copy(work.entries.begin(), work.entries.end(), entries);
    AddUp(work.entries, ~uint64_t{0}, &slot.total);
  } else {
    slot.window = static_cast<SoftWindow*>(work.window);
  }
  if (work.op == SendOp::kBindWindow) {
    slot.window_region_key = work.window_region->local_key();
    slot.window_access = work.window_access;
    slot.window_bytes = work.entries[0].bytes;
    slot.window_old_key = slot.window->remote_key();
    slot.window_key = context_->regions.NewKey();
    // The key is known at once, so that the next work posted can tell it to the peer.
    slot.window->set_remote_key(slot.window_key);
  } else if (work.op == SendOp::kInvalidateWindow) {
    slot.window_key = slot.window->remote_key();
  }
  if (work.inline_data) {
    slot.inline_data = true;
    std::unique_ptr<uint8_t[]>& bytes = inline_bytes_[send_end_ & send_mask_];
    if (bytes == nullptr) bytes.reset(new uint8_t[options_.max_inline_bytes]);
    uint8_t* const copy = bytes.get();
    uint64_t copied = 0;
    for (const Entry& entry : work.entries) {
      memcpy(copy + copied, reinterpret_cast<const void*>(entry.address), entry.bytes);
      copied += entry.bytes;
    }
    entries[0] = {reinterpret_cast<uint64_t>(copy), copied, 0};
    slot.entries = 1;
  }
  ++send_end_;
  ++sends_held_;
}

absl::Status SoftQueuePair::PostReceive(absl::Span<const ReceiveWork> works) {
  if (state_ == QueuePairState::kBroken) {
    return absl::FailedPreconditionError("a receive is posted while the queue pair is broken");
  }
  if (works.size() > receive_room()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(works.size(), " receives are posted; there is room for ", receive_room()));
  }
  uint64_t total = 0;
  for (const ReceiveWork& work : works) {
    if (work.entries.size() > options_.max_entries || !AddUp(work.entries, ~uint64_t{0}, &total)) {
      return absl::InvalidArgumentError(absl::StrCat(work.entries.size(),
                                                     " entries in a receive; at most ",
                                                     options_.max_entries, " were asked for"));
    }
  }
  for (const ReceiveWork& work : works) {
    receive_ids_[receive_end_ & receive_mask_] = work.id;
    if (!work.entries.empty() && receive_bodies_.empty()) {
      receive_bodies_.resize(receive_mask_ + 1);
      receive_entries_.resize((receive_mask_ + 1) * options_.max_entries);
    }
    if (!receive_bodies_.empty()) {
      ReceiveBody& body = receive_bodies_[receive_end_ & receive_mask_];
      body.entries = static_cast<int>(work.entries.size());
      AddUp(work.entries, ~uint64_t{0}, &body.total);
      std::copy(work.entries.begin(), work.entries.end(), receive_entries(receive_end_));
    }
    ++receive_end_;
    ++receives_held_;
  }
  if (state_ == QueuePairState::kReady && CreditDue()) OweAnswer();
  completions_->NotePosted();
  return absl::OkStatus();
}

bool SoftQueuePair::Done(const SendSlot& slot) const {
  if (!slot.started || slot.unwritten_frames > 0) return false;
  switch (slot.op) {
    case SendOp::kBindWindow:
    case SendOp::kInvalidateWindow:
      return true;
    case SendOp::kRead:
      // A READ of no bytes is answered, too.
      return slot.answered;
    default:
      return slot.assigned == slot.total &&
             (options_.ends_when_left || static_cast<int32_t>(acked_ - slot.sequence) > 0);
  }
}

void SoftQueuePair::GiveBackSends() {
  while (send_oldest_ < send_end_) {
    SendSlot& slot = send(send_oldest_);
    if (slot.error != CompletionStatus::kOk) {
      // All before it have completed successfully, so now it fails.
      BreakWith(slot.error, send_oldest_);
      return;
    }
    if (!Done(slot)) return;
    ++send_oldest_;
    FinishSend(&slot, CompletionStatus::kOk);
  }
}

void SoftQueuePair::FinishSend(SendSlot* slot, CompletionStatus status) {
  ++silent_;
  if (status == CompletionStatus::kOk && !slot->signaled) return;
  Completion completion;
  completion.id = slot->id;
  completion.status = status;
  completion.op = OpOf(slot->op);
  completion.queue_pair = number_;
  completions_->Push(completion, this, std::exchange(silent_, 0), 0);
}

void SoftQueuePair::FinishReceive(CompletionStatus status, CompletionOp op,
                                  const FrameHeader* request) {
  Completion completion;
  completion.id = receive_ids_[receive_oldest_++ & receive_mask_];
  completion.status = status;
  completion.op = op;
  completion.queue_pair = number_;
  if (request != nullptr) {
    completion.has_immediate = request->has_immediate;
    completion.immediate = request->immediate;
    completion.bytes = request->total;
  }
  delivered_turn_ = completions_->turn();
  completions_->Push(completion, this, 0, 1);
}

void SoftQueuePair::OnPolled(uint32_t sends_back, uint32_t receives_back) {
  sends_held_ -= sends_back;
  receives_held_ -= receives_back;
}

QueuePairState SoftQueuePair::state() const {
  if (state_ == QueuePairState::kBroken && sends_held_ == 0 && receives_held_ == 0) {
    return QueuePairState::kDrained;
  }
  return state_;
}

void SoftQueuePair::FlushAll(CompletionStatus first, uint64_t culprit) {
  if (culprit == kNobody) culprit = send_oldest_;
  while (send_oldest_ < send_end_) {
    SendSlot& slot = send(send_oldest_);
    const CompletionStatus status = send_oldest_ == culprit ? first : CompletionStatus::kFlushed;
    ++send_oldest_;
    FinishSend(&slot, status);
  }
  // No completion follows that could give these back.
  sends_held_ -= std::exchange(silent_, 0);
  while (receive_oldest_ < receive_end_) {
    FinishReceive(CompletionStatus::kFlushed, CompletionOp::kReceive, nullptr);
  }
}

}  // namespace tryst
