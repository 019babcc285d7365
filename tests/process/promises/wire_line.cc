#include "tests/process/promises/wire_line.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "absl/time/clock.h"

namespace tryst {

WireLine::~WireLine() { close(fd_); }

bool WireLine::Say(const std::string& line) {
  const std::string text = line + "\n";
  for (size_t at = 0; at < text.size();) {
    const ssize_t sent = send(fd_, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return true;
}

bool WireLine::Hear(std::string* line, absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  for (size_t looked = 0;;) {
    const size_t end = heard_.find('\n', looked);
    if (end != std::string::npos) {
      *line = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      return true;
    }
    looked = heard_.size();
    pollfd wait{fd_, POLLIN, 0};
    const int64_t left_ms = absl::ToInt64Milliseconds(until - absl::Now());
    if (left_ms <= 0 || poll(&wait, 1, static_cast<int>(left_ms)) != 1) return false;
    char bytes[65536];
    const ssize_t came = recv(fd_, bytes, sizeof(bytes), 0);
    if (came <= 0) return false;
    heard_.append(bytes, static_cast<size_t>(came));
  }
}

}  // namespace tryst
