#include "tests/doubles/sim_nic/responder.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_queue_pair.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {
namespace {

// Often enough that a long message on a slow wire shows progress before the sender gives up.
constexpr uint64_t kChunksPerAcknowledgement = 4;

bool IsWrite(SendOp op) { return op == SendOp::kWrite || op == SendOp::kWriteWithImmediate; }

}  // namespace

absl::Status Responder::Post(absl::Span<const ReceiveWork> works) {
  if (works.size() > qp_.receive_room()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(works.size(), " receives for ", qp_.receive_room(), " places"));
  }
  for (const ReceiveWork& work : works) {
    if (work.entries.size() > qp_.options().max_entries) {
      return absl::InvalidArgumentError(
          absl::StrCat(work.entries.size(), " entries; allowed: ", qp_.options().max_entries));
    }
  }
  for (const ReceiveWork& work : works) {
    receives_.emplace_back();
    receives_.back().id = work.id;
    receives_.back().entries.assign(work.entries.begin(), work.entries.end());
    for (const Entry& entry : work.entries) qp_.nic()->keys().AddUser(entry.local_key);
  }
  outstanding_ += static_cast<uint32_t>(works.size());
  qp_.world()->Note(TraceKind::kPostReceive, qp_.id(), works.size());
  return absl::OkStatus();
}

bool Responder::InTurn(uint64_t sequence) {
  if (sequence == expected_) return true;
  if (sequence < expected_) {
    qp_.Answer(PacketKind::kAcknowledge, expected_);
  } else if (!gap_told_) {
    gap_told_ = true;
    qp_.Answer(PacketKind::kOutOfSequence, expected_);
  }
  return false;
}

void Responder::OnData(SimPacket& packet) {
  if (!InTurn(packet.sequence)) return;
  if (qp_.broken()) {
    // Between Break() and the stop bytes may still land, but nothing is answered.
    Land(packet);
    ++expected_;
    return;
  }
  if (packet.first) {
    qp_.BreakAt(packet.fault, FaultPoint::kArrived, false);
    if (qp_.broken() || FailsAt(packet, FaultPoint::kArrived)) return;
  }
  const bool takes_receive =
      packet.op == SendOp::kWriteWithImmediate ? packet.last : !IsWrite(packet.op) && packet.first;
  if (takes_receive && receives_.empty()) {
    gap_told_ = true;
    return qp_.Answer(PacketKind::kReceiverNotReady, expected_);
  }
  if (packet.first && !Admit(packet)) return;
  if (!Land(packet)) return Refuse(packet, CompletionStatus::kRemoteAccess);
  ++expected_;
  gap_told_ = false;
  if (packet.first) {
    qp_.BreakAt(packet.fault, FaultPoint::kHalfLanded, false);
    if (qp_.broken() || FailsAt(packet, FaultPoint::kHalfLanded)) return;
  }
  if (packet.last) return Finish(packet);
  if (packet.sequence % kChunksPerAcknowledgement == kChunksPerAcknowledgement - 1) {
    qp_.Answer(PacketKind::kAcknowledge, expected_);
  }
}

bool Responder::Admit(const SimPacket& packet) {
  if (!IsWrite(packet.op)) return AdmitSend(packet);
  if (packet.message_bytes == 0) return true;
  if (qp_.nic()->keys().Resolve(packet.remote_key, packet.remote_address, packet.message_bytes,
                                kRemoteWrite) != nullptr) {
    return true;
  }
  Refuse(packet, CompletionStatus::kRemoteAccess);
  return false;
}

bool Responder::AdmitSend(const SimPacket& packet) {
  uint64_t room = 0;
  bool valid = true;
  for (const Entry& entry : receives_.front().entries) {
    room += entry.bytes;
    valid &= entry.bytes == 0 || qp_.nic()->keys().Resolve(entry.local_key, entry.address,
                                                           entry.bytes, kLocalWrite) != nullptr;
  }
  if (valid && packet.message_bytes <= room) return true;
  EndReceive(valid ? CompletionStatus::kLocalLength : CompletionStatus::kLocalProtection, packet);
  Refuse(packet,
         valid ? CompletionStatus::kRemoteInvalidRequest : CompletionStatus::kRemoteOperation);
  return false;
}

bool Responder::Land(SimPacket& packet) {
  if (packet.bytes == 0) return true;
  qp_.world()->Note(TraceKind::kLand, qp_.id(), packet.offset, packet.bytes);
  if (!IsWrite(packet.op)) return LandInReceive(packet);
  if (packet.first) Flip(packet);
  // Checked for each chunk, because the key may have been revoked since the first.
  uint8_t* const to = qp_.nic()->keys().Resolve(
      packet.remote_key, packet.remote_address + packet.offset, packet.bytes, kRemoteWrite);
  if (to == nullptr) return false;
  Place(to, packet.payload.get(), packet.bytes);
  return true;
}

bool Responder::LandInReceive(SimPacket& packet) {
  // It is broken, and its receives were flushed or never posted.
  if (receives_.empty()) return false;
  const uint8_t* from = packet.payload.get();
  uint64_t offset = packet.offset;
  uint64_t left = packet.bytes;
  for (const Entry& entry : receives_.front().entries) {
    if (left == 0) break;
    if (offset >= entry.bytes) {
      offset -= entry.bytes;
      continue;
    }
    const uint64_t bytes = std::min(left, entry.bytes - offset);
    uint8_t* const to =
        qp_.nic()->keys().Resolve(entry.local_key, entry.address + offset, bytes, kLocalWrite);
    if (to == nullptr) return false;
    Place(to, from, bytes);
    from += bytes;
    left -= bytes;
    offset = 0;
  }
  return left == 0;
}

