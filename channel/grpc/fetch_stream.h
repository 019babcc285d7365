#ifndef TRYST_CHANNEL_GRPC_FETCH_STREAM_H_
#define TRYST_CHANNEL_GRPC_FETCH_STREAM_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "channel/grpc/fetch_wire.h"
#include "channel/poller.h"

namespace tryst {

// One attempt at a fetch: one FetchTensor call. gRPC's threads read it into the tensor;
// what comes of it is told on the poller thread, where its public methods are called.
class FetchStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  using Event = absl::AnyInvocable<void(FetchStream*)>;

  // `on_landed` when the tensor is complete or can no longer become so, at most once;
  // `on_ended` as the last event: it destroys the stream. Both on the poller thread.
  // `incoming` is written until Detach() or `on_ended`.
  FetchStream(Poller* poller, IncomingTensor* incoming, uint64_t serial, Event on_landed,
              Event on_ended);
  ~FetchStream() override;

  void Start(const std::shared_ptr<grpc::Channel>& channel, const std::string& statement,
             const std::string& request);
  // When it returns, nothing is written to the tensor any more. serial() becomes 0.
  void Detach();
  // Tells the producer that the fetch is over, and whether the tensor was delivered, and gives
  // it two seconds to hear it.
  void SendEnds(bool delivered);
  // Ends the attempt and tells the producer nothing: another one follows.
  void Abandon();
  // After SendEnds(): a tenth of a second is enough, we are leaving.
  void Hurry();
  void Cancel() { context_.TryCancel(); }

  uint64_t serial() const { return serial_; }
  // Whether the producer may have seen the request.
  bool may_be_known();
  const absl::Status& taken() const { return taken_; }    // From on_landed.
  const grpc::Status& status() const { return status_; }  // From on_ended.

  std::vector<uint64_t> over_told;  // What the request said is over.

 private:
  struct LandedTask final : PollerTask {
    explicit LandedTask(FetchStream* s) : stream(s) {}
    void RunOnPoller() override { stream->on_landed_(stream); }
    FetchStream* const stream;
  };
  struct EndedTask final : PollerTask {
    explicit EndedTask(FetchStream* s) : stream(s) {}
    void RunOnPoller() override;
    FetchStream* const stream;
  };
  struct Linger final : PollerTimer {
    explicit Linger(FetchStream* s) : stream(s) {}
    void OnTimer() override { stream->Cancel(); }
    FetchStream* const stream;
  };

  // Ends the writes and gives back the hold. Once.
  void WriteEnds();
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  // Constant after construction.
  Poller* const poller_;

  // Poller thread only.
  uint64_t serial_;
  Event on_landed_;
  Event on_ended_;
  Linger linger_;

  // gRPC's, then the poller's.
  grpc::ClientContext context_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer ends_;
  grpc::ByteBuffer read_;
  absl::Status taken_;
  grpc::Status status_;
  LandedTask landed_task_;
  EndedTask ended_task_;

  Mutex mu_;
  IncomingTensor* incoming_ ABSL_GUARDED_BY(mu_);
  bool request_pending_ ABSL_GUARDED_BY(mu_) = true;
  bool request_written_ ABSL_GUARDED_BY(mu_) = false;
  bool ends_wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool dead_ ABSL_GUARDED_BY(mu_) = false;  // Nothing can be read any more.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_FETCH_STREAM_H_
