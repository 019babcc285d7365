#include "bench/raw_sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/log.h"

namespace tryst {
namespace {

void MakeTcpPair(int fd[2]) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  TRYST_CHECK(bind(listener, generic, length) == 0 && listen(listener, 1) == 0 &&
              getsockname(listener, generic, &length) == 0);
  fd[0] = socket(AF_INET, SOCK_STREAM, 0);
  TRYST_CHECK(connect(fd[0], generic, length) == 0);
  fd[1] = accept(listener, nullptr, nullptr);
  TRYST_CHECK(fd[1] >= 0);
  close(listener);
  for (int i = 0; i < 2; ++i) {
    const int one = 1;
    TRYST_CHECK(setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
  }
}

void SendBytes(int fd, const uint8_t* from, size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = send(fd, from, bytes, MSG_NOSIGNAL);
    TRYST_CHECK(sent >= 0 || errno == EAGAIN);
    if (sent < 0) continue;
    from += sent;
    bytes -= static_cast<size_t>(sent);
  }
}

void ReceiveBytes(int fd, uint8_t* into, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = recv(fd, into, bytes, 0);
    TRYST_CHECK(got > 0 || (got < 0 && errno == EAGAIN));
    if (got < 0) continue;
    into += got;
    bytes -= static_cast<size_t>(got);
  }
}

}  // namespace

RawSockets::RawSockets(Kind kind) {
  if (kind == Kind::kTcp) {
    MakeTcpPair(fd_);
  } else {
    TRYST_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fd_) == 0);
  }
  for (int fd : fd_) TRYST_CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
}

RawSockets::~RawSockets() {
  for (int fd : fd_) close(fd);
}

void RawSockets::PingPong(bool first, uint8_t* memory, size_t bytes, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    if (first) SendBytes(fd_[0], memory, bytes);
    ReceiveBytes(fd_[first ? 0 : 1], memory, bytes);
    if (!first) SendBytes(fd_[1], memory, bytes);
  }
}

void RawSockets::SendAll(const uint8_t* memory, size_t bytes, int places, int count) {
  for (int i = 0; i < count; ++i) {
    SendBytes(fd_[0], memory + static_cast<size_t>(i % places) * bytes, bytes);
  }
  uint8_t all_there;
  ReceiveBytes(fd_[0], &all_there, 1);
}

void RawSockets::ReceiveAll(uint8_t* memory, size_t bytes, int places, int count) {
  for (int i = 0; i < count; ++i) {
    ReceiveBytes(fd_[1], memory + static_cast<size_t>(i % places) * bytes, bytes);
  }
  const uint8_t all_there = 1;
  SendBytes(fd_[1], &all_there, 1);
}

}  // namespace tryst
