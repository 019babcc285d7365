#ifndef TRYST_CHANNEL_SHM_LOCAL_SOCKET_H_
#define TRYST_CHANNEL_SHM_LOCAL_SOCKET_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/arena/shared_memory.h"
#include "channel/shm/wire.h"

namespace tryst {

// A Unix socket of whole packets between two processes of one host. It carries the
// handshake and descriptors, wakes the other side, and its end is the news that the other
// process is gone. Nothing here ever blocks. Send() may be called on any thread.
class LocalSocket {
 public:
  // An abstract name: nothing is left in any file system.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Listen(const std::string& name);
  // kUnimplemented: nobody listens there in our network namespace.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Connect(const std::string& name);
  // Null when nobody is waiting.
  std::unique_ptr<LocalSocket> Accept();

  // With `fd` >= 0, which stays the caller's, attached. False when it is not taken: the
  // peer is gone, or does not read.
  bool Send(const shm_wire::Packet& packet, int fd = -1);
  enum class Received { kNothing, kPacket, kEnd };
  // kEnd: the peer has closed its end, or its process is gone. A packet of another length
  // than ours counts as one of type 0.
  Received Receive(shm_wire::Packet* packet, OwnedFd* fd);

  // The peer reads the end of our stream; we still see the end of its own.
  void Shutdown();

  // The other process's effective user when it connected; -1: not known.
  int64_t peer_user() const;
  // Becomes readable when the other process ends, whoever else holds its end of the socket.
  // Invalid: it cannot be watched from here.
  OwnedFd WatchPeer() const;
  // The other process as seen from our pid namespace; 0: not in it.
  pid_t peer_pid() const;
  int fd() const { return fd_.get(); }

 private:
  explicit LocalSocket(OwnedFd fd) : fd_(std::move(fd)) {}
  const OwnedFd fd_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_LOCAL_SOCKET_H_