// An error that the wire's checksums do not see: between the NIC's and the memory.
void Responder::Flip(SimPacket& packet) {
  if (packet.fault.action != FaultAction::kFlip) return;
  const auto& may_flip = qp_.world()->faults().plan().may_flip;
  if (may_flip && !may_flip(packet.op, packet.immediate)) return;
  qp_.world()->NoteFault(qp_.id(), packet.fault);
  const uint64_t bit = static_cast<uint64_t>(packet.fault.delay_ns) % (8 * uint64_t{packet.bytes});
  packet.payload[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
}

void Responder::Place(uint8_t* to, const uint8_t* bytes, uint64_t count) {
  if (qp_.world()->guard().MayWrite(to, count, qp_.id())) std::memcpy(to, bytes, count);
}

void Responder::Finish(const SimPacket& packet) {
  qp_.BreakAt(packet.fault, FaultPoint::kLanded, false);
  if (qp_.broken() || FailsAt(packet, FaultPoint::kLanded)) return;
  qp_.Answer(PacketKind::kAcknowledge, expected_);
  if (packet.op == SendOp::kWrite) return qp_.BreakAt(packet.fault, FaultPoint::kReceived, false);
  EndReceive(CompletionStatus::kOk, packet);
}

bool Responder::FailsAt(const SimPacket& packet, FaultPoint point) {
  if (!packet.fault.At(point)) return false;
  const bool receive = packet.fault.action == FaultAction::kFailReceive;
  if (!receive && packet.fault.action != FaultAction::kFail) return false;
  qp_.world()->NoteFault(qp_.id(), packet.fault);
  if (receive && packet.op != SendOp::kWrite) EndReceive(packet.fault.status, packet);
  Refuse(packet, receive ? CompletionStatus::kRemoteOperation : packet.fault.status);
  return true;
}

void Responder::EndReceive(CompletionStatus status, const SimPacket& packet) {
  const Receive receive = receives_.front();
  receives_.pop_front();
  for (const Entry& entry : receive.entries) qp_.nic()->keys().RemoveUser(entry.local_key);
  Completion completion;
  completion.id = receive.id;
  completion.status = status;
  if (status == CompletionStatus::kOk) {
    completion.op =
        IsWrite(packet.op) ? CompletionOp::kReceiveWriteImmediate : CompletionOp::kReceive;
    if (packet.op == SendOp::kWriteWithImmediate) completion.immediate = packet.immediate;
    completion.bytes = packet.message_bytes;
  }
  qp_.Complete(true, completion, 1, packet.fault);
}

void Responder::Refuse(const SimPacket& packet, CompletionStatus status) {
  qp_.Answer(PacketKind::kRefuse, packet.sequence, status);
  qp_.nic()->AddEvent({NicEvent::Kind::kQueuePairFatal, qp_.options().port, qp_.number()});
  qp_.BreakByError();
}

void Responder::OnReadRequest(const SimPacket& packet) {
  // A READ that was seen may be asked again, from where it stopped.
  if (packet.sequence > expected_ && !InTurn(packet.sequence)) return;
  qp_.BreakAt(packet.fault, FaultPoint::kArrived, false);
  if (qp_.broken() || FailsAt(packet, FaultPoint::kArrived)) return;
  if (packet.message_bytes != 0 &&
      qp_.nic()->keys().Resolve(packet.remote_key, packet.remote_address, packet.message_bytes,
                                kRemoteRead) == nullptr) {
    return Refuse(packet, CompletionStatus::kRemoteAccess);
  }
  expected_ = std::max(expected_, packet.sequence + 1);
  gap_told_ = false;
  responses_.erase(std::remove_if(responses_.begin(), responses_.end(),
                                  [&packet](const Response& response) {
                                    return response.sequence == packet.sequence;
                                  }),
                   responses_.end());
  responses_.push_back({packet.sequence, packet.remote_key, packet.remote_address,
                        packet.message_bytes, packet.offset, packet.offset});
  qp_.Kick();
}

bool Responder::NextPacket(SimPacket* packet) {
  Response& response = responses_.front();
  const uint64_t chunk_bytes = qp_.world()->options().chunk_bytes;
  packet->kind = PacketKind::kReadResponse;
  packet->sequence = response.sequence;
  packet->offset = response.offset;
  packet->first = response.offset == response.begin;
  packet->bytes = static_cast<uint32_t>(std::min(chunk_bytes, response.bytes - response.offset));
  packet->last = response.offset + packet->bytes == response.bytes;
  packet->fault = WorkFault();
  if (packet->bytes > 0) {
    const uint8_t* const from = qp_.nic()->keys().Resolve(
        response.remote_key, response.address + response.offset, packet->bytes, kRemoteRead);
    if (from == nullptr) {
      Refuse(*packet, CompletionStatus::kRemoteAccess);
      return false;
    }
    uint8_t* const to = packet->Payload(packet->bytes);
    if (qp_.world()->guard().MayRead(from, packet->bytes, qp_.id())) {
      std::memcpy(to, from, packet->bytes);
    }
  }
  response.offset += packet->bytes;
  if (packet->last) responses_.pop_front();
  return true;
}

void Responder::Flush() {
  for (const Receive& receive : receives_) {
    for (const Entry& entry : receive.entries) qp_.nic()->keys().RemoveUser(entry.local_key);
    Completion completion;
    completion.id = receive.id;
    completion.status = CompletionStatus::kFlushed;
    qp_.Complete(true, completion, 1, WorkFault());
  }
  receives_.clear();
}

void Responder::Forget() {
  for (const Receive& receive : receives_) {
    for (const Entry& entry : receive.entries) qp_.nic()->keys().RemoveUser(entry.local_key);
  }
  receives_.clear();
}

}  // namespace tryst
