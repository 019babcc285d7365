#include "tests/doubles/sim_nic/requester.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_queue_pair.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {

absl::Status Requester::Check(const SendWork& work) const {
  const NicLimits& limits = qp_.nic()->limits();
  uint64_t bytes = 0;
  for (const Entry& entry : work.entries) {
    bytes += entry.bytes;
    if (bytes < entry.bytes) return absl::InvalidArgumentError("the entries' sizes wrap around");
  }
  if (work.entries.size() > qp_.options().max_entries || bytes > limits.max_message_bytes ||
      (work.inline_data && bytes > qp_.options().max_inline_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("work of ", bytes, " B in ", work.entries.size(),
                                                   " entries; allowed: ", limits.max_message_bytes,
                                                   " B, inline ", qp_.options().max_inline_bytes,
                                                   " B, ", qp_.options().max_entries, " entries"));
  }
  if (work.op == SendOp::kWriteWithImmediate && !limits.write_with_immediate) {
    return absl::InvalidArgumentError("this NIC has no write with immediate");
  }
  if (work.op == SendOp::kRead && (limits.max_reads_in_flight == 0 || work.inline_data)) {
    return absl::InvalidArgumentError("no READ here, or an inline one");
  }
  return absl::OkStatus();
}

absl::Status Requester::Post(absl::Span<const SendWork> works) {
  if (works.size() > qp_.send_room()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(works.size(), " works for ", qp_.send_room(), " places"));
  }
  for (const SendWork& work : works) {
    if (absl::Status valid = Check(work); !valid.ok()) return valid;
  }
  for (const SendWork& work : works) {
    Send send = Make(work);
    if (IsLate(send)) {
      send.due_ns =
          qp_.world()->NowNs() + qp_.world()->DrawDelay(qp_.world()->options().late_ns_max);
      qp_.world()->event_queue().Add(send.due_ns, SimEventKind::kLateSend, qp_.id());
      late_.push_back(std::move(send));
    } else {
      Append(std::move(send));
    }
  }
  return absl::OkStatus();
}

// Half of the writes. A work that needs an order has everything before it sent first.
bool Requester::IsLate(const Send& send) const {
  if (qp_.nic()->limits().ordered) return false;
  const SendOp op = send.work.op;
  const bool is_write = op == SendOp::kWrite || op == SendOp::kWriteWithImmediate;
  return is_write && qp_.world()->DrawDelay(1) == 0;
}

void Requester::ReleaseLate(int64_t until_ns) {
  std::vector<Send> left;
  for (Send& send : late_) {
    if (send.due_ns <= until_ns) {
      Append(std::move(send));
    } else {
      left.push_back(std::move(send));
    }
  }
  late_ = std::move(left);
}

void Requester::OnLateSend() {
  ReleaseLate(qp_.world()->NowNs());
  if (qp_.ready()) qp_.Kick();
}

void Requester::Append(Send send) {
  const SendOp op = send.work.op;
  const bool is_write = op == SendOp::kWrite || op == SendOp::kWriteWithImmediate;
  if (!late_.empty() && !is_write) ReleaseLate(std::numeric_limits<int64_t>::max());
  send.first = next_sequence_;
  next_sequence_ += send.chunks;
  sends_.push_back(std::move(send));
}

Requester::Send Requester::Make(const SendWork& work) {
  Send send;
  send.work = work;
  send.work.entries = {};
  send.entries.assign(work.entries.begin(), work.entries.end());
  for (const Entry& entry : work.entries) send.bytes += entry.bytes;
  if (work.inline_data) {
    for (const Entry& entry : work.entries) {
      const auto* const bytes = reinterpret_cast<const uint8_t*>(entry.address);
      send.inline_bytes.insert(send.inline_bytes.end(), bytes, bytes + entry.bytes);
    }
    send.entries.clear();
  }
  if (work.op == SendOp::kRead) {
    send.chunks = 1;
  } else {
    const uint64_t chunk_bytes = qp_.world()->options().chunk_bytes;
    send.chunks = std::max<uint64_t>(1, (send.bytes + chunk_bytes - 1) / chunk_bytes);
  }
  for (const Entry& entry : send.entries) qp_.nic()->keys().AddUser(entry.local_key);
  send.posted = posted_;
  send.fault = qp_.world()->faults().Of(qp_.id(), posted_++);
  ++outstanding_;
  qp_.world()->Note(TraceKind::kPostSend, qp_.id(), static_cast<uint64_t>(work.op), send.bytes);
  return send;
}

bool Requester::Finished(const Send& send) const {
  if (send.work.op == SendOp::kRead) return send.ended;
  return send.first + send.chunks <= acknowledged_;
}

