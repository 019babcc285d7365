#ifndef TRYST_SERVER_STATUS_STATUS_VISITORS_H_
#define TRYST_SERVER_STATUS_STATUS_VISITORS_H_

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <deque>

namespace tryst {

// The connections of the status page, ordered by when each was last served, oldest first. When
// there are too many, the oldest is closed, so a client that sends its request drop by drop cannot
// keep others out. Used on the page's thread only.
class StatusVisitors {
 public:
  explicit StatusVisitors(size_t most) : most_(most) {}

  void Come(int fd) {
    if (fds_.size() >= most_) {
      shutdown(fds_.front(), SHUT_RDWR);  // libmicrohttpd sees the end, and closes it.
      fds_.pop_front();
    }
    fds_.push_back(fd);
  }
  void Served(int fd) {
    Go(fd);
    fds_.push_back(fd);
  }
  void Go(int fd) { fds_.erase(std::remove(fds_.begin(), fds_.end(), fd), fds_.end()); }

 private:
  const size_t most_;
  std::deque<int> fds_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_STATUS_STATUS_VISITORS_H_
