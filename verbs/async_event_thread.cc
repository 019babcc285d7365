#include "verbs/async_event_thread.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "verbs/start_thread.h"

namespace tryst {

absl::StatusOr<std::unique_ptr<AsyncEventThread>> AsyncEventThread::Start(Nic* nic,
                                                                          Subscriber subscriber) {
  if (nic->event_fd() < 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        nic->name(),
        " has no file descriptor to wait for: call NextEvent() again and again instead"));
  }
  const int stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd < 0) return absl::ResourceExhaustedError(strerror(errno));
  std::unique_ptr<AsyncEventThread> out(new AsyncEventThread(nic, std::move(subscriber), stop_fd));
  const absl::Status started = StartThread(
      absl::StrCat("the events of ", nic->name()), [raw = out.get()] { raw->Run(); },
      &out->thread_);
  if (!started.ok()) return started;
  return out;
}

AsyncEventThread::AsyncEventThread(Nic* nic, Subscriber subscriber, int stop_fd)
    : nic_(nic), subscriber_(std::move(subscriber)), stop_fd_(stop_fd) {}

AsyncEventThread::~AsyncEventThread() {
  TRYST_CHECK(std::this_thread::get_id() != thread_.get_id()) << "a thread cannot join itself";
  if (thread_.joinable()) {
    const uint64_t one = 1;
    // An eventfd can count to 2^64 - 2, so it never refuses its first write.
    TRYST_CHECK(write(stop_fd_, &one, sizeof(one)) == sizeof(one));
    thread_.join();
  }
  close(stop_fd_);
}

bool AsyncEventThread::HandEventsOn() {
  bool any = false;
  while (const absl::optional<NicEvent> event = nic_->NextEvent()) {
    subscriber_(*event);
    any = true;
  }
  return any;
}

void AsyncEventThread::Run() {
  pollfd fds[2] = {{stop_fd_, POLLIN, 0}, {nic_->event_fd(), POLLIN, 0}};
  while (true) {
    if (poll(fds, 2, -1) < 0) {
      if (errno == EINTR) continue;
      TRYST_LOG(Error)
          << nic_->name()
          << ": this worker no longer hears of its events (port up or down, device lost): poll: "
          << strerror(errno);
      return;
    }
    if (fds[0].revents != 0) return;
    const bool any = HandEventsOn();
    if (any || (fds[1].revents & (POLLERR | POLLHUP | POLLNVAL)) == 0) continue;
    // The device is gone; its descriptor would stay readable for ever.
    TRYST_LOG(Error)
        << nic_->name()
        << ": its events (port up or down, device lost) are no longer reported: the device is gone";
    fds[1].fd = -1;
  }
}

}  // namespace tryst
