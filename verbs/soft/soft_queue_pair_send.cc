// How a soft queue pair sends frames.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "verbs/soft/soft_queue_pair.h"

namespace tryst {
namespace {

// Large enough that one system call is cheap, and small enough that the headers, which carry
// acknowledgements, are fresh.
constexpr uint64_t kBatchBytes = 512 << 10;

// A lone acknowledgement costs both sides a system call. So it waits this many turns for our next
// request to carry it: a caller that pulls one tensor after the other makes the next request by
// then. A peer that sends much does not wait, nor does one whose acknowledgement is due when the
// poller goes to sleep.
constexpr uint64_t kTurnsForCompany = 32;
constexpr uint32_t kManyUnsaid = 4;
constexpr uint64_t kMuchUnsaidBytes = 16 << 10;
// The same where the peer's sends complete without them.
constexpr uint32_t kManyUnsaidWhenLeft = 16;

bool IsRequestForReceive(SendOp op) {
  return op == SendOp::kWriteWithImmediate || op == SendOp::kSend ||
         op == SendOp::kSendWithImmediate;
}

}  // namespace

void SoftQueuePair::Pump() {
  bool again = true;
  while (again && state_ == QueuePairState::kReady && lanes_[0]->up() && !hanging_up_) {
    again = false;
    for (size_t i = 0; i < lanes_.size() && state_ == QueuePairState::kReady; ++i) {
      SoftLane* const lane = lanes_[i].get();
      if (lane->up() && !lane->full) again |= PumpLane(lane);
    }
  }
}

// Sends one batch. True: it was sent completely, and another may follow.
bool SoftQueuePair::PumpLane(SoftLane* lane) {
  if (lane->out == nullptr && !Fill(lane)) return false;
  SoftRegionRecord* pinned = nullptr;
  if (lane->out_remote_key != 0) {
    pinned = context_->regions.PinRemote(lane->out_remote_key, number_, lane->out_address,
                                         lane->out_bytes, kRemoteRead);
    if (pinned == nullptr) {
      // The memory was revoked while its bytes were being sent, so the frame cannot be finished.
      Lost();
      return false;
    }
  }
  size_t written = 0;
  const SoftBatch::Progress progress = lane->out->WriteTo(&lane->stream, &written);
  if (pinned != nullptr) context_->regions.Unpin(pinned);
  if (written > 0) moved_ = true;
  if (progress == SoftBatch::Progress::kLost) {
    // The peer may have sent the reason; then this ends with that.
    if (lane->index == 0) ReadLane(lane);
    LoseLane(lane);
    return false;
  }
  for (uint64_t work = lane->out->TakeWritten(); work != SoftBatch::kNoWork;
       work = lane->out->TakeWritten()) {
    --send(work).unwritten_frames;
  }
  if (progress == SoftBatch::Progress::kSome) {
    lane->full = true;
    completions_->NoteFull(lane);
    return false;
  }
  GiveBackBatch(lane);
  return true;
}

void SoftQueuePair::GiveBackBatch(SoftLane* lane) {
  lane->out_remote_key = 0;
  if (lane->out == nullptr) return;
  lane->out->Clear();
  completions_->batches()->Give(std::move(lane->out));
}

// False, and no batch: there is nothing to send.
bool SoftQueuePair::Fill(SoftLane* lane) {
  lane->out = completions_->batches()->Take();
  if (lane->index == 0) {
    FillFirst(lane);
  } else if (StripedReadLeft()) {
    // The other lanes help with what the first has begun.
    AddReadResponse(lane);
  } else if (StripedWorkLeft()) {
    AddMessageFrame(lane);
  }
  if (lane->out->empty()) GiveBackBatch(lane);
  return lane->out != nullptr;
}

void SoftQueuePair::FillFirst(SoftLane* lane) {
  const bool serve = reads_begin_ != reads_end_;
  if (serve && serve_read_next_) {
    serve_read_next_ = false;
    AddReadResponse(lane);
    return;
  }
  const int pieces = static_cast<int>(std::max<uint32_t>(options_.max_entries, 1));
  while (lane->out->bytes() < kBatchBytes && lane->out->HasRoom(pieces) && StartNext()) {
    AddMessageFrame(lane);
  }
  serve_read_next_ = true;
  if (lane->out->empty() && serve) AddReadResponse(lane);
  if (lane->out->empty() && ack_now_) {
    lane->out->Add(NewHeader(FrameType::kAck, true), nullptr, 0, SoftBatch::kNoWork);
  }
  ack_now_ = false;
}

// Advances send_next_ to a work that has a frame to send, if there is one.
bool SoftQueuePair::StartNext() {
  while (send_next_ < send_end_) {
    SendSlot& slot = send(send_next_);
    if (slot.error != CompletionStatus::kOk) return false;
    if (!slot.started && !Start(&slot, send_next_)) return false;
    if (slot.op != SendOp::kBindWindow && slot.op != SendOp::kInvalidateWindow) return true;
    ++send_next_;
  }
  return false;
}

bool SoftQueuePair::Start(SendSlot* slot, uint64_t i) {
  if (slot->fence && reads_out_ > 0) return false;
  if (slot->op == SendOp::kBindWindow || slot->op == SendOp::kInvalidateWindow) {
    DoWindowWork(slot);
    return slot->error == CompletionStatus::kOk;
  }
  if (slot->op == SendOp::kRead && reads_out_ >= context_->options.limits.max_reads_in_flight) {
    return false;
  }
  if (IsRequestForReceive(slot->op) && peer_receives_ == receives_used_) {
    starved_ = true;
    return false;
  }
  slot->error = CheckLocalKeys(i);
  if (slot->error != CompletionStatus::kOk) return false;
  if (IsRequestForReceive(slot->op)) {
    ++receives_used_;
    // Restart the timer: the next message that waits for a receive gets the full timeout.
    starved_ = false;
    for_receives_.Restart();
  }
  if (slot->op == SendOp::kRead) ++reads_out_;
  slot->sequence = next_sequence_++;
  slot->started = true;
  return true;
}

CompletionStatus SoftQueuePair::CheckLocalKeys(uint64_t i) {
  const SendSlot& slot = send(i);
  if (slot.inline_data) return CompletionStatus::kOk;
  const Entry* const entries = send_entries(i);
  for (int e = 0; e < slot.entries; ++e) {
    if (entries[e].bytes == 0) continue;
    if (!context_->regions.LocalRangeAllowed(entries[e].local_key, entries[e].address,
                                             entries[e].bytes, slot.op == SendOp::kRead)) {
      return CompletionStatus::kLocalProtection;
    }
  }
  return CompletionStatus::kOk;
}

void SoftQueuePair::DoWindowWork(SendSlot* slot) {
  if (slot->op == SendOp::kInvalidateWindow) {
    if (!context_->regions.UnbindWindow(slot->window_key)) {
      slot->error = CompletionStatus::kLocalOperation;
    }
  } else if (context_->regions.IsWindowBound(slot->window_old_key) ||
             !context_->regions.BindWindow(slot->window_key, number_, slot->window_region_key,
                                           slot->remote_address, slot->window_bytes,
                                           slot->window_access)) {
    slot->error = CompletionStatus::kWindowBind;
  }
  slot->started = slot->error == CompletionStatus::kOk;
}

// The next frame of work send_next_, which was started.
void SoftQueuePair::AddMessageFrame(SoftLane* lane) {
  const uint64_t i = send_next_;
  SendSlot& slot = send(i);
  const bool first_lane = lane->index == 0;
  FrameHeader header = NewHeader(FrameType::kFragment, first_lane);
  header.sequence = slot.sequence;
  header.total = slot.total;
  iovec pieces[SoftBatch::kMaxPieces];
  int count = 0;
  if (slot.op == SendOp::kRead) {
    header.type = FrameType::kRead;
    header.remote_key = slot.remote_key;
    header.address = slot.remote_address;
    slot.assigned = slot.total;
  } else {
    if (!slot.announced_first) {
      const bool to_region = slot.op == SendOp::kWrite || slot.op == SendOp::kWriteWithImmediate;
      header.type = to_region ? FrameType::kWrite : FrameType::kSend;
      header.has_immediate =
          slot.op == SendOp::kWriteWithImmediate || slot.op == SendOp::kSendWithImmediate;
      header.immediate = slot.immediate;
      header.remote_key = slot.remote_key;
      header.address = slot.remote_address;
      slot.announced_first = true;
    } else {
      header.address = slot.assigned;
    }
    header.bytes =
        static_cast<uint32_t>(std::min<uint64_t>(slot.total - slot.assigned, kMaxFrameBytes));
    count = Gather(send_entries(i), slot.entries, slot.assigned, header.bytes, pieces,
                   SoftBatch::kMaxPieces);
    slot.assigned += header.bytes;
  }
  ++slot.unwritten_frames;
  lane->out->Add(header, pieces, count, i);
  if (slot.assigned == slot.total) ++send_next_;
}

// The next frame of the oldest READ that is not fully served.
void SoftQueuePair::AddReadResponse(SoftLane* lane) {
  ReadToServe& read = reads_[reads_begin_ % reads_.size()];
  FrameHeader header = NewHeader(FrameType::kReadResponse, lane->index == 0);
  header.sequence = read.sequence;
  header.total = read.total;
  header.address = read.assigned;
  header.bytes =
      static_cast<uint32_t>(std::min<uint64_t>(read.total - read.assigned, kMaxFrameBytes));
  const iovec piece = {reinterpret_cast<void*>(read.address + read.assigned), header.bytes};
  lane->out->Add(header, &piece, header.bytes > 0 ? 1 : 0, SoftBatch::kNoWork);
  if (header.bytes > 0) {
    lane->out_remote_key = read.remote_key;
    lane->out_address = read.address + read.assigned;
    lane->out_bytes = header.bytes;
  }
  read.assigned += header.bytes;
  if (read.assigned == read.total) ++reads_begin_;
}

bool SoftQueuePair::StripedWorkLeft() const {
  if (send_next_ == send_end_) return false;
  const SendSlot& slot = send_slots_[send_next_ & send_mask_];
  // send_next_ is never a work whose bytes are all assigned.
  return slot.announced_first && slot.total >= context_->options.stripe_bytes;
}

bool SoftQueuePair::StripedReadLeft() const {
  if (reads_begin_ == reads_end_) return false;
  const ReadToServe& read = reads_[reads_begin_ % reads_.size()];
  return read.assigned > 0 && read.total >= context_->options.stripe_bytes;
}

FrameHeader SoftQueuePair::NewHeader(FrameType type, bool first_lane) {
  FrameHeader header;
  header.type = type;
  if (first_lane) {
    header.executed = executed_announced_ = executed_;
    header.receives = receives_announced_ = static_cast<uint32_t>(receive_end_);
  }
  return header;
}

// Whether there is anything that a pump could send.
bool SoftQueuePair::SendsWait() const {
  return send_next_ != send_end_ || reads_begin_ != reads_end_ || ack_now_;
}

bool SoftQueuePair::sends_wait_for_poll() const {
  if (state_ != QueuePairState::kReady) return false;
  return send_next_ != send_end_ ||
         std::any_of(lanes_.begin(), lanes_.end(),
                     [](const std::unique_ptr<SoftLane>& lane) { return lane->out != nullptr; });
}

// Whether to tell the peer of receives that it does not know: early enough that it does not run
// out, but not for each.
bool SoftQueuePair::CreditDue() const {
  const uint32_t unannounced = static_cast<uint32_t>(receive_end_) - receives_announced_;
  if (unannounced == 0) return false;
  return receives_announced_ == static_cast<uint32_t>(receive_oldest_) ||
         unannounced >= std::max<uint32_t>(options_.receive_depth / 4, 1);
}

void SoftQueuePair::OweAnswer() {
  if (in_debt_) return;
  in_debt_ = true;
  completions_->NoteDebt(this);
}

bool SoftQueuePair::DebtMayWait(uint64_t turn, bool sleeping) const {
  const uint32_t unsaid = executed_ - executed_announced_;
  if (options_.ends_when_left && unsaid < kManyUnsaidWhenLeft && !CreditDue()) return true;
  if (sleeping) return false;
  if (delivered_turn_ == turn) return true;
  return unsaid > 0 && unsaid < kManyUnsaid && incoming_.first.total < kMuchUnsaidBytes &&
         !CreditDue() && turn - delivered_turn_ < kTurnsForCompany;
}

void SoftQueuePair::PayDebt() {
  in_debt_ = false;
  if (state_ != QueuePairState::kReady) return;
  if (executed_ == executed_announced_ && !CreditDue()) return;
  ack_now_ = true;
  completions_->NoteActive(this);
  Pump();
}

}  // namespace tryst
