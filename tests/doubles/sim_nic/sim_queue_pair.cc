#include "tests/doubles/sim_nic/sim_queue_pair.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "tests/doubles/sim_nic/sim_completion_queue.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {
namespace {

constexpr char kAddressTag[] = "tryst-sim-1";

}  // namespace

SimQueuePair::SimQueuePair(SimNic* nic, const QueuePairOptions& options, uint32_t number)
    : nic_(nic),
      world_(nic->world()),
      options_(options),
      number_(number),
      completions_(static_cast<SimCompletionQueue*>(options.completions)),
      id_(world_->fabric().Attach(this)),
      token_(world_->DrawToken()),
      requester_(this),
      responder_(this) {
  local_.place = nic->place();
  local_.port = options.port;
  local_.queue_pair = id_;
  local_.version = world_->fabric().address_version(local_.place);
}

SimQueuePair::~SimQueuePair() {
  world_->Note(TraceKind::kDestroy, id_);
  world_->OnQueuePairGone(id_);
  requester_.Forget();
  responder_.Forget();
  completions_->Forget(this);
  completions_->Unreserve(options_.send_depth + options_.receive_depth);
  nic_->OnGone(this);
}

QueuePairState SimQueuePair::state() const {
  if (!stopped_) return state_;
  const bool all_back = requester_.outstanding() == 0 && responder_.outstanding() == 0;
  return all_back ? QueuePairState::kDrained : QueuePairState::kBroken;
}

std::string SimQueuePair::LocalAddress() const {
  return absl::StrCat(kAddressTag, ",", local_.place, ",", local_.port, ",",
                      world_->fabric().address_version(local_.place), ",", id_, ",", token_);
}

