#include "tests/doubles/sim_nic/sim_world.h"

#include <utility>

#include "base/log.h"
#include "tests/doubles/sim_nic/sim_completion_queue.h"
#include "tests/doubles/sim_nic/sim_queue_pair.h"

namespace tryst {

SimWorld::SimWorld(uint64_t seed, const SimOptions& options)
    : options_(options),
      random_(seed),
      outage_random_(random_.Fork()),
      events_(random_.Fork()),
      trace_(options.trace_tail_records),
      fabric_(&events_, &trace_, random_.Fork(), options.link, options.shared_ports),
      faults_(random_.Fork()) {
  TRYST_CHECK(options.chunk_bytes > 0 && options.chunk_bytes <= (1u << 30));
}

SimWorld::~SimWorld() {
  for (const SimNic* nic : nics_) TRYST_CHECK(nic == nullptr) << "outlives its world";
}

std::unique_ptr<SimNic> SimWorld::OpenNic(uint32_t place, const SimNicOptions& options) {
  if (place >= nics_.size()) {
    nics_.resize(place + 1);
    killed_.resize(place + 1);
  }
  TRYST_CHECK(nics_[place] == nullptr || nics_[place]->lost()) << "place " << place << " is taken";
  Note(TraceKind::kOpen, place, killed_[place] ? 1 : 0);
  killed_[place] = false;
  // So that no key is 0: that is the key of a forgotten one.
  const uint32_t salt = static_cast<uint32_t>(DrawToken()) | 1;
  auto nic = std::make_unique<SimNic>(this, place, salt, options);
  nics_[place] = nic.get();
  return nic;
}

SimNic* SimWorld::nic(uint32_t place) const {
  return place < nics_.size() ? nics_[place] : nullptr;
}

void SimWorld::OnNicGone(SimNic* nic) {
  if (nics_[nic->place()] == nic) nics_[nic->place()] = nullptr;
}

void SimWorld::OnQueuePairGone(uint32_t id) {
  fabric_.Detach(id);
  // Timers of dead queue pairs stay around for seconds of virtual time, so remove them now and
  // then.
  constexpr uint64_t kSweep = 128;
  if (++queue_pairs_gone_ % kSweep != 0) return;
  events_.RemoveIf([this](const SimEvent& event) {
    const bool of_queue_pair = event.kind != SimEventKind::kWireFree &&
                               event.kind != SimEventKind::kArrival &&
                               event.kind != SimEventKind::kTask;
    return of_queue_pair && fabric_.user(event.target) == nullptr;
  });
}

bool SimWorld::Step() {
  if (events_.empty()) return false;
  Dispatch(events_.Pop());
  ++events_done_;
  return true;
}

void SimWorld::RunUntil(int64_t at_ns) {
  while (events_.next_ns() <= at_ns && Step()) {
  }
  events_.MoveTo(at_ns);
}

EventQueue::TaskId SimWorld::At(int64_t at_ns, absl::AnyInvocable<void()> task) {
  return events_.AddTask(at_ns, std::move(task));
}

void SimWorld::Jump(int64_t ns) {
  events_.Jump(ns);
  Note(TraceKind::kFault, 0, static_cast<uint64_t>(ns));
}

void SimWorld::Dispatch(const SimEvent& event) {
  switch (event.kind) {
    case SimEventKind::kWireFree:
      return fabric_.OnWireFree(event.target);
    case SimEventKind::kArrival:
      return fabric_.OnArrival(event.target);
    case SimEventKind::kTask:
      if (absl::AnyInvocable<void()> task = events_.TakeTask(event)) {
        Note(TraceKind::kTimer, event.target);
        task();
      }
      return;
    default:
      break;
  }
  auto* const pair = static_cast<SimQueuePair*>(fabric_.user(event.target));
  if (pair == nullptr) return;  // It was destroyed, or lost with its NIC.
  switch (event.kind) {
    case SimEventKind::kDoorbell:
      return pair->OnDoorbell();
    case SimEventKind::kRetryTimer:
      return pair->OnRetryTimer();
    case SimEventKind::kReceiverWait:
      return pair->OnReceiverWaitOver();
    case SimEventKind::kLateSend:
      return pair->OnLateSend();
    case SimEventKind::kStopped:
      return pair->OnStopped();
    case SimEventKind::kSendCompletion:
      return pair->OnCompletionDue(false);
    case SimEventKind::kReceiveCompletion:
      return pair->OnCompletionDue(true);
    default:
      TRYST_CHECK(false) << "event of an unknown kind";
  }
}

void SimWorld::SetLink(uint32_t from_place, uint32_t to_place, const LinkModel& link) {
  fabric_.SetLink(from_place, to_place, link);
}

void SimWorld::Inject(const QueuePair& queue_pair, uint64_t nth_send, const WorkFault& fault) {
  faults_.Inject(static_cast<const SimQueuePair&>(queue_pair).id(), nth_send, fault);
}

void SimWorld::BreakByError(QueuePair& queue_pair) {
  auto& pair = static_cast<SimQueuePair&>(queue_pair);
  if (pair.broken()) return;
  Count(FaultKind::kBreak);
  pair.nic()->AddEvent({NicEvent::Kind::kQueuePairFatal, pair.options().port, pair.number()});
  pair.BreakByError();
}

void SimWorld::Overrun(CompletionQueue& queue) {
  Count(FaultKind::kOverrun);
  auto& sim_queue = static_cast<SimCompletionQueue&>(queue);
  sim_queue.nic()->Overrun(&sim_queue);
}

void SimWorld::SetPort(uint32_t place, uint8_t port, bool up) {
  if (fabric_.port_up(place, port) == up) return;
  if (!up) Count(FaultKind::kPort);
  fabric_.SetPort(place, port, up);
  SimNic* const there = nic(place);
  if (there == nullptr || there->lost()) return;
  there->AddEvent({up ? NicEvent::Kind::kPortUp : NicEvent::Kind::kPortDown, port, 0});
}

void SimWorld::ChangeAddress(uint32_t place) {
  Count(FaultKind::kAddress);
  fabric_.ChangeAddress(place);
  SimNic* const there = nic(place);
  if (there == nullptr || there->lost()) return;
  for (uint8_t port = 1; port <= there->options().ports; ++port) {
    there->AddEvent({NicEvent::Kind::kAddressChanged, port, 0});
  }
}

void SimWorld::DeviceFatal(uint32_t place) {
  SimNic* const there = nic(place);
  if (there == nullptr || there->lost()) return;
  Count(FaultKind::kDevice);
  there->AddEvent({NicEvent::Kind::kDeviceFatal, 0, 0});
  there->Lose();
}

void SimWorld::FailRegistrations(uint32_t place, uint32_t count) {
  SimNic* const there = nic(place);
  TRYST_CHECK(there != nullptr);
  Count(FaultKind::kRegistration, count);
  there->FailRegistrations(count);
}

uint32_t SimWorld::EndFailRegistrations(uint32_t place) {
  SimNic* const there = nic(place);
  return there == nullptr ? 0 : there->EndFailRegistrations();
}

void SimWorld::SetSilent(uint32_t place, bool silent) {
  if (silent) Count(FaultKind::kSilence);
  fabric_.SetSilent(place, silent);
  Note(TraceKind::kFault, place, 1, silent);
}

void SimWorld::SetCut(uint32_t place, uint32_t other_place, bool cut) {
  if (cut) Count(FaultKind::kSilence);
  fabric_.SetCut(place, other_place, cut);
  Note(TraceKind::kFault, place, 2 + other_place, cut);
}

void SimWorld::Kill(uint32_t place) {
  SimNic* const there = nic(place);
  if (there == nullptr) return;
  Count(FaultKind::kKill);
  Note(TraceKind::kKill, place);
  there->Lose();
  nics_[place] = nullptr;
  killed_[place] = true;
}

void SimWorld::Note(TraceKind kind, uint32_t who, uint64_t a, uint64_t b) {
  trace_.Add(events_.NowNs(), kind, who, a, b);
}

void SimWorld::NoteFault(uint32_t queue_pair, const WorkFault& fault) {
  Count(KindOf(fault.action));
  Note(TraceKind::kFault, queue_pair, static_cast<uint64_t>(fault.action),
       static_cast<uint64_t>(fault.point));
}

}  // namespace tryst
