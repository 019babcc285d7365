#ifndef TRYST_VERBS_SOFT_SOFT_PIPE_H_
#define TRYST_VERBS_SOFT_SOFT_PIPE_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "verbs/nic.h"

namespace tryst {

// One end of a connection that is no socket, such as a stream of gRPC. Bytes arrive once and in
// order, or it ends. Calls return as send(2) and recv(2) do, and never block: -1 with EAGAIN for
// "not now". One thread uses it. What Send() has taken still goes out after its destruction, as
// far as the peer reads.
class SoftPipe {
 public:
  virtual ~SoftPipe() = default;
  virtual ssize_t Send(const iovec* pieces, int count) = 0;
  // A Send() that may go on without a copy of what `keep` keeps. `owners`: of each piece, as
  // SendWork::owner. `keep` may be null.
  virtual ssize_t SendOf(const iovec* pieces, const void* const* owners, int count,
                         KeepOwner keep) = 0;
  virtual ssize_t Receive(const iovec* pieces, int count) = 0;
  virtual void EndSending() = 0;  // As shutdown(SHUT_WR).
  // What Send() has taken and what is still in this process.
  virtual size_t unsent() const = 0;
  // Whether there is nothing to receive, not even the end.
  virtual bool Quiet() = 0;
  // Readable at first, while there is something to receive, if only the end, and when there is room
  // again after a Send() that found none. A Receive() or Quiet() that finds nothing makes it
  // unreadable.
  virtual int event_fd() const = 0;
};

// Makes the pipes of a soft NIC. Thread-safe.
class SoftPipes {
 public:
  // Where the peers of one completion queue arrive. One thread uses it.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual const std::string& address() const = 0;  // For Dial(); at most 200 bytes.
    virtual std::unique_ptr<SoftPipe> Accept() = 0;  // Null: nobody waits.
    virtual int event_fd() const = 0;                // Readable while somebody waits.
  };
  virtual ~SoftPipes() = default;
  virtual absl::StatusOr<std::unique_ptr<Listener>> Listen() = 0;
  // Null: the peer cannot be dialled now. An end that comes soon: it does not answer.
  virtual std::unique_ptr<SoftPipe> Dial(const std::string& address) = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_PIPE_H_
