#include "channel/poller.h"

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
  // What was posted too late to run: closures free themselves, other tasks are their owners'.
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
  // Pairs with Sleep(): it sets asleep_ and then looks at the inbox.
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
  // Fails only when the counter is full, and then it is readable already.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

void Poller::Start() {
  TRYST_CHECK(!thread_.joinable());
  has_thread_.store(true, std::memory_order_relaxed);
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), options_.name.substr(0, 15).c_str());
}

void Poller::Stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_seq_cst);
  Wake();
  thread_.join();
}

void Poller::Loop() {
  const DeliveringScope delivering;  // A callback in place must not wait for this thread.
  thread_id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  int64_t idle_since_ns = 0;
  int64_t yielded_ns = 0;
  bool spinning = false;  // Since idle_since_ns, without having slept.
  now_ns_ = clock_->NowNs();
  for (;;) {
    const bool worked = Look();
    if (wanted_.load(std::memory_order_relaxed)) Lend();
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
      // The peer that is waited for may wait for this very processor. A kernel that sees both
      // want it moves one of them, which it does not while they sleep by turns.
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

bool Poller::Look() {
  bool worked = Glance();
  if (worked) seen_ns_ = now_ns_;
  // What other threads hand over does not wait for the blind ones either.
  const PollerTask* const handed = inbox_.load(std::memory_order_acquire);
  worked |= handed != nullptr;
  // What a turn has handed over itself neither, if it is alone: the next request of who asks
  // for one thing after the other. Where there is more, another look finds company for it.
  const bool lone = just_polled_ && handed != nullptr && handed->next_ == nullptr;
  const int64_t polled_ago_ns = now_ns_ - all_polled_ns_;
  const bool lively = now_ns_ - seen_ns_ < kBlindNs && polled_ago_ns < kBlindNs;
  just_polled_ = !lively && !lone && !(worked && polled_ago_ns < kHandedNs);
  if (just_polled_) {
    all_polled_ns_ = now_ns_;
    worked |= Turn();
  } else {
    worked |= RunOthers();
  }
  now_ns_ = clock_->NowNs();
  return worked;
}

// ---- Borrowed turns ----

// Only by whoever has the turns, or after a change of turner_ has given them to us.
void Poller::SetTurner(Turner turner) {
  const bool nobody =
      turner == Turner::kAway || turner == Turner::kReturned || turner == Turner::kAsleep;
  thread_id_.store(nobody ? std::thread::id() : std::this_thread::get_id(),
                   std::memory_order_relaxed);
  turner_.store(Next(turner_.load(std::memory_order_relaxed), turner), std::memory_order_release);
}

void Poller::TurnUntil(const std::atomic<bool>& wanted) {
  if (!Borrow()) return;
  const DeliveringScope delivering;
  int64_t idle_since_ns = now_ns_ = clock_->NowNs();
  for (;;) {
    const bool worked = Look();
    if (wanted.load(std::memory_order_relaxed)) return SetTurner(Turner::kAway);
    if (worked) {
      idle_since_ns = now_ns_;
    } else if (now_ns_ - idle_since_ns >= spin_.ns() || stopping_.load(std::memory_order_relaxed)) {
      break;
    }
  }
  SetTurner(Turner::kReturned);
  Wake();
}

// From who is away, most times; from our own thread only while that is awake and says so.
bool Poller::Borrow() {
  const int64_t until_ns = clock_->NowNs() + kBorrowNs;
  bool borrowed = false;
  for (bool asked = false; !borrowed; asked = true) {
    uint64_t turner = turner_.load(std::memory_order_acquire);
    if (TurnerOf(turner) == Turner::kAway) {
      borrowed = turner_.compare_exchange_strong(turner, Next(turner, Turner::kBorrowed),
                                                 std::memory_order_acquire);
      continue;
    }
    if (TurnerOf(turner) != Turner::kOwn || asleep_.load(std::memory_order_relaxed) ||
        stopping_.load(std::memory_order_relaxed) || clock_->NowNs() >= until_ns) {
      break;
    }
    if (!asked) wanted_.store(true, std::memory_order_relaxed);
    std::this_thread::yield();  // It may wait for this very processor.
  }
  wanted_.store(false, std::memory_order_relaxed);
  if (borrowed) thread_id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return borrowed;
}

void Poller::Lend() {
  wanted_.store(false, std::memory_order_relaxed);
  SetTurner(Turner::kAway);
  uint64_t before = 0;
  for (bool ours = false; !ours;) {
    pollfd woken{wake_fd_, POLLIN, 0};
    const timespec pause{0, kLendNs};
    if (ppoll(&woken, 1, &pause, nullptr) > 0) {
      uint64_t ignored;
      [[maybe_unused]] const ssize_t got = read(wake_fd_, &ignored, sizeof(ignored));
    }
    uint64_t turner = turner_.load(std::memory_order_acquire);
    if (TurnerOf(turner) == Turner::kReturned) {
      ours = true;
    } else if (TurnerOf(turner) == Turner::kAway && turner == before) {
      // Whoever borrowed them is busy with something else: others must not wait for that.
      ours = turner_.compare_exchange_strong(turner, Next(turner, Turner::kOwn),
                                             std::memory_order_acquire);
    }
    before = turner;
  }
  SetTurner(Turner::kOwn);
  now_ns_ = clock_->NowNs();
}

// ---- Turns while our thread sleeps ----

void Poller::TurnIfAsleep() {
  // Pairs with MaySleep(). Whoever is awake looks at the inbox before it sleeps.
  if (inbox_.load(std::memory_order_seq_cst) == nullptr) return;
  if (!asleep_.load(std::memory_order_seq_cst)) return;
  uint64_t turner = turner_.load(std::memory_order_acquire);
  if (options_.keeps_its_thread || TurnerOf(turner) != Turner::kAsleep ||
      !turner_.compare_exchange_strong(turner, Next(turner, Turner::kBorrowed),
                                       std::memory_order_acquire)) {
    return Wake();
  }
  thread_id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  const DeliveringScope delivering;
  int turns = 0;
  do {
    asleep_.store(false, std::memory_order_relaxed);
    now_ns_ = clock_->NowNs();
    while (++turns < kMostTurnsAsleep && Turn()) now_ns_ = clock_->NowNs();
    asleep_.store(true, std::memory_order_seq_cst);
  } while (turns < kMostTurnsAsleep && !MaySleep());
  const bool wake = turns >= kMostTurnsAsleep || NextTimerNs() < sleeps_until_ns_ ||
                    stopping_.load(std::memory_order_seq_cst);
  SetTurner(Turner::kAsleep);
  if (wake) Wake();
}

// From who turned while we slept.
void Poller::TakeBack() {
  for (int tries = 0;; ++tries) {
    uint64_t turner = turner_.load(std::memory_order_acquire);
    if (TurnerOf(turner) == Turner::kAsleep &&
        turner_.compare_exchange_strong(turner, Next(turner, Turner::kOwn),
                                        std::memory_order_acquire)) {
      break;
    }
    if (tries < 8) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kBorrowNs));
    }
  }
  thread_id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  asleep_.store(false, std::memory_order_relaxed);
}

