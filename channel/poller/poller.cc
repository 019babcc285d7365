#include "channel/poller/poller.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "rendezvous/delivering.h"

namespace tryst {

class Poller::FnTask final : public PollerTask {
 public:
  explicit FnTask(absl::AnyInvocable<void() &&> fn) : fn_(std::move(fn)) {}
  void RunOnPoller() override {
    std::unique_ptr<FnTask> self(this);
    std::move(fn_)();
  }

 private:
  absl::AnyInvocable<void() &&> fn_;
};

Poller::Poller(const Clock* clock, PollerOptions options)
    : clock_(clock), options_(std::move(options)), spin_(options_.spin_us * 1000) {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  TRYST_CHECK(epoll_fd_ >= 0 && wake_fd_ >= 0) << "no descriptor left for a poller";
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = wake_fd_;
  TRYST_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &event) == 0);
  now_ns_ = clock_->NowNs();
  all_polled_ns_ = seen_ns_ = now_ns_ - kBlindNs;
}

Poller::~Poller() {
  TRYST_CHECK(!thread_.joinable()) << "stop the poller first";
  TRYST_CHECK(sources_.empty());
  // Tasks that were posted too late: closures free themselves, other tasks belong to their owners.
  PollerTask* task = inbox_.exchange(nullptr);
  while (task != nullptr) {
    PollerTask* next = task->next_;
    if (auto* fn = dynamic_cast<FnTask*>(task)) delete fn;
    task = next;
  }
  close(epoll_fd_);
  close(wake_fd_);
}

void Poller::PostToTurn(PollerTask* task) {
  PollerTask* head = inbox_.load(std::memory_order_relaxed);
  do {
    task->next_ = head;
  } while (!inbox_.compare_exchange_weak(head, task, std::memory_order_seq_cst,
                                         std::memory_order_relaxed));
}

void Poller::Post(PollerTask* task) {
  PostToTurn(task);
  // Pairs with Sleep(), which sets asleep_ and then reads the inbox.
  if (asleep_.load(std::memory_order_seq_cst)) Wake();
}

void Poller::PostFn(absl::AnyInvocable<void() &&> fn) { Post(new FnTask(std::move(fn))); }

void Poller::RunAndWait(absl::AnyInvocable<void() &&> fn) {
  TRYST_CHECK(!OnThread());
  Mutex mu;
  CondVar done_cv;
  bool done = false;
  PostFn([&] {
    std::move(fn)();
    MutexLock lock(&mu);
    done = true;
    done_cv.NotifyOne();
  });
  MutexLock lock(&mu);
  while (!done) done_cv.Wait(&mu);
}

void Poller::Wake() {
  const uint64_t one = 1;
  // It fails only when the counter is full, and then the descriptor is readable already.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

void Poller::Start() {
  TRYST_CHECK(!thread_.joinable());
  has_thread_.store(true, std::memory_order_relaxed);
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), options_.name.substr(0, 15).c_str());
  if (options_.cpu < 0) return;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(options_.cpu, &cpus);
  const int error = pthread_setaffinity_np(thread_.native_handle(), sizeof(cpus), &cpus);
  if (error == 0) return;
  TRYST_LOG(Warning) << options_.name << " does not stay on processor " << options_.cpu << ": "
                     << strerror(error);
}

void Poller::Stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_seq_cst);
  Wake();
  thread_.join();
}

// ---- Turns ----

void Poller::Loop() {
  // So that a callback that runs in place does not wait for this very thread.
  const DeliveringScope delivering;
  lending_.BeTheThread();
  int64_t idle_since_ns = 0;
  int64_t yielded_ns = 0;
  bool spinning = false;  // Whether it has spun since idle_since_ns without sleeping.
  now_ns_ = clock_->NowNs();
  for (;;) {
    const bool worked = NextTurn();
    if (lending_.wanted()) {
      lending_.Lend(wake_fd_);
      now_ns_ = clock_->NowNs();
    }
    if (worked) {
      if (spinning) spin_.Paid();
      spinning = false;
      continue;
    }
    if (stopping_.load(std::memory_order_seq_cst) && inbox_.load() == nullptr) return;
    if (!spinning) {
      spinning = true;
      idle_since_ns = yielded_ns = now_ns_;
    }
    if (now_ns_ - yielded_ns >= kYieldNs) {
      // The awaited peer may need this processor. While both threads are runnable, the kernel moves
      // one of them to another processor; while they sleep in turn, it does not.
      std::this_thread::yield();
      yielded_ns = now_ns_ = clock_->NowNs();
    }
    if (now_ns_ - idle_since_ns >= spin_.ns()) {
      spin_.Failed();
      spinning = false;
      Sleep();
    }
  }
}

