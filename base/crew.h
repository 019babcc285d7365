#ifndef TRYST_BASE_CREW_H_
#define TRYST_BASE_CREW_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace tryst {

// Something that a helper does for a poller, which goes on meanwhile.
class CrewTask {
 public:
  // On a helper's thread. The crew does not touch the task afterwards.
  virtual void RunOnCrew() = 0;

 protected:
  ~CrewTask() = default;
};

// Helpers: threads that move large tensors for pollers, on cores that have nothing else to do. A
// thread starts when there is more work than the others can take at once, and sleeps when it has
// found none for a while. Helpers that the system takes off their cores for others have none to
// spare, and cost those others more than they bring: then the crew rests. Thread-safe.
class Crew {
 public:
  // How often the calling thread was taken off its core for another.
  using TimesTakenOff = int64_t (*)();
  static int64_t SystemSays();
  static int64_t Never() { return 0; }  // For tests on few processors.

  // `clock` outlives the crew; null: the system's.
  explicit Crew(int most_threads, TimesTakenOff times_taken_off = &SystemSays,
                const Clock* clock = nullptr)
      : most_threads_(static_cast<size_t>(most_threads)),
        times_taken_off_(times_taken_off),
        clock_(clock == nullptr ? system_clock_ : *clock) {}
  ~Crew();  // REQUIRES: no task is left.
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  size_t most_threads() const { return most_threads_; }
  bool helps() const;  // There are helpers, and the crew does not rest.
  size_t threads() {   // That have started.
    MutexLock lock(&mu_);
    return threads_.size();
  }

  // Calls `work` for each part of [0, bytes), on this thread and on the helpers that come; returns
  // when all parts are done. A helper that gets no core costs nothing, unless it loses it in the
  // middle of a part.
  using Work = absl::FunctionRef<void(uint64_t begin, uint64_t bytes)>;
  void Share(uint64_t bytes, uint64_t part_bytes, Work work);

  // Runs it on a helper; in the call if none could be started. REQUIRES: most_threads() > 0.
  void Post(CrewTask* task);
  // True: no helper had begun, and none will.
  bool TakeBack(CrewTask* task);

 private:
  struct Shared {
    Work work;
    uint64_t bytes;
    uint64_t part_bytes;
    uint64_t parts;
    uint64_t next = 0;              // Guarded by mu_.
    std::atomic<uint64_t> done{0};  // The last access of a helper.
  };

  void Help();
  bool TakeSome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DoNextPart(Shared* shared) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool SpinForWork() const;
  void NoteTakenOff(int64_t times) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CallHelpers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogTrouble();
  void SetWaiting(uint64_t waiting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    waiting_.store(waiting, std::memory_order_relaxed);
  }
  uint64_t waiting() const { return waiting_.load(std::memory_order_relaxed); }

  const size_t most_threads_;
  const TimesTakenOff times_taken_off_;
  const SteadyClock system_clock_;
  const Clock& clock_;
  std::atomic<int64_t> rests_until_ns_{0};
  Mutex mu_;
  CondVar called_;
  std::deque<CrewTask*> tasks_ ABSL_GUARDED_BY(mu_);
  std::deque<Shared*> shared_ ABSL_GUARDED_BY(mu_);  // Those with parts that nobody has taken.
  std::atomic<uint64_t> waiting_{0};                 // Tasks and parts that nobody has taken.
  size_t spinning_ ABSL_GUARDED_BY(mu_) = 0;         // Threads without work that do not sleep.
  size_t asleep_ ABSL_GUARDED_BY(mu_) = 0;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool lacks_threads_ ABSL_GUARDED_BY(mu_) = false;  // The last one could not be started.
  std::string trouble_ ABSL_GUARDED_BY(mu_);         // To be logged.
  std::atomic<bool> has_trouble_{false};
  int64_t counted_since_ns_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t taken_off_ ABSL_GUARDED_BY(mu_) = 0;  // Since then, all helpers together.
  int64_t rest_ns_ ABSL_GUARDED_BY(mu_) = 0;    // The last rest's.
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_BASE_CREW_H_
