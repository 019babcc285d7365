#ifndef TRYST_VERBS_SOFT_SOFT_STREAM_H_
#define TRYST_VERBS_SOFT_SOFT_STREAM_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "verbs/soft/socket.h"
#include "verbs/soft/soft_tls.h"

namespace tryst {

// A connected socket, plain or with TLS. Calls return as send(2) and recv(2) do, and never block:
// -1 with EAGAIN for "not now". Once it is connected, one thread may send while another receives.
class SoftStream {
 public:
  SoftStream() = default;
  explicit SoftStream(Fd fd, std::unique_ptr<SoftTlsSession> tls = nullptr)
      : fd_(std::move(fd)), tls_(std::move(tls)) {}

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  void Close();

  ssize_t Send(const iovec* pieces, int count);
  ssize_t Send(const void* bytes, size_t size);
  ssize_t Receive(const iovec* pieces, int count);
  ssize_t Receive(void* bytes, size_t size);

  // Whether Send() has taken more than the socket has: call it again, if only without pieces.
  bool HasUnsent() const { return tls_ != nullptr && tls_->HasUnsent(); }
  // Whether there is more to receive than the descriptor shows.
  bool HoldsBytes() const { return tls_ != nullptr && tls_->HoldsBytes(); }
  // Whether the last Send() waits for bytes from the peer instead of room.
  bool SendWaitsForPeer() const { return tls_ != nullptr && tls_->WaitsForPeer(); }

 private:
  Fd fd_;
  std::unique_ptr<SoftTlsSession> tls_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_STREAM_H_