bool Poller::Turn() {
  if (!has_thread_.load(std::memory_order_relaxed)) lending_.BeTheThread();
  now_ns_ = clock_->NowNs();
  const DeliveringScope delivering;
  return FullTurn();
}

bool Poller::FullTurn() {
  bool worked = false;
  for (PollerSource* source : sources_) worked |= source->Poll();
  worked |= ShortTurn();
  return worked;
}

bool Poller::ShortTurn() {
  bool worked = RunInbox();
  worked |= RunTimers();
  RunFlushes();
  return worked;
}

bool Poller::NextTurn() {
  bool worked = PollInSight();
  if (worked) seen_ns_ = now_ns_;
  // Run what other threads have posted before polling costly sources.
  const PollerTask* const handed = inbox_.load(std::memory_order_acquire);
  worked |= handed != nullptr;
  // Likewise for a task that this turn itself posted, if it is the only one: the next request of a
  // caller that asks for one thing after the other. If there are several, another poll may find
  // more work to send with them.
  const bool lone = just_polled_ && handed != nullptr && handed->next_ == nullptr;
  const int64_t polled_ago_ns = now_ns_ - all_polled_ns_;
  const bool lively = now_ns_ - seen_ns_ < kBlindNs && polled_ago_ns < kBlindNs;
  just_polled_ = !lively && !lone && !(worked && polled_ago_ns < kHandedNs);
  if (just_polled_) {
    all_polled_ns_ = now_ns_;
    worked |= FullTurn();
  } else {
    worked |= ShortTurn();
  }
  now_ns_ = clock_->NowNs();
  return worked;
}

// Spins only briefly, because there may be timers, and sources that cannot be seen cheaply.
bool Poller::PollInSight() {
  constexpr int kGlances = 32;
  for (int i = 0; i < kGlances; ++i) {
    bool sees = false;
    for (PollerSource* source : sources_) {
      const PollerSource::Sight sight = source->Glance();
      if (sight == PollerSource::Sight::kWork && source->Poll()) return true;
      sees |= sight == PollerSource::Sight::kNothing;
    }
    if (!sees || inbox_.load(std::memory_order_relaxed) != nullptr) return false;
  }
  return false;
}

bool Poller::RunInbox() {
  if (inbox_.load(std::memory_order_relaxed) == nullptr) return false;
  PollerTask* newest = inbox_.exchange(nullptr, std::memory_order_acquire);
  PollerTask* oldest = nullptr;
  while (newest != nullptr) {
    PollerTask* next = newest->next_;
    newest->next_ = oldest;
    oldest = newest;
    newest = next;
  }
  while (oldest != nullptr) {
    PollerTask* task = oldest;
    oldest = task->next_;  // Read before the task runs, because it may post itself again.
    ++tasks_run_;
    task->RunOnPoller();
  }
  return true;
}

bool Poller::RunTimers() {
  const int64_t due_ns = timers_.NextNs();
  if (due_ns > now_ns_) return false;
  // Noted before the timers run, since they judge the peers.
  if (now_ns_ - due_ns > kAwayNs) away_[away_count_++ % kMostAway] = {due_ns, now_ns_};
  timers_.RunUntil(now_ns_);
  return true;
}

int64_t Poller::RunningSince(int64_t at_ns) const {
  int64_t running_ns = now_ns_ - at_ns;
  for (const Away& away : away_) {
    if (away.until_ns > at_ns) running_ns -= away.until_ns - std::max(away.from_ns, at_ns);
  }
  return running_ns;
}

