#include "rendezvous/executor.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/thread_owner.h"

namespace tryst {

bool InlineExecutor::TryRun(Work* work) {
  Run(std::move(*work));
  return true;
}

void InlineExecutor::Run(Work work) { std::move(work)(); }

ThreadPoolExecutor::ThreadPoolExecutor(int threads, size_t max_queued) {
  TRYST_CHECK(threads >= 1 && max_queued >= 1);
  MutexLock lock(&mu_);  // Holds the threads back until thread_ids_ is whole.
  ring_.resize(max_queued);
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Loop(); });
    thread_ids_.push_back(threads_.back().get_id());
  }
}

ThreadPoolExecutor::~ThreadPoolExecutor() {
  {
    MutexLock lock(&mu_);
    TRYST_CHECK(source_ == nullptr);
    closing_ = true;
  }
  not_empty_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPoolExecutor::SetSource(WorkSource* source) {
  MutexLock lock(&mu_);
  TRYST_CHECK(source == nullptr || threads_.size() >= 2);
  source_ = source;
  wanted_.store(source == nullptr, std::memory_order_relaxed);
  while (source == nullptr && turning_) turned_.Wait(&mu_);
}

bool ThreadPoolExecutor::TryRun(Work* work) {
  MutexLock lock(&mu_);
  if (queued_ == ring_.size()) return false;
  Push(std::move(*work));
  return true;
}

void ThreadPoolExecutor::Run(Work work) {
  if (TryRun(&work)) return;
  if (OnOwnThread() && !Turns()) {
    std::move(work)();
    return;
  }
  MutexLock lock(&mu_);
  while (queued_ == ring_.size()) not_full_.Wait(&mu_);
  Push(std::move(work));
}

void ThreadPoolExecutor::RunWithoutWaiting(Work work) {
  MutexLock lock(&mu_);
  if (queued_ == ring_.size()) {
    over_.push_back(std::move(work));
  } else {
    Push(std::move(work));
  }
}

size_t ThreadPoolExecutor::queued() const {
  MutexLock lock(&mu_);
  return queued_ + over_.size();
}

bool ThreadPoolExecutor::WaitIdle(std::chrono::steady_clock::time_point until) {
  MutexLock lock(&mu_);
  while (queued_ + running_ > 0) {
    if (idle_.WaitUntil(&mu_, until)) break;
  }
  return queued_ + running_ == 0;
}

void ThreadPoolExecutor::Push(Work work) {
  ring_[(head_ + queued_) % ring_.size()] = std::move(work);
  ++queued_;
  wanted_.store(true, std::memory_order_relaxed);
  // The thread that turns the source runs this work itself when it returns, so nobody is notified.
  // The notification is made under the lock: the work may run at once and let the owner destroy
  // this executor, and the destructor waits only for the lock.
  if (!turning_ || turner_ != std::this_thread::get_id()) not_empty_.NotifyOne();
}

// Whether this thread is turning the source. Then it runs no work in place, because others may wait
// for that turn.
bool ThreadPoolExecutor::Turns() const {
  MutexLock lock(&mu_);
  return turning_ && turner_ == std::this_thread::get_id();
}

bool ThreadPoolExecutor::OnOwnThread() const {
  return std::count(thread_ids_.begin(), thread_ids_.end(), std::this_thread::get_id()) != 0;
}

void ThreadPoolExecutor::Loop() {
  SetThreadOwner(this);
  for (bool has_run = false;; has_run = true) {
    Work work;
    {
      MutexLock lock(&mu_);
      if (has_run && --running_ + queued_ == 0) idle_.NotifyAll();
      while (queued_ == 0 && !closing_) {
        if (source_ != nullptr && !turning_) TurnSource();
        if (queued_ == 0 && !closing_) not_empty_.Wait(&mu_);
      }
      if (queued_ == 0) return;
      work = std::move(ring_[head_]);
      ++running_;
      head_ = (head_ + 1) % ring_.size();
      --queued_;
      if (!over_.empty()) {
        // In order: the ring has been full since this work came.
        Push(std::move(over_.front()));
        over_.pop_front();
      } else if (queued_ > 0) {
        not_empty_.NotifyOne();  // One thread may have found work for several.
      }
    }
    not_full_.NotifyOne();
    std::move(work)();
  }
}

void ThreadPoolExecutor::TurnSource() {
  WorkSource* source = source_;
  turning_ = true;
  wanted_.store(false, std::memory_order_relaxed);
  turner_ = std::this_thread::get_id();
  mu_.Unlock();
  source->TurnUntil(wanted_);
  mu_.Lock();
  turning_ = false;
  if (source_ == nullptr) turned_.NotifyAll();
}

}  // namespace tryst
