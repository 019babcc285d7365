// A soft queue pair's frames on their way in. Nothing here trusts the peer: every field
// is checked before a byte is written, and nonsense breaks this queue pair alone.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"
#include "verbs/soft/soft_queue_pair.h"

namespace tryst {
namespace {

// While a payload of at least this is arriving, what is read with its end is only the
// next header, so that the next payload, too, goes straight to its place.
constexpr uint64_t kDirectBytes = 8 << 10;
// For one socket in one turn, so that the others get theirs.
constexpr uint64_t kBytesPerTurn = 4 << 20;
constexpr int kMaxPieces = 64;

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

void SoftQueuePair::Serve(SoftLane* lane) {
  completions_->NoteActive(this);
  switch (lane->state) {
    case SoftLane::State::kIdle:
      return;
    case SoftLane::State::kDialling:
      SendHello(lane);
      return;
    case SoftLane::State::kHeld:
      LookAtHeld(lane);
      return;
    case SoftLane::State::kGreeted:
    case SoftLane::State::kUp:
      break;
  }
  const bool came = ReadLane(lane);
  if (lanes_.size() > 1) {
    TakeParked();
  } else if (!came && !lane->full && !SendsWait()) {
    return;  // Most looks of a poller that does not sleep.
  }
  if (state_ != QueuePairState::kReady) return;
  lane->full = false;
  Pump();
  GiveBackSends();
}

// What waited in one lane for a frame of another.
void SoftQueuePair::TakeParked() {
  uint32_t before;
  do {
    before = requests_taken_;
    for (size_t i = 0; i < lanes_.size() && state_ == QueuePairState::kReady; ++i) {
      if (!lanes_[i]->up()) continue;
      if (TakeStaged(lanes_[i].get()) && lanes_[i]->stream.HoldsBytes()) {
        ReadLane(lanes_[i].get());  // It was too full to be read when its turn was.
      }
      LeaveLane(lanes_[i].get());
    }
  } while (state_ == QueuePairState::kReady && requests_taken_ != before);
}

bool SoftQueuePair::ReadLane(SoftLane* lane) {
  uint64_t budget = kBytesPerTurn;
  bool came = false;
  bool more = true;
  while (more && (budget > 0 || lane->stream.HoldsBytes()) && TakeStaged(lane)) {
    size_t wanted = 0;
    const ssize_t got = ReadSome(lane, &wanted);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
      UnpinPayload(lane);
      if (lane->state == SoftLane::State::kGreeted) {
        RetryDial(lane);
      } else {
        LoseLane(lane);
      }
      return came;
    }
    if (got < 0) break;
    came = moved_ = true;
    budget -= std::min(budget, static_cast<uint64_t>(got));
    more = static_cast<size_t>(got) == wanted;
  }
  if (came && state_ == QueuePairState::kReady) TakeStaged(lane);
  LeaveLane(lane);
  return came;
}

// Until it has something again.
void SoftQueuePair::LeaveLane(SoftLane* lane) {
  UnpinPayload(lane);
  if (lane->begin == lane->end) GiveBackStaging(lane);
}

void SoftQueuePair::GiveBackStaging(SoftLane* lane) {
  lane->begin = lane->end = 0;
  completions_->stagings()->Give(std::move(lane->staging));
}

// One receive call, into the payload's place if one is arriving.
ssize_t SoftQueuePair::ReadSome(SoftLane* lane, size_t* wanted) {
  if (lane->staging == nullptr) lane->staging = completions_->stagings()->Take();
  uint8_t* const staging = lane->staging->bytes;
  if (lane->begin == lane->end) {
    lane->begin = lane->end = 0;
  } else if (lane->capacity - lane->end < kFrameHeaderBytes) {
    memmove(staging, staging + lane->begin, lane->end - lane->begin);
    lane->end -= lane->begin;
    lane->begin = 0;
  }
  uint8_t* const free_begin = staging + lane->end;
  size_t free_bytes = lane->capacity - lane->end;
  if (lane->payload_left == 0) {
    *wanted = free_bytes;
    if (free_bytes == 0) {
      // Full of what another lane must come before.
      errno = EAGAIN;
      return -1;
    }
    const ssize_t got = lane->stream.Receive(free_begin, free_bytes);
    if (got > 0) lane->end += static_cast<size_t>(got);
    return got;
  }
  if (!PinPayload(lane)) {
    errno = EAGAIN;  // Already refused.
    return -1;
  }
  iovec pieces[kMaxPieces + 1];
  int count = PayloadPieces(lane, lane->payload_left, pieces, kMaxPieces);
  uint64_t payload = 0;
  for (int i = 0; i < count; ++i) payload += pieces[i].iov_len;
  if (lane->frame.bytes >= kDirectBytes) free_bytes = std::min(free_bytes, kFrameHeaderBytes);
  if (payload == lane->payload_left) pieces[count++] = {free_begin, free_bytes};
  *wanted = payload + (payload == lane->payload_left ? free_bytes : 0);
  const ssize_t got = lane->stream.Receive(pieces, count);
  if (got <= 0) return got;
  const uint64_t landed = std::min(payload, static_cast<uint64_t>(got));
  lane->payload_offset += landed;
  lane->payload_left -= landed;
  lane->end += static_cast<size_t>(got) - landed;
  if (lane->payload_left == 0) EndPayload(lane);
  return got;
}

bool SoftQueuePair::TakeStaged(SoftLane* lane) {
  while (state_ == QueuePairState::kReady) {
    const size_t staged = lane->end - lane->begin;
    if (staged == 0) return true;
    const uint8_t* const from = lane->staging->bytes + lane->begin;
    if (lane->state == SoftLane::State::kGreeted) {
      if (staged < kHelloBytes) return true;
      lane->begin += kHelloBytes;
      if (!TakeHello(lane, from)) return false;
    } else if (lane->payload_left > 0) {
      const uint64_t take = std::min<uint64_t>(staged, lane->payload_left);
      if (!PinPayload(lane)) return false;
      Land(lane, from, take);
      lane->begin += take;
      if (lane->payload_left == 0) EndPayload(lane);
    } else {
      if (staged < kFrameHeaderBytes) return true;
      FrameHeader frame;
      if (!DecodeFrameHeader(from, &frame)) {
        TRYST_REACHED("soft: a frame that is none");
        Nonsense("a frame that is none");
        return false;
      }
      switch (TakeFrame(lane, frame)) {
        case Taken::kYes:
          lane->begin += kFrameHeaderBytes;
          break;
        case Taken::kLater:
        case Taken::kBroken:
          return false;
      }
    }
  }
  return false;
}

SoftQueuePair::Taken SoftQueuePair::TakeFrame(SoftLane* lane, const FrameHeader& frame) {
  const bool first_lane = lane->index == 0;
  if (first_lane) {
    if (!TakeProgress(frame)) {
      TRYST_REACHED("soft: an acknowledgement of what was never sent");
      return Nonsense("an acknowledgement of what was never sent");
    }
  } else if (frame.type != FrameType::kFragment && frame.type != FrameType::kReadResponse) {
    return Nonsense("a request on a later socket");
  }
  switch (frame.type) {
    case FrameType::kWrite:
    case FrameType::kSend:
    case FrameType::kRead:
      // One at a time; the fragments that are missing come on another lane.
      if (incoming_.active) return lanes_.size() > 1 ? Taken::kLater : Nonsense("a torn message");
      if (frame.sequence != executed_) return Nonsense("a request out of order");
      if (frame.total > context_->options.limits.max_message_bytes) {
        return Refuse(frame.sequence, WireError::kRemoteInvalidRequest);
      }
      ++requests_taken_;
      return frame.type == FrameType::kRead ? TakeRead(frame) : TakeRequest(lane, frame);
    case FrameType::kFragment:
      return TakeFragment(lane, frame);
    case FrameType::kReadResponse:
      return TakeReadResponse(lane, frame);
    case FrameType::kAck:
      return Taken::kYes;
    case FrameType::kError:
      return TakeError(frame);
  }
  return Nonsense("a frame of no type");
}

bool SoftQueuePair::TakeProgress(const FrameHeader& frame) {
  if (frame.executed - acked_ > next_sequence_ - acked_) return false;
  acked_ = frame.executed;
  // Wraps; and an older header never takes back what a newer one gave.
  if (static_cast<int32_t>(frame.receives - peer_receives_) > 0) peer_receives_ = frame.receives;
  return true;
}

bool SoftQueuePair::ConsumesReceive(const FrameHeader& frame) const {
  return frame.type == FrameType::kSend || frame.has_immediate;
}

SoftQueuePair::Taken SoftQueuePair::TakeRequest(SoftLane* lane, const FrameHeader& frame) {
  if (ConsumesReceive(frame) && receive_oldest_ == receive_end_) {
    TRYST_REACHED("soft: a message for a receive that was never posted");
    return Nonsense("a message for a receive that was never posted");
  }
  if (frame.type == FrameType::kWrite) {
    if (frame.total > 0) {
      lane->pinned = context_->regions.PinRemote(frame.remote_key, number_, frame.address,
                                                 frame.total, kRemoteWrite);
      if (lane->pinned == nullptr) return Refuse(frame.sequence, WireError::kRemoteAccess);
    }
    incoming_.region = {frame.address, frame.total, 0};
  } else {
    const ReceiveBody slot = receive(receive_oldest_);
    if (frame.total > slot.total) {
      FinishReceive(CompletionStatus::kLocalLength, CompletionOp::kReceive, nullptr);
      return Refuse(frame.sequence, WireError::kRemoteInvalidRequest);
    }
    const Entry* const entries = receive_entries(receive_oldest_);
    for (int i = 0; i < slot.entries; ++i) {
      if (entries[i].bytes == 0 ||
          context_->regions.LocalRangeAllowed(entries[i].local_key, entries[i].address,
                                              entries[i].bytes, /*to_write=*/true)) {
        continue;
      }
      FinishReceive(CompletionStatus::kLocalProtection, CompletionOp::kReceive, nullptr);
      return Refuse(frame.sequence, WireError::kRemoteOperation);
    }
  }
  incoming_.active = true;
  incoming_.first = frame;
  incoming_.announced = frame.bytes;
  incoming_.landed = 0;
  BeginPayload(lane, frame, 0);
  return Taken::kYes;
}

SoftQueuePair::Taken SoftQueuePair::TakeRead(const FrameHeader& frame) {
  if (reads_end_ - reads_begin_ == reads_.size()) {
    TRYST_REACHED("soft: more reads than agreed");
    return Refuse(frame.sequence, WireError::kRemoteInvalidRequest);
  }
  if (frame.total > 0) {
    SoftRegionRecord* const pinned = context_->regions.PinRemote(
        frame.remote_key, number_, frame.address, frame.total, kRemoteRead);
    if (pinned == nullptr) return Refuse(frame.sequence, WireError::kRemoteAccess);
    context_->regions.Unpin(pinned);
  }
  ReadToServe read;
  read.sequence = frame.sequence;
  read.remote_key = frame.remote_key;
  read.address = frame.address;
  read.total = frame.total;
  reads_[reads_end_++ % reads_.size()] = read;
  ++executed_;  // The answer's header says so.
  return Taken::kYes;
}

SoftQueuePair::Taken SoftQueuePair::TakeFragment(SoftLane* lane, const FrameHeader& frame) {
  if (!incoming_.active || frame.sequence != executed_) {
    const bool ahead = frame.sequence - executed_ < (1u << 31);
    if (lane->index > 0 && ahead) return Taken::kLater;
    TRYST_REACHED("soft: a fragment of no message");
    return Nonsense("a fragment of no message");
  }
  if (frame.total != incoming_.first.total ||
      frame.bytes > incoming_.first.total - incoming_.announced || frame.bytes == 0) {
    TRYST_REACHED("soft: a fragment that its message has no room for");
    return Nonsense("a fragment that its message has no room for");
  }
  incoming_.announced += frame.bytes;
  BeginPayload(lane, frame, frame.address);
  return Taken::kYes;
}

SoftQueuePair::Taken SoftQueuePair::TakeReadResponse(SoftLane* lane, const FrameHeader& frame) {
  const uint64_t i = FindSent(frame.sequence);
  if (i == kNobody) {
    TRYST_REACHED("soft: an answer to no request");
    return Nonsense("an answer to no request");
  }
  SendSlot& slot = send(i);
  if (slot.op != SendOp::kRead || slot.answered || slot.unwritten_frames > 0 ||
      frame.total != slot.total || frame.bytes > slot.total - slot.announced) {
    TRYST_REACHED("soft: an answer that was not asked for");
    return Nonsense("an answer that was not asked for");
  }
  slot.announced += frame.bytes;
  lane->read_work = i;
  BeginPayload(lane, frame, frame.address);
  return Taken::kYes;
}

SoftQueuePair::Taken SoftQueuePair::TakeError(const FrameHeader& frame) {
  GiveBackSends();
  const uint64_t i = FindSent(frame.sequence);
  // It may have ended when it left.
  const bool ended = options_.ends_when_left && next_sequence_ - frame.sequence - 1 < (1u << 31);
  if (i == kNobody && !ended) {
    TRYST_REACHED("soft: an error of no request");
    return Nonsense("an error of no request");
  }
  BreakWith(StatusOf(frame.immediate), i);
  return Taken::kBroken;
}

// The started request with that number.
uint64_t SoftQueuePair::FindSent(uint32_t sequence) {
  for (uint64_t i = send_oldest_; i < send_end_; ++i) {
    const SendSlot& slot = send(i);
    if (!slot.started) break;
    const bool request = slot.op != SendOp::kBindWindow && slot.op != SendOp::kInvalidateWindow;
    if (request && slot.sequence == sequence) return i;
  }
  return kNobody;
}

void SoftQueuePair::BeginPayload(SoftLane* lane, const FrameHeader& frame, uint64_t offset) {
  lane->frame = frame;
  lane->payload_left = frame.bytes;
  lane->payload_offset = offset;
  if (frame.bytes == 0) EndPayload(lane);
}

int SoftQueuePair::PayloadPieces(SoftLane* lane, uint64_t bytes, iovec* out, int max) {
  const Entry* entries = &incoming_.region;
  int count = 1;
  if (lane->frame.type == FrameType::kReadResponse) {
    entries = send_entries(lane->read_work);
    count = send(lane->read_work).entries;
  } else if (incoming_.first.type == FrameType::kSend) {
    entries = receive_entries(receive_oldest_);
    count = receive(receive_oldest_).entries;
  }
  return Gather(entries, count, lane->payload_offset, bytes, out, max);
}

void SoftQueuePair::Land(SoftLane* lane, const uint8_t* from, uint64_t bytes) {
  while (bytes > 0) {
    iovec pieces[kMaxPieces];
    const int count = PayloadPieces(lane, bytes, pieces, kMaxPieces);
    for (int i = 0; i < count; ++i) {
      memcpy(pieces[i].iov_base, from, pieces[i].iov_len);
      from += pieces[i].iov_len;
      bytes -= pieces[i].iov_len;
      lane->payload_offset += pieces[i].iov_len;
      lane->payload_left -= pieces[i].iov_len;
    }
  }
}

void SoftQueuePair::EndPayload(SoftLane* lane) {
  UnpinPayload(lane);
  if (lane->frame.type == FrameType::kReadResponse) {
    SendSlot& slot = send(lane->read_work);
    slot.landed += lane->frame.bytes;
    if (slot.landed < slot.total) return;
    slot.answered = true;
    --reads_out_;
    return;
  }
  incoming_.landed += lane->frame.bytes;
  if (incoming_.landed < incoming_.first.total) return;
  incoming_.active = false;
  ++executed_;
  ++requests_taken_;
  if (ConsumesReceive(incoming_.first)) {
    FinishReceive(CompletionStatus::kOk,
                  incoming_.first.type == FrameType::kSend ? CompletionOp::kReceive
                                                           : CompletionOp::kReceiveWriteImmediate,
                  &incoming_.first);
  }
  OweAnswer();
}

// The bytes of a write go where a region was when it was announced: is it still?
bool SoftQueuePair::PinPayload(SoftLane* lane) {
  if (lane->pinned != nullptr || lane->frame.type == FrameType::kReadResponse ||
      incoming_.first.type != FrameType::kWrite) {
    return true;
  }
  lane->pinned = context_->regions.PinRemote(incoming_.first.remote_key, number_,
                                             incoming_.first.address + lane->payload_offset,
                                             lane->payload_left, kRemoteWrite);
  if (lane->pinned != nullptr) return true;
  TRYST_REACHED("soft: a region that ends while it is written");
  Refuse(incoming_.first.sequence, WireError::kRemoteAccess);
  return false;
}

void SoftQueuePair::UnpinPayload(SoftLane* lane) {
  if (lane->pinned != nullptr) context_->regions.Unpin(lane->pinned);
  lane->pinned = nullptr;
}

// Says no, as the last word on this connection.
SoftQueuePair::Taken SoftQueuePair::Refuse(uint32_t sequence, WireError error) {
  SoftLane* const lane = lanes_[0].get();
  FrameHeader header = NewHeader(FrameType::kError, true);
  header.sequence = sequence;
  header.immediate = static_cast<uint32_t>(error);
  std::vector<uint8_t> last;
  const bool torn = lane->out != nullptr;
  if (!torn || lane->out_remote_key == 0) {
    if (torn) last = lane->out->RestOfFrame();
    const size_t rest = last.size();
    last.resize(rest + kFrameHeaderBytes);
    EncodeFrameHeader(header, last.data() + rest);
    completions_->RemoveLane(lane);
    completions_->door()->CloseGently(std::move(lane->stream), std::move(last));
  }
  ReportFatal();
  BreakWith(CompletionStatus::kFlushed, kNobody);
  return Taken::kBroken;
}

SoftQueuePair::Taken SoftQueuePair::Nonsense(const char* what) {
  context_->protocol_errors.fetch_add(1);
  TRYST_LOG(Warning) << context_->options.name << ": queue pair " << number_ << " is broken: "
                     << "its peer sent " << what;
  ReportFatal();
  BreakWith(CompletionStatus::kBadResponse, kNobody);
  return Taken::kBroken;
}

}  // namespace tryst
