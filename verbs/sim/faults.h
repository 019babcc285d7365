#ifndef TRYST_VERBS_SIM_FAULTS_H_
#define TRYST_VERBS_SIM_FAULTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "verbs/nic.h"
#include "verbs/sim/sim_random.h"

namespace tryst {

// A moment in the life of one send work. The requester posted it, the responder is its peer.
enum class FaultPoint : uint8_t {
  kTaken,         // From the send queue; nothing has been sent.
  kHalfSent,      // The first chunk is on the wire.
  kSent,          // All of it is on the wire.
  kArrived,       // The first chunk is there, and not one byte of it has landed.
  kHalfLanded,    // The first chunk has landed.
  kLanded,        // All of it has landed; no receive has completed, nothing is acknowledged.
  kReceived,      // Its receive's completion can be polled; or, without one, it is acknowledged.
  kAcknowledged,  // The requester knows; its completion is not on the way yet.
  kCompleted,     // The requester's completion can be polled.
};
inline constexpr int kFaultPointCount = static_cast<int>(FaultPoint::kCompleted) + 1;

enum class FaultAction : uint8_t {
  kNone,
  kBreakRequester,  // Its queue pair, at the point.
  kBreakResponder,
  kFail,         // The work ends with `status`, from the point on. kTaken .. kAcknowledged.
  kFailReceive,  // The receive it takes ends with `status`. kLanded.
  // A completion: the requester's at kCompleted, the responder's at kReceived.
  kDelay,        // By delay_ns more. Later ones of its queue pair wait behind it.
  kLose,         // Until the queue pair breaks: then it comes back, kFlushed.
  kLoseForEver,  // The queue pair never drains; destroying it still ends the work.
  kDuplicate,    // Comes once more, delay_ns later.
  kFlip,         // One bit of its first chunk, before it lands. kArrived.
};
inline constexpr int kFaultActionCount = static_cast<int>(FaultAction::kFlip) + 1;

struct WorkFault {
  FaultAction action = FaultAction::kNone;
  FaultPoint point = FaultPoint::kTaken;
  CompletionStatus status = CompletionStatus::kGeneral;
  int64_t delay_ns = 0;

  bool At(FaultPoint where) const { return action != FaultAction::kNone && point == where; }
};

// How much goes wrong by itself, drawn from the seed. All zero: nothing.
struct FaultPlan {
  // Of a million works; the point, the side and the status are drawn.
  uint32_t break_ppm = 0;
  uint32_t fail_ppm = 0;
  uint32_t delay_ppm = 0;
  uint32_t lose_ppm = 0;
  uint32_t lose_for_ever_ppm = 0;
  uint32_t duplicate_ppm = 0;
  uint32_t flip_ppm = 0;  // Only of the works that may_flip names; null: of all.
  std::function<bool(SendOp op, uint32_t immediate)> may_flip;
  int64_t delay_ns_max = 5'000'000;
  // Of a million registrations.
  uint32_t registration_ppm = 0;
  // The mean time between two of a kind, somewhere; 0: never.
  int64_t port_flap_ns = 0;
  int64_t address_change_ns = 0;
  int64_t silence_ns = 0;     // A NIC's packets vanish, both ways.
  int64_t slow_link_ns = 0;   // One link at a thousandth of its bandwidth.
  int64_t lossy_link_ns = 0;  // One link loses one packet in ten.
  int64_t device_fatal_ns = 0;
  int64_t overrun_ns = 0;  // Of a completion queue.
  int64_t jump_ns = 0;     // The clock jumps; everything due meanwhile is late.
  // How long a port, a peer or a link stays so, and how far the clock jumps, at most.
  int64_t outage_ns_max = 20'000'000;
};

// Says of each work what happens to it: what a test asked for, else what the plan draws.
class WorkFaults {
 public:
  explicit WorkFaults(SimRandom random) : random_(random) {}

  void set_plan(const FaultPlan& plan) { plan_ = plan; }
  const FaultPlan& plan() const { return plan_; }
  void Inject(uint32_t queue_pair, uint64_t nth_send, const WorkFault& fault);

  WorkFault Of(uint32_t queue_pair, uint64_t nth_send);
  bool RegistrationFails() { return random_.Chance(plan_.registration_ppm); }

 private:
  WorkFault Draw();

  SimRandom random_;
  FaultPlan plan_;
  std::map<std::pair<uint32_t, uint64_t>, WorkFault> injected_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SIM_FAULTS_H_
