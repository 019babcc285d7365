#include "plugins/nccl/control_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tryst::nccl {
namespace {

constexpr uint32_t kMaxMessage = 32 << 10;

bool NotNow() { return errno == EAGAIN || errno == EINTR || errno == ENOTCONN; }

}  // namespace

void ControlSocket::Send(const std::string& message) {
  const uint32_t length = static_cast<uint32_t>(message.size());
  out_.append(reinterpret_cast<const char*>(&length), sizeof(length));
  out_.append(message);
}

absl::StatusOr<bool> ControlSocket::Flush() {
  while (!out_.empty()) {
    const ssize_t sent = send(fd_.get(), out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && NotNow()) return false;
    if (sent < 0) return absl::UnavailableError(strerror(errno));
    out_.erase(0, static_cast<size_t>(sent));
  }
  return true;
}

// Reads no further than this message: what follows belongs to other readers.
absl::StatusOr<bool> ControlSocket::Receive(std::string* message) {
  for (;;) {
    uint32_t length = 0;
    size_t wanted = sizeof(length);
    if (in_.size() >= sizeof(length)) {
      memcpy(&length, in_.data(), sizeof(length));
      if (length > kMaxMessage)
        return absl::DataLossError(
            "a process connected and sent a greeting that is too long: it is no rank of this job");
      wanted += length;
      if (in_.size() == wanted) {
        message->assign(in_, sizeof(length), length);
        in_.clear();
        return true;
      }
    }
    char bytes[4096];
    const ssize_t got =
        recv(fd_.get(), bytes, std::min(sizeof(bytes), wanted - in_.size()), MSG_DONTWAIT);
    if (got < 0 && NotNow()) return false;
    if (got < 0) return absl::UnavailableError(strerror(errno));
    if (got == 0)
      return absl::UnavailableError(
          "the other rank closed the connection while it was being opened");
    in_.append(bytes, static_cast<size_t>(got));
  }
}

}  // namespace tryst::nccl