absl::Status SimQueuePair::Connect(absl::string_view remote_address) {
  if (state_ != QueuePairState::kReset) {
    return absl::FailedPreconditionError(
        absl::StrCat("queue pair ", number_, " is ", QueuePairStateName(state())));
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(remote_address, ',');
  uint32_t port = 0;
  uint64_t token = 0;
  SimAddress remote;
  if (parts.size() != 6 || parts[0] != kAddressTag || !absl::SimpleAtoi(parts[1], &remote.place) ||
      !absl::SimpleAtoi(parts[2], &port) || port == 0 || port > 63 ||
      !absl::SimpleAtoi(parts[3], &remote.version) ||
      !absl::SimpleAtoi(parts[4], &remote.queue_pair) || !absl::SimpleAtoi(parts[5], &token)) {
    return absl::InvalidArgumentError("not the address of a simulated queue pair");
  }
  // A number that was never given out is treated like one that is gone.
  if (!world_->fabric().Known(remote.queue_pair)) {
    return absl::InvalidArgumentError("the address names a queue pair that never was");
  }
  remote.port = static_cast<uint8_t>(port);
  remote_ = remote;
  local_.version = world_->fabric().address_version(local_.place);
  state_ = QueuePairState::kReady;
  world_->Note(TraceKind::kConnect, id_, remote.queue_pair);
  return absl::OkStatus();
}

absl::Status SimQueuePair::PostSend(absl::Span<const SendWork> works) {
  if (!ready()) {
    return absl::FailedPreconditionError(
        absl::StrCat("queue pair ", number_, " is ", QueuePairStateName(state())));
  }
  if (absl::Status posted = requester_.Post(works); !posted.ok()) return posted;
  const int64_t delay_ns = world_->DrawDelay(world_->options().doorbell_ns_max);
  world_->event_queue().Add(world_->NowNs() + delay_ns, SimEventKind::kDoorbell, id_);
  return absl::OkStatus();
}

absl::Status SimQueuePair::PostReceive(absl::Span<const ReceiveWork> works) {
  if (broken()) {
    return absl::FailedPreconditionError(
        absl::StrCat("queue pair ", number_, " is ", QueuePairStateName(state())));
  }
  return responder_.Post(works);
}

uint32_t SimQueuePair::send_room() const { return options_.send_depth - requester_.outstanding(); }

uint32_t SimQueuePair::receive_room() const {
  return options_.receive_depth - responder_.outstanding();
}

void SimQueuePair::Kick() {
  if (HasPacket()) world_->fabric().Ready(id_, local_, remote_.place);
}

bool SimQueuePair::HasPacket() {
  // The requester also runs works that need no wire, so it must be asked each time.
  if (!ready()) return false;
  const bool request = requester_.HasPacket();
  return ready() && (request || responder_.HasPacket());
}

bool SimQueuePair::NextPacket(SimPacket* packet) {
  if (!HasPacket()) return false;
  packet->from = local_;
  packet->to = remote_;
  response_turn_ = !response_turn_;
  const bool respond = responder_.HasPacket() && (response_turn_ || !requester_.HasPacket());
  if (!ready()) return false;
  if (!(respond ? responder_.NextPacket(packet) : requester_.NextPacket(packet))) {
    // There was no packet after all, but now something else may be possible.
    Kick();
    return false;
  }
  world_->Note(TraceKind::kTransmit, id_, packet->sequence, packet->bytes);
  return true;
}

void SimQueuePair::OnPacket(SimPacket& packet) {
  if (state_ == QueuePairState::kReset || stopped_) return;
  if (packet.from.queue_pair != remote_.queue_pair) return;
  if (packet.kind == PacketKind::kData) return responder_.OnData(packet);
  if (packet.kind == PacketKind::kReadResponse) return requester_.OnReadResponse(packet);
  if (broken()) return;
  if (packet.kind == PacketKind::kReadRequest) return responder_.OnReadRequest(packet);
  requester_.OnAnswer(packet);
}

void SimQueuePair::Answer(PacketKind kind, uint64_t sequence, CompletionStatus status) {
  if (broken()) return;
  SimPacket answer;
  answer.kind = kind;
  answer.sequence = sequence;
  answer.status = status;
  answer.from = local_;
  answer.to = remote_;
  world_->fabric().Answer(answer);
}

void SimQueuePair::BreakAt(const WorkFault& fault, FaultPoint point, bool here_is_requester) {
  if (!fault.At(point)) return;
  const bool requester = fault.action == FaultAction::kBreakRequester;
  if (!requester && fault.action != FaultAction::kBreakResponder) return;
  world_->NoteFault(id_, fault);
  if (requester == here_is_requester) return BreakByError();
  FabricUser* const peer = world_->fabric().user(remote_.queue_pair);
  if (peer != nullptr) static_cast<SimQueuePair*>(peer)->BreakByError();
}

void SimQueuePair::BreakWith(bool by_error) {
  if (broken()) return;
  state_ = QueuePairState::kBroken;
  world_->Note(TraceKind::kBreak, id_, by_error ? 1 : 0);
  responder_.OnBreak();
  if (nic_->lost()) return;
  const int64_t delay_ns = world_->DrawDelay(world_->options().break_ns_max);
  world_->event_queue().Add(world_->NowNs() + delay_ns, SimEventKind::kStopped, id_);
}

void SimQueuePair::OnStopped() {
  if (nic_->lost()) return;
  stopped_ = true;
  world_->Note(TraceKind::kStopped, id_);
  for (const bool receive : {false, true}) {
    std::vector<Pending> withheld;
    withheld.swap(ways_[receive].withheld);
    for (Pending& pending : withheld) {
      pending.completion.status = CompletionStatus::kFlushed;
      pending.fault = WorkFault();
      Send(receive, pending, 0);
    }
  }
  requester_.Flush();
  responder_.Flush();
}

void SimQueuePair::Complete(bool receive, Completion completion, uint32_t released,
                            const WorkFault& fault) {
  completion.queue_pair = number_;
  const FaultPoint point = receive ? FaultPoint::kReceived : FaultPoint::kCompleted;
  Pending pending{completion, released, fault.At(point) ? fault : WorkFault()};
  switch (pending.fault.action) {
    case FaultAction::kLose:
      world_->NoteFault(id_, fault);
      ways_[receive].withheld.push_back(pending);
      return;
    case FaultAction::kLoseForEver:
      world_->NoteFault(id_, fault);
      return;
    case FaultAction::kDelay:
      world_->NoteFault(id_, fault);
      return Send(receive, pending, fault.delay_ns);
    default:
      return Send(receive, pending, 0);
  }
}

void SimQueuePair::Send(bool receive, const Pending& pending, int64_t delay_ns) {
  Way& way = ways_[receive];
  const int64_t due_ns =
      world_->NowNs() + delay_ns + world_->DrawDelay(world_->options().completion_ns_max);
  way.last_due_ns = std::max(way.last_due_ns, due_ns);
  way.pending.push_back(pending);
  world_->event_queue().Add(
      way.last_due_ns, receive ? SimEventKind::kReceiveCompletion : SimEventKind::kSendCompletion,
      id_);
}

void SimQueuePair::OnCompletionDue(bool receive) {
  if (nic_->lost()) return;
  Way& way = ways_[receive];
  const Pending pending = way.pending.front();
  way.pending.pop_front();
  world_->Note(TraceKind::kComplete, id_, receive ? 1 : 0,
               static_cast<uint64_t>(pending.completion.status));
  completions_->Push(this, receive, pending.completion, pending.released);
  if (pending.fault.action == FaultAction::kDuplicate) {
    world_->NoteFault(id_, pending.fault);
    world_->At(world_->NowNs() + pending.fault.delay_ns,
               [world = world_, id = id_, receive, completion = pending.completion] {
                 auto* const pair = static_cast<SimQueuePair*>(world->fabric().user(id));
                 if (pair != nullptr) pair->completions_->Push(pair, receive, completion, 0);
               });
  }
  BreakAt(pending.fault, pending.fault.point, !receive);
}

void SimQueuePair::OnPolled(bool receive, uint32_t released) {
  if (receive) {
    responder_.OnPolled(released);
  } else {
    requester_.OnPolled(released);
  }
}

void SimQueuePair::OnNicLost() {
  BreakWith(true);
  world_->fabric().Detach(id_);
}

}  // namespace tryst
