#include "channel/rdma/fetch_receiving.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/types/optional.h"
#include "base/crc32c.h"
#include "base/reached.h"
#include "channel/ops/limits.h"
#include "channel/ops/peer_words.h"
#include "channel/string_codec.h"

namespace tryst {
namespace {

// Whether the destination is the caller's host memory, which this process can write itself.
bool InHostDestination(const FetchAsk& ask) {
  const Tensor& destination = ask.destination();
  return destination.valid() && destination.on_host();
}

absl::optional<FetchEvent> EventOf(wire::RecordType type) {
  switch (type) {
    case wire::RecordType::kTensor:
      return FetchEvent::kTensor;
    case wire::RecordType::kLanded:
      return FetchEvent::kLanded;
    case wire::RecordType::kNeedDestination:
      return FetchEvent::kNeedDestination;
    case wire::RecordType::kFailed:
      return FetchEvent::kFailed;
    case wire::RecordType::kGone:
      return FetchEvent::kGone;
    default:
      return absl::nullopt;
  }
}

}  // namespace

absl::Status RdmaReceiver::OnRecord(const wire::Record& record) {
  if (record.type == wire::RecordType::kPong) {
    if (sender_->TakePong()) session_->OnAnswer();
    return absl::OkStatus();
  }
  session_->OnWord();
  if (record.type == wire::RecordType::kHere) {
    auto tickets = wire::DecodeTickets(record);
    if (tickets.ok()) session_->OnHere(*tickets);
    return tickets.status();
  }
  const absl::optional<FetchEvent> event = EventOf(record.type);
  if (!event && record.type != wire::RecordType::kParked)
    return absl::DataLossError(
        "the producer broke the protocol: it sent a record that only consumers send");
  if (record.slot >= session_->slots().size())
    return absl::DataLossError(
        "the producer broke the protocol: it sent a record for a slot that does not exist");
  RdmaAsk* ask = RdmaAsk::Of(session_->slots().at(record.slot));
  if (ask == nullptr || static_cast<uint16_t>(ask->generation) != record.generation) {
    TRYST_REACHED("rare: a record of another generation");
    ++counters_.ghosts;
    return absl::OkStatus();
  }
  if (!event) return session_->OnParked(ask);
  const FetchRow* row = session_->Hear(ask, *event);
  return row == nullptr ? OutOfPlace(ask->state, *event) : Act(ask, row->action, record);
}

absl::Status RdmaReceiver::Act(RdmaAsk* ask, FetchAction action, const wire::Record& record) {
  switch (action) {
    case FetchAction::kTake:
      session_->owed()->NoteBrought();
      return ask->state == FetchState::kParts ? OnLanded(ask, record) : OnTensor(ask, record);
    case FetchAction::kFindRoom:
      return OnNeedDestination(ask, record);
    case FetchAction::kFail:
      session_->owed()->NoteBrought();
      Complete(ask,
               FailureTold(record.number, record.body.substr(0, limits::kMaxErrorBytes),
                           (record.flags & wire::kDerived) != 0),
               Tensor(), false);
      break;
    case FetchAction::kKeepParts: {
      auto meta = wire::DecodeMeta(record, nullptr);
      if (!meta.ok()) return meta.status();
      ask->meta.stripes = meta->stripes;
      break;
    }
    case FetchAction::kLastWord:
      ask->parts_since_ns = now_ns();
      LeaveIfOver(ask);
      break;
    default:
      break;
  }
  return absl::OkStatus();
}

// Leaves the slot. If the tensor comes in parts, those still under way are known.
void RdmaReceiver::OnLeaves(RdmaAsk* ask, FetchState from) {
  ask->parts_since_ns = now_ns();
  if (from != FetchState::kParts) ask->meta.stripes = 0;
  destinations_->StopWaiting(ask);
  ask->early = Tensor();
  if (!session_->open() && from == FetchState::kInSlot)
    destinations_->Drop(ask);  // No peer can write it any more.
}

void RdmaReceiver::LeaveIfOver(RdmaAsk* ask) {
  if (ask->state != FetchState::kLeft) return;
  if (ask->parts_seen < ask->meta.stripes) {
    TRYST_REACHED("sim: GONE comes before the last part");
    return;
  }
  destinations_->Drop(ask);
  session_->FinishLeaving(ask);
}

// Ends the fetch. The peer's last message about the slot has come, and no write follows it.
void RdmaReceiver::Complete(RdmaAsk* ask, bool recurs, absl::Status&& status, Tensor&& tensor,
                            bool is_dead, FetchOps::When when) {
  destinations_->Drop(ask);
  if (ask->is_ahead() && status.ok()) {
    session_->Advance(ask, FetchEvent::kAheadDone);
    ask->early = std::move(tensor);
    return;
  }
  sender_->link->Accept(ask->slot, static_cast<uint16_t>(ask->generation + 1));
  if (tensor.valid()) destinations_->landings()->NoteDelivered(tensor.storage());
  if (!recurs || !status.ok()) {
    return session_->Finish(ask, std::move(status), std::move(tensor), is_dead, when);
  }
  session_->keys()->Number(ask->of);
  FetchKey* const key = ask->of;
  if (tensor.valid()) habits_->NoteTensor(*key, tensor);
  session_->Finish(ask, std::move(status), std::move(tensor), is_dead,
                   FetchOps::When::kAtEndOfTurn);
  standing_->ArmNext(key);
}

// Remembers the size for the next fetch of the key.
void RdmaReceiver::NoteBytes(const RdmaAsk& ask, uint64_t bytes) {
  session_->keys()->Number(ask.of);
  habits_->NoteBytes(*ask.of, bytes);
}

absl::Status RdmaReceiver::OnTensor(RdmaAsk* ask, const wire::Record& record) {
  absl::string_view payload;
  auto meta = wire::DecodeMeta(record, &payload);
  if (!meta.ok()) return meta.status();
  const bool recurs = Recurs(*ask);
  if ((record.flags & wire::kIsDead) != 0) {
    Complete(ask, recurs, absl::OkStatus(), Tensor(), true, FetchOps::When::kNow);
    return absl::OkStatus();
  }
  NoteBytes(*ask, payload.size());
  const TensorInside inside = {static_cast<DType>(meta->dtype),
                               absl::MakeConstSpan(meta->dims, meta->rank), payload};
  if (session_->FillDestination(*ask, inside)) {
    Complete(ask, recurs, absl::OkStatus(), ask->TakeDestination(), false, FetchOps::When::kNow);
    return absl::OkStatus();
  }
  Tensor tensor;
  const absl::Status taken = session_->TakeInside(ask, inside, &tensor);
  if (!taken.ok() || !tensor.valid()) return taken;
  Complete(ask, recurs, absl::OkStatus(), std::move(tensor), false, FetchOps::When::kNow);
  return absl::OkStatus();
}

absl::Status RdmaReceiver::OnLanded(RdmaAsk* ask, const wire::Record& record) {
  auto meta = wire::DecodeMeta(record, nullptr);
  if (!meta.ok()) return meta.status();
  ask->meta = *meta;
  ask->meta_flags = record.flags;
  ask->parts_since_ns = now_ns();
  if (ask->parts_seen >= ask->meta.stripes) return TakeLanded(ask);
  ask->Enter(WaitsFor::kParts, now_ns());
  return absl::OkStatus();
}

absl::Status RdmaReceiver::OnTensorPart(size_t lane, uint16_t slot, uint16_t generation) {
  session_->OnWord();
  RdmaAsk* ask = RdmaAsk::Of(session_->slots().at(slot));
  if (ask == nullptr || static_cast<uint16_t>(ask->generation) != generation) {
    TRYST_REACHED("rare: an immediate of another generation");
    ++counters_.ghosts;
    return absl::OkStatus();
  }
  if (session_->Hear(ask, FetchEvent::kPart) == nullptr)
    return OutOfPlace(ask->state, FetchEvent::kPart);
  session_->owed()->NoteBrought();
  const uint32_t bit = 1u << lane;
  // On a NIC that reorders, a queue pair may carry several parts, which are only counted.
  if (sender_->link->ordered() && (ask->lanes_seen & bit) != 0)
    return absl::DataLossError("the producer broke the protocol: it sent a part of a tensor twice");
  ask->lanes_seen |= bit;
  ++ask->parts_seen;
  if (ask->leaves()) {
    LeaveIfOver(ask);
  } else if (ask->state == FetchState::kParts && ask->parts_seen >= ask->meta.stripes) {
    return TakeLanded(ask);
  } else if (ask->state == FetchState::kAsked && sender_->link->queue_pairs() == 1 &&
             sender_->link->ordered()) {
    // The shape was known and there is no digest, so the immediate alone completes the tensor.
    if (ask->expected.bytes > 0 && ask->landing) {
      ask->meta = ask->expected;
      ask->meta_flags = 0;
      return TakeLanded(ask);
    }
    if (ask->region == nullptr)
      return absl::DataLossError(
          "the producer broke the protocol: it says that it wrote a tensor for which it had no "
          "destination");
    counters_.bytes += ask->region->bytes();
    Tensor tensor = ask->destination();
    destinations_->Drop(ask);
    Complete(ask, absl::OkStatus(), std::move(tensor), false);
  }
  return absl::OkStatus();
}

// All bytes are in the destination.
absl::Status RdmaReceiver::TakeLanded(RdmaAsk* ask) {
  const wire::TensorMeta& meta = ask->meta;
  auto shape = TensorShape::Make(absl::MakeConstSpan(meta.dims, meta.rank));
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  void* memory = ask->landing ? ask->landing->data() : ask->destination().mutable_data();
  const uint64_t room = ask->landing             ? ask->landing->bytes()
                        : ask->region != nullptr ? ask->region->bytes()
                                                 : 0;
  if (meta.bytes > room)
    return absl::DataLossError(
        "the producer broke the protocol: it says that it wrote more bytes than the destination "
        "holds");
  const DType dtype = static_cast<DType>(meta.dtype);
  if (dtype != DType::kString) {
    auto bytes = TensorBytes(dtype, *shape);
    if (!bytes.ok() || *bytes != meta.bytes) {
      return absl::DataLossError(
          "the producer broke the protocol: a tensor's length does not match its type and shape");
    }
  }
  destinations_->EndWaitingCharge(ask);
  // Ends the peer's write access first, so that nobody changes the bytes while they are checked.
  if (ask->landing) {
    LandingPool::AsLanding(ask->landing)->EndKey();
  } else {
    destinations_->Drop(ask);
  }
  const bool host_readable = ask->landing || InHostDestination(*ask);
  if (host_readable && (ask->meta_flags & wire::kHasDigest) != 0 &&
      Crc32c(0, memory, meta.bytes) != meta.digest) {
    TRYST_REACHED("sim: a wrong digest");
    ++counters_.digests_wrong;
    if (ask->attempt == 0) {
      ++ask->attempt;
      ask->announced = false;  // There may be no room for it now.
      ask->parts_seen = 0;
      ask->lanes_seen = 0;
      session_->Advance(ask, FetchEvent::kRetry);
      session_->SendSoon(ask);
      return absl::OkStatus();
    }
    TRYST_REACHED("rare: a wrong digest for the second time");
    session_->EndAsk(
        ask,
        absl::DataLossError(
            "the bytes of the tensor were changed on their way, twice: its digest is wrong; look "
            "for a faulty NIC, cable or memory, or a producer that writes into what it has sent"));
    return absl::OkStatus();
  }
  NoteBytes(*ask, meta.bytes);
  absl::Status status = session_->MayTake(*ask, dtype, *shape, meta.bytes);
  Tensor tensor;
  if (status.ok() && dtype == DType::kString) {
    auto decoded = DecodeStrings(absl::string_view(static_cast<char*>(memory), meta.bytes), *shape);
    if (!decoded.ok()) return decoded.status();
    tensor = *std::move(decoded);
  } else if (status.ok() && (!ask->landing || InHostDestination(*ask))) {
    tensor = ask->destination();
    if (ask->landing) memcpy(tensor.mutable_data(), memory, meta.bytes);
  } else if (status.ok()) {
    auto taken = Tensor::FromStorage(std::move(ask->landing), 0, dtype, *shape);
    status = taken.status();
    if (taken.ok()) tensor = *std::move(taken);
  }
  if (!status.ok()) {
    session_->EndAsk(ask, status);  // The tensor stays with the producer.
    return absl::OkStatus();
  }
  counters_.bytes += meta.bytes;
  Complete(ask, absl::OkStatus(), std::move(tensor), false);
  return absl::OkStatus();
}

absl::Status RdmaReceiver::OnNeedDestination(RdmaAsk* ask, const wire::Record& record) {
  auto meta = wire::DecodeMeta(record, nullptr);
  if (!meta.ok()) return meta.status();
  auto shape = TensorShape::Make(absl::MakeConstSpan(meta->dims, meta->rank));
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  if (ask->of->is_run()) {
    return absl::DataLossError(
        "the producer broke the protocol: the answer of a run does not lie in its message");
  }
  if (ask->is_ahead()) {
    // Its shape is new, so it is dropped; the fetch will make an ordinary request.
    session_->EndAsk(
        ask, absl::CancelledError(
                 "a standing receive ends: the tensor has another shape than the one before"));
    return absl::OkStatus();
  }
  if (std::exchange(ask->announced, true)) {
    TRYST_REACHED("rare: a tensor is announced twice");
    return absl::DataLossError(
        "the producer broke the protocol: it asks again for room for a tensor that has room");
  }
  ask->expected.bytes = 0;
  destinations_->Drop(ask);
  ask->meta = *meta;
  const absl::Status fits =
      session_->MayTake(*ask, static_cast<DType>(meta->dtype), *shape, meta->bytes);
  if (!fits.ok()) {
    session_->EndAsk(ask, fits);
  } else if (!destinations_->WaitForRoom(ask)) {
    standing_->DropOne();
  }
  return absl::OkStatus();
}

// A fetch has claimed the standing receive.
void RdmaReceiver::TakeAhead(RdmaAsk* ask) {
  Tensor tensor = std::exchange(ask->early, Tensor());
  const bool is_dead = !tensor.valid();
  const Tensor& wanted = ask->destination();
  if (wanted.valid() && tensor.valid()) {
    const absl::Status fits = FitsDestination(ask->destination(), tensor.dtype(), tensor.shape());
    if (!fits.ok()) return session_->EndAsk(ask, fits);
    if (tensor.dtype() != DType::kString) {
      if (tensor.bytes() > 0) memcpy(wanted.mutable_data(), tensor.data(), tensor.bytes());
      tensor = wanted;
    }
  }
  Complete(ask, absl::OkStatus(), std::move(tensor), is_dead);
}

}  // namespace tryst
