#include "verbs/soft/soft_receiver.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/reached.h"

namespace tryst {
namespace {

// While a payload of at least this is arriving, what is read with its end is only the
// next header, so that the next payload, too, goes straight to its place.
constexpr uint64_t kDirectBytes = 8 << 10;

}  // namespace

void SoftReceiver::TakeParked() {
  uint32_t before;
  do {
    before = landing_->changes();
    any_parked_ = false;
    for (const std::unique_ptr<SoftLane>& lane : connection_->lanes()) {
      if (!connection_->ready()) return;
      if (!lane->up() || lane->receiving.given()) continue;
      if (TakeStaged(lane.get()) && lane->stream.HoldsBytes()) {
        // It was too full to be read when its turn was. A helper may have it from here on, and
        // then writes behind what is staged.
        Read(lane.get());
      } else {
        Leave(lane.get());
      }
      if (!lane->parked && lane->id != 0) shared_->completions->WatchLane(lane.get());
    }
  } while (landing_->changes() != before);
}

bool SoftReceiver::Read(SoftLane* lane) {
  if (lane->receiving.given()) return false;
  uint64_t budget = shared_->context->options.bytes_per_turn;
  bool came = false;
  bool more = true;
  while (more && budget > 0 && TakeStaged(lane)) {
    if (HandOver(lane)) return came;
    size_t wanted = 0;
    const ssize_t got = ReadSome(lane, &wanted);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
      Lose(lane, got == 0 ? ECONNRESET : errno);
      return came;
    }
    if (got < 0) break;
    came = true;
    shared_->waits.NoteMoved();
    budget -= std::min(budget, static_cast<uint64_t>(got));
    more = static_cast<size_t>(got) == wanted;
  }
  if (came && connection_->ready()) TakeStaged(lane);
  if (budget == 0 && connection_->ready() && lane->stream.HoldsBytes()) {
    TRYST_REACHED("soft: a lane holds more than it may bring in a turn");
    shared_->completions->ServeAgain(lane);  // Epoll does not show these bytes.
  }
  Leave(lane);
  return came;
}

// False: it is too little for a helper, or there is none.
bool SoftReceiver::HandOver(SoftLane* lane) {
  if (lane->payload_left < kHandedBytes || connection_->carriers() == 0) return false;
  iovec payload;
  if (landing_->Places(lane, lane->payload_left, &payload, 1) != 1 ||
      payload.iov_len != lane->payload_left) {
    return false;
  }
  lane->Unpin(&shared_->context->regions);
  if (lane->staging == nullptr) lane->staging = shared_->completions->stagings()->Take();
  MakeRoom(lane);
  // Only the next header, so that the next payload, too, goes straight to its place.
  const iovec rest = {lane->staging->bytes + lane->end, kFrameHeaderBytes};
  lane->receiving.Set(&lane->stream, &shared_->context->regions, landing_->PinOf(*lane), payload,
                      rest);
  shared_->completions->Hand(lane, &lane->receiving);
  return true;
}

void SoftReceiver::FinishHanded(SoftLane* lane) {
  SoftReceiveHand& hand = lane->receiving;
  hand.TakeBack();
  shared_->completions->WatchLane(lane);
  if (hand.got() > 0) shared_->waits.NoteMoved();
  const uint64_t landed = std::min<uint64_t>(hand.got(), lane->payload_left);
  lane->end += hand.got() - landed;
  if (hand.revoked()) {
    landing_->RefuseRest();
  } else if (hand.lost() != 0) {
    Lose(lane, hand.lost());
  } else {
    const bool all = landed == lane->payload_left;
    landing_->NoteLanded(lane, landed);
    // What has waited for this is taken before the end of a lane is met, which may end them all.
    if (all && any_parked_) TakeParked();
    // Otherwise epoll says when there is more.
    if (all && connection_->ready() && lane->up()) Read(lane);
  }
}

void SoftReceiver::Lose(SoftLane* lane, int error) {
  lane->Unpin(&shared_->context->regions);
  if (lane->state == SoftLane::State::kGreeted) {
    connection_->RetryDial(lane);
  } else if (error == EPROTO) {
    TRYST_REACHED("soft: a record that the peer has not made");
    ending_->Nonsense(
        "bytes that it did not encrypt: somebody between the two workers changes what passes");
  } else {
    ending_->LoseLane(lane);
  }
}

