#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_FAULTS_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_FAULTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "tests/doubles/sim_nic/sim_random.h"
#include "verbs/nic.h"

namespace tryst {

// A moment in the life of one send work. The requester posted it; the responder is its peer.
enum class FaultPoint : uint8_t {
  kTaken,       // It was taken from the send queue; nothing has been sent.
  kHalfSent,    // Its first chunk is on the wire.
  kSent,        // All of it is on the wire.
  kArrived,     // Its first chunk has arrived, but no byte of it has landed.
  kHalfLanded,  // Its first chunk has landed.
  kLanded,      // All of it has landed; no receive has completed, nothing is acknowledged.
  // The completion of its receive can be polled; if it has none, it is acknowledged.
  kReceived,
  kAcknowledged,  // The requester knows it; its completion is not under way yet.
  kCompleted,     // The requester's completion can be polled.
};
inline constexpr int kFaultPointCount = static_cast<int>(FaultPoint::kCompleted) + 1;

enum class FaultAction : uint8_t {
  kNone,
  kBreakRequester,  // Breaks its queue pair at the point.
  kBreakResponder,
  kFail,         // The work ends with `status` from the point on. kTaken to kAcknowledged.
  kFailReceive,  // The receive that it takes ends with `status`. kLanded.
  // A completion: the requester's at kCompleted, the responder's at kReceived.
  kDelay,        // By delay_ns. Later completions of its queue pair wait behind it.
  kLose,         // Until the queue pair breaks; then it comes back with kFlushed.
  kLoseForEver,  // The queue pair never drains. Destroying it still ends the work.
  kDuplicate,    // Comes a second time, delay_ns later.
  kFlip,         // Flips one bit of its first chunk, before it lands. kArrived.
};
inline constexpr int kFaultActionCount = static_cast<int>(FaultAction::kFlip) + 1;

// What has gone wrong, for counts.
enum class FaultKind : uint8_t {
  kBreak,
  kFail,
  kDelay,
  kLose,
  kLoseForEver,
  kDuplicate,
  kFlip,
  kRegistration,
  kPort,
  kAddress,
  kSilence,
  kSlowLink,
  kLossyLink,
  kDevice,
  kOverrun,
  kJump,
  kKill,
};
inline constexpr size_t kFaultKindCount = static_cast<size_t>(FaultKind::kKill) + 1;
FaultKind KindOf(FaultAction action);  // REQUIRES: not kNone.

struct WorkFault {
  FaultAction action = FaultAction::kNone;
  FaultPoint point = FaultPoint::kTaken;
  CompletionStatus status = CompletionStatus::kGeneral;
  int64_t delay_ns = 0;

  bool At(FaultPoint where) const { return action != FaultAction::kNone && point == where; }
};

// How much goes wrong without a request, drawn from the seed. All zero: nothing.
struct FaultPlan {
  // This many works in a million break the queue pair. Point, side and status are drawn.
  uint32_t break_ppm = 0;
  uint32_t fail_ppm = 0;
  uint32_t delay_ppm = 0;
  uint32_t lose_ppm = 0;
  uint32_t lose_for_ever_ppm = 0;
  uint32_t duplicate_ppm = 0;
  uint32_t flip_ppm = 0;  // Only works that may_flip accepts; null: all.
  std::function<bool(SendOp op, uint32_t immediate)> may_flip;
  int64_t delay_ns_max = 5'000'000;
  // This many registrations in a million fail.
  uint32_t registration_ppm = 0;
  // The mean time between two events of the kind, anywhere; 0: never.
  int64_t port_flap_ns = 0;
  int64_t address_change_ns = 0;
  int64_t silence_ns = 0;     // A NIC's packets vanish, both ways.
  int64_t slow_link_ns = 0;   // One link gets a thousandth of its bandwidth.
  int64_t lossy_link_ns = 0;  // One link loses one packet in ten.
  int64_t device_fatal_ns = 0;
  int64_t overrun_ns = 0;  // A completion queue overruns.
  int64_t jump_ns = 0;     // The clock jumps; everything due meanwhile is late.
  // How long, at most, a port, a peer or a link stays so, and how far the clock jumps.
  int64_t outage_ns_max = 20'000'000;
};

// Decides what happens to each work: what a test asked for, otherwise what the plan draws.
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

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_FAULTS_H_
