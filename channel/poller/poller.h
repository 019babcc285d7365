#ifndef TRYST_CHANNEL_POLLER_POLLER_H_
#define TRYST_CHANNEL_POLLER_POLLER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/clock.h"
#include "channel/poller/poller_spin.h"
#include "channel/poller/poller_timers.h"
#include "channel/poller/turn_lending.h"
#include "rendezvous/executor.h"

namespace tryst {

class Poller;

// Something to be run on the poller thread. It is its owner's: Post() takes no memory.
// May be posted again once Run() has been entered, not before.
class PollerTask {
 public:
  virtual ~PollerTask() = default;
  virtual void RunOnPoller() = 0;

 private:
  friend class Poller;
  PollerTask* next_ = nullptr;
};

// Asked at the end of a turn, once however often it called FlushThisTurn(): where a
// channel sends all that the turn gave it with one doorbell.
class PollerFlush {
 public:
  virtual ~PollerFlush() = default;
  virtual void Flush() = 0;

 private:
  friend class Poller;
  bool queued_ = false;
};

// What a poller looks at in every turn: the completion queue of a NIC.
class PollerSource {
 public:
  virtual ~PollerSource() = default;
  // Does a bounded amount of work; true if there was any.
  virtual bool Poll() = 0;
  // What can be seen for the price of a few loads. Between two turns without work a poller
  // that spins looks so again and again, before it polls what cannot be seen so.
  enum class Sight { kBlind, kNothing, kWork };
  virtual Sight Glance() { return Sight::kBlind; }
  // Makes event_fd() readable when there is work. Poll() runs once more before the sleep, unless
  // what has come before makes it readable, too.
  virtual void Arm() = 0;
  virtual bool ArmTellsAll() const { return false; }
  virtual int event_fd() const = 0;  // -1: cannot wake us.
};

struct PollerOptions {
  std::string name = "tryst-poller";
  // How long, at most, a turn without work is repeated before the thread sleeps: less
  // where that seldom finds any (see PollerSpin).
  int64_t spin_us = 50;
  bool keeps_its_thread = false;  // TurnIfAsleep() wakes it instead.
  int cpu = -1;                   // Its thread stays on this processor. -1: on any.
};

// One thread's work: completions, tasks posted by other threads, timers. Every channel,
// operation and queue pair belongs to one poller and is touched by its thread alone.
//
// Either Start() gives it a thread, or one caller turns it with Turn() (the simulator,
// tests). Neither spins for ever: with nothing to do the thread sleeps in the kernel.
//
// A thread of the executor that runs the callbacks may take the turns over for as long as there
// is traffic (TurnUntil; docs/decisions/0023-borrowed-turns.md). Then that thread is the poller
// thread until it leaves, and the poller's own, which looks every kLendNs, takes them back from
// one that stays away in a callback. It is one thread at any time, and what one has written the
// next one sees.
class Poller final : public WorkSource {
 public:
  explicit Poller(const Clock* clock, PollerOptions options = {});
  ~Poller() override;  // REQUIRES: stopped, no source added. Tasks never run are dropped.
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // ---- Any thread ----
  void Post(PollerTask* task);
  // Allocates; for what happens rarely.
  void PostFn(absl::AnyInvocable<void() &&> fn);
  // Runs `fn` on the poller thread and waits. REQUIRES: started; not on the poller thread.
  void RunAndWait(absl::AnyInvocable<void() &&> fn);
  bool OnThread() const { return lending_.thread() == std::this_thread::get_id(); }
  const Clock& clock() const { return *clock_; }

  // Post() that wakes nobody: TurnIfAsleep() must follow, from the same thread.
  void PostToTurn(PollerTask* task);
  // For a thread that has posted so and holds no lock: if the poller's own thread sleeps, becomes
  // the poller thread for as long as there is something to do, but not for long, instead of
  // waking it. So what one thread finds for the poller takes no other thread's wake-up.
  void TurnIfAsleep();

  void Start();
  // Runs what was posted before the call, then ends the thread. Idempotent. REQUIRES: no
  // executor has it as its source.
  void Stop();
  void TurnUntil(const std::atomic<bool>& wanted) override;

  // ---- Poller thread only (without Start(): the thread that calls Turn()) ----
  // One turn: sources, inbox, timers, flushes. True if there was any work.
  bool Turn();
  // When the next timer is due; INT64_MAX: none.
  int64_t NextTimerNs() const { return timers_.NextNs(); }

  void AddSource(PollerSource* source);
  void RemoveSource(PollerSource* source);
  // Moves one already set.
  void SetTimer(PollerTimer* timer, int64_t at_ns) { timers_.Set(timer, at_ns); }
  void CancelTimer(PollerTimer* timer) { timers_.Cancel(timer); }  // No-op when not set.
  void FlushThisTurn(PollerFlush* flush);
  void ForgetFlush(PollerFlush* flush);

  // Tasks run so far: what other threads handed over, or its own posted to itself.
  uint64_t tasks_run() const { return tasks_run_; }

  // The clock as read at the start of this turn, or at the end of the one before: the work
  // of a turn that finds some at once does not wait for the clock.
  int64_t now_ns() const { return now_ns_; }

 private:
  class FnTask;
  // While sources that can be seen at a glance have work, and so long after it, the others,
  // which may cost a system call to look at, are polled so often: an answer that is due in a
  // fraction of a microsecond is not to wait for the end of such a call.
  static constexpr int64_t kBlindNs = 10'000;
  static constexpr int64_t kHandedNs = 2'000;  // The same where only other threads bring work.
  static constexpr int64_t kYieldNs = 5'000;   // How often a thread that spins lets others run.

  static constexpr int kMostTurnsAsleep = 8;  // By TurnIfAsleep(), before it wakes our thread.

  void Loop();
  // A turn that polls the costly sources only when it is time for them.
  bool NextTurn();
  bool FullTurn();
  bool ShortTurn();  // All but the sources.
  bool PollInSight();
  bool RunInbox();
  void RunFlushes();
  void Sleep();
  // Arms the sources and polls once more. False: there was something after all.
  bool MaySleep();
  bool PollReady(int fd);
  void Wake();

  // Constant after construction.
  const Clock* const clock_;
  const PollerOptions options_;
  int epoll_fd_ = -1;
  int wake_fd_ = -1;

  // Any thread.
  std::atomic<PollerTask*> inbox_{nullptr};  // Newest first.
  std::atomic<bool> asleep_{false};
  std::atomic<bool> stopping_{false};
  TurnLending lending_;
  std::atomic<bool> has_thread_{false};  // Set before thread_, which Start() assigns as it runs.
  std::thread thread_;

  // Poller thread only.
  std::vector<PollerSource*> sources_;
  PollerTimers timers_;
  std::vector<PollerFlush*> flushes_;
  std::vector<PollerFlush*> flushing_;
  PollerSpin spin_;
  int64_t now_ns_ = 0;
  int64_t all_polled_ns_ = 0;
  bool just_polled_ = false;  // All of them, in the last turn.
  int64_t sleeps_until_ns_ = 0;
  int64_t seen_ns_ = 0;  // When there was work that could be seen.
  uint64_t tasks_run_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_POLLER_POLLER_H_
