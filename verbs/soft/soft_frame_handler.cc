#include "verbs/soft/soft_frame_handler.h"

#include "base/reached.h"

namespace tryst {
namespace {

CompletionStatus StatusOf(uint32_t wire_error) {
  switch (static_cast<WireError>(wire_error)) {
    case WireError::kRemoteAccess:
      return CompletionStatus::kRemoteAccess;
    case WireError::kRemoteInvalidRequest:
      return CompletionStatus::kRemoteInvalidRequest;
    case WireError::kRemoteOperation:
      return CompletionStatus::kRemoteOperation;
  }
  return CompletionStatus::kBadResponse;
}

}  // namespace

SoftFrameHandler::Taken SoftFrameHandler::Take(SoftLane* lane, const FrameHeader& frame) {
  if (lane->index == 0) {
    if (!shared_->progress.Take(frame)) {
      TRYST_REACHED("soft: an acknowledgement of what was never sent");
      return Nonsense("an acknowledgement of what was never sent");
    }
  } else if (frame.type != FrameType::kFragment && frame.type != FrameType::kReadResponse) {
    return Nonsense("a request on another socket than the first of the connection");
  }
  switch (frame.type) {
    case FrameType::kWrite:
    case FrameType::kSend:
    case FrameType::kRead:
      return TakeRequest(lane, frame);
    case FrameType::kFragment:
      return TakeFragment(lane, frame);
    case FrameType::kReadResponse:
      return TakeReadResponse(lane, frame);
    case FrameType::kAck:
      return Taken::kYes;
    case FrameType::kError:
      return TakeError(frame);
  }
  return Nonsense("a frame of no known type");
}

SoftFrameHandler::Taken SoftFrameHandler::TakeRequest(SoftLane* lane, const FrameHeader& frame) {
  if (landing_->busy()) {
    // One at a time; the fragments that are missing come on another lane.
    return connection_->lanes().size() > 1 ? Taken::kLater
                                           : Nonsense("a message of which pieces are missing");
  }
  if (frame.sequence != shared_->progress.executed()) return Nonsense("a request out of order");
  if (frame.total > shared_->context->options.limits.max_message_bytes) {
    return Refuse(frame, WireError::kRemoteInvalidRequest);
  }
  landing_->NoteChange();
  return frame.type == FrameType::kRead ? TakeRead(frame) : TakeMessage(lane, frame);
}

SoftFrameHandler::Taken SoftFrameHandler::TakeMessage(SoftLane* lane, const FrameHeader& frame) {
  if (ConsumesReceive(frame) && shared_->receives.empty()) {
    TRYST_REACHED("soft: a message for a receive that was never posted");
    return Nonsense("a message for a receive that was never posted");
  }
  if (frame.type == FrameType::kSend) {
    const Taken checked = CheckReceive(frame);
    if (checked != Taken::kYes) return checked;
  } else if (frame.total > 0) {
    lane->pinned = shared_->context->regions.PinRemote(frame.remote_key, frame.address, frame.total,
                                                       kRemoteWrite);
    if (lane->pinned == nullptr) return Refuse(frame, WireError::kRemoteAccess);
  }
  landing_->BeginMessage(lane, frame);
  return Taken::kYes;
}

// Whether the message fits into the oldest receive, and that may still be written to.
SoftFrameHandler::Taken SoftFrameHandler::CheckReceive(const FrameHeader& frame) {
  if (frame.total > shared_->receives.oldest_bytes()) {
    ending_->FinishReceive(CompletionStatus::kLocalLength, CompletionOp::kReceive, nullptr);
    return Refuse(frame, WireError::kRemoteInvalidRequest);
  }
  for (const Entry& entry : shared_->receives.oldest_entries()) {
    if (entry.bytes == 0 ||
        shared_->context->regions.LocalRangeAllowed(entry.local_key, entry.address, entry.bytes,
                                                    /*to_write=*/true)) {
      continue;
    }
    ending_->FinishReceive(CompletionStatus::kLocalProtection, CompletionOp::kReceive, nullptr);
    return Refuse(frame, WireError::kRemoteOperation);
  }
  return Taken::kYes;
}

SoftFrameHandler::Taken SoftFrameHandler::TakeRead(const FrameHeader& frame) {
  if (shared_->reads.full()) {
    TRYST_REACHED("soft: more reads than agreed");
    return Refuse(frame, WireError::kRemoteInvalidRequest);
  }
  if (frame.total > 0) {
    SoftRegionTable& regions = shared_->context->regions;
    SoftRegionRecord* const pinned =
        regions.PinRemote(frame.remote_key, frame.address, frame.total, kRemoteRead);
    if (pinned == nullptr) return Refuse(frame, WireError::kRemoteAccess);
    regions.Unpin(pinned);
  }
  shared_->reads.Add(frame);
  shared_->progress.NoteExecuted();  // The answer's header says so.
  return Taken::kYes;
}

SoftFrameHandler::Taken SoftFrameHandler::TakeFragment(SoftLane* lane, const FrameHeader& frame) {
  const uint32_t executed = shared_->progress.executed();
  if (!landing_->busy() || frame.sequence != executed) {
    const bool ahead = frame.sequence - executed < (1u << 31);
    if (lane->index > 0 && ahead) return Taken::kLater;
    TRYST_REACHED("soft: a fragment of no message");
    return Nonsense("a piece of a message that has not begun");
  }
  if (frame.total != landing_->message().total || frame.bytes > landing_->unannounced() ||
      frame.bytes == 0) {
    TRYST_REACHED("soft: a fragment that its message has no room for");
    return Nonsense("a piece that does not fit into its message");
  }
  landing_->BeginFragment(lane, frame);
  return Taken::kYes;
}

SoftFrameHandler::Taken SoftFrameHandler::TakeReadResponse(SoftLane* lane,
                                                           const FrameHeader& frame) {
  const uint64_t i = shared_->sends.Find(frame.sequence);
  if (i == SoftSendRing::kNone) {
    TRYST_REACHED("soft: an answer to no request");
    return Nonsense("an answer to a read that was never asked for");
  }
  SoftSend& send = shared_->sends.at(i);
  if (send.op != SendOp::kRead || send.answered || send.unwritten_frames > 0 ||
      frame.total != send.total || frame.bytes > send.total - send.announced) {
    TRYST_REACHED("soft: an answer that was not asked for");
    return Nonsense("more in answer to a read than was asked for");
  }
  send.announced += frame.bytes;
  landing_->BeginAnswer(lane, frame, i);
  return Taken::kYes;
}

SoftFrameHandler::Taken SoftFrameHandler::TakeError(const FrameHeader& frame) {
  ending_->GiveBackSends();
  const uint64_t i = shared_->sends.Find(frame.sequence);
  // The transfer may have ended when its last byte left.
  const bool ended = shared_->options.ends_when_left && shared_->progress.WasSent(frame.sequence);
  if (i == SoftSendRing::kNone && !ended) {
    TRYST_REACHED("soft: an error of no request");
    return Nonsense("an error about a transfer that was never sent");
  }
  ending_->Break(StatusOf(frame.immediate), i);
  return Taken::kBroken;
}

SoftFrameHandler::Taken SoftFrameHandler::Refuse(const FrameHeader& frame, WireError error) {
  ending_->Refuse(frame.sequence, error);
  return Taken::kBroken;
}

SoftFrameHandler::Taken SoftFrameHandler::Nonsense(const char* what) {
  ending_->Nonsense(what);
  return Taken::kBroken;
}

}  // namespace tryst
