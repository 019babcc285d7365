#ifndef TRYST_VERBS_SOFT_SOFT_EPOLL_H_
#define TRYST_VERBS_SOFT_SOFT_EPOLL_H_

#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/log.h"
#include "verbs/soft/socket.h"

namespace tryst {

// The kernel's look-out for the sockets of one completion queue, and their names there.
class SoftEpoll {
 public:
  static constexpr uint64_t kListenerId = 1;
  static constexpr uint64_t kWakeId = 2;
  static constexpr uint64_t kTimerId = 3;
  static constexpr uint64_t kBellId = 4;

  bool Open() {
    fd_ = Fd(epoll_create1(EPOLL_CLOEXEC));
    return fd_.valid();
  }
  int fd() const { return fd_.get(); }
  uint64_t NewId() { return next_id_++; }  // Names a lane, a stranger, or one that leaves.
  void Watch(int fd, uint32_t events, uint64_t id, int operation) {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = id;
    if (epoll_ctl(fd_.get(), operation, fd, &event) != 0) {
      TRYST_LOG(Error) << "a sleeping poller may notice arriving bytes late, as epoll_ctl failed: "
                       << strerror(errno);
    }
  }
  void Unwatch(int fd) { epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr); }

 private:
  Fd fd_;
  uint64_t next_id_ = kBellId + 1;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_EPOLL_H_
