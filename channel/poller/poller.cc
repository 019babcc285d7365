#include "channel/poller/poller.h"

#include <poll.h>
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

namespace {

bool Watch(int epoll_fd, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

void Write(int event_fd) {
  const uint64_t one = 1;
  // It fails only when the counter is full, and then the descriptor is readable already.
  [[maybe_unused]] const ssize_t written = write(event_fd, &one, sizeof(one));
}

void Read(int event_fd) {
  uint64_t ignored;
  [[maybe_unused]] const ssize_t got = read(event_fd, &ignored, sizeof(ignored));
}

// For epoll_wait(). Rounded up, because a thread would spin if it woke too early.
int MsUntil(int64_t until_ns, const Clock& clock) {
  if (until_ns == std::numeric_limits<int64_t>::max()) return -1;
  const int64_t left_ns = until_ns - clock.NowNs();
  return static_cast<int>(std::clamp<int64_t>((left_ns + 999'999) / 1'000'000, 0, 60'000));
}

}  // namespace

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
  own_epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  own_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  TRYST_CHECK(epoll_fd_ >= 0 && own_epoll_fd_ >= 0 && wake_fd_ >= 0 && own_fd_ >= 0)
      << "no descriptor left for a poller";
  TRYST_CHECK(Watch(epoll_fd_, wake_fd_) && Watch(own_epoll_fd_, epoll_fd_) &&
              Watch(own_epoll_fd_, own_fd_));
  now_ns_ = clock_->NowNs();
  all_polled_ns_ = seen_ns_ = now_ns_ - kBlindNs;
  // How many flushes meet in one turn depends on the times at which work arrives. Few links have
  // room for theirs from the start, so that none of their turns allocates.
  constexpr size_t kFlushes = 16;
  flushes_.reserve(kFlushes);
  flushing_.reserve(kFlushes);
  MakeTurns();
}

Poller::~Poller() {
  TRYST_CHECK(!thread_.joinable()) << "stop the poller first";
  TRYST_CHECK(sources_.empty());
  CloseTurns();
  // Tasks that were posted too late: closures free themselves, other tasks belong to their owners.
  PollerTask* task = inbox_.exchange(nullptr);
  while (task != nullptr) {
    PollerTask* next = task->next_;
    if (auto* fn = dynamic_cast<FnTask*>(task)) delete fn;
    task = next;
  }
  close(own_epoll_fd_);
  close(epoll_fd_);
  close(own_fd_);
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
  WakeSleeper(asleep_.load(std::memory_order_seq_cst));
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

void Poller::Wake() { Write(wake_fd_); }

void Poller::WakeOwn() { Write(own_fd_); }

void Poller::WakeSleeper(Sleeper sleeper) {
  if (sleeper == Sleeper::kInEpoll) Wake();
  if (sleeper == Sleeper::kWatcher) WakeOwn();
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
  TRYST_LOG(Warning) << options_.name << " cannot be kept on processor " << options_.cpu << ": "
                     << strerror(error);
}

void Poller::Stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_seq_cst);
  WakeOwn();
  Wake();
  thread_.join();
}

// ---- Turns ----

void Poller::Loop() {
  // So that a callback that runs in place does not wait for this very thread.
  const DeliveringScope delivering;
  lending_.BeTheThread();
  Idling idling;
  now_ns_ = clock_->NowNs();
  for (;;) {
    const bool worked = NextTurn();
    if (lending_.wanted()) {
      lending_.Lend();
      Rest(std::numeric_limits<int64_t>::max());
      now_ns_ = clock_->NowNs();
    }
    if (!worked && stopping_.load(std::memory_order_seq_cst) && inbox_.load() == nullptr) return;
    if (SpunEnough(worked, &idling)) Sleep();
  }
}

bool Poller::SpunEnough(bool worked, Idling* idling) {
  if (worked) {
    if (idling->spins) spin_.Paid();
    idling->spins = false;
    return false;
  }
  if (!idling->spins) {
    idling->spins = true;
    idling->since_ns = idling->yielded_ns = now_ns_;
  }
  if (now_ns_ - idling->yielded_ns >= kYieldNs) {
    // The awaited peer may need this processor. While both threads are runnable, the kernel moves
    // one of them to another processor; while they sleep in turn, it does not.
    std::this_thread::yield();
    idling->yielded_ns = now_ns_ = clock_->NowNs();
  }
  if (now_ns_ - idling->since_ns < spin_.ns()) return false;
  spin_.Failed();
  idling->spins = false;
  return true;
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
  if (flushes_.empty()) return;
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
  asleep_.store(Sleeper::kInEpoll, std::memory_order_seq_cst);
  if (!MaySleep()) {
    asleep_.store(Sleeper::kNobody, std::memory_order_relaxed);
    return;
  }
  SetGate(true);
  const int64_t until_ns = NextTimerNs();
  lending_.Set(TurnLending::State::kAsleep);
  Rest(until_ns);
  SleepInEpoll(0, nullptr);
}

