// Answers that reach a requester, and how its works end.

#include <algorithm>
#include <iterator>
#include <utility>

#include "tests/doubles/sim_nic/requester.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_queue_pair.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {

Requester::Send* Requester::Holding(uint64_t sequence) {
  for (Send& send : sends_) {
    if (sequence < send.first + send.chunks) {
      return sequence >= send.first ? &send : nullptr;
    }
  }
  return nullptr;
}

void Requester::OnReadResponse(const SimPacket& packet) {
  Send* const send = Holding(packet.sequence);
  // A repeated question gets a second answer, which is ignored.
  if (send == nullptr || send->work.op != SendOp::kRead || send->ended ||
      packet.offset != send->received) {
    return;
  }
  // A broken queue pair that has not stopped lets arriving bytes land, and does nothing else.
  if (!Scatter(*send, packet.offset, packet)) send->status = CompletionStatus::kLocalProtection;
  send->received += packet.bytes;
  if (qp_.broken()) return;
  qp_.world()->Note(TraceKind::kLand, qp_.id(), packet.offset, packet.bytes);
  if (send->received == send->bytes && packet.last) {
    send->ended = true;
    --reads_in_flight_;
  }
  deadline_ns_ = 0;
  attempts_ = 0;
  Acknowledged(packet.sequence + 1);
}

void Requester::OnAnswer(const SimPacket& packet) {
  Acknowledged(packet.sequence);
  if (!qp_.ready() || packet.kind == PacketKind::kAcknowledge) return;
  Send* const send = Holding(packet.sequence);
  // A work that has ended was answered before.
  if (send == nullptr || !send->started || Finished(*send)) return;
  if (packet.kind == PacketKind::kRefuse) {
    send->status = packet.status;
    return Retire();
  }
  if (packet.sequence < acknowledged_) return;
  const bool not_ready = packet.kind == PacketKind::kReceiverNotReady;
  const uint32_t allowed = not_ready ? qp_.options().rnr_retry_count : qp_.options().retry_count;
  uint32_t& used = not_ready ? receiver_attempts_ : attempts_;
  constexpr uint32_t kForEver = 7;
  if (used >= allowed && !(not_ready && allowed == kForEver)) {
    send->status =
        not_ready ? CompletionStatus::kReceiverNotReady : CompletionStatus::kRetryExceeded;
    return Retire();
  }
  ++used;
  qp_.world()->Note(TraceKind::kRetry, qp_.id(), packet.sequence, used);
  GoBack(packet.sequence);
  if (!not_ready) return qp_.Kick();
  deadline_ns_ = 0;
  if (receiver_wait_) return;
  receiver_wait_ = true;
  qp_.world()->event_queue().Add(qp_.world()->NowNs() + qp_.world()->options().receiver_wait_ns,
                                 SimEventKind::kReceiverWait, qp_.id());
}

void Requester::OnReceiverWaitOver() {
  receiver_wait_ = false;
  if (qp_.ready()) qp_.Kick();
}

void Requester::Acknowledged(uint64_t sequence) {
  if (sequence > acknowledged_) {
    acknowledged_ = sequence;
    attempts_ = 0;
    receiver_attempts_ = 0;
    deadline_ns_ = 0;
  }
  Retire();
  if (!qp_.ready()) return;
  const bool waiting = !sends_.empty() && sends_.front().started && (cursor_ > 0 || chunk_ > 0);
  if (waiting && deadline_ns_ == 0) StartTimer(qp_.world()->NowNs());
  qp_.Kick();
}

void Requester::GoBack(uint64_t sequence) {
  // Asks again for the READs that the peer has not seen.
  for (Send& send : sends_) {
    if (send.work.op != SendOp::kRead || !send.requested || send.ended) continue;
    if (send.first < sequence) continue;
    send.requested = false;
    --reads_in_flight_;
  }
  cursor_ = 0;
  chunk_ = 0;
}

