#ifndef TRYST_CHANNEL_COMPAT_FETCH_SERVER_H_
#define TRYST_CHANNEL_COMPAT_FETCH_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "channel/signing/caller.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/trace.h"
#include "rendezvous/alarms.h"
#include "rendezvous/tensor_source.h"

namespace grpc {
class ByteBuffer;
class ServerCompletionQueue;
class ServerContext;
class ServerContextBase;
template <class Response, class Request>
class ServerAsyncReaderWriter;
}  // namespace grpc

namespace tryst {

struct FetchServerOptions {
  // How long a tensor, or a waiting request, is kept after its stream broke. A consumer that has
  // none, and is silent for as long, does not count in max_consumers any more.
  absl::Duration keep_for = absl::Minutes(2);
  // The most bytes of tensors without a stream, together; the oldest are dropped first.
  uint64_t max_kept_bytes = uint64_t{1} << 30;
  // Bounds against a hostile consumer: its requests, on all channels, and their keys' texts. An
  // honest consumer requests GrpcChannelOptions::max_waiting, and those that it has just given up.
  size_t max_requests = 1'000'000 + 65536;
  uint64_t max_key_bytes = 256 << 20;
  size_t max_consumers = 65536;
  bool takes_batches = true;  // False: refuses them, as earlier releases do.
  bool digests = false;       // Every chunk carries one, requested or not.
  // Shared-token mode: answers are sealed with it for who asks so, and with `seals` nobody else is
  // answered.
  std::string token;
  bool seals = false;
  Trace* trace = nullptr;  // Used by this alone; outlives it. May be null.
};

// The producer's side of FetchTensor. Hands every request to a TensorSource once, however often it
// is repeated, and keeps the tensor until the consumer says that it has landed. So no tensor is
// lost with a stream, or taken twice. If a fetch ends early, its tensor goes back to the source.
// Thread-safe.
class FetchServer {
 public:
  // Authenticates and authorizes the caller. `request` is the raw first message.
  using Authorize = std::function<absl::StatusOr<Caller>(const grpc::ServerContextBase& context,
                                                         absl::string_view request)>;
  // Whether the caller may have this tensor.
  using Admit = std::function<absl::Status(const Caller& caller, const TensorKey& key)>;
  using CallStream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;
  // Asks gRPC for the next call of FetchTensor.
  using NextCall = std::function<void(grpc::ServerContext* context, CallStream* stream,
                                      grpc::ServerCompletionQueue* queue, void* tag)>;

  // The arguments outlive it. The tensors of `source` lie in host memory.
  FetchServer(TensorSource* source, Alarms* alarms, uint64_t incarnation, Authorize authorize,
              Admit admit, FetchServerOptions options = {});
  ~FetchServer();  // REQUIRES: Shutdown() was called, and Join() if Start() was.

  // Serves calls. REQUIRES: the gRPC server has started. `queue` belongs to its builder, and an
  // EventThread turns it.
  void Start(grpc::ServerCompletionQueue* queue, NextCall next);
  // Waits for the last call. REQUIRES: the gRPC server has shut down.
  void Join();

  // Refuses new calls and cancels waiting ones. Streams that move a tensor go on.
  void Shutdown();

  struct Counts {
    uint64_t requests = 0;     // Counts first attempts.
    uint64_t repetitions = 0;  // Counts later attempts.
    uint64_t tensors = 0;      // Tensors that have landed.
    uint64_t bytes = 0;        // Their bytes.
    uint64_t parcels = 0;      // Tensors and failures in answers to batches.
    uint64_t given_back = 0;   // Tensors taken for a fetch that ended early.
    uint64_t refused = 0;
    uint64_t dropped = 0;      // Requests whose consumer did not come back.
    uint64_t waiting = 0;      // At present, for the source.
    uint64_t parked = 0;       // Those among them that have no call of their own.
    uint64_t sending = 0;      // At present, to a consumer.
    uint64_t kept_bytes = 0;   // At present, without a stream.
    uint64_t alone = 0;        // At present: fetches whose stream broke.
    uint64_t consumers = 0;    // At present, that have said something of late.
    uint64_t silent = 0;       // At present, beside those: their state is kept.
    uint64_t bursts_over = 0;  // Ends of thousands of requests of one consumer (Poller).
  };
  Counts counts() const;

  // Adds the operations that have not ended: what each waits for, and since when.
  void ListOps(LiveOps* ops) const;

 private:
  class State;
  const std::shared_ptr<State> state_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_COMPAT_FETCH_SERVER_H_
