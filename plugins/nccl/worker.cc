#include "plugins/nccl/worker.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "verbs/start_thread.h"

namespace tryst::nccl {
namespace {

constexpr uint32_t kQueueDepth = 1 << 20;
constexpr int kLongestSleepMs = 1000;

}  // namespace

Worker::Worker(int64_t spin_us, const Clock* clock)
    : spin_ns_(spin_us * 1000), clock_(clock), wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(int64_t spin_us, const Clock* clock) {
  std::unique_ptr<Worker> worker(new Worker(spin_us, clock));
  const absl::Status started = StartThread(
      "NCCL's bytes", [raw = worker.get()] { raw->Loop(); }, &worker->thread_);
  if (!started.ok()) return started;
  return worker;
}

Worker::~Worker() {
  stop_.store(true);
  Wake();
  if (thread_.joinable()) thread_.join();
  queues_.clear();
  if (wake_fd_ >= 0) close(wake_fd_);
}

void Worker::Run(std::function<void()> task) {
  {
    MutexLock lock(&mu_);
    tasks_.push_back(std::move(task));
    has_tasks_.store(true);
  }
  Wake();
}

void Worker::RunAndWait(const std::function<void()>& task) {
  Mutex mu;
  CondVar ran;
  bool done = false;
  Run([&] {
    task();
    MutexLock lock(&mu);
    done = true;
    ran.NotifyOne();
  });
  MutexLock lock(&mu);
  while (!done) ran.Wait(&mu);
}

void Worker::Ring(Lane* lane) {
  if (lane->rung.exchange(true, std::memory_order_acq_rel)) return;
  Lane* head = rung_.load(std::memory_order_relaxed);
  do {
    lane->next_rung = head;
  } while (!rung_.compare_exchange_weak(head, lane, std::memory_order_seq_cst));
  if (asleep_.load(std::memory_order_seq_cst)) Wake();
}

void Worker::Wake() {
  if (wake_fd_ >= 0) eventfd_write(wake_fd_, 1);
}

absl::StatusOr<CompletionQueue*> Worker::QueueFor(Nic* nic) {
  for (const Queue& queue : queues_) {
    if (queue.nic == nic) return queue.completions.get();
  }
  absl::StatusOr<std::unique_ptr<CompletionQueue>> made =
      nic->CreateCompletionQueue(std::min(kQueueDepth, nic->limits().max_completion_depth));
  if (!made.ok()) return made.status();
  queues_.push_back({nic, *std::move(made)});
  return queues_.back().completions.get();
}

bool Worker::TakeRung() {
  if (rung_.load(std::memory_order_relaxed) == nullptr) return false;
  Lane* lane = rung_.exchange(nullptr, std::memory_order_seq_cst);
  while (lane != nullptr) {
    Lane* const next = lane->next_rung;
    // From here on the lane may be rung, and so listed, again.
    lane->rung.store(false, std::memory_order_seq_cst);
    lane->Turn();
    lane = next;
  }
  return true;
}

bool Worker::RunTasks() {
  if (!has_tasks_.load()) return false;
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(&mu_);
    tasks.swap(tasks_);
    has_tasks_.store(false);
  }
  for (const std::function<void()>& task : tasks) {
    TakeRung();  // The task may destroy a lane that is in the list.
    task();
  }
  return true;
}

bool Worker::TakeTurn() {
  bool moved = TakeRung();
  for (const Queue& queue : queues_) {
    const absl::StatusOr<size_t> done = Lane::Poll(queue.completions.get());
    moved = (done.ok() && *done > 0) || moved;
  }
  return RunTasks() || moved;
}

bool Worker::NothingToDo() {
  return rung_.load(std::memory_order_seq_cst) == nullptr && !has_tasks_.load() && !stop_.load();
}

void Worker::Sleep() {
  std::vector<pollfd> waits = {{wake_fd_, POLLIN, 0}};
  for (const Queue& queue : queues_) {
    if (!queue.completions->Arm().ok()) return;
    waits.push_back({queue.completions->event_fd(), POLLIN, 0});
  }
  asleep_.store(true, std::memory_order_seq_cst);
  bool moved = false;
  for (const Queue& queue : queues_) {
    if (queue.completions->ArmTellsAll()) continue;
    const absl::StatusOr<size_t> done = Lane::Poll(queue.completions.get());
    moved = (done.ok() && *done > 0) || moved;
  }
  if (!moved && NothingToDo()) poll(waits.data(), waits.size(), kLongestSleepMs);
  asleep_.store(false, std::memory_order_seq_cst);
  eventfd_t ignored;
  eventfd_read(wake_fd_, &ignored);
}

void Worker::Loop() {
  pthread_setname_np(pthread_self(), "tryst-nccl");
  int64_t idle_since_ns = -1;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (TakeTurn()) {
      idle_since_ns = -1;
      continue;
    }
    const int64_t now_ns = clock_->NowNs();
    if (idle_since_ns < 0) idle_since_ns = now_ns;
    if (now_ns - idle_since_ns >= spin_ns_) {
      Sleep();
      idle_since_ns = -1;
    }
  }
}

}  // namespace tryst::nccl
