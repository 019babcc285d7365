#ifndef TRYST_CHANNEL_GRPC_FETCH_STREAM_H_
#define TRYST_CHANNEL_GRPC_FETCH_STREAM_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/fetch_wire.h"
#include "channel/poller/poller.h"

namespace tryst {

// One FetchTensor call: an attempt at a fetch, a batch, or a note of what is over. The thread of
// its completion queue, an EventThread of the poller, reads it into the tensor; what comes of it is
// told on the poller thread, where its public methods are called.
class FetchStream final {
 public:
  using Event = absl::AnyInvocable<void(FetchStream*)>;

  // `on_landed` when the tensor is complete or can no longer become so, at most once;
  // `on_ended` as the last event: it destroys the stream. Both on the poller thread.
  // `serial` is 0 but for a fetch. `incoming`, null for a note, is written until Detach() or
  // `on_ended`.
  FetchStream(Poller* poller, IncomingTensor* incoming, uint64_t serial, Event on_landed,
              Event on_ended);
  ~FetchStream();

  void Start(grpc::CompletionQueue* queue, const std::shared_ptr<grpc::Channel>& channel,
             const std::string& statement, const std::string& request);
  // When it returns, nothing is written to the tensor any more. serial() becomes 0.
  void Detach();
  // What comes is for somebody else; as IncomingTensor::Redirect().
  bool Redirect(const Tensor& destination);
  // Before Start(): it ends within `ns`, one way or the other.
  void EndWithin(int64_t ns);
  // A tenth of a second is enough: we are leaving.
  void Hurry();
  void Cancel() { context_.TryCancel(); }

  uint64_t serial() const { return serial_; }
  // Whether the producer may have seen the request.
  bool may_be_known() const { return request_written_.load(); }
  const absl::Status& taken() const { return taken_; }    // From on_landed.
  const grpc::Status& status() const { return status_; }  // From on_ended.

  std::vector<uint64_t> over_told;  // What the request said is over.

 private:
  using Step = GrpcStep<FetchStream>;
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

  void OnWritten(bool ok);
  void OnRead(bool ok);
  void OnFinished(bool ok);
  void Leave();  // As the last of two: nothing of gRPC's is under way.

  // Constant after construction.
  Poller* const poller_;

  // Poller thread only.
  uint64_t serial_;
  Event on_landed_;
  Event on_ended_;
  Linger linger_;

  // The queue's thread, then the poller's.
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::ByteBuffer read_;
  absl::Status taken_;
  grpc::Status status_;
  std::atomic<bool> request_written_{false};
  std::atomic<int> left_{2};  // The write and the end.
  Step written_{this, &FetchStream::OnWritten};
  Step was_read_{this, &FetchStream::OnRead};
  Step finished_{this, &FetchStream::OnFinished};
  LandedTask landed_task_;
  EndedTask ended_task_;

  Mutex mu_;
  IncomingTensor* incoming_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_FETCH_STREAM_H_
