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
    threads_.emplace_back([this, i] { Loop(static_cast<size_t>(i)); });
    thread_ids_.push_back(threads_.back().get_id());
  }
}

ThreadPoolExecutor::~ThreadPoolExecutor() {
  {
    MutexLock lock(&mu_);
    TRYST_CHECK(!turns_sources_);
    closing_ = true;
  }
  not_empty_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPoolExecutor::SetSources(const std::vector<WorkSource*>& sources) {
  MutexLock lock(&mu_);
  if (!sources.empty()) {
    TRYST_CHECK(threads_.size() >= 2 && sources_.empty());
    for (WorkSource* source : sources) sources_.emplace_back(source);
    turns_sources_ = true;
    return;
  }
  turns_sources_ = false;
  for (Turned& one : sources_) one.wanted.store(true, std::memory_order_relaxed);
  while (turning_ > 0) turned_.Wait(&mu_);
  sources_.clear();
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
  Turned* const here = TurnedHere();
  if (here != nullptr) {
    // Tells the thread that turns the source to come back for this work.
    here->wanted.store(true, std::memory_order_relaxed);
    return;
  }
  // If all threads turn sources, one of several leaves its source for the work.
  if (sources_.size() == 1 || waiting_ == 0) CallTurner();
  // Notified under the lock: the work may run at once, and its owner may then destroy us. The lock
  // keeps us alive until this call is over.
  not_empty_.NotifyOne();
}

// Calls one thread away from the source that it turns, which has not been called yet.
void ThreadPoolExecutor::CallTurner() {
  if (turning_ == 0) return;
  for (Turned& one : sources_) {
    if (!one.turning || one.wanted.load(std::memory_order_relaxed)) continue;
    one.wanted.store(true, std::memory_order_relaxed);
    return;
  }
}

// The source that this thread turns; null: none.
ThreadPoolExecutor::Turned* ThreadPoolExecutor::TurnedHere() const {
  if (turning_ == 0) return nullptr;
  for (const Turned& one : sources_) {
    if (one.turning && one.turner == std::this_thread::get_id()) return const_cast<Turned*>(&one);
  }
  return nullptr;
}

// Whether this thread turns a source. Others may wait for that source, so the thread must run no
// work in there.
bool ThreadPoolExecutor::Turns() const {
  MutexLock lock(&mu_);
  return TurnedHere() != nullptr;
}

bool ThreadPoolExecutor::OnOwnThread() const {
  return std::count(thread_ids_.begin(), thread_ids_.end(), std::this_thread::get_id()) != 0;
}

void ThreadPoolExecutor::Loop(size_t index) {
  SetThreadOwner(this);
  size_t source = index;
  for (bool has_run = false;; has_run = true) {
    Work work;
    {
      MutexLock lock(&mu_);
      if (has_run && --running_ + queued_ == 0) idle_.NotifyAll();
      while (queued_ == 0 && !closing_) {
        if (turns_sources_) TurnSources(&source);
        if (queued_ > 0 || closing_) break;
        ++waiting_;
        not_empty_.Wait(&mu_);
        --waiting_;
      }
      if (queued_ == 0) return;
      work = std::move(ring_[head_]);
      ++running_;
      head_ = (head_ + 1) % ring_.size();
      --queued_;
      if (!over_.empty()) {
        // In order, because the ring has been full since this work came.
        Push(std::move(over_.front()));
        over_.pop_front();
      } else if (queued_ > 0) {
        // One thread may have found work for several, and this work may wait for the next.
        if (waiting_ == 0) CallTurner();
        not_empty_.NotifyOne();
      }
    }
    not_full_.NotifyOne();
    std::move(work)();
  }
}

// Turns each source that no thread turns, until one brings work. The next call begins with that
// one.
void ThreadPoolExecutor::TurnSources(size_t* at) {
  const size_t count = sources_.size();
  for (size_t i = 0; i < count && queued_ == 0 && turns_sources_; ++i) {
    const size_t place = (*at + i) % count;
    Turned* const one = &sources_[place];
    if (one->turning) continue;
    one->turning = true;
    one->turner = std::this_thread::get_id();
    one->wanted.store(false, std::memory_order_relaxed);
    ++turning_;
    mu_.Unlock();
    one->source->TurnUntil(one->wanted);
    mu_.Lock();
    one->turning = false;
    --turning_;
    if (queued_ > 0) *at = place;
  }
  if (!turns_sources_ && turning_ == 0) turned_.NotifyAll();
}

}  // namespace tryst