void Poller::RunFlushes() {
  // A flush may request another flush, which belongs to the next turn.
  flushing_.swap(flushes_);
  for (PollerFlush*& flush : flushing_) {
    if (flush == nullptr) continue;  // It was removed.
    flush->queued_ = false;
    PollerFlush* const current = flush;
    flush = nullptr;
    current->Flush();
  }
  flushing_.clear();
}

bool Poller::MaySleep() {
  for (PollerSource* source : sources_) source->Arm();
  if (inbox_.load(std::memory_order_seq_cst) != nullptr ||
      stopping_.load(std::memory_order_seq_cst) || !flushes_.empty()) {
    return false;
  }
  // An event that came before the sources were armed is found by this poll, or ends the sleep at
  // once.
  now_ns_ = clock_->NowNs();
  bool worked = false;
  for (PollerSource* source : sources_) worked |= !source->ArmTellsAll() && source->Poll();
  worked |= ShortTurn();
  return !worked;
}

void Poller::Sleep() {
  asleep_.store(true, std::memory_order_seq_cst);
  if (!MaySleep()) {
    asleep_.store(false, std::memory_order_relaxed);
    return;
  }
  int timeout_ms = -1;
  const int64_t next_ns = NextTimerNs();
  sleeps_until_ns_ = next_ns;
  if (next_ns != std::numeric_limits<int64_t>::max()) {
    // Rounded up, because the thread would spin if it woke too early.
    const int64_t wait_ms = (next_ns - clock_->NowNs() + 999'999) / 1'000'000;
    timeout_ms = static_cast<int>(std::clamp<int64_t>(wait_ms, 0, 60'000));
  }
  epoll_event events[16];
  lending_.Set(TurnLending::State::kAsleep);
  const int count = epoll_wait(epoll_fd_, events, 16, timeout_ms);
  lending_.TakeBack();
  asleep_.store(false, std::memory_order_relaxed);
  now_ns_ = clock_->NowNs();
  bool seen = false;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd != wake_fd_) {
      seen |= PollReady(events[i].data.fd);
      continue;
    }
    uint64_t ignored;
    [[maybe_unused]] const ssize_t got = read(wake_fd_, &ignored, sizeof(ignored));
  }
  ShortTurn();
  all_polled_ns_ = now_ns_ = clock_->NowNs();  // The sources that epoll did not name had nothing.
  if (seen) seen_ns_ = now_ns_;
}

// Polls the source with this descriptor. Returns whether it had work that Glance() could have seen.
bool Poller::PollReady(int fd) {
  // Searched for by descriptor, because another thread may have removed it in its turns.
  const auto ready = std::find_if(sources_.begin(), sources_.end(),
                                  [&](PollerSource* source) { return source->event_fd() == fd; });
  return ready != sources_.end() && (*ready)->Poll() &&
         (*ready)->Glance() != PollerSource::Sight::kBlind;
}

void Poller::AddSource(PollerSource* source) {
  sources_.push_back(source);
  if (source->event_fd() < 0) return;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = source->event_fd();
  TRYST_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, source->event_fd(), &event) == 0)
      << strerror(errno);
}

void Poller::RemoveSource(PollerSource* source) {
  auto at = std::find(sources_.begin(), sources_.end(), source);
  TRYST_CHECK(at != sources_.end());
  sources_.erase(at);
  if (source->event_fd() >= 0) epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, source->event_fd(), nullptr);
}

void Poller::FlushThisTurn(PollerFlush* flush) {
  if (flush->queued_) return;
  flush->queued_ = true;
  flushes_.push_back(flush);
}

void Poller::ForgetFlush(PollerFlush* flush) {
  flush->queued_ = false;
  std::replace(flushing_.begin(), flushing_.end(), flush, static_cast<PollerFlush*>(nullptr));
  flushes_.erase(std::remove(flushes_.begin(), flushes_.end(), flush), flushes_.end());
}

}  // namespace tryst
