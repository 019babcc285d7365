#ifndef TRYST_CHANNEL_COMPAT_FETCH_SERVER_STREAM_H_
#define TRYST_CHANNEL_COMPAT_FETCH_SERVER_STREAM_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "channel/compat/fetch_wire.h"
#include "channel/grpc/call_sealing.h"
#include "channel/grpc/event_thread.h"

namespace tryst {

class FetchServerStream;
struct FetchServerEntry;
class TraceTrack;

// One channel of one incarnation of a consumer.
struct FetchServerPeer {
  std::string worker;
  uint64_t incarnation = 0;
  uint64_t channel = 0;
  TraceTrack* track = nullptr;  // Null without a trace.
};

// The outcome of a request: a tensor, or a failure. Constant once it is set.
struct FetchOutcome {
  rpc::FetchHeader header;
  OutgoingTensor tensor;
};

// The owner of a stream. The stream calls it on the queue's thread, with no lock held.
class FetchServerStreamOwner {
 public:
  virtual ~FetchServerStreamOwner() = default;
  // A call has come. `ok` is false: none will, because the server shuts down.
  virtual void OnCall(bool ok) = 0;
  virtual void OnRequest(const std::shared_ptr<FetchServerStream>& stream,
                         const std::string& bytes) = 0;
  virtual void OnStreamDone(FetchServerStream* stream) = 0;  // The last event.
};

// The producer's end of one attempt at a fetch: one request, then the tensor from the offset that
// the consumer asks for, and the end. Owns itself from Wait() until gRPC is done with it.
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
  // Sends the outcome from `offset` on, and ends the stream. Thread-safe; at most once.
  void Send(std::shared_ptr<const FetchOutcome> outcome, uint64_t offset);
  // Ends the stream after the write under way. Thread-safe; the first call counts.
  void End(const grpc::Status& status);
  const grpc::ServerContext& context() const { return context_; }
  // Call it before Send(): seals the answer with the token, for this call alone.
  void Seal(const std::string& token);

  // Used by the owner; set before Send().
  std::shared_ptr<FetchServerEntry> entry;
  std::shared_ptr<const FetchServerPeer> waits_for;  // For a batch: whose it is.
  bool takes_parcels = false;                        // For a batch.
  bool digests = false;                              // Every chunk carries one.

 private:
  using Step = GrpcStep<FetchServerStream>;

  void OnCalled(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  void OnDone(bool ok);
  // Starts the next write, or ends the stream, if it is time.
  void Pump();
  void Leave();  // An operation has ended; after the last one the stream is destroyed.

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
  std::unique_ptr<CallSealing> sealing_ ABSL_GUARDED_BY(mu_);  // Null: it is not sealed.
  std::shared_ptr<const FetchOutcome> outcome_ ABSL_GUARDED_BY(mu_);
  uint64_t offset_ ABSL_GUARDED_BY(mu_) = 0;
  bool header_sent_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // Ended or gone: no operation may begin.
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
  grpc::Status end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_COMPAT_FETCH_SERVER_STREAM_H_