// Not for long: there may be sources that see nothing so, and timers.
bool Poller::Glance() {
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

bool Poller::Step() {
  if (!has_thread_.load(std::memory_order_relaxed)) {
    thread_id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  now_ns_ = clock_->NowNs();
  const DeliveringScope delivering;
  return Turn();
}

bool Poller::Turn() {
  bool worked = false;
  for (PollerSource* source : sources_) worked |= source->Poll();
  worked |= RunOthers();
  return worked;
}

bool Poller::RunOthers() {
  bool worked = RunInbox();
  worked |= RunTimers();
  RunFlushes();
  return worked;
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
    oldest = task->next_;  // Read first: the task may post itself again.
    ++tasks_run_;
    task->RunOnPoller();
  }
  return true;
}

bool Poller::RunTimers() {
  bool ran = false;
  while (!timers_.empty() && timers_.front()->at_ns_ <= now_ns_) {
    PollerTimer* timer = timers_.front();
    CancelTimer(timer);
    timer->OnTimer();
    ran = true;
  }
  return ran;
}

void Poller::RunFlushes() {
  // A flush may ask for another one; that belongs to the next turn.
  flushing_.swap(flushes_);
  for (PollerFlush*& flush : flushing_) {
    if (flush == nullptr) continue;  // Forgotten.
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
  // Anything that came before the arming is found now, or ends the sleep as it begins.
  now_ns_ = clock_->NowNs();
  bool worked = false;
  for (PollerSource* source : sources_) worked |= !source->ArmTellsAll() && source->Poll();
  worked |= RunOthers();
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
    // Rounded up: to wake early would mean to spin until the time has come.
    const int64_t wait_ms = (next_ns - clock_->NowNs() + 999'999) / 1'000'000;
    timeout_ms = static_cast<int>(std::clamp<int64_t>(wait_ms, 0, 60'000));
  }
  epoll_event events[16];
  SetTurner(Turner::kAsleep);
  const int count = epoll_wait(epoll_fd_, events, 16, timeout_ms);
  TakeBack();
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
  RunOthers();
  all_polled_ns_ = now_ns_ = clock_->NowNs();  // What epoll did not name had nothing.
  if (seen) seen_ns_ = now_ns_;
}

// Whether there was work that a glance could have seen.
bool Poller::PollReady(int fd) {
  // Looked for: whoever turned meanwhile may have removed it.
  const auto ready = std::find_if(sources_.begin(), sources_.end(),
                                  [&](PollerSource* source) { return source->event_fd() == fd; });
  return ready != sources_.end() && (*ready)->Poll() &&
         (*ready)->Glance() != PollerSource::Sight::kBlind;
}

int64_t Poller::NextTimerNs() const {
  return timers_.empty() ? std::numeric_limits<int64_t>::max() : timers_.front()->at_ns_;
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

void Poller::SetTimer(PollerTimer* timer, int64_t at_ns) {
  CancelTimer(timer);
  timer->at_ns_ = at_ns;
  timers_.push_back(timer);
  timer->heap_index_ = static_cast<int>(timers_.size()) - 1;
  SiftUp(timers_.size() - 1);
}

void Poller::CancelTimer(PollerTimer* timer) {
  if (timer->heap_index_ < 0) return;
  const size_t index = static_cast<size_t>(timer->heap_index_);
  timer->heap_index_ = -1;
  PollerTimer* last = timers_.back();
  timers_.pop_back();
  if (last == timer) return;
  PlaceTimer(index, last);
  SiftUp(index);
  SiftDown(static_cast<size_t>(last->heap_index_));
}

void Poller::PlaceTimer(size_t index, PollerTimer* timer) {
  timers_[index] = timer;
  timer->heap_index_ = static_cast<int>(index);
}

void Poller::SiftUp(size_t index) {
  PollerTimer* timer = timers_[index];
  while (index > 0) {
    const size_t parent = (index - 1) / 2;
    if (timers_[parent]->at_ns_ <= timer->at_ns_) break;
    PlaceTimer(index, timers_[parent]);
    index = parent;
  }
  PlaceTimer(index, timer);
}

void Poller::SiftDown(size_t index) {
  PollerTimer* timer = timers_[index];
  for (;;) {
    size_t child = 2 * index + 1;
    if (child >= timers_.size()) break;
    if (child + 1 < timers_.size() && timers_[child + 1]->at_ns_ < timers_[child]->at_ns_) ++child;
    if (timer->at_ns_ <= timers_[child]->at_ns_) break;
    PlaceTimer(index, timers_[child]);
    index = child;
  }
  PlaceTimer(index, timer);
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
