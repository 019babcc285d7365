#include "verbs/ofi/ofi_completion_queue.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "verbs/ofi/ofi_queue_pair.h"

namespace tryst {
absl::StatusOr<std::unique_ptr<CompletionQueue>> OfiCompletionQueue::Create(OfiDevice* device,
                                                                            uint32_t depth) {
  if (depth == 0 || depth > device->limits().max_completion_depth) {
    return absl::InvalidArgumentError(absl::StrCat("a completion queue of ", depth,
                                                   " entries is not possible: from 1 to ",
                                                   device->limits().max_completion_depth, " are"));
  }
  std::unique_ptr<OfiCompletionQueue> queue(new OfiCompletionQueue(device, depth));
  const absl::Status opened = queue->OpenDescriptors();
  if (!opened.ok()) return opened;
  return std::unique_ptr<CompletionQueue>(std::move(queue));
}

absl::Status OfiCompletionQueue::OpenDescriptors() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (epoll_ < 0 || wake_ < 0 || timer_ < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the process has no file descriptor left for a completion queue: raise the "
                     "limit of open files (ulimit -n): ",
                     strerror(errno)));
  }
  absl::Status watched = Watch(wake_);
  watched.Update(Watch(timer_));
  return watched;
}

OfiCompletionQueue::~OfiCompletionQueue() {
  TRYST_CHECK(pairs_.empty());
  for (int descriptor : {timer_, wake_, epoll_}) {
    if (descriptor >= 0) close(descriptor);
  }
}

absl::Status OfiCompletionQueue::Watch(int descriptor) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = descriptor;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a completion queue cannot wait for one more file descriptor: ", strerror(errno),
                   "; raise fs.epoll.max_user_watches"));
}

void OfiCompletionQueue::Unwatch(int descriptor) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
}

absl::Status OfiCompletionQueue::Add(OfiQueuePair* pair, uint32_t works) {
  if (works > depth_ - reserved_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a completion queue of ", depth_, " has room for ", depth_ - reserved_,
                     " more transfers, and a connection takes ", works,
                     ": connect fewer peers, or raise max_peers"));
  }
  reserved_ += works;
  if (ready_.size() < reserved_) {
    std::rotate(ready_.begin(), ready_.begin() + static_cast<ptrdiff_t>(first_ready_),
                ready_.end());
    first_ready_ = 0;
    ready_.resize(std::min<size_t>(std::max<size_t>(reserved_, 2 * ready_.size()), depth_));
  }
  pairs_.push_back(pair);
  return absl::OkStatus();
}

void OfiCompletionQueue::Remove(OfiQueuePair* pair, uint32_t works) {
  const auto found = std::find(pairs_.begin(), pairs_.end(), pair);
  if (found == pairs_.end()) return;
  pairs_.erase(found);
  reserved_ -= works;
  size_t kept = 0;
  for (size_t i = 0; i < ready_count_; ++i) {
    const Ready& ready = ready_[(first_ready_ + i) % ready_.size()];
    if (ready.pair != pair) ready_[(first_ready_ + kept++) % ready_.size()] = ready;
  }
  ready_count_ = kept;
}

void OfiCompletionQueue::Push(OfiQueuePair* pair, const Completion& completion, uint32_t credits) {
  TRYST_CHECK(ready_count_ < ready_.size()) << "more completions than works";
  naps_.OnCompletion();
  Ready& ready = ready_[(first_ready_ + ready_count_++) % ready_.size()];
  ready.completion = completion;
  ready.pair = pair;
  ready.credits = credits;
}

absl::StatusOr<size_t> OfiCompletionQueue::Poll(absl::Span<Completion> out) {
  const int64_t began_ns = device_->wakes() ? 0 : NowNs();
  for (OfiQueuePair* pair : pairs_) pair->Progress();
  if (!device_->wakes()) naps_.OnPolled(began_ns, NowNs());
  size_t count = 0;
  while (count < out.size() && ready_count_ > 0) {
    const Ready& ready = ready_[first_ready_];
    out[count++] = ready.completion;
    ready.pair->OnPolled(ready.credits);
    first_ready_ = (first_ready_ + 1) % ready_.size();
    --ready_count_;
  }
  return count;
}

absl::Status OfiCompletionQueue::Arm() {
  uint64_t drained;
  (void)!read(wake_, &drained, sizeof(drained));
  bool awake = ready_count_ > 0;
  const int64_t now_ns = NowNs();
  int64_t next_ns = std::numeric_limits<int64_t>::max();
  for (OfiQueuePair* pair : pairs_) {
    awake = awake || !pair->MaySleep();
    next_ns = std::min(next_ns, pair->NextLookNs(now_ns));
  }
  if (!device_->wakes() && next_ns != std::numeric_limits<int64_t>::max()) {
    next_ns = std::min(next_ns, naps_.Begin(now_ns));
  }
  const uint64_t one = 1;
  if (awake && write(wake_, &one, sizeof(one)) != sizeof(one) && errno != EAGAIN) {
    return absl::UnavailableError(
        absl::StrCat("cannot wake a sleeping poller (eventfd): ", strerror(errno)));
  }
  itimerspec when = {};
  if (next_ns != std::numeric_limits<int64_t>::max()) {
    when.it_value.tv_sec = next_ns / 1'000'000'000;
    when.it_value.tv_nsec = next_ns % 1'000'000'000;
  }
  if (timerfd_settime(timer_, TFD_TIMER_ABSTIME, &when, nullptr) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot set the timer that wakes a poller (timerfd): ", strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace tryst
