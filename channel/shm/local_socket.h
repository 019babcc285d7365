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

// A Unix socket of whole packets between two processes of one host. It carries the handshake and
// descriptors, and wakes the other side. Its end tells that the other process is gone. It never
// blocks. Send() may be called on any thread.
class LocalSocket {
 public:
  // `name` is abstract, so nothing is left in a file system.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Listen(const std::string& name);
  // kUnimplemented: nobody listens under that name in our network namespace.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Connect(const std::string& name);
  // Null: nobody waits.
  std::unique_ptr<LocalSocket> Accept();

  // If `fd` >= 0, sends a copy of it along; the caller keeps it. False: the peer is gone, or does
  // not read.
  bool Send(const shm_wire::Packet& packet, int fd = -1);
  enum class Received { kNothing, kPacket, kEnd };
  // kEnd: the peer has closed its end, or its process is gone. A packet with another length than
  // ours is returned as one of type 0. `*fd_lost`, if it is not null, becomes whether the packet
  // had a descriptor that this process had no room for, which the kernel has closed.
  Received Receive(shm_wire::Packet* packet, OwnedFd* fd, bool* fd_lost = nullptr);

  // The peer then reads the end of our stream; we can still read until the end of its own.
  void Shutdown();

  // The other process's effective user when it connected; -1: unknown.
  int64_t peer_user() const;
  // A descriptor that becomes readable when the other process ends, even if another process holds
  // its end of the socket. Invalid: it cannot be watched from here.
  OwnedFd WatchPeer() const;
  // The other process's id in our pid namespace; 0: it has none there.
  pid_t peer_pid() const;
  int fd() const { return fd_.get(); }

 private:
  explicit LocalSocket(OwnedFd fd) : fd_(std::move(fd)) {}
  const OwnedFd fd_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_LOCAL_SOCKET_H_
