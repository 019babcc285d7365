#ifndef TRYST_PLUGINS_NCCL_CONTROL_SOCKET_H_
#define TRYST_PLUGINS_NCCL_CONTROL_SOCKET_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbs/soft/socket.h"

namespace tryst::nccl {

// Sends and receives greetings over a socket that never blocks: a length, then that many bytes.
class ControlSocket {
 public:
  explicit ControlSocket(Fd fd) : fd_(std::move(fd)) {}

  void Send(const std::string& message);
  // Writes what it can; true when all is written. kUnavailable: the connection is lost.
  absl::StatusOr<bool> Flush();
  // True when `message` is complete. kUnavailable: the connection has ended. kDataLoss: the message
  // is too long.
  absl::StatusOr<bool> Receive(std::string* message);
  Fd Take() { return std::move(fd_); }

 private:
  Fd fd_;
  std::string out_;
  std::string in_;
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_CONTROL_SOCKET_H_
