#ifndef TRYST_PLUGINS_NCCL_WORKER_H_
#define TRYST_PLUGINS_NCCL_WORKER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "plugins/nccl/lane.h"
#include "verbs/nic.h"

namespace tryst::nccl {

// A thread that polls lanes of any comm, beside NCCL's own thread, because the software NIC's bytes
// move only on threads that poll. Sleeps when there is nothing to move.
class Worker {
 public:
  // kResourceExhausted: no thread can be started.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(int64_t spin_us, const Clock* clock);
  ~Worker();  // REQUIRES: all of its lanes are gone.

  // Runs `task` on the thread soon. For setting up and closing, not for data.
  void Run(std::function<void()> task);
  // Like Run(), and returns after the task has run.
  void RunAndWait(const std::function<void()>& task);
  // Tells that `lane`, one of this worker's, was offered something. Takes no lock.
  void Ring(Lane* lane);

  // This thread's queue for `nic`; the first call makes it.
  absl::StatusOr<CompletionQueue*> QueueFor(Nic* nic);

 private:
  struct Queue {
    Nic* nic = nullptr;
    std::unique_ptr<CompletionQueue> completions;
  };

  Worker(int64_t spin_us, const Clock* clock);
  void Loop();
  bool TakeTurn();
  bool TakeRung();
  bool RunTasks();
  bool NothingToDo();
  void Sleep();
  void Wake();

  const int64_t spin_ns_;
  const Clock* const clock_;
  int wake_fd_ = -1;

  std::atomic<Lane*> rung_{nullptr};
  std::atomic<bool> asleep_{false};
  std::atomic<bool> has_tasks_{false};
  std::atomic<bool> stop_{false};
  Mutex mu_;
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);

  std::vector<Queue> queues_;  // Only the worker's thread uses it.
  std::thread thread_;
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_WORKER_H_
