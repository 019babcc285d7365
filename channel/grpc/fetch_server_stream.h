#ifndef TRYST_CHANNEL_GRPC_FETCH_SERVER_STREAM_H_
#define TRYST_CHANNEL_GRPC_FETCH_SERVER_STREAM_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "channel/grpc/fetch_wire.h"

namespace tryst {

class FetchServerStream;
struct FetchServerEntry;

// What a request came to: a tensor, or how it failed. Constant once it is ready.
struct FetchOutcome {
  rpc::FetchHeader header;
  OutgoingTensor tensor;
};

// Whom a stream tells, on gRPC's threads and with no lock held.
class FetchServerStreamOwner {
 public:
  virtual ~FetchServerStreamOwner() = default;
  virtual void OnRequest(const std::shared_ptr<FetchServerStream>& stream,
                         const std::string& bytes) = 0;
  virtual void OnEnds(FetchServerStream* stream, bool delivered) = 0;
  virtual void OnStreamDone(FetchServerStream* stream) = 0;  // The last event.
};

// The producer's end of one attempt at a fetch. Owns itself until gRPC is done with it.
class FetchServerStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                                public std::enable_shared_from_this<FetchServerStream> {
 public:
  FetchServerStream(std::shared_ptr<FetchServerStreamOwner> owner,
                    grpc::CallbackServerContext* context)
      : owner_(std::move(owner)), context_(context) {}

  void Begin();
  // Any thread, at most once: sends the outcome from `offset` on.
  void Send(std::shared_ptr<const FetchOutcome> outcome, uint64_t offset);
  // Any thread: ends the stream once the write under way is done. The first call counts.
  void End(const grpc::Status& status);
  grpc::CallbackServerContext* context() const { return context_; }

  // The owner's; set before Send.
  std::shared_ptr<FetchServerEntry> entry;
  bool digests = false;  // With every chunk.

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;
  void OnSecondRequest();
  // Starts the next write, or finishes, if it is time.
  void Pump();

  const std::shared_ptr<FetchServerStreamOwner> owner_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<FetchServerStream> self_;
  grpc::ByteBuffer first_;
  grpc::ByteBuffer second_;
  bool first_done_ = false;  // gRPC's read reactions only.

  Mutex mu_;
  std::shared_ptr<const FetchOutcome> outcome_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer write_ ABSL_GUARDED_BY(mu_);
  uint64_t offset_ ABSL_GUARDED_BY(mu_) = 0;
  bool header_sent_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_FETCH_SERVER_STREAM_H_
