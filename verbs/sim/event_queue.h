#ifndef TRYST_VERBS_SIM_EVENT_QUEUE_H_
#define TRYST_VERBS_SIM_EVENT_QUEUE_H_

#include <cstdint>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "base/clock.h"
#include "verbs/sim/sim_random.h"

namespace tryst {

enum class SimEventKind : uint8_t {
  kWireFree,           // target: a wire of the fabric.
  kArrival,            // target: a lane of the fabric.
  kDoorbell,           // These: target is a queue pair.
  kRetryTimer,         //
  kReceiverWait,       // The pause after "receiver not ready" is over.
  kLateSend,           // A write of a NIC without order goes on the wire.
  kStopped,            // After Break(): its last byte has landed.
  kSendCompletion,     //
  kReceiveCompletion,  //
  kTask,               // target: a task's place; handled by the queue itself.
};

struct SimEvent {
  int64_t at_ns;
  uint64_t order;  // Among events of one moment: drawn.
  uint64_t check;  // The target's own: says whether it still is the one that was meant.
  uint32_t target;
  SimEventKind kind;
};

// Virtual time, and the events that are to happen in it. The seed draws the order of events of one
// moment, so code that needs an order among them must keep it itself. One thread.
class EventQueue final : public Clock {
 public:
  using TaskId = uint64_t;  // Never 0.

  explicit EventQueue(SimRandom random) : random_(random) {}

  int64_t NowNs() const override { return now_ns_; }

  // A moment in the past means now.
  void Add(int64_t at_ns, SimEventKind kind, uint32_t target, uint64_t check = 0);
  // Calls `task` once at `at_ns`, from RunTask().
  TaskId AddTask(int64_t at_ns, absl::AnyInvocable<void()> task);
  // False when it has run, is running or was cancelled.
  bool CancelTask(TaskId id);

  bool empty() const { return heap_.empty(); }
  // Drops the events that `gone` says nobody waits for any more.
  void RemoveIf(absl::FunctionRef<bool(const SimEvent&)> gone);
  // The moment of the next event; INT64_MAX when there is none.
  int64_t next_ns() const;
  // Takes the next event and moves the clock to it. REQUIRES: there is one.
  SimEvent Pop();
  // The task of a popped kTask event; null when it was cancelled.
  absl::AnyInvocable<void()> TakeTask(const SimEvent& event);

  // Moves the clock with nothing happening meanwhile: what was due happens late, as
  // after a stopped machine.
  void Jump(int64_t ns) { now_ns_ += ns; }
  // Moves the clock to `at_ns` at the earliest. REQUIRES: no event is due before.
  void MoveTo(int64_t at_ns);

 private:
  struct Task {
    absl::AnyInvocable<void()> call;
    uint32_t generation = 1;
  };

  SimRandom random_;
  int64_t now_ns_ = 0;
  uint64_t added_ = 0;
  std::vector<SimEvent> heap_;
  std::vector<Task> tasks_;
  std::vector<uint32_t> free_tasks_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SIM_EVENT_QUEUE_H_
