#ifndef TRYST_VERBS_SOFT_SOFT_STREAM_H_
#define TRYST_VERBS_SOFT_SOFT_STREAM_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "verbs/soft/socket.h"
#include "verbs/soft/soft_pipe.h"
#include "verbs/soft/soft_tls.h"

namespace tryst {

// A connected socket, plain or with TLS, or a pipe. Calls return as send(2) and recv(2) do, and
// never block: -1 with EAGAIN for "not now". Once it is connected, one thread may send while
// another receives.
class SoftStream {
 public:
  SoftStream() = default;
  explicit SoftStream(Fd fd, std::unique_ptr<SoftTlsSession> tls = nullptr)
      : fd_(std::move(fd)), tls_(std::move(tls)) {}
  explicit SoftStream(std::unique_ptr<SoftPipe> pipe) : pipe_(std::move(pipe)) {}

  void set_keep(KeepOwner keep) { keep_ = keep; }

  // For epoll. Of a pipe it also says when there is room.
  int fd() const { return pipe_ != nullptr ? pipe_->event_fd() : fd_.get(); }
  bool shows_room_apart() const { return pipe_ == nullptr; }
  bool valid() const { return pipe_ != nullptr || fd_.valid(); }
  void Close();

  ssize_t Send(const iovec* pieces, int count);
  // `owners`: of each piece, as SendWork::owner.
  ssize_t SendOf(const iovec* pieces, const void* const* owners, int count) {
    return pipe_ != nullptr ? pipe_->SendOf(pieces, owners, count, keep_) : Send(pieces, count);
  }
  ssize_t Send(const void* bytes, size_t size);
  ssize_t Receive(const iovec* pieces, int count);
  ssize_t Receive(void* bytes, size_t size);

  // ---- The end ----
  void EndSending();  // The peer still gets all that was sent.
  // Receives bytes that nobody wants, as they lie in the socket.
  ssize_t Discard(void* bytes, size_t size);
  bool Quiet();           // Nothing is there to receive, not even the end.
  size_t Unsent() const;  // What the peer's system does not have yet.

  // Whether Send() has taken more than the socket has: call it again, if only without pieces.
  bool HasUnsent() const { return tls_ != nullptr && tls_->HasUnsent(); }
  // Whether there is more to receive than the descriptor shows.
  bool HoldsBytes() const { return tls_ != nullptr && tls_->HoldsBytes(); }
  // Whether the last Send() waits for bytes from the peer instead of room.
  bool SendWaitsForPeer() const { return tls_ != nullptr && tls_->WaitsForPeer(); }

 private:
  Fd fd_;
  std::unique_ptr<SoftTlsSession> tls_;
  std::unique_ptr<SoftPipe> pipe_;
  KeepOwner keep_ = nullptr;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_STREAM_H_
