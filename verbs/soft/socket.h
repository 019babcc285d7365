#ifndef TRYST_VERBS_SOFT_SOCKET_H_
#define TRYST_VERBS_SOFT_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

// Where a stream socket listens. Hosts are numeric; no name server is asked.
class SocketAddress {
 public:
  // "1.2.3.4:5", "[::1]:5", "unix:@name" (abstract); to listen, also "unix:" for any name.
  static absl::StatusOr<SocketAddress> Parse(absl::string_view text);
  // One, or several of IP with commas between them.
  static absl::StatusOr<std::vector<SocketAddress>> ParseAll(absl::string_view text);
  std::string ToString() const;
  std::string host() const;      // REQUIRES: it is no Unix socket's.
  bool is_wildcard() const;      // Whether it is an IP address that means "every interface".
  uint16_t port() const;         // 0 for Unix sockets.
  void set_port(uint16_t port);  // REQUIRES: it is no Unix socket's.

  // All sockets are non-blocking and closed on exec.
  absl::StatusOr<Fd> Listen() const;
  // A socket that is connecting: until it is connected, writing fails with EAGAIN. An invalid Fd,
  // with errno: it failed at once. `from`: the host of ours that it leaves by; null: as the system
  // routes it.
  Fd Dial(const SocketAddress* from = nullptr) const;
  // The address on which `fd` really listens.
  static absl::StatusOr<SocketAddress> Of(int fd);

 private:
  sockaddr_storage storage_ = {};
  socklen_t length_ = 0;
};

// An accepted socket, or an invalid Fd with errno. Accepted and dialled sockets send small frames
// at once. Between two ends of one host they use no pacing congestion control, which is made for
// networks.
Fd AcceptFrom(int listener);

// As sendmsg(2) that never blocks, raises no SIGPIPE and is not interrupted.
ssize_t SendNow(int fd, const iovec* pieces, int count);

// The socket ends when the peer's kernel acknowledges nothing for so long. 0: as the system has it.
void EndWhenSilent(int fd, int silence_ms);
// The socket takes no more while it holds so much that is not under way.
void HoldUnsent(int fd, uint32_t bytes);

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOCKET_H_
