#include "verbs/soft/soft_sender.h"

#include <sys/uio.h>

#include <algorithm>
#include <memory>

#include "base/reached.h"
#include "verbs/soft/flow_rate.h"

namespace tryst {
namespace {

// Large enough that one system call is cheap, and small enough that the headers, which carry
// acknowledgements, are fresh.
constexpr uint64_t kBatchBytes = 512 << 10;
// The first frame of a message that other lanes carry has so much. The poller sends it, and goes on
// with the next message; each later one is a helper's, for whom less would be too little and more
// keeps others waiting for the last.
constexpr uint64_t kFirstFrameBytes = 4 << 10;
constexpr uint64_t kLeastHelpedBytes = 256 << 10;
constexpr uint64_t kMostHelpedBytes = 512 << 10;

bool NeedsReceive(SendOp op) { return op == SendOp::kWriteWithImmediate || op == SendOp::kSend; }

// Puts into the first frame of a message what the message is.
void DescribeMessage(const SoftSend& send, FrameHeader* header) {
  const bool to_region = send.op == SendOp::kWrite || send.op == SendOp::kWriteWithImmediate;
  header->type = to_region ? FrameType::kWrite : FrameType::kSend;
  header->has_immediate = send.op == SendOp::kWriteWithImmediate;
  header->immediate = send.immediate;
  header->remote_key = send.remote_key;
  header->address = send.remote_address;
}

}  // namespace

void SoftSender::Pump() {
  carriers_ = connection_->carriers();
  // Each flow has a later lane, so the first need not keep its messages waiting.
  leaves_ = carriers_ > 0 || (connection_->has_flows() && connection_->later_up() > 0);
  written_ = 0;
  bool again = true;
  while (again && connection_->ready() && connection_->first()->up() &&
         !connection_->hanging_up()) {
    if (written_ >= shared_->context->options.bytes_per_turn) {
      // A peer that reads as fast as we write would keep the others waiting for all that is posted.
      TRYST_REACHED("soft: more to send than a turn may");
      return shared_->completions->ServeAgain(connection_->first());
    }
    again = false;
    for (const std::unique_ptr<SoftLane>& lane : connection_->lanes()) {
      if (!connection_->ready()) return;
      if (lane->up() && !lane->full && !lane->sending.given()) again |= PumpLane(lane.get());
    }
  }
}

void SoftSender::Acknowledge() {
  ack_now_ = true;
  Pump();
}

bool SoftSender::AnythingToSend() const {
  return shared_->sends.any_waits() || !shared_->reads.empty() || ack_now_;
}

// Sends one batch. True: it was sent completely, and another may follow.
bool SoftSender::PumpLane(SoftLane* lane) {
  if (lane->out == nullptr && !Fill(lane)) return false;
  // The message may be all given out, and the first lane announces the next.
  if (HandOver(lane)) return lane->index > 0 && !NextIsCut();
  SoftBatch::Progress progress;
  if (!WriteBatch(lane, &progress)) {
    // The memory was revoked while its bytes were being sent, so the frame cannot be finished.
    ending_->Lost();
    return false;
  }
  const bool all = FinishWrite(lane, progress);
  return all || (leaves_ && lane->index > 0 && !NextIsCut());
}

// False: it is too little for a helper, or there is none.
bool SoftSender::HandOver(SoftLane* lane) {
  if (lane->out->bytes() < kHandedBytes || connection_->carriers() == 0) return false;
  SoftPin pin;
  if (lane->out_remote_key != 0) {
    pin = {lane->out_remote_key, kRemoteRead, lane->out_address, lane->out_bytes};
  }
  lane->sending.Set(lane->out.get(), &lane->stream, &shared_->context->regions, pin);
  shared_->completions->Hand(lane, &lane->sending);
  return true;
}

void SoftSender::FinishHanded(SoftLane* lane) {
  lane->sending.TakeBack();
  if (lane->sending.moved()) shared_->waits.NoteMoved();
  if (lane->sending.revoked()) return ending_->Lost();
  FinishWrite(lane, lane->sending.progress());
}

// True: the batch was sent completely, and another may follow.
bool SoftSender::FinishWrite(SoftLane* lane, SoftBatch::Progress progress) {
  if (lane->index > 0 && connection_->has_flows()) {
    const int64_t now_ns = shared_->context->clock->NowNs();
    const int fd = lane->stream.fd();
    if (lane->pace.Due(now_ns) && lane->pace.Set(now_ns, FlowRate(fd))) {
      HoldUnsent(fd, lane->pace.unsent_bytes());
    }
  }
  if (progress == SoftBatch::Progress::kLost) {
    // The peer may have sent the reason, and much before it; then this ends with that. It may also
    // go on sending, so there is a bound: more than a socket holds.
    constexpr int kMostReads = 16;
    for (int i = 0; i < kMostReads && lane->index == 0 && connection_->ready(); ++i) {
      if (!receiver_->Read(lane)) break;
    }
    ending_->LoseLane(lane);
    return false;
  }
  for (uint64_t work = lane->out->TakeWritten(); work != SoftBatch::kNoWork;
       work = lane->out->TakeWritten()) {
    --shared_->sends.at(work).unwritten_frames;
  }
  if (progress == SoftBatch::Progress::kSome) {
    lane->full = true;
    shared_->completions->NoteFull(lane);
    return false;
  }
  lane->GiveBackBatch(shared_->completions->batches());
  return true;
}

// False: the memory that it sends from is no longer open to the peer.
bool SoftSender::WriteBatch(SoftLane* lane, SoftBatch::Progress* progress) {
  SoftRegionTable& regions = shared_->context->regions;
  SoftRegionRecord* pinned = nullptr;
  if (lane->out_remote_key != 0) {
    pinned =
        regions.PinRemote(lane->out_remote_key, lane->out_address, lane->out_bytes, kRemoteRead);
    if (pinned == nullptr) return false;
  }
  size_t written = 0;
  *progress = lane->out->WriteTo(&lane->stream, &written);
  if (pinned != nullptr) regions.Unpin(pinned);
  if (written > 0) shared_->waits.NoteMoved();
  written_ += written;
  return true;
}

// False, and no batch: there is nothing to send.
bool SoftSender::Fill(SoftLane* lane) {
  lane->out = shared_->completions->batches()->Take();
  if (lane->index == 0) {
    FillFirst(lane);
  } else if (shared_->reads.OldestIsCut(shared_->context->options.stripe_bytes)) {
    // The other lanes help with what the first has begun.
    AddAnswerFrame(lane);
  } else if (NextIsCut() && (leaves_ || connection_->has_no_crew()) && !ComesTooLate(*lane)) {
    AddMessageFrame(lane);
  }
  if (lane->out->empty()) lane->GiveBackBatch(shared_->completions->batches());
  return lane->out != nullptr;
}

void SoftSender::FillFirst(SoftLane* lane) {
  const bool asked = !shared_->reads.empty();
  if (asked && answer_next_) {
    answer_next_ = false;
    AddAnswerFrame(lane);
    return;
  }
  const int entries = static_cast<int>(std::max<uint32_t>(shared_->options.max_entries, 1));
  while (lane->out->bytes() < kBatchBytes && lane->out->HasRoom(entries) && StartNext() &&
         !(leaves_ && NextIsCut())) {
    AddMessageFrame(lane);
  }
  answer_next_ = true;
  if (lane->out->empty() && asked) AddAnswerFrame(lane);
  if (lane->out->empty() && ack_now_) {
    lane->out->Add(shared_->progress.NewHeader(FrameType::kAck, true), nullptr, 0,
                   SoftBatch::kNoWork);
  }
  ack_now_ = false;
}

// Whether the next work has a frame to send; starts it if it is not started.
bool SoftSender::StartNext() {
  SoftSendRing& sends = shared_->sends;
  if (!sends.any_waits()) return false;
  SoftSend& send = sends.at(sends.next());
  if (send.error != CompletionStatus::kOk) return false;
  return send.started || Start(&send, sends.next());
}

bool SoftSender::Start(SoftSend* send, uint64_t i) {
  SoftSendRing& sends = shared_->sends;
  const bool read = send->op == SendOp::kRead;
  if (read && sends.reads_out() >= shared_->context->options.limits.max_reads_in_flight) {
    return false;
  }
  if (NeedsReceive(send->op) && !shared_->progress.PeerHasReceive()) {
    shared_->waits.Starve();
    return false;
  }
  send->error = CheckLocalKeys(*send, i);
  if (send->error != CompletionStatus::kOk) return false;
  if (NeedsReceive(send->op)) {
    shared_->progress.UsePeersReceive();
    shared_->waits.Feed();
  }
  if (read) sends.NoteReadStarted();
  if (IsCut(*send)) shared_->NoteStriping();
  send->sequence = shared_->progress.NewSequence();
  send->started = true;
  return true;
}

CompletionStatus SoftSender::CheckLocalKeys(const SoftSend& send, uint64_t i) {
  if (send.inline_data) return CompletionStatus::kOk;
  const Entry* const entries = shared_->sends.entries(i);
  for (int e = 0; e < send.entries; ++e) {
    if (entries[e].bytes == 0) continue;
    if (!shared_->context->regions.LocalRangeAllowed(entries[e].local_key, entries[e].address,
                                                     entries[e].bytes, send.op == SendOp::kRead)) {
      return CompletionStatus::kLocalProtection;
    }
  }
  return CompletionStatus::kOk;
}

// The next work has begun, and is so large that all lanes carry it.
bool SoftSender::NextIsCut() const {
  if (!shared_->sends.any_waits()) return false;
  // A send that is cut is never assigned all of its bytes.
  const SoftSend& send = shared_->sends.at(shared_->sends.next());
  return send.announced_first && IsCut(send);
}

// Without it, the rest of the next work is there sooner.
bool SoftSender::ComesTooLate(const SoftLane& lane) const {
  if (!connection_->has_flows()) return false;
  uint64_t most = 0;
  uint64_t sum = 0;
  for (const std::unique_ptr<SoftLane>& other : connection_->lanes()) {
    if (other->index == 0 || !other->up()) continue;
    most = std::max(most, other->pace.frame_bytes());
    sum += other->pace.frame_bytes();
  }
  const SoftSend& send = shared_->sends.at(shared_->sends.next());
  return lane.pace.IsLate(send.total - send.assigned, most, sum) &&
         !lane.pace.ForgetsRate(shared_->context->clock->NowNs());
}

bool SoftSender::IsCut(const SoftSend& send) const {
  return send.total >= shared_->context->options.stripe_bytes;
}

uint64_t SoftSender::MostFrameBytes(const SoftLane& lane, const SoftSend& send) const {
  if (!IsCut(send)) return kMaxFrameBytes;
  if (leaves_ && !send.announced_first) return kFirstFrameBytes;
  if (lane.index > 0 && connection_->has_flows()) return lane.pace.frame_bytes();
  if (carriers_ == 0) return kMaxFrameBytes;
  return std::clamp<uint64_t>(send.total / static_cast<uint64_t>(carriers_), kLeastHelpedBytes,
                              kMostHelpedBytes);
}

// The next frame of the next work, which was started.
void SoftSender::AddMessageFrame(SoftLane* lane) {
  SoftSendRing& sends = shared_->sends;
  const uint64_t i = sends.next();
  SoftSend& send = sends.at(i);
  FrameHeader header = shared_->progress.NewHeader(FrameType::kFragment, lane->index == 0);
  header.sequence = send.sequence;
  header.total = send.total;
  iovec payload[SoftBatch::kMaxPieces];
  int count = 0;
  if (send.op == SendOp::kRead) {
    header.type = FrameType::kRead;
    header.remote_key = send.remote_key;
    header.address = send.remote_address;
    send.assigned = send.total;
  } else {
    header.bytes =
        static_cast<uint32_t>(std::min(send.total - send.assigned, MostFrameBytes(*lane, send)));
    if (!send.announced_first) {
      DescribeMessage(send, &header);
      send.announced_first = true;
    } else {
      header.address = send.assigned;
    }
    count = Gather(sends.entries(i), send.entries, send.assigned, header.bytes, payload,
                   SoftBatch::kMaxPieces);
    send.assigned += header.bytes;
  }
  ++send.unwritten_frames;
  lane->out->Add(header, payload, count, i, send.owner);
  if (send.assigned == send.total) sends.Advance();
}

// The next frame of the oldest READ that is not fully answered.
void SoftSender::AddAnswerFrame(SoftLane* lane) {
  shared_->reads.AddAnswer(shared_->progress.NewHeader(FrameType::kReadResponse, lane->index == 0),
                           lane);
}

}  // namespace tryst
