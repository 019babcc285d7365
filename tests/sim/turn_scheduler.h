#ifndef TRYST_TESTS_SIM_TURN_SCHEDULER_H_
#define TRYST_TESTS_SIM_TURN_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "verbs/sim/sim_random.h"
#include "verbs/sim/sim_world.h"

namespace tryst {

struct TurnSchedulerOptions {
  int64_t turn_ns_max = 500;  // What a turn costs, drawn.
  // Of a million chances to take a turn; the worker misses so many and then this long.
  uint32_t pause_ppm = 0;
  int64_t pause_ns_max = 5'000'000;
};

// Lets many workers take turns on one thread, in an order drawn from a seed, while a
// SimWorld moves on beneath them. When nobody has anything to do, time jumps to the
// next event.
class TurnScheduler {
 public:
  using WorkerId = size_t;

  TurnScheduler(SimWorld* world, SimRandom random, const TurnSchedulerOptions& options = {});

  // `step` takes one turn and says whether there was anything to do.
  WorkerId Add(std::function<bool()> step);
  void Remove(WorkerId worker);  // Also from within a turn.
  // It takes no turn before: the machine has other things to do.
  void Pause(WorkerId worker, int64_t until_ns);
  // Called after every turn and every event: where the checkers look.
  void set_after_turn(std::function<void()> check) { after_turn_ = std::move(check); }

  // Goes on until `done` or `until_ns`. False: it never was. Ends at once when nothing
  // is left that could bring it about.
  bool RunUntil(const std::function<bool()>& done, int64_t until_ns);
  void RunFor(int64_t ns);

  uint64_t turns() const { return turns_; }

 private:
  struct Worker {
    std::function<bool()> step;  // Null: removed.
    int64_t paused_until_ns = 0;
  };

  // Every worker once, in an order of its own; true if anybody had something to do.
  bool Round();
  bool Turn(WorkerId id);
  int64_t EarliestPauseNs() const;  // INT64_MAX: nobody pauses.

  SimWorld* const world_;
  SimRandom random_;
  const TurnSchedulerOptions options_;
  std::vector<Worker> workers_;
  std::vector<WorkerId> order_;
  std::function<void()> after_turn_;
  uint64_t turns_ = 0;
};

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_TURN_SCHEDULER_H_
