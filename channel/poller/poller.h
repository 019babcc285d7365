#ifndef TRYST_CHANNEL_POLLER_POLLER_H_
#define TRYST_CHANNEL_POLLER_POLLER_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/clock.h"
#include "channel/poller/poller_spin.h"
#include "channel/poller/poller_timers.h"
#include "channel/poller/turn_lending.h"
#include "rendezvous/executor.h"
#include "rendezvous/waiter.h"

namespace tryst {

class Poller;

// A task that runs on the poller thread. Its owner keeps it, so Post() allocates nothing. It may be
// posted again once Run() has begun, not before.
class PollerTask {
 public:
  virtual ~PollerTask() = default;
  virtual void RunOnPoller() = 0;

 private:
  friend class Poller;
  PollerTask* next_ = nullptr;
};

// Called at the end of a turn, once for any number of FlushThisTurn() calls: there a channel sends
// everything from the turn with one doorbell.
class PollerFlush {
 public:
  virtual ~PollerFlush() = default;
  virtual void Flush() = 0;

 private:
  friend class Poller;
  bool queued_ = false;
};

// Something that a poller polls in every turn: the completion queue of a NIC.
class PollerSource {
 public:
  virtual ~PollerSource() = default;
  // Does a bounded amount of work; true: there was some.
  virtual bool Poll() = 0;
  // Looks for work with a few loads only. A spinning poller glances often between two turns without
  // work, before it polls the sources that cannot be seen in this way.
  enum class Sight { kBlind, kNothing, kWork };
  virtual Sight Glance() { return Sight::kBlind; }
  // Makes event_fd() readable when work arrives. Poll() runs once more before the thread sleeps.
  // With ArmTellsAll() it need not: work that arrived before also makes event_fd() readable.
  virtual void Arm() = 0;
  virtual bool ArmTellsAll() const { return false; }
  virtual int event_fd() const = 0;  // -1: it cannot wake us.
};

struct PollerOptions {
  std::string name = "tryst-poller";
  // The longest time for which turns without work are repeated before the thread sleeps. It is
  // shortened where spinning seldom finds work (PollerSpin).
  int64_t spin_us = 50;
  // No other thread borrows the turns: TurnIfAsleep() wakes the thread, and turns() is null.
  bool keeps_its_thread = false;
  int cpu = -1;  // The processor to which its thread is bound; -1: any.
};

// One thread's work: completions, tasks that other threads posted, timers. Every channel, operation
// and queue pair belongs to one poller, and only its thread touches them.
//
// Either Start() gives it a thread, or one caller turns it with Turn() (the simulator, tests). With
// nothing to do the thread sleeps in the kernel after a bounded spin.
//
// A thread of the callbacks' executor may take over the turns while there is traffic (TurnUntil;
// docs/decisions/0023-borrowed-turns.md), and so may a thread that waits for a tensor (turns();
// docs/decisions/0062-waiting-threads-turn.md). It is the poller thread until it leaves. The
// poller's own thread looks every kLendNs, and takes the turns back from a thread that stays away.
// There is one poller thread at any time, and each sees what the one before has written.
class Poller final : public WorkSource {
 public:
  explicit Poller(const Clock* clock, PollerOptions options = {});
  // REQUIRES: it has stopped, and no source is added. Tasks that never ran are dropped.
  ~Poller() override;
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // ---- Any thread ----
  void Post(PollerTask* task);
  // Allocates, so use it only for rare events.
  void PostFn(absl::AnyInvocable<void() &&> fn);
  // Runs `fn` on the poller thread, and waits. REQUIRES: it was started; the caller is not on the
  // poller thread.
  void RunAndWait(absl::AnyInvocable<void() &&> fn);
  bool OnThread() const { return lending_.thread() == std::this_thread::get_id(); }
  // The poller thread, or no thread, for those that outlive the poller and ask what OnThread()
  // says.
  std::shared_ptr<const std::atomic<std::thread::id>> shared_thread() const {
    return lending_.shared_thread();
  }
  const Clock& clock() const { return *clock_; }

