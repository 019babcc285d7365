#ifndef TRYST_CHANNEL_COMPAT_FETCH_STREAM_H_
#define TRYST_CHANNEL_COMPAT_FETCH_STREAM_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "channel/compat/fetch_wire.h"
#include "channel/grpc/call_sealing.h"
#include "channel/grpc/event_thread.h"
#include "channel/poller/poller.h"

namespace tryst {

// One FetchTensor call: an attempt at a fetch, a batch, or a note of ended fetches. The thread of
// its completion queue, an EventThread, reads the answer into the tensor. Results are reported on
// the poller thread, where its public methods are called.
class FetchStream final {
 public:
  using Event = absl::AnyInvocable<void(FetchStream*)>;

  // `on_landed` runs, at most once, when the tensor is complete or can no longer become so.
  // `on_ended` is the last event, and destroys the stream. Both run on the poller thread. `serial`
  // is 0 except for a fetch. `incoming` is null for a note; it may be written until Detach() or
  // `on_ended`.
  FetchStream(Poller* poller, IncomingTensor* incoming, uint64_t serial, Event on_landed,
              Event on_ended);
  ~FetchStream();

  void Start(grpc::CompletionQueue* queue, const std::shared_ptr<grpc::Channel>& channel,
             std::string statement, const std::string& request);
  // Call it before Start(): the answer must be sealed.
  void Unseal(std::unique_ptr<CallSealing> sealing) { sealing_ = std::move(sealing); }
  // After it returns, nothing is written to the tensor any more. serial() becomes 0.
  void Detach();
  // The bytes are for another receive now; see IncomingTensor::Redirect(). Not after Detach().
  bool Redirect(const Tensor& destination);
  // Call it before Start(). The call then ends within `ns`.
  void EndWithin(int64_t ns);
  // Shortens the call's remaining time to a tenth of a second, because we are closing.
  void Hurry();
  void Cancel() { context_.TryCancel(); }

  uint64_t serial() const { return serial_; }
  // Whether the producer may have seen the request.
  bool may_be_known() const { return request_written_.load(); }
  const absl::Status& taken() const { return taken_; }  // Valid from `on_landed` on.
  // Whether the answer is of a producer that has read which fetches have ended. One in another life
  // than it was asked of refuses a request before. Valid from `on_landed` on.
  bool over_heard() const { return over_heard_; }
  const grpc::Status& status() const { return status_; }  // Valid from `on_ended` on.
  // How many messages of a tensor have come that lacks bytes; 0: none has come, or it is complete.
  uint64_t parts_so_far() const { return parts_so_far_.load(std::memory_order_relaxed); }
  const std::string& statement() const { return statement_; }

  std::vector<uint64_t> over_told;  // The ended fetches that the request named.
  // GrpcCalls keeps here parts_so_far() when it was last seen to change, and when that was.
  uint64_t seen_parts = 0;
  int64_t seen_ns = 0;

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
  void Leave();  // The second of two calls means that no operation of gRPC is under way.

  // Constant after construction.
  Poller* const poller_;

  // Poller thread only.
  uint64_t serial_;
  Event on_landed_;
  Event on_ended_;
  Linger linger_;
  std::string statement_;

  // Used by the queue's thread, then by the poller's.
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::ByteBuffer read_;
  std::unique_ptr<CallSealing> sealing_;  // Null: answers are not sealed.
  absl::Status taken_;
  bool over_heard_;
  grpc::Status status_;
  std::atomic<bool> request_written_{false};
  std::atomic<uint64_t> parts_so_far_{0};
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

#endif  // TRYST_CHANNEL_COMPAT_FETCH_STREAM_H_