// Leaves the lane until it has something again.
void SoftReceiver::Leave(SoftLane* lane) {
  lane->Unpin(&shared_->context->regions);
  if (lane->begin == lane->end) lane->GiveBackStaging(shared_->completions->stagings());
}

// One receive call, into the payload's place if one is arriving.
ssize_t SoftReceiver::ReadSome(SoftLane* lane, size_t* wanted) {
  if (lane->staging == nullptr) lane->staging = shared_->completions->stagings()->Take();
  MakeRoom(lane);
  return lane->payload_left == 0 ? ReadStaged(lane, wanted) : ReadPayload(lane, wanted);
}

void SoftReceiver::MakeRoom(SoftLane* lane) {
  uint8_t* const staging = lane->staging->bytes;
  if (lane->begin == lane->end) {
    lane->begin = lane->end = 0;
  } else if (lane->capacity - lane->end < kFrameHeaderBytes) {
    memmove(staging, staging + lane->begin, lane->end - lane->begin);
    lane->end -= lane->begin;
    lane->begin = 0;
  }
}

ssize_t SoftReceiver::ReadStaged(SoftLane* lane, size_t* wanted) {
  *wanted = lane->capacity - lane->end;
  if (*wanted == 0) {
    // The buffer is full of bytes that have to wait for another lane.
    errno = EAGAIN;
    return -1;
  }
  const ssize_t got = lane->stream.Receive(lane->staging->bytes + lane->end, *wanted);
  if (got > 0) lane->end += static_cast<size_t>(got);
  return got;
}

ssize_t SoftReceiver::ReadPayload(SoftLane* lane, size_t* wanted) {
  if (!landing_->Pin(lane)) {
    errno = EAGAIN;  // Already refused.
    return -1;
  }
  iovec places[SoftLanding::kMostPlaces + 1];
  int count = landing_->Places(lane, lane->payload_left, places, SoftLanding::kMostPlaces);
  // Behind the payload the next header.
  size_t room = lane->capacity - lane->end;
  if (lane->frame.bytes >= kDirectBytes) room = std::min(room, kFrameHeaderBytes);
  places[count++] = {lane->staging->bytes + lane->end, room};
  *wanted = lane->payload_left + room;
  const ssize_t got = lane->stream.Receive(places, count);
  if (got <= 0) return got;
  const uint64_t landed = std::min(lane->payload_left, static_cast<uint64_t>(got));
  lane->end += static_cast<size_t>(got) - landed;
  landing_->NoteLanded(lane, landed);
  return got;
}

bool SoftReceiver::TakeStaged(SoftLane* lane) {
  while (connection_->ready()) {
    const size_t staged = lane->end - lane->begin;
    if (staged == 0) return true;
    const uint8_t* const from = lane->staging->bytes + lane->begin;
    if (lane->state == SoftLane::State::kGreeted) {
      if (staged < kHelloBytes) return true;
      lane->begin += kHelloBytes;
      if (!connection_->TakeHello(lane, from)) return false;
    } else if (lane->payload_left > 0) {
      const uint64_t take = std::min<uint64_t>(staged, lane->payload_left);
      if (!landing_->Pin(lane)) return false;
      lane->begin += take;
      landing_->Copy(lane, from, take);
    } else {
      if (staged < kFrameHeaderBytes) return true;
      if (!TakeFrame(lane, from)) return false;
      lane->begin += kFrameHeaderBytes;
    }
  }
  return false;
}

bool SoftReceiver::TakeFrame(SoftLane* lane, const uint8_t* header) {
  FrameHeader frame;
  if (!DecodeFrameHeader(header, &frame)) {
    TRYST_REACHED("soft: a frame that is none");
    ending_->Nonsense("a malformed frame");
    return false;
  }
  const SoftFrameHandler::Taken taken = frames_.Take(lane, frame);
  lane->parked = taken == SoftFrameHandler::Taken::kLater;
  any_parked_ |= lane->parked;
  return taken == SoftFrameHandler::Taken::kYes;
}

}  // namespace tryst