  // Posts without waking the poller: the same thread must then call TurnIfAsleep().
  void PostToTurn(PollerTask* task);
  // Call it after PostToTurn(), with no lock held. If the poller's own thread sleeps, the caller
  // becomes the poller thread while there is work, for a short time only, and the other thread need
  // not be woken.
  // `sources_have_work`: also without a task, as a source will find something when it is polled.
  void TurnIfAsleep(bool sources_have_work = false);

  void Start();
  // Runs the tasks posted before the call, then ends the thread. Idempotent. REQUIRES: no executor
  // has it as its source.
  void Stop();
  void TurnUntil(const std::atomic<bool>& wanted) override;
  // For threads that wait for what this poller brings; null: they cannot have the turns.
  std::shared_ptr<Turns> turns() const;

  // ---- Poller thread only (without Start(): the thread that calls Turn()) ----
  // One turn: sources, inbox, timers, flushes. True if there was any work.
  bool Turn();
  // When the next timer is due; INT64_MAX: none is set.
  int64_t NextTimerNs() const { return timers_.NextNs(); }

  void AddSource(PollerSource* source);
  void RemoveSource(PollerSource* source);
  // Moves a timer that is already set.
  void SetTimer(PollerTimer* timer, int64_t at_ns) { timers_.Set(timer, std::max(at_ns, now_ns_)); }
  void CancelTimer(PollerTimer* timer) { timers_.Cancel(timer); }  // Does nothing if it is not set.
  void FlushThisTurn(PollerFlush* flush) {
    if (!std::exchange(flush->queued_, true)) flushes_.push_back(flush);
  }
  void ForgetFlush(PollerFlush* flush);

  // Many objects were freed at once, so the heap can give memory back to the system. That is slow,
  // so another thread does it, which reads bursts_over(). Any thread may read it.
  static constexpr size_t kLargeBurst = 16384;
  void NoteBurstOver(size_t objects) {
    if (objects >= kLargeBurst) bursts_over_.fetch_add(1, std::memory_order_relaxed);
  }
  uint64_t bursts_over() const { return bursts_over_.load(std::memory_order_relaxed); }

  // How many tasks have run, from other threads and its own.
  uint64_t tasks_run() const { return tasks_run_; }

  // The clock as it was read at the start of this turn, or at the end of the one before: a turn
  // that finds work at once does not read the clock first.
  int64_t now_ns() const { return now_ns_; }

  // How long this poller has been running since then: now_ns() - at_ns, less the times for which it
  // was away. It was away if its first timer came late by more than kAwayNs: the process or its
  // machine was stopped, or a callback kept the thread. Meanwhile it could not hear any peer, so a
  // peer's silence is measured by this. Who waits long sets a timer a few times on the way, since
  // nothing else shows that it is away. The last kMostAway absences are remembered.
  int64_t RunningSince(int64_t at_ns) const;

 private:
  class FnTask;
  class WaitersTurns;
  // Whom Post() must wake.
  enum class Sleeper : uint8_t {
    kNobody,   // The thread with the turns is awake, and looks into the inbox.
    kInEpoll,  // The poller's own thread or a waiting one, asleep until wake_fd_ or a source tells.
    kWatcher,  // Nobody has the turns, and the poller's own thread looks after them (kLeft).
  };
  // Turns that one thread has taken without work, one after the other.
  struct Idling {
    bool spins = false;
    int64_t since_ns = 0;
    int64_t yielded_ns = 0;
  };
  // How often the costly sources, which may need a system call, are polled while sources that can
  // be seen with a glance have work, and for as long afterwards. So an answer that is due in less
  // than a microsecond does not wait for a system call.
  static constexpr int64_t kBlindNs = 10'000;
  static constexpr int64_t kHandedNs = 2'000;  // kBlindNs where only other threads bring work.
  static constexpr int64_t kAwayNs = 250'000'000;
  static constexpr size_t kMostAway = 8;
  struct Away {
    int64_t from_ns = 0;
    int64_t until_ns = 0;
  };
  static constexpr int64_t kYieldNs = 5'000;  // How often a spinning thread lets others run.

