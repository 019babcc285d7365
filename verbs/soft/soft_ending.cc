#include "verbs/soft/soft_ending.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"

namespace tryst {
namespace {

CompletionOp OpOf(const SoftSend& send) {
  return send.op == SendOp::kRead ? CompletionOp::kRead : CompletionOp::kSend;
}

}  // namespace

void SoftEnding::OnPolled(uint32_t sends_back, uint32_t receives_back) {
  sends_held_ -= sends_back;
  receives_held_ -= receives_back;
}

bool SoftEnding::Done(const SoftSend& send) const {
  if (!send.started || send.unwritten_frames > 0) return false;
  // A READ of no bytes is answered, too.
  if (send.op == SendOp::kRead) return send.answered;
  return send.assigned == send.total &&
         (shared_->options.ends_when_left || shared_->progress.IsAcked(send.sequence));
}

void SoftEnding::GiveBackSends() {
  SoftSendRing& sends = shared_->sends;
  while (!sends.empty()) {
    const SoftSend& send = sends.at(sends.oldest());
    if (send.error != CompletionStatus::kOk) {
      // All before it have completed successfully, so now it fails.
      Break(send.error, sends.oldest());
      return;
    }
    if (!Done(send)) return;
    FinishSend(*sends.TakeOldest(), CompletionStatus::kOk);
  }
}

void SoftEnding::FinishSend(const SoftSend& send, CompletionStatus status) {
  ++silent_;
  if (status == CompletionStatus::kOk && !send.signaled) return;
  Completion completion;
  completion.id = send.id;
  completion.status = status;
  completion.op = OpOf(send);
  completion.queue_pair = shared_->number;
  shared_->completions->Push(completion, shared_->queue_pair, std::exchange(silent_, 0), 0);
}

void SoftEnding::FinishReceive(CompletionStatus status, CompletionOp op,
                               const FrameHeader* request) {
  Completion completion;
  completion.id = shared_->receives.TakeOldest();
  completion.status = status;
  completion.op = op;
  completion.queue_pair = shared_->number;
  if (request != nullptr) {
    completion.immediate = request->immediate;
    completion.bytes = request->total;
  }
  shared_->progress.NoteDelivered(shared_->completions->turn());
  shared_->completions->Push(completion, shared_->queue_pair, 0, 1);
}

void SoftEnding::FlushAll(CompletionStatus first, uint64_t culprit) {
  SoftSendRing& sends = shared_->sends;
  if (culprit == SoftSendRing::kNone) culprit = sends.oldest();
  while (!sends.empty()) {
    const bool failed = sends.oldest() == culprit;
    FinishSend(*sends.TakeOldest(), failed ? first : CompletionStatus::kFlushed);
  }
  // These sends get no completion that could give their room back.
  sends_held_ -= std::exchange(silent_, 0);
  while (!shared_->receives.empty()) {
    FinishReceive(CompletionStatus::kFlushed, CompletionOp::kReceive, nullptr);
  }
}

void SoftEnding::Break(CompletionStatus first, uint64_t culprit) {
  if (connection_->state() == QueuePairState::kBroken) return;
  connection_->Break();
  FlushAll(first, culprit);
}

void SoftEnding::Lost() { Break(CompletionStatus::kRetryExceeded, SoftSendRing::kNone); }

bool SoftEnding::IsStuckWithout(const SoftLane* lost) const {
  const auto& lanes = connection_->lanes();
  return connection_->first()->parked &&
         std::none_of(lanes.begin() + 1, lanes.end(), [lost](const auto& one) {
           return one.get() != lost && one->up() && !one->parked;
         });
}

void SoftEnding::LoseIfStuck() {
  if (connection_->ready() && connection_->hanging_up() && IsStuckWithout(nullptr)) Lost();
}

// When one lane ends, all end. But the peer's last frames come on the first lane, and may still be
// under way when a later lane is closed. A first lane that is parked is not read, and its end not
// seen: what it waits for may come on the lanes that are left, or never.
void SoftEnding::LoseLane(SoftLane* lane) {
  if (!connection_->ready()) return;
  if (lane->index == 0 || !connection_->first()->up() || IsStuckWithout(lane)) {
    Lost();
  } else {
    connection_->HangUp(lane);
  }
}

void SoftEnding::Refuse(uint32_t sequence, WireError error) {
  SendRefusal(sequence, error);
  ReportFatal();
  Break(CompletionStatus::kFlushed, SoftSendRing::kNone);
}

void SoftEnding::SendRefusal(uint32_t sequence, WireError error) {
  SoftLane* const lane = connection_->first();
  lane->Recall();
  FrameHeader header = shared_->progress.NewHeader(FrameType::kError, true);
  header.sequence = sequence;
  header.immediate = static_cast<uint32_t>(error);
  std::vector<uint8_t> last;
  if (lane->out != nullptr) {
    // A frame of the memory that out_remote_key opens cannot be finished.
    if (lane->out_remote_key != 0) return;
    last = lane->out->RestOfFrame();
  }
  const size_t rest = last.size();
  last.resize(rest + kFrameHeaderBytes);
  EncodeFrameHeader(header, last.data() + rest);
  shared_->completions->RemoveLane(lane);
  shared_->completions->door()->CloseGently(std::move(lane->stream), std::move(last));
}

void SoftEnding::Nonsense(const char* what) {
  shared_->context->protocol_errors.fetch_add(1);
  TRYST_LOG(Warning) << shared_->context->options.name << ": queue pair " << shared_->number
                     << " is closed: its peer broke the protocol and sent " << what;
  ReportFatal();
  Break(CompletionStatus::kBadResponse, SoftSendRing::kNone);
}

void SoftEnding::ReportFatal() {
  NicEvent event;
  event.kind = NicEvent::Kind::kQueuePairFatal;
  event.port = shared_->options.port;
  event.id = shared_->number;
  shared_->context->events.Add(event);
}

}  // namespace tryst
