#include "channel/shm/local_socket.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

OwnedFd NewSocket() {
  return OwnedFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

absl::StatusOr<socklen_t> Address(const std::string& name, sockaddr_un* address) {
  memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof(address->sun_path)) {
    return absl::InvalidArgumentError(
        "the peer broke the protocol: the name of its local socket is empty or too long");
  }
  memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalSocket>> LocalSocket::Listen(const std::string& name) {
  sockaddr_un address;
  auto length = Address(name, &address);
  if (!length.ok()) return length.status();
  OwnedFd fd = NewSocket();
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), *length) != 0 ||
      listen(fd.get(), 128) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on a local socket: ", strerror(errno)));
  }
  return std::unique_ptr<LocalSocket>(new LocalSocket(std::move(fd)));
}

absl::StatusOr<std::unique_ptr<LocalSocket>> LocalSocket::Connect(const std::string& name) {
  sockaddr_un address;
  auto length = Address(name, &address);
  if (!length.ok()) return length.status();
  OwnedFd fd = NewSocket();
  if (!fd.valid() || connect(fd.get(), reinterpret_cast<sockaddr*>(&address), *length) != 0) {
    if (errno == ECONNREFUSED || errno == ENOENT || errno == EACCES || errno == EPERM) {
      return absl::UnimplementedError(
          absl::StrCat("the producer's local socket cannot be reached from here, so the two "
                       "workers may be in different network namespaces: ",
                       strerror(errno)));
    }
    return absl::UnavailableError(
        absl::StrCat("cannot connect to the producer's local socket: ", strerror(errno)));
  }
  return std::unique_ptr<LocalSocket>(new LocalSocket(std::move(fd)));
}

std::unique_ptr<LocalSocket> LocalSocket::Accept() {
  OwnedFd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) return nullptr;
  return std::unique_ptr<LocalSocket>(new LocalSocket(std::move(fd)));
}

bool LocalSocket::Send(const shm_wire::Packet& packet, int fd) {
  iovec part{const_cast<shm_wire::Packet*>(&packet), sizeof(packet)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof(int));
  }
  for (;;) {
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return true;
    if (errno != EINTR) return false;
  }
}

LocalSocket::Received LocalSocket::Receive(shm_wire::Packet* packet, OwnedFd* fd, bool* fd_lost) {
  iovec part{packet, sizeof(*packet)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  // Room for one descriptor more than we expect, so that a peer that sends several is recognised.
  // The kernel closes those that do not fit.
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got;
  do {
    got = recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN ? Received::kNothing : Received::kEnd;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= head->cmsg_len; at += sizeof(int)) {
      int value;
      memcpy(&value, CMSG_DATA(head) + at, sizeof(value));
      *fd = OwnedFd(value);  // The last one of several stays; the others are closed.
    }
  }
  // The kernel passes as many of several as fit.
  if (fd_lost != nullptr) *fd_lost = (message.msg_flags & MSG_CTRUNC) != 0 && !fd->valid();
  if (got == 0) return Received::kEnd;
  if (got != sizeof(*packet) || (message.msg_flags & MSG_TRUNC) != 0 ||
      packet->version != shm_wire::kVersion) {
    packet->type = static_cast<shm_wire::PacketType>(0);
  }
  return Received::kPacket;
}

void LocalSocket::Shutdown() { shutdown(fd_.get(), SHUT_WR); }

int64_t LocalSocket::peer_user() const {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return -1;
  return credentials.uid;
}

OwnedFd LocalSocket::WatchPeer() const {
  const pid_t pid = peer_pid();
  if (pid <= 0) return OwnedFd();
  return OwnedFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

pid_t LocalSocket::peer_pid() const {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return 0;
  return credentials.pid;
}

}  // namespace tryst
