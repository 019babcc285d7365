#ifndef TRYST_RENDEZVOUS_EXECUTOR_H_
#define TRYST_RENDEZVOUS_EXECUTOR_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "base/mutex.h"

namespace tryst {

// Where user callbacks run. Safe from any thread. Work given to it runs exactly once, and must
// not throw where it runs on a thread of the executor: an exception ends the process there.
class Executor {
 public:
  using Work = absl::AnyInvocable<void() &&>;
  virtual ~Executor() = default;
  // Takes `*work`, or leaves it as it is and returns false when there is no room. Never
  // blocks: a thread that must go on keeps the work and tries again.
  [[nodiscard]] virtual bool TryRun(Work* work) = 0;
  // Takes `work`, waiting for room if it must; on a thread of the executor itself,
  // which cannot wait for itself, it runs at once instead.
  virtual void Run(Work work) = 0;
  // Takes `work` without waiting, past its bound if it must. For work that something else
  // bounds: a rendezvous ends a receive with it, so that no Send waits for room, and there is
  // at most one such work for each receive that was accepted. An executor whose Run() waits
  // overrides it; otherwise Run() does.
  virtual void RunWithoutWaiting(Work work) { Run(std::move(work)); }
};

// Runs everything in the call: for callers who promise brevity.
class InlineExecutor final : public Executor {
 public:
  bool TryRun(Work* work) override;
  void Run(Work work) override;
};

// What brings an executor its work (a poller). A thread of the executor turns it while it has
// nothing to run. It runs the work that it finds there itself, which saves waking another thread.
class WorkSource {
 public:
  virtual ~WorkSource() = default;
  // Turns until `wanted`, or until nothing has come for a while. Returns at once if another thread
  // is turning it. Called on one thread at a time, with no lock held.
  virtual void TurnUntil(const std::atomic<bool>& wanted) = 0;
};

// A fixed number of threads over one bounded queue, in order. Allocates nothing once
// built, but for what RunWithoutWaiting() adds to a full queue. The destructor runs what is
// queued and joins.
class ThreadPoolExecutor final : public Executor {
 public:
  // REQUIRES: threads >= 1, max_queued >= 1.
  ThreadPoolExecutor(int threads, size_t max_queued);
  ~ThreadPoolExecutor() override;  // REQUIRES: no sources.
  // From now on threads without work turn `sources`, one thread each. If `sources` is
  // empty, no thread turns a source any more when this returns. REQUIRES: two threads or more;
  // there are no sources yet, or `sources` is empty.
  void SetSources(const std::vector<WorkSource*>& sources);
  bool TryRun(Work* work) override;
  void Run(Work work) override;
  void RunWithoutWaiting(Work work) override;
  size_t queued() const;
  // Waits until all work has run, or until `until`. Returns whether all of it has. REQUIRES: the
  // caller is none of the executor's own threads.
  bool WaitIdle(std::chrono::steady_clock::time_point until);

 private:
  // A source and the thread that turns it.
  struct Turned {
    explicit Turned(WorkSource* source) : source(source) {}
    WorkSource* const source;
    bool turning = false;
    std::thread::id turner;
    std::atomic<bool> wanted{false};  // The thread is to leave: there is work, or no source.
  };

  void Loop(size_t index);
  // `at`: which of them this thread has turned last.
  void TurnSources(size_t* at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Turned* TurnedHere() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool OnOwnThread() const;
  bool Turns() const;
  void CallTurner() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Push(Work work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  std::vector<std::thread> threads_;
  std::vector<std::thread::id> thread_ids_;

  mutable Mutex mu_;
  CondVar not_empty_;
  CondVar not_full_;
  CondVar idle_;
  std::vector<Work> ring_ ABSL_GUARDED_BY(mu_);
  size_t head_ ABSL_GUARDED_BY(mu_) = 0;
  size_t queued_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Work> over_ ABSL_GUARDED_BY(mu_);  // Past the bound; the ring is full then.
  size_t running_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Turned> sources_ ABSL_GUARDED_BY(mu_);
  bool turns_sources_ ABSL_GUARDED_BY(mu_) = false;
  size_t turning_ ABSL_GUARDED_BY(mu_) = 0;  // Threads that turn a source.
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;  // Threads that wait for work.
  CondVar turned_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_EXECUTOR_H_
