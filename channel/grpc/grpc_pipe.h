#ifndef TRYST_CHANNEL_GRPC_GRPC_PIPE_H_
#define TRYST_CHANNEL_GRPC_GRPC_PIPE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/status.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "channel/grpc/call_sealing.h"
#include "channel/grpc/event_thread.h"
#include "verbs/soft/socket.h"
#include "verbs/soft/soft_pipe.h"

namespace tryst {

// Bytes that become a message: copied, or kept where they are.
class OutgoingBytes {
 public:
  size_t size() const { return kept_bytes_ + copied_.size(); }
  bool empty() const { return size() == 0; }
  void Copy(const char* bytes, size_t size) { copied_.append(bytes, size); }
  void Keep(const void* bytes, size_t size, std::shared_ptr<const void> owner);
  // All of it, which it forgets.
  grpc::ByteBuffer Take();

 private:
  void EndCopied();

  std::vector<grpc::Slice> slices_;  // What comes before `copied_`.
  size_t kept_bytes_ = 0;            // In slices_.
  std::string copied_;
};

// One end of a Converse call, which carries bytes both ways for as long as both want. A message is
// some of the bytes; an empty one says that no more will come. The thread of the call's completion
// queue, an EventThread, reads and writes; whoever holds the SoftPipe takes and gives bytes. The
// object owns itself from Open() until gRPC is done with the call.
//
// Memory: kMostUnsent and a message on their way out, of which large tensors are kept and not
// copied; kMostUnread and a message that has come.
class GrpcPipe : public std::enable_shared_from_this<GrpcPipe> {
 public:
  // As much as a call of FetchTensor has in one message: each costs two threads a turn.
  static constexpr size_t kMostUnsent = 1 << 20;
  // Room for one message to come while another is taken.
  static constexpr size_t kMostUnread = 2 << 20;
  // A peer that sends larger messages is none of ours.
  static constexpr size_t kLargestMessage = kMostUnsent + 64;

  virtual ~GrpcPipe() = default;
  GrpcPipe(const GrpcPipe&) = delete;
  GrpcPipe& operator=(const GrpcPipe&) = delete;

  // The end that its user holds; at most once. Its destruction ends the call, when what it sent is
  // on its way.
  std::unique_ptr<SoftPipe> Hold();

  // ---- Any thread ----
  virtual void Cancel() = 0;  // Ends the call at once.
  // The call has ended at both ends, or has not begun. Before that, what was sent may lie with the
  // peer's gRPC, which drops it when the call is cancelled.
  bool over() const;

 protected:
  explicit GrpcPipe(EventThread* events) : events_(events) {}
  // Call it before Open(). False: no descriptor was left, and the pipe must not be used.
  bool MakeEvent();
  // Both directions are sealed from here on, but for what OpenWith() writes. Call it before that.
  void Seal(const std::string& token, const std::string& statement, bool calls);

  // ---- What the two ends of a call do differently. Called with no lock held ----
  virtual void BeginRead(grpc::ByteBuffer* into, GrpcEvent* event) = 0;
  virtual void BeginWrite(const grpc::ByteBuffer& message, GrpcEvent* event) = 0;
  // Nothing comes any more, or our user has left, all is written, and this end may say so.
  virtual void BeginEnd(GrpcEvent* event) = 0;
  // Whether this end ends the call when its user has left it: the callee. The caller's end waits
  // for that.
  virtual bool ends_call() const = 0;
  virtual void Ended() {}  // BeginEnd() is done.
  virtual void Over() {}   // The last event of the call; the user may still hold its end.
  virtual void OnMessage(size_t /*bytes*/) {}
  virtual void OnLeft() {}  // The user has left it.

  // From here on `self` is kept until the call is over. It begins to read.
  void Open();
  // `first` is written before anything that the user sends.
  void OpenWith(grpc::ByteBuffer first);

 private:
  class Held;
  using Step = GrpcStep<GrpcPipe>;
  // What to begin once the lock is released.
  struct Todo {
    bool read = false;
    bool write = false;
    bool end = false;
    grpc::ByteBuffer message;
  };

  ssize_t Send(const iovec* pieces, const void* const* owners, int count, KeepOwner keep);
  ssize_t Receive(const iovec* pieces, int count);
  void EndSending();
  size_t unsent() const;
  bool Quiet();
  void Leave();

  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnEnded(bool ok);
  size_t Append(const iovec* pieces, const void* const* owners, int count, KeepOwner keep,
                size_t from) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Take(const grpc::ByteBuffer& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Next(Todo* todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Begin(const Todo& todo);
  void Tell();
  void Signal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoSignal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  EventThread* const events_;
  Fd event_;  // An eventfd, constant once it is made; readable at first.
  // Which looked for what comes last: it is the one to look again. Null: none has, or no poller.
  std::atomic<Poller*> poller_{nullptr};
  Step read_step_{this, &GrpcPipe::OnRead};
  Step written_step_{this, &GrpcPipe::OnWritten};
  Step ended_step_{this, &GrpcPipe::OnEnded};
  grpc::ByteBuffer read_;  // Used by the read under way.

  mutable Mutex mu_;
  std::shared_ptr<GrpcPipe> self_ ABSL_GUARDED_BY(mu_);
  bool signaled_ ABSL_GUARDED_BY(mu_) = true;
  // In: what has come and was not received. `unread_at_` bytes of the first slice were.
  std::deque<grpc::Slice> unread_ ABSL_GUARDED_BY(mu_);
  size_t unread_at_ ABSL_GUARDED_BY(mu_) = 0;
  size_t unread_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool no_more_comes_ ABSL_GUARDED_BY(mu_) = false;  // The peer said so, or the call has broken.
  bool call_broken_ ABSL_GUARDED_BY(mu_) = false;    // gRPC said that no message comes any more.
  bool forged_ ABSL_GUARDED_BY(mu_) = false;         // What came is not the peer's.
  // Out: what waits for the write under way.
  OutgoingBytes unsent_ ABSL_GUARDED_BY(mu_);
  size_t writing_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool wants_room_ ABSL_GUARDED_BY(mu_) = false;
  bool ends_sending_ ABSL_GUARDED_BY(mu_) = false;   // The empty message is due,
  bool ended_sending_ ABSL_GUARDED_BY(mu_) = false;  // or has begun, or can no longer be sent.
  bool left_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  // Null: not sealed. Each is used by one message at a time, in their order.
  std::unique_ptr<CallSealing> seal_;
  std::unique_ptr<CallSealing> open_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_GRPC_PIPE_H_
