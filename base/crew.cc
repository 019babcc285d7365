#include "base/crew.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"

namespace tryst {
namespace {

// Work comes in a row, and waking a thread takes longer than this.
constexpr std::chrono::microseconds kSpin{50};
constexpr int kSpinsBetweenTimes = 64;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

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

void Crew::Share(uint64_t bytes, uint64_t part_bytes, Work work) {
  const uint64_t parts = (bytes + part_bytes - 1) / part_bytes;
  if (most_threads_ == 0 || parts < 2) {
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
  while (shared.done.load(std::memory_order_acquire) < parts) std::this_thread::yield();
}

void Crew::Post(CrewTask* task) {
  MutexLock lock(&mu_);
  tasks_.push_back(task);
  SetWaiting(waiting() + 1);
  CallHelpers();
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
    } else if (threads_.size() < most_threads_) {
      threads_.emplace_back([this] { Help(); });
      pthread_setname_np(threads_.back().native_handle(), "tryst-helper");
    } else {
      return;
    }
  }
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
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kSpinsBetweenTimes; ++i) {
      if (waiting() > 0) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

void Crew::Help() {
  MutexLock lock(&mu_);
  while (!ending_) {
    if (TakeSome()) continue;
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