void Poller::SleepInEpoll(int64_t until_ns, Waiter* waiter) {
  epoll_event events[16];
  const int count = epoll_wait(epoll_fd_, events, 16, MsUntil(until_ns, *clock_));
  if (waiter != nullptr) {
    lending_.WakeFromDoze();
    waiter->WakeUp();
  }
  asleep_.store(Sleeper::kNobody, std::memory_order_relaxed);
  now_ns_ = clock_->NowNs();
  bool seen = false;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == wake_fd_) {
      Read(wake_fd_);
    } else {
      seen |= PollReady(events[i].data.fd);
    }
  }
  ShortTurn();
  all_polled_ns_ = now_ns_ = clock_->NowNs();  // The sources that epoll did not name had nothing.
  if (seen) seen_ns_ = now_ns_;
}

void Poller::Rest(int64_t until_ns) {
  using State = TurnLending::State;
  uint64_t before = 0;
  bool called = false;
  for (bool slept = false;; slept = true) {
    const uint64_t word = lending_.word();
    const State state = TurnLending::StateOf(word);
    // A borrower that stays away is in a callback, or in its user's code, and others must not wait
    // for that.
    const bool stays_away = (state == State::kAway || state == State::kLeft) && word == before;
    if (state == State::kReturned || stays_away || (state == State::kLeft && called) ||
        (state == State::kAsleep && slept)) {
      if (lending_.Take(word)) break;
      continue;
    }
    before = word;
    called = false;
    if (state != State::kAsleep && state != State::kDozing) {
      watching_.store(true, std::memory_order_seq_cst);
      pollfd own{own_fd_, POLLIN, 0};
      const timespec pause{0, TurnLending::kLendNs};
      called = ppoll(&own, 1, &pause, nullptr) > 0;
      if (called) Read(own_fd_);
      continue;
    }
    watching_.store(false, std::memory_order_seq_cst);
    // A waiting thread that sleeps for all minds the timers.
    const int64_t wake_ns = state == State::kAsleep ? until_ns : clock_->NowNs() + kNapNs;
    own_until_ns_.store(wake_ns, std::memory_order_seq_cst);
    // Pairs with LeaveTurns(), which asks whether somebody watches.
    if (lending_.word() != word) continue;
    epoll_event events[2];
    const int count = epoll_wait(own_epoll_fd_, events, 2, MsUntil(wake_ns, *clock_));
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd == own_fd_) Read(own_fd_);
    }
  }
  watching_.store(false, std::memory_order_relaxed);
  asleep_.store(Sleeper::kNobody, std::memory_order_relaxed);
}

void Poller::SetGate(bool open) {
  if (gate_open_ == open) return;
  gate_open_ = open;
  epoll_event event{};
  event.events = open ? static_cast<uint32_t>(EPOLLIN) : 0u;
  event.data.fd = epoll_fd_;
  TRYST_CHECK(epoll_ctl(own_epoll_fd_, EPOLL_CTL_MOD, epoll_fd_, &event) == 0) << strerror(errno);
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
  TRYST_CHECK(Watch(epoll_fd_, source->event_fd())) << strerror(errno);
}

void Poller::RemoveSource(PollerSource* source) {
  auto at = std::find(sources_.begin(), sources_.end(), source);
  TRYST_CHECK(at != sources_.end());
  sources_.erase(at);
  if (source->event_fd() >= 0) epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, source->event_fd(), nullptr);
}

void Poller::ForgetFlush(PollerFlush* flush) {
  flush->queued_ = false;
  std::replace(flushing_.begin(), flushing_.end(), flush, static_cast<PollerFlush*>(nullptr));
  flushes_.erase(std::remove(flushes_.begin(), flushes_.end(), flush), flushes_.end());
}

}  // namespace tryst
