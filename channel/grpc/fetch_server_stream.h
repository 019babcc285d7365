#ifndef TRYST_CHANNEL_GRPC_FETCH_SERVER_STREAM_H_
#define TRYST_CHANNEL_GRPC_FETCH_SERVER_STREAM_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/fetch_wire.h"

namespace tryst {

class FetchServerStream;
struct FetchServerEntry;

// One channel of a consumer's life.
struct FetchServerPeer {
  std::string worker;
  uint64_t incarnation = 0;
  uint64_t channel = 0;
};

// What a request came to: a tensor, or how it failed. Constant once it is ready.
struct FetchOutcome {
  rpc::FetchHeader header;
  OutgoingTensor tensor;
};

// The owner of a stream. The stream calls it on the queue's thread, with no lock held.
class FetchServerStreamOwner {
 public:
  virtual ~FetchServerStreamOwner() = default;
  // A call has come, or (not `ok`) none will: the server shuts down.
  virtual void OnCall(bool ok) = 0;
  virtual void OnRequest(const std::shared_ptr<FetchServerStream>& stream,
                         const std::string& bytes) = 0;
  virtual void OnStreamDone(FetchServerStream* stream) = 0;  // The last event.
};

// The producer's end of one attempt at a fetch: one request, then the tensor from where the
// consumer wants it, and the end. Owns itself from when it waits for a call until gRPC is
// done with it.
class FetchServerStream final : public std::enable_shared_from_this<FetchServerStream> {
 public:
  using Stream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

  explicit FetchServerStream(std::shared_ptr<FetchServerStreamOwner> owner)
      : owner_(std::move(owner)), stream_(&context_) {}

  // Waits for a call: `next(context, stream, tag)` asks gRPC for one.
  template <typename Next>
  void Wait(const Next& next) {
    self_ = shared_from_this();
    context_.AsyncNotifyWhenDone(&done_step_);
    next(&context_, &stream_, &called_step_);
  }
  // Any thread, at most once: sends the outcome from `offset` on, and ends the stream.
  void Send(std::shared_ptr<const FetchOutcome> outcome, uint64_t offset);
  // Any thread: ends the stream once the write under way is done. The first call counts.
  void End(const grpc::Status& status);
  const grpc::ServerContext& context() const { return context_; }

  // The owner's; set before Send.
  std::shared_ptr<FetchServerEntry> entry;
  std::shared_ptr<const FetchServerPeer> waits_for;  // Of a batch: whose.
  bool digests = false;                              // With every chunk.

 private:
  using Step = GrpcStep<FetchServerStream>;

  void OnCalled(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  void OnDone(bool ok);
  // Starts the next write, or finishes, if it is time.
  void Pump();
  void Leave();  // An operation is over; the last one ends the stream.

  const std::shared_ptr<FetchServerStreamOwner> owner_;
  grpc::ServerContext context_;
  Stream stream_;
  Step called_step_{this, &FetchServerStream::OnCalled};
  Step read_step_{this, &FetchServerStream::OnRead};
  Step written_step_{this, &FetchServerStream::OnWritten};
  Step finished_step_{this, &FetchServerStream::OnFinished};
  Step done_step_{this, &FetchServerStream::OnDone};
  std::shared_ptr<FetchServerStream> self_;
  grpc::ByteBuffer request_;

  Mutex mu_;
  std::shared_ptr<const FetchOutcome> outcome_ ABSL_GUARDED_BY(mu_);
  uint64_t offset_ ABSL_GUARDED_BY(mu_) = 0;
  bool header_sent_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // Or gone: nothing more is begun.
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
  grpc::Status end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_FETCH_SERVER_STREAM_H_
