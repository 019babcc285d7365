#include "rendezvous/executor.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

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
    closing_ = true;
  }
  not_empty_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

bool ThreadPoolExecutor::TryRun(Work* work) {
  MutexLock lock(&mu_);
  if (queued_ == ring_.size()) return false;
  Push(std::move(*work));
  return true;
}

void ThreadPoolExecutor::Run(Work work) {
  if (TryRun(&work)) return;
  if (OnOwnThread()) {
    std::move(work)();
    return;
  }
  MutexLock lock(&mu_);
  while (queued_ == ring_.size()) not_full_.Wait(&mu_);
  Push(std::move(work));
}

size_t ThreadPoolExecutor::queued() const {
  MutexLock lock(&mu_);
  return queued_;
}

void ThreadPoolExecutor::Push(Work work) {
  ring_[(head_ + queued_) % ring_.size()] = std::move(work);
  ++queued_;
  // Under the lock: the work may run and let its owner destroy us, and only the lock says
  // that we are still in here.
  not_empty_.NotifyOne();
}

bool ThreadPoolExecutor::OnOwnThread() const {
  return std::count(thread_ids_.begin(), thread_ids_.end(), std::this_thread::get_id()) != 0;
}

void ThreadPoolExecutor::Loop() {
  for (;;) {
    Work work;
    {
      MutexLock lock(&mu_);
      while (queued_ == 0 && !closing_) not_empty_.Wait(&mu_);
      if (queued_ == 0) return;
      work = std::move(ring_[head_]);
      head_ = (head_ + 1) % ring_.size();
      --queued_;
    }
    not_full_.NotifyOne();
    std::move(work)();
  }
}

}  // namespace tryst
