#include "base/crew.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {
namespace {

// Work comes in a row, and waking a thread takes longer than this.
constexpr int64_t kSpinNs = 50'000;
constexpr int kSpinsBetweenTimes = 64;
// The crew rests if its helpers were taken off their cores once each, on the average, within this
// time. Two threads that share a core are, and those of many more.
constexpr int64_t kCountNs = 10'000'000;
// A rest that ends too early is followed by one of twice the time; one that ends well, for as long
// as kGoodNs, is forgotten.
constexpr int64_t kFirstRestNs = 20'000'000;
constexpr int64_t kLongestRestNs = 2'000'000'000;
constexpr int64_t kGoodNs = 100'000'000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

int64_t Crew::SystemSays() {
  rusage usage;
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

Crew::~Crew() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mu_);
    TRYST_CHECK(tasks_.empty() && shared_.empty()) << "a crew ends before its work";
    ending_ = true;
    SetWaiting(1);  // Ends every spin.
    called_.NotifyAll();
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

bool Crew::helps() const {
  if (most_threads_ == 0) return false;
  const int64_t until_ns = rests_until_ns_.load(std::memory_order_relaxed);
  return until_ns == 0 || clock_.NowNs() >= until_ns;
}

void Crew::Share(uint64_t bytes, uint64_t part_bytes, Work work) {
  const uint64_t parts = (bytes + part_bytes - 1) / part_bytes;
  if (parts < 2 || !helps()) {
    if (bytes > 0) work(0, bytes);
    return;
  }
  Shared shared{work, bytes, part_bytes, parts};
  {
    MutexLock lock(&mu_);
    shared_.push_back(&shared);
    SetWaiting(waiting() + parts);
    CallHelpers();
    while (shared.next < parts) DoNextPart(&shared);
  }
  LogTrouble();
  while (shared.done.load(std::memory_order_acquire) < parts) std::this_thread::yield();
}

void Crew::Post(CrewTask* task) {
  {
    MutexLock lock(&mu_);
    tasks_.push_back(task);
    SetWaiting(waiting() + 1);
    CallHelpers();
    if (!threads_.empty()) return;
  }
  LogTrouble();
  // Nobody else took it: others of the crew's callers take back their own alone.
  if (TakeBack(task)) task->RunOnCrew();
}

bool Crew::TakeBack(CrewTask* task) {
  MutexLock lock(&mu_);
  const auto found = std::find(tasks_.begin(), tasks_.end(), task);
  if (found == tasks_.end()) return false;
  tasks_.erase(found);
  SetWaiting(waiting() - 1);
  return true;
}

// Wakes or starts as many as what waits needs beside those that spin.
void Crew::CallHelpers() {
  for (size_t have = spinning_; have < waiting(); ++have) {
    if (have - spinning_ < asleep_) {
      called_.NotifyOne();
    } else if (threads_.size() == most_threads_ || !StartThread()) {
      return;
    }
  }
}

// Without the lock, because a log's sink is the user's.
void Crew::LogTrouble() {
  if (!has_trouble_.load(std::memory_order_relaxed)) return;
  std::string trouble;
  {
    MutexLock lock(&mu_);
    has_trouble_.store(false, std::memory_order_relaxed);
    trouble.swap(trouble_);
  }
  if (!trouble.empty()) TRYST_LOG(Warning) << trouble;
}

// False: the system has no more threads for us. The crew rests before it asks again.
bool Crew::StartThread() {
  try {
    threads_.emplace_back([this] { Help(); });
  } catch (const std::system_error& error) {
    if (!std::exchange(lacks_threads_, true)) {
      trouble_ = absl::StrCat("large tensors are moved with ", threads_.size(), " of ",
                              most_threads_, " helpers: no thread can be started: ", error.what());
      has_trouble_.store(true, std::memory_order_relaxed);
    }
    rests_until_ns_.store(clock_.NowNs() + kLongestRestNs, std::memory_order_relaxed);
    return false;
  }
  lacks_threads_ = false;
  pthread_setname_np(threads_.back().native_handle(), "tryst-helper");
  return true;
}

void Crew::DoNextPart(Shared* shared) {
  const uint64_t begin = shared->next++ * shared->part_bytes;
  if (shared->next == shared->parts) {
    shared_.erase(std::find(shared_.begin(), shared_.end(), shared));
  }
  SetWaiting(waiting() - 1);
  const uint64_t bytes = std::min(shared->part_bytes, shared->bytes - begin);
  mu_.Unlock();
  shared->work(begin, bytes);
  shared->done.fetch_add(1, std::memory_order_release);
  mu_.Lock();
}

// False: there is nothing.
bool Crew::TakeSome() {
  if (!shared_.empty()) {  // A poller waits for it.
    DoNextPart(shared_.front());
    return true;
  }
  if (tasks_.empty()) return false;
  CrewTask* const task = tasks_.front();
  tasks_.pop_front();
  SetWaiting(waiting() - 1);
  mu_.Unlock();
  task->RunOnCrew();
  mu_.Lock();
  return true;
}

// True: there was work before the time was over.
bool Crew::SpinForWork() const {
  const int64_t until_ns = clock_.NowNs() + kSpinNs;
  do {
    for (int i = 0; i < kSpinsBetweenTimes; ++i) {
      if (waiting() > 0) return true;
      Pause();
    }
  } while (clock_.NowNs() < until_ns);
  return false;
}

void Crew::NoteTakenOff(int64_t times) {
  const int64_t now_ns = clock_.NowNs();
  if (now_ns - counted_since_ns_ > kCountNs) {
    counted_since_ns_ = now_ns;
    taken_off_ = 0;
  }
  taken_off_ += times;
  const int64_t rested_until_ns = rests_until_ns_.load(std::memory_order_relaxed);
  if (now_ns < rested_until_ns || taken_off_ < static_cast<int64_t>(threads_.size())) return;
  taken_off_ = 0;
  const bool was_well = now_ns - rested_until_ns > kGoodNs;
  rest_ns_ = was_well ? kFirstRestNs : std::min(2 * rest_ns_, kLongestRestNs);
  rests_until_ns_.store(now_ns + rest_ns_, std::memory_order_relaxed);
}

void Crew::Help() {
  int64_t before = times_taken_off_();
  MutexLock lock(&mu_);
  while (!ending_) {
    if (TakeSome()) {
      mu_.Unlock();
      const int64_t now = times_taken_off_();
      mu_.Lock();
      if (now > before) NoteTakenOff(now - before);
      before = now;
      continue;
    }
    ++spinning_;
    mu_.Unlock();
    const bool found = SpinForWork();
    mu_.Lock();
    --spinning_;
    if (found || waiting() > 0 || ending_) continue;
    ++asleep_;
    called_.Wait(&mu_);
    --asleep_;
  }
}

}  // namespace tryst
