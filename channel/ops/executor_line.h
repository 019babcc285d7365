#ifndef TRYST_CHANNEL_OPS_EXECUTOR_LINE_H_
#define TRYST_CHANNEL_OPS_EXECUTOR_LINE_H_

#include <cstdint>
#include <deque>
#include <utility>

#include "channel/poller/poller.h"
#include "rendezvous/executor.h"

namespace tryst {

// Gives tasks to executors, each at once or when its executor has room, because the poller must not
// wait. Poller thread only.
class ExecutorLine final : private PollerTimer {
 public:
  explicit ExecutorLine(Poller* poller) : poller_(poller) {}

  void Run(Executor* executor, Executor::Work work) {
    if (executor->TryRun(&work)) return;
    works_.emplace_back(executor, std::move(work));
    if (!is_set()) poller_->SetTimer(this, poller_->clock().NowNs() + kAgainNs);
  }
  bool empty() const { return works_.empty(); }

 private:
  static constexpr int64_t kAgainNs = 1'000'000;

  void OnTimer() override {
    std::deque<std::pair<Executor*, Executor::Work>> works;
    works.swap(works_);
    for (auto& [executor, work] : works) Run(executor, std::move(work));
  }

  Poller* const poller_;
  std::deque<std::pair<Executor*, Executor::Work>> works_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_EXECUTOR_LINE_H_
