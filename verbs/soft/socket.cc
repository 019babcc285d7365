#include "verbs/soft/socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#ifdef __SANITIZE_THREAD__
extern "C" {  // What ThreadSanitizer's library has and its headers do not declare.
void __tsan_read_range(void* begin, unsigned long size);    // NOLINT
void AnnotateIgnoreReadsBegin(const char* file, int line);  // NOLINT
void AnnotateIgnoreReadsEnd(const char* file, int line);    // NOLINT
}
#endif

namespace tryst {
namespace {

constexpr int kBacklog = 1024;
constexpr size_t kMostAddresses = 8;

// Small frames must not wait for a full segment.
void SendAtOnce(int fd) {
  const int one = 1;
  // Fails on Unix sockets, which never wait.
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

// ThreadSanitizer takes note of what sendmsg() has read when the call returns. By then the peer may
// have answered, and whoever owned the bytes may change them. So they count as read before.
class ReadBefore {
 public:
#ifdef __SANITIZE_THREAD__
  ReadBefore(const iovec* pieces, int count) {
    for (int i = 0; i < count; ++i) __tsan_read_range(pieces[i].iov_base, pieces[i].iov_len);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  }
  ~ReadBefore() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
#else
  ReadBefore(const iovec*, int) {}
#endif
};

// Whether bytes to `peer` stay on the host: to one of its own addresses, a host sends from that
// address.
bool StaysOnHost(const sockaddr_storage& peer, int fd) {
  sockaddr_storage self = {};
  socklen_t length = sizeof(self);
  getsockname(fd, reinterpret_cast<sockaddr*>(&self), &length);  // If it fails, no family is told.
  if (self.ss_family != peer.ss_family) return false;
  if (self.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&self)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(&peer)->sin_addr.s_addr;
  }
  return self.ss_family == AF_INET6 &&
         IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6*>(&self)->sin6_addr,
                            &reinterpret_cast<const sockaddr_in6*>(&peer)->sin6_addr);
}

// Many hosts use BBR by default. It paces by timers, which only cost time on the loopback.
void ChooseCongestionControl(const sockaddr_storage& peer, int fd) {
  if (!StaysOnHost(peer, fd)) return;
  constexpr char kUnpaced[] = "reno";  // Every kernel has it, and every user may choose it.
  // If it fails, the host's default is used.
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kUnpaced, sizeof(kUnpaced) - 1);
}

absl::Status BadAddress(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "a socket address should be host:port, [v6]:port or unix:NAME, and is \"", text, "\""));
}

}  // namespace

void Fd::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::StatusOr<SocketAddress> SocketAddress::Parse(absl::string_view text) {
  SocketAddress address;
  constexpr absl::string_view kUnix = "unix:";
  if (text.substr(0, kUnix.size()) == kUnix) {
    absl::string_view name = text.substr(kUnix.size());
    auto* to = reinterpret_cast<sockaddr_un*>(&address.storage_);
    to->sun_family = AF_UNIX;
    address.length_ = offsetof(sockaddr_un, sun_path);
    if (name.empty()) return address;
    if (name[0] != '@' || name.size() < 2 || name.size() > sizeof(to->sun_path)) {
      return BadAddress(text);
    }
    // A leading zero makes the name abstract.
    memcpy(to->sun_path + 1, name.data() + 1, name.size() - 1);
    address.length_ += name.size();
    return address;
  }
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) ||
      port < 0 || port > 65535) {
    return BadAddress(text);
  }
  std::string host(text.substr(0, colon));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    auto* to = reinterpret_cast<sockaddr_in6*>(&address.storage_);
    to->sin6_family = AF_INET6;
    address.length_ = sizeof(*to);
    if (inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &to->sin6_addr) != 1) {
      return BadAddress(text);
    }
  } else {
    auto* to = reinterpret_cast<sockaddr_in*>(&address.storage_);
    to->sin_family = AF_INET;
    address.length_ = sizeof(*to);
    if (inet_pton(AF_INET, host.c_str(), &to->sin_addr) != 1) return BadAddress(text);
  }
  address.set_port(static_cast<uint16_t>(port));
  return address;
}

