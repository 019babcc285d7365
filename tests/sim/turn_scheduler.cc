#include "tests/sim/turn_scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tryst {

TurnScheduler::TurnScheduler(SimWorld* world, SimRandom random, const TurnSchedulerOptions& options)
    : world_(world), random_(random), options_(options) {}

TurnScheduler::WorkerId TurnScheduler::Add(std::function<bool()> step) {
  workers_.push_back({std::move(step), 0});
  return workers_.size() - 1;
}

void TurnScheduler::Remove(WorkerId worker) { workers_[worker].step = nullptr; }

void TurnScheduler::Pause(WorkerId worker, int64_t until_ns) {
  workers_[worker].paused_until_ns = until_ns;
}

bool TurnScheduler::Turn(WorkerId id) {
  if (workers_[id].step == nullptr || workers_[id].paused_until_ns > world_->NowNs()) return false;
  if (random_.Chance(options_.pause_ppm)) {
    Pause(id, world_->NowNs() + random_.Between(1, options_.pause_ns_max));
    return false;
  }
  // A copy: the turn may add workers, or remove its own.
  const std::function<bool()> step = workers_[id].step;
  const bool worked = step();
  ++turns_;
  if (options_.turn_ns_max > 0) world_->RunFor(random_.Between(0, options_.turn_ns_max));
  if (after_turn_) after_turn_();
  return worked;
}

bool TurnScheduler::Round() {
  order_.resize(workers_.size());
  for (size_t i = 0; i < order_.size(); ++i) order_[i] = i;
  bool worked = false;
  for (size_t i = order_.size(); i > 0; --i) {
    std::swap(order_[i - 1], order_[random_.Below(i)]);
    worked |= Turn(order_[i - 1]);
  }
  return worked;
}

int64_t TurnScheduler::EarliestPauseNs() const {
  int64_t earliest_ns = std::numeric_limits<int64_t>::max();
  for (const Worker& worker : workers_) {
    const bool pauses = worker.step != nullptr && worker.paused_until_ns > world_->NowNs();
    if (pauses) earliest_ns = std::min(earliest_ns, worker.paused_until_ns);
  }
  return earliest_ns;
}

bool TurnScheduler::RunUntil(const std::function<bool()>& done, int64_t until_ns) {
  while (!done()) {
    if (world_->NowNs() >= until_ns) return false;
    if (Round()) continue;
    const int64_t next_ns = std::min(world_->next_ns(), EarliestPauseNs());
    if (next_ns == std::numeric_limits<int64_t>::max()) return done();
    world_->RunUntil(std::min(next_ns, until_ns));
    if (after_turn_) after_turn_();
  }
  return true;
}

void TurnScheduler::RunFor(int64_t ns) {
  const int64_t until_ns = world_->NowNs() + ns;
  RunUntil([] { return false; }, until_ns);
  if (world_->NowNs() < until_ns) world_->RunUntil(until_ns);
}

}  // namespace tryst