bool Requester::HasPacket() {
  if (receiver_wait_) return false;
  while (qp_.ready() && cursor_ < sends_.size()) {
    Send& send = sends_[cursor_];
    // The send ends when all sends before it have ended.
    if (send.status != CompletionStatus::kOk) return false;
    if (Finished(send) || (send.work.op == SendOp::kRead && send.requested)) {
      ++cursor_;
      chunk_ = 0;
      continue;
    }
    if (send.work.op == SendOp::kRead) {
      return reads_in_flight_ < qp_.nic()->limits().max_reads_in_flight;
    }
    if (acknowledged_ > send.first) chunk_ = std::max(chunk_, acknowledged_ - send.first);
    if (chunk_ < send.chunks) return true;
    ++cursor_;
    chunk_ = 0;
  }
  return false;
}

bool Requester::Started(Send* send) {
  if (send->started) return true;
  send->started = true;
  qp_.BreakAt(send->fault, FaultPoint::kTaken, true);
  if (!qp_.ready()) return false;
  if (send->fault.action == FaultAction::kFail && send->fault.At(FaultPoint::kTaken)) {
    qp_.world()->NoteFault(qp_.id(), send->fault);
    send->status = send->fault.status;
  } else if (!EntriesValid(*send)) {
    send->status = CompletionStatus::kLocalProtection;
  }
  return send->status == CompletionStatus::kOk;
}

bool Requester::EntriesValid(const Send& send) const {
  const uint32_t access = send.work.op == SendOp::kRead ? kLocalWrite : kLocalOnly;
  for (const Entry& entry : send.entries) {
    if (entry.bytes == 0) continue;
    if (qp_.nic()->keys().Resolve(entry.local_key, entry.address, entry.bytes, access) == nullptr) {
      return false;
    }
  }
  return true;
}

bool Requester::NextPacket(SimPacket* packet) {
  Send& send = sends_[cursor_];
  if (!Started(&send)) {
    Retire();
    return false;
  }
  const SendWork& work = send.work;
  packet->op = work.op;
  packet->sequence = send.first + chunk_;
  packet->message_bytes = send.bytes;
  packet->remote_address = work.remote_address;
  packet->remote_key = work.remote_key;
  packet->immediate = work.immediate;
  packet->fault = send.fault;
  const uint64_t chunk_bytes = qp_.world()->options().chunk_bytes;
  if (work.op == SendOp::kRead) {
    packet->kind = PacketKind::kReadRequest;
    packet->first = packet->last = true;
    packet->offset = send.received;
    packet->bytes = 0;
    send.requested = true;
    ++reads_in_flight_;
  } else {
    packet->kind = PacketKind::kData;
    packet->first = chunk_ == 0;
    packet->last = chunk_ + 1 == send.chunks;
    packet->offset = chunk_ * chunk_bytes;
    packet->bytes = static_cast<uint32_t>(std::min(chunk_bytes, send.bytes - packet->offset));
    if (!Gather(send, packet->offset, packet)) {
      send.status = CompletionStatus::kLocalProtection;
      Retire();
      return false;
    }
  }
  ++chunk_;
  StartTimer(qp_.world()->NowNs());
  for (const FaultPoint point : {FaultPoint::kHalfSent, FaultPoint::kSent}) {
    if (point == FaultPoint::kHalfSent ? !packet->first : !packet->last) continue;
    if (send.fault.action == FaultAction::kFail && send.fault.At(point)) {
      qp_.world()->NoteFault(qp_.id(), send.fault);
      send.status = send.fault.status;
    }
    qp_.BreakAt(send.fault, point, true);
  }
  Retire();
  return true;
}

bool Requester::Gather(const Send& send, uint64_t offset, SimPacket* packet) {
  uint8_t* to = packet->Payload(packet->bytes);
  if (send.work.inline_data) {
    std::copy_n(send.inline_bytes.begin() + static_cast<int64_t>(offset), packet->bytes, to);
    return true;
  }
  uint64_t left = packet->bytes;
  for (const Entry& entry : send.entries) {
    if (left == 0) break;
    if (offset >= entry.bytes) {
      offset -= entry.bytes;
      continue;
    }
    const uint64_t bytes = std::min(left, entry.bytes - offset);
    const uint8_t* const from =
        qp_.nic()->keys().Resolve(entry.local_key, entry.address + offset, bytes, kLocalOnly);
    if (from == nullptr) return false;
    if (qp_.world()->guard().MayRead(from, bytes, qp_.id())) std::memcpy(to, from, bytes);
    to += bytes;
    left -= bytes;
    offset = 0;
  }
  return true;
}

bool Requester::Scatter(const Send& send, uint64_t offset, const SimPacket& packet) {
  const uint8_t* from = packet.payload.get();
  uint64_t left = packet.bytes;
  for (const Entry& entry : send.entries) {
    if (left == 0) break;
    if (offset >= entry.bytes) {
      offset -= entry.bytes;
      continue;
    }
    const uint64_t bytes = std::min(left, entry.bytes - offset);
    uint8_t* const to =
        qp_.nic()->keys().Resolve(entry.local_key, entry.address + offset, bytes, kLocalWrite);
    if (to == nullptr) return false;
    if (qp_.world()->guard().MayWrite(to, bytes, qp_.id())) std::memcpy(to, from, bytes);
    from += bytes;
    left -= bytes;
    offset = 0;
  }
  return true;
}

}  // namespace tryst
