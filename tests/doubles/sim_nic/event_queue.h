#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_EVENT_QUEUE_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_EVENT_QUEUE_H_

#include <cstdint>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "base/clock.h"
#include "tests/doubles/sim_nic/sim_random.h"

namespace tryst {

enum class SimEventKind : uint8_t {
  kWireFree,           // target: a wire of the fabric.
  kArrival,            // target: a lane of the fabric.
  kDoorbell,           // This and the following: target is a queue pair.
  kRetryTimer,         //
  kReceiverWait,       // The pause after "receiver not ready" is over.
  kLateSend,           // A NIC without order puts a delayed write on the wire.
  kStopped,            // After Break(): the last byte has landed.
  kSendCompletion,     //
  kReceiveCompletion,  //
  kTask,               // target: a task's slot. The queue itself handles it.
};

struct SimEvent {
  int64_t at_ns;
  uint64_t order;  // Drawn, for events of one moment.
  uint64_t check;  // Tells the target whether it is still the one that was meant.
  uint32_t target;
  SimEventKind kind;
};

// Virtual time, and its events. The seed draws the order of events of one moment, so code that
// needs an order among them must keep it itself. Used by one thread.
class EventQueue final : public Clock {
 public:
  using TaskId = uint64_t;  // Never 0.

  explicit EventQueue(SimRandom random) : random_(random) {}

  int64_t NowNs() const override { return now_ns_; }

  // A moment in the past counts as now.
  void Add(int64_t at_ns, SimEventKind kind, uint32_t target, uint64_t check = 0);
  // Calls `task` once at `at_ns`, from RunTask().
  TaskId AddTask(int64_t at_ns, absl::AnyInvocable<void()> task);
  // False: it has run, is running, or was cancelled.
  bool CancelTask(TaskId id);

  bool empty() const { return heap_.empty(); }
  // Drops the events for which `gone` returns true: nothing waits for them any more.
  void RemoveIf(absl::FunctionRef<bool(const SimEvent&)> gone);
  // The moment of the next event; INT64_MAX: there is none.
  int64_t next_ns() const;
  // Takes the next event and moves the clock to it. REQUIRES: there is one.
  SimEvent Pop();
  // The task of a popped kTask event; null: it was cancelled.
  absl::AnyInvocable<void()> TakeTask(const SimEvent& event);

  // Moves the clock without running events: those that were due run late, as after a machine was
  // stopped.
  void Jump(int64_t ns) { now_ns_ += ns; }
  // Moves the clock to `at_ns`, if that is later. REQUIRES: no event is due before.
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

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_EVENT_QUEUE_H_