  // How many turns a borrower takes in the attempt to leave before it wakes our thread.
  static constexpr int kMostTurnsAsleep = 8;
  // A thread that waits again so soon after its last wait will soon do so once more.
  static constexpr int64_t kSoonNs = 100'000;
  static constexpr int64_t kNapNs = 100'000'000;

  void Loop();
  // A turn that polls the costly sources only when their time has come.
  bool NextTurn();
  bool FullTurn();
  bool ShortTurn();  // Everything but the sources.
  bool PollInSight();
  bool RunInbox();
  bool RunTimers();
  void RunFlushes();
  // After each turn: whether further turns without work no longer pay.
  bool SpunEnough(bool worked, Idling* idling);
  void Sleep();
  // The poller's own thread, while it does not have the turns; returns when it has them. If nobody
  // has them it sleeps until `until_ns`, until a source has work, or until it is called.
  void Rest(int64_t until_ns);
  // Arms the sources and polls once more. False: there was work after all.
  bool MaySleep();
  // Sleeps until `until_ns` or until a source has work, which it polls. `waiter`: the caller dozes
  // for it.
  void SleepInEpoll(int64_t until_ns, Waiter* waiter);
  bool PollReady(int fd);
  void Wake();     // Whoever sleeps in epoll.
  void WakeOwn();  // The poller's own thread, wherever it sleeps.
  void WakeSleeper(Sleeper sleeper);
  // Whether events wake the poller's own thread.
  void SetGate(bool open);

  // A thread that waits for a tensor.
  void MakeTurns();
  void CloseTurns();  // Returns when no thread that waits uses the poller any more.
  bool BorrowForWaiter();
  void TurnForWaiter(Waiter* waiter, int64_t until_ns) noexcept;
  void Doze(Waiter* waiter, int64_t until_ns);
  void LeaveTurns();

  // Constant after construction.
  const Clock* const clock_;
  const PollerOptions options_;
  int epoll_fd_ = -1;  // Has the sources and wake_fd_. Whoever sleeps for all waits for it.
  int wake_fd_ = -1;
  // Has own_fd_ and, while the gate is open, epoll_fd_. The poller's own thread waits for it, and
  // is left asleep while a thread that waits for a tensor sleeps for all.
  int own_epoll_fd_ = -1;
  int own_fd_ = -1;
  std::shared_ptr<WaitersTurns> waiters_;

  // Any thread.
  std::atomic<PollerTask*> inbox_{nullptr};  // Newest first.
  std::atomic<Sleeper> asleep_{Sleeper::kNobody};
  std::atomic<bool> stopping_{false};
  TurnLending lending_;
  std::atomic<bool> watching_{false};     // Our own thread looks every kLendNs.
  std::atomic<int64_t> own_until_ns_{0};  // When our own thread, asleep, wakes by itself.
  std::atomic<uint64_t> bursts_over_{0};
  // Set before thread_, which Start() assigns while the new thread already runs.
  std::atomic<bool> has_thread_{false};
  std::thread thread_;

  // Poller thread only.
  std::vector<PollerSource*> sources_;
  PollerTimers timers_;
  std::vector<PollerFlush*> flushes_;
  std::vector<PollerFlush*> flushing_;
  PollerSpin spin_;
  int64_t now_ns_ = 0;
  int64_t all_polled_ns_ = 0;
  bool just_polled_ = false;  // The last turn polled all of them.
  bool gate_open_ = true;
  int64_t left_ns_ = 0;  // When a thread last had the tensor that it waited for.
  int64_t seen_ns_ = 0;  // When a glance last saw work.
  uint64_t tasks_run_ = 0;
  std::array<Away, kMostAway> away_;
  size_t away_count_ = 0;  // All that there were; the last ones are kept.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_POLLER_POLLER_H_