void Requester::Retire() {
  while (!sends_.empty() && qp_.ready()) {
    Send& send = sends_.front();
    const bool failed = send.status != CompletionStatus::kOk;
    if (!failed && !Finished(send)) return;
    if (!failed) {
      qp_.BreakAt(send.fault, FaultPoint::kAcknowledged, true);
      if (!qp_.ready()) return;  // It will be flushed with the others.
      if (send.fault.action == FaultAction::kFail && send.fault.At(FaultPoint::kAcknowledged)) {
        qp_.world()->NoteFault(qp_.id(), send.fault);
        send.status = send.fault.status;
      }
    }
    const CompletionStatus status = send.status;
    Send ended = std::move(send);
    sends_.pop_front();
    if (cursor_ > 0) {
      --cursor_;
    } else {
      chunk_ = 0;
    }
    EndInOrder(std::move(ended));
    if (status != CompletionStatus::kOk) qp_.BreakByError();
  }
}

void Requester::EndInOrder(Send send) {
  if (send.status != CompletionStatus::kOk) return End(&send, send.status);
  if (send.posted == next_to_end_) {
    ++next_to_end_;
    End(&send, CompletionStatus::kOk);
  } else {
    done_.emplace(send.posted, std::move(send));
  }
  while (!done_.empty() && done_.begin()->first == next_to_end_ && qp_.ready()) {
    Send next = std::move(done_.begin()->second);
    done_.erase(done_.begin());
    ++next_to_end_;
    End(&next, CompletionStatus::kOk);
  }
}

std::vector<Requester::Send> Requester::TakeAll() {
  std::vector<Send> all(std::make_move_iterator(sends_.begin()),
                        std::make_move_iterator(sends_.end()));
  for (Send& send : late_) all.push_back(std::move(send));
  for (auto& [posted, send] : done_) all.push_back(std::move(send));
  sends_.clear();
  late_.clear();
  done_.clear();
  std::sort(all.begin(), all.end(),
            [](const Send& a, const Send& b) { return a.posted < b.posted; });
  return all;
}

void Requester::End(Send* send, CompletionStatus status) {
  if (send->work.op == SendOp::kRead && send->requested && !send->ended) --reads_in_flight_;
  for (const Entry& entry : send->entries) qp_.nic()->keys().RemoveUser(entry.local_key);
  if (status == CompletionStatus::kOk && !send->work.signaled) {
    ++silent_;
    return qp_.BreakAt(send->fault, FaultPoint::kCompleted, true);
  }
  Completion completion;
  completion.id = send->work.id;
  completion.status = status;
  completion.op = send->work.op == SendOp::kRead ? CompletionOp::kRead : CompletionOp::kSend;
  const uint32_t released = silent_ + 1;
  silent_ = 0;
  qp_.Complete(false, completion, released, send->fault);
}

void Requester::Flush() {
  for (Send& send : TakeAll()) {
    send.fault = WorkFault();
    End(&send, CompletionStatus::kFlushed);
  }
  // Works that ended well, with no signaled work after them.
  outstanding_ -= silent_;
  silent_ = 0;
}

void Requester::Forget() {
  for (const Send& send : TakeAll()) {
    for (const Entry& entry : send.entries) qp_.nic()->keys().RemoveUser(entry.local_key);
  }
}

int64_t Requester::TimeoutNs() const {
  constexpr int64_t kUnitNs = 4096;
  return kUnitNs << std::min<int>(qp_.options().ack_timeout, 31);
}

void Requester::StartTimer(int64_t from_ns) {
  if (deadline_ns_ == 0) deadline_ns_ = from_ns + TimeoutNs();
  if (timer_scheduled_) return;
  timer_scheduled_ = true;
  qp_.world()->event_queue().Add(deadline_ns_, SimEventKind::kRetryTimer, qp_.id());
}

void Requester::OnRetryTimer() {
  timer_scheduled_ = false;
  if (!qp_.ready() || deadline_ns_ == 0 || sends_.empty()) return;
  if (qp_.world()->NowNs() < deadline_ns_) return StartTimer(0);
  deadline_ns_ = 0;
  if (attempts_ >= qp_.options().retry_count) {
    sends_.front().status = CompletionStatus::kRetryExceeded;
    return Retire();
  }
  ++attempts_;
  qp_.world()->Note(TraceKind::kRetry, qp_.id(), acknowledged_, attempts_);
  GoBack(0);
  qp_.Kick();
}

}  // namespace tryst
