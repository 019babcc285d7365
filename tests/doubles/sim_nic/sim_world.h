#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_SIM_WORLD_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_SIM_WORLD_H_

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "tests/doubles/sim_nic/event_queue.h"
#include "tests/doubles/sim_nic/fabric.h"
#include "tests/doubles/sim_nic/faults.h"
#include "tests/doubles/sim_nic/link_model.h"
#include "tests/doubles/sim_nic/memory_guard.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_random.h"
#include "tests/doubles/sim_nic/sim_trace.h"
#include "verbs/nic.h"

namespace tryst {

struct SimOptions {
  LinkModel link;                   // For links without SetLink().
  uint64_t chunk_bytes = 32768;     // How much lands in one event.
  int64_t doorbell_ns_max = 200;    // From PostSend() until the NIC acts; drawn.
  int64_t completion_ns_max = 300;  // From a work's end until it can be polled; drawn.
  int64_t break_ns_max = 20'000;    // From Break() until no byte lands any more; drawn.
  // The pause before a sender tries again a peer that has no receive.
  int64_t receiver_wait_ns = 640'000;
  int64_t late_ns_max = 50'000;  // How late a write of a NIC without order may go out; drawn.
  size_t trace_tail_records = 4096;
  bool shared_ports = false;  // See Fabric.
};

// A network of NICs on virtual time. One thread. Equal seeds and equal calls give equal runs, to
// the last event. Faults happen on request, or when a FaultPlan draws them.
//
// Nothing happens by itself: Step() runs the next event and moves the clock.
class SimWorld {
 public:
  explicit SimWorld(uint64_t seed, const SimOptions& options = SimOptions());
  ~SimWorld();  // REQUIRES: every NIC is gone.
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  // Plugs in a NIC. REQUIRES: there is none, or it was killed or lost.
  std::unique_ptr<SimNic> OpenNic(uint32_t place, const SimNicOptions& options = SimNicOptions());
  SimNic* nic(uint32_t place) const;  // Null: there is none, or it was killed.
  uint32_t places() const { return static_cast<uint32_t>(nics_.size()); }

  // Time.
  const Clock& clock() const { return events_; }
  int64_t NowNs() const { return events_.NowNs(); }
  bool Step();  // False: no event is left.
  // Runs all events up to that moment, and moves the clock there.
  void RunUntil(int64_t at_ns);
  void RunFor(int64_t ns) { RunUntil(NowNs() + ns); }
  int64_t next_ns() const { return events_.next_ns(); }  // INT64_MAX: there is no event.
  EventQueue::TaskId At(int64_t at_ns, absl::AnyInvocable<void()> task);
  bool Cancel(EventQueue::TaskId task) { return events_.CancelTask(task); }
  void Jump(int64_t ns);  // The clock jumps; events that were due meanwhile run late.
  uint64_t events() const { return events_done_; }

  // Links, in one direction.
  void SetLink(uint32_t from_place, uint32_t to_place, const LinkModel& link);

  // A fault of one work: the nth, from 0, of all sends ever posted on `queue_pair`.
  void Inject(const QueuePair& queue_pair, uint64_t nth_send, const WorkFault& fault);
  // All other faults; they happen now.
  void BreakByError(QueuePair& queue_pair);  // As if its own NIC had failed.
  void Overrun(CompletionQueue& queue);
  void SetPort(uint32_t place, uint8_t port, bool up);
  void ChangeAddress(uint32_t place);  // Earlier connections do not work any more.
  void DeviceFatal(uint32_t place);
  void FailRegistrations(uint32_t place, uint32_t count);  // The next `count` registrations fail.
  // Those that have not failed yet succeed; returns how many.
  uint32_t EndFailRegistrations(uint32_t place);
  void SetSilent(uint32_t place, bool silent);
  void SetCut(uint32_t place, uint32_t other_place, bool cut);
  // The process of that NIC dies: nothing of it can be reached, its destructors tell nobody, and
  // another NIC may be opened in its place.
  void Kill(uint32_t place);
  // Replaces the plan; outages that have begun go on.
  void SetFaultPlan(const FaultPlan& plan);
  // Those of works, NICs and links; without the registrations that a plan lets fail.
  uint64_t faults_done() const { return faults_done_; }
  uint64_t times(FaultKind kind) const { return times_[static_cast<size_t>(kind)]; }

  // Memory that no NIC may touch, and the violations.
  MemoryGuard& guard() { return guard_; }
  void Poison(const void* address, uint64_t bytes) { guard_.Poison(address, bytes); }
  void Unpoison(const void* address, uint64_t bytes) { guard_.Unpoison(address, bytes); }
  const std::vector<std::string>& violations() const { return guard_.violations(); }

  const SimTrace& trace() const { return trace_; }
  void Mark(uint32_t who, uint64_t a, uint64_t b) { Note(TraceKind::kMark, who, a, b); }

  // Only this folder calls the following.
  const SimOptions& options() const { return options_; }
  EventQueue& event_queue() { return events_; }
  Fabric& fabric() { return fabric_; }
  WorkFaults& faults() { return faults_; }
  uint64_t DrawToken() { return random_.Next(); }
  int64_t DrawDelay(int64_t ns_max) { return ns_max == 0 ? 0 : random_.Between(0, ns_max); }
  void Note(TraceKind kind, uint32_t who, uint64_t a = 0, uint64_t b = 0);
  void NoteFailedRegistration() { ++times_[static_cast<size_t>(FaultKind::kRegistration)]; }
  void NoteFault(uint32_t queue_pair, const WorkFault& fault);
  void OnNicGone(SimNic* nic);
  void OnQueuePairGone(uint32_t id);

 private:
  enum class Outage { kPort, kAddress, kSilence, kSlow, kLossy, kFatal, kOverrun, kJump };

  void Dispatch(const SimEvent& event);
  void PlanNext(Outage kind);
  int64_t MeanNs(Outage kind) const;
  void Strike(Outage kind);
  void StrikeLink(Outage kind);
  SimNic* DrawNic();
  void Count(FaultKind kind, uint64_t count = 1) {
    faults_done_ += count;
    times_[static_cast<size_t>(kind)] += count;
  }

  const SimOptions options_;
  SimRandom random_;  // First, because the others are forked from it.
  SimRandom outage_random_;
  EventQueue events_;
  SimTrace trace_;
  MemoryGuard guard_;
  Fabric fabric_;
  WorkFaults faults_;
  std::vector<SimNic*> nics_;  // By place.
  std::vector<bool> killed_;   // By place.
  std::set<std::pair<uint32_t, uint32_t>> struck_links_;
  uint64_t plan_version_ = 0;
  uint64_t queue_pairs_gone_ = 0;
  uint64_t events_done_ = 0;
  uint64_t faults_done_ = 0;
  std::array<uint64_t, kFaultKindCount> times_{};
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_SIM_WORLD_H_
