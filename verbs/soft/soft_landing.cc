#include "verbs/soft/soft_landing.h"

#include <cstring>

#include "absl/types/span.h"
#include "base/reached.h"

namespace tryst {

void SoftLanding::BeginMessage(SoftLane* lane, const FrameHeader& frame) {
  if (frame.total >= shared_->context->options.stripe_bytes) shared_->NoteStriping();
  busy_ = true;
  message_ = frame;
  announced_ = frame.bytes;
  landed_ = 0;
  region_ = {frame.address, frame.total, 0};
  Begin(lane, frame, 0);
}

void SoftLanding::BeginFragment(SoftLane* lane, const FrameHeader& frame) {
  announced_ += frame.bytes;
  Begin(lane, frame, frame.address);
}

void SoftLanding::BeginAnswer(SoftLane* lane, const FrameHeader& frame, uint64_t read) {
  lane->read_work = read;
  Begin(lane, frame, frame.address);
}

void SoftLanding::Begin(SoftLane* lane, const FrameHeader& frame, uint64_t offset) {
  lane->frame = frame;
  lane->payload_left = frame.bytes;
  lane->payload_offset = offset;
  if (frame.bytes == 0) EndPayload(lane);
}

int SoftLanding::Places(SoftLane* lane, uint64_t bytes, iovec* out, int max) {
  const Entry* entries = &region_;
  int count = 1;
  if (lane->frame.type == FrameType::kReadResponse) {
    entries = shared_->sends.entries(lane->read_work);
    count = shared_->sends.at(lane->read_work).entries;
  } else if (message_.type == FrameType::kSend) {
    const absl::Span<const Entry> receive = shared_->receives.oldest_entries();
    entries = receive.data();
    count = static_cast<int>(receive.size());
  }
  return Gather(entries, count, lane->payload_offset, bytes, out, max);
}

void SoftLanding::Copy(SoftLane* lane, const uint8_t* from, uint64_t bytes) {
  iovec places[kMostPlaces];
  const int count = Places(lane, bytes, places, kMostPlaces);
  for (int i = 0; i < count; ++i) {
    memcpy(places[i].iov_base, from, places[i].iov_len);
    from += places[i].iov_len;
  }
  NoteLanded(lane, bytes);
}

void SoftLanding::NoteLanded(SoftLane* lane, uint64_t bytes) {
  lane->payload_offset += bytes;
  lane->payload_left -= bytes;
  if (lane->payload_left == 0) EndPayload(lane);
}

void SoftLanding::EndPayload(SoftLane* lane) {
  lane->Unpin(&shared_->context->regions);
  if (lane->frame.type == FrameType::kReadResponse) {
    SoftSend& read = shared_->sends.at(lane->read_work);
    read.landed += lane->frame.bytes;
    if (read.landed < read.total) return;
    read.answered = true;
    shared_->sends.NoteReadAnswered();
    return;
  }
  landed_ += lane->frame.bytes;
  if (landed_ == message_.total) EndMessage();
}

void SoftLanding::EndMessage() {
  busy_ = false;
  shared_->progress.NoteExecuted();
  NoteChange();
  if (ConsumesReceive(message_)) {
    ending_->FinishReceive(CompletionStatus::kOk,
                           message_.type == FrameType::kSend ? CompletionOp::kReceive
                                                             : CompletionOp::kReceiveWriteImmediate,
                           &message_);
  }
  shared_->OweAck();
}

bool SoftLanding::Pin(SoftLane* lane) {
  if (lane->pinned != nullptr || !IsForRegion(*lane)) return true;
  lane->pinned = shared_->context->regions.PinRemote(message_.remote_key,
                                                     message_.address + lane->payload_offset,
                                                     lane->payload_left, kRemoteWrite);
  if (lane->pinned != nullptr) return true;
  RefuseRest();
  return false;
}

void SoftLanding::RefuseRest() {
  TRYST_REACHED("soft: a region that ends while it is written");
  ending_->Refuse(message_.sequence, WireError::kRemoteAccess);
}

SoftPin SoftLanding::PinOf(const SoftLane& lane) const {
  if (!IsForRegion(lane)) return {};
  return {message_.remote_key, kRemoteWrite, message_.address + lane.payload_offset,
          lane.payload_left};
}

}  // namespace tryst
