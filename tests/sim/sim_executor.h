#ifndef TRYST_TESTS_SIM_SIM_EXECUTOR_H_
#define TRYST_TESTS_SIM_SIM_EXECUTOR_H_

#include <cstddef>
#include <utility>

#include "rendezvous/executor.h"
#include "tests/doubles/sim_nic/sim_random.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {

// Runs work some time later, drawn, each on its own: the order in which it was given
// says nothing, as with threads. With a bound, so that being full is ordinary.
class SimExecutor final : public Executor {
 public:
  SimExecutor(SimWorld* world, SimRandom random, int64_t delay_ns_max, size_t max_queued)
      : world_(world), random_(random), delay_ns_max_(delay_ns_max), max_queued_(max_queued) {}

  bool TryRun(Work* work) override {
    if (queued_ >= max_queued_) return false;
    ++queued_;
    world_->At(world_->NowNs() + random_.Between(0, delay_ns_max_),
               [this, work = std::move(*work)]() mutable {
                 --queued_;
                 std::move(work)();
               });
    return true;
  }
  // Nobody can be made to wait on one thread: with no room it runs at once.
  void Run(Work work) override {
    if (!TryRun(&work)) std::move(work)();
  }

 private:
  SimWorld* const world_;
  SimRandom random_;
  const int64_t delay_ns_max_;
  const size_t max_queued_;
  size_t queued_ = 0;
};

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_SIM_EXECUTOR_H_