absl::StatusOr<std::vector<SocketAddress>> SocketAddress::ParseAll(absl::string_view text) {
  std::vector<SocketAddress> all;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    absl::StatusOr<SocketAddress> one = Parse(part);
    if (!one.ok()) return one.status();
    if (part != text && one->storage_.ss_family == AF_UNIX) return BadAddress(text);
    all.push_back(*one);
  }
  if (all.size() > kMostAddresses) {
    return absl::InvalidArgumentError(
        absl::StrCat("a soft NIC has at most ", kMostAddresses, " addresses, and not ", text));
  }
  return all;
}

std::string SocketAddress::ToString() const {
  char host[INET6_ADDRSTRLEN] = {};
  if (storage_.ss_family == AF_INET) {
    const auto* from = reinterpret_cast<const sockaddr_in*>(&storage_);
    inet_ntop(AF_INET, &from->sin_addr, host, sizeof(host));
    return absl::StrCat(host, ":", port());
  }
  if (storage_.ss_family == AF_INET6) {
    const auto* from = reinterpret_cast<const sockaddr_in6*>(&storage_);
    inet_ntop(AF_INET6, &from->sin6_addr, host, sizeof(host));
    return absl::StrCat("[", host, "]:", port());
  }
  const auto* from = reinterpret_cast<const sockaddr_un*>(&storage_);
  const size_t bytes = length_ - offsetof(sockaddr_un, sun_path);
  if (bytes == 0) return "unix:";
  return absl::StrCat("unix:@", absl::string_view(from->sun_path + 1, bytes - 1));
}

std::string SocketAddress::host() const {
  const std::string text = ToString();
  return text.substr(0, text.rfind(':'));
}

bool SocketAddress::is_wildcard() const {
  if (storage_.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr == INADDR_ANY;
  }
  if (storage_.ss_family == AF_INET6) {
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
  }
  return false;
}

uint16_t SocketAddress::port() const {
  if (storage_.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  }
  if (storage_.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  }
  return 0;
}

void SocketAddress::set_port(uint16_t port) {
  if (storage_.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&storage_)->sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6*>(&storage_)->sin6_port = htons(port);
  }
}

absl::StatusOr<Fd> SocketAddress::Listen() const {
  Fd fd(socket(storage_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid())
    return absl::UnavailableError(absl::StrCat("cannot open a socket: ", strerror(errno)));
  if (port() != 0) {
    const int one = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  }
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&storage_), length_) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", ToString(), ": ", strerror(errno)));
  }
  return fd;
}

Fd SocketAddress::Dial(const SocketAddress* from) const {
  Fd fd(socket(storage_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fd;
  SendAtOnce(fd.get());
  if (from != nullptr && from->storage_.ss_family == storage_.ss_family) {
    SocketAddress self = *from;
    self.set_port(0);
    // If that host is gone, the system finds another way, or none.
    bind(fd.get(), reinterpret_cast<const sockaddr*>(&self.storage_), self.length_);
  }
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&storage_), length_) != 0 &&
      errno != EINPROGRESS) {
    const int error = errno;
    fd.Close();
    errno = error;
    return fd;
  }
  ChooseCongestionControl(storage_, fd.get());
  return fd;
}

absl::StatusOr<SocketAddress> SocketAddress::Of(int fd) {
  SocketAddress address;
  address.length_ = sizeof(address.storage_);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage_), &address.length_) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot learn a socket's own address: ", strerror(errno)));
  }
  return address;
}

Fd AcceptFrom(int listener) {
  sockaddr_storage peer = {};
  socklen_t length = sizeof(peer);
  Fd fd(
      accept4(listener, reinterpret_cast<sockaddr*>(&peer), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) return fd;
  SendAtOnce(fd.get());
  ChooseCongestionControl(peer, fd.get());
  return fd;
}

void EndWhenSilent(int fd, int silence_ms) {
  const unsigned timeout_ms = static_cast<unsigned>(silence_ms);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
}

void HoldUnsent(int fd, uint32_t bytes) {
  setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof(bytes));
}

ssize_t SendNow(int fd, const iovec* pieces, int count) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(pieces);
  message.msg_iovlen = static_cast<size_t>(count);
  const ReadBefore read(pieces, count);
  ssize_t sent;
  do {
    sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

}  // namespace tryst
