#ifndef TRYST_CHANNEL_GRPC_FETCH_SERVER_H_
#define TRYST_CHANNEL_GRPC_FETCH_SERVER_H_

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
  // How long a tensor, or a request that waits for one, is kept after its stream broke.
  absl::Duration keep_for = absl::Minutes(2);
  // Tensors kept without a stream, all together; the oldest go first.
  uint64_t max_kept_bytes = uint64_t{1} << 30;
  // Guards against a hostile peer. Requests of one consumer, on all of its channels: an honest one
  // asks for GrpcChannelOptions::max_waiting, and for those that it has just given up. And their
  // keys' texts.
  size_t max_requests = 1'000'000 + 65536;
  uint64_t max_key_bytes = 256 << 20;
  size_t max_consumers = 65536;
  bool takes_batches = true;  // False: refuses them, as earlier releases do.
  bool digests = false;       // With every chunk, asked for or not.
  Trace* trace = nullptr;     // Of this alone; outlives it. May be null.
};

// The producer's side of FetchTensor. Hands every request to a TensorSource once, however
// often it is repeated, and keeps what it gave until the consumer says that it has landed:
// so a tensor is neither lost with a stream nor taken twice. What a fetch that ended early had
// met goes back to the source. Thread-safe.
class FetchServer {
 public:
  // Who makes this call, and may it? `request` is the first message as it came.
  using Authorize = std::function<absl::StatusOr<Caller>(const grpc::ServerContextBase& context,
                                                         absl::string_view request)>;
  // May this caller have this tensor?
  using Admit = std::function<absl::Status(const Caller& caller, const TensorKey& key)>;
  using CallStream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;
  // Asks the gRPC service for its next call of FetchTensor.
  using NextCall = std::function<void(grpc::ServerContext* context, CallStream* stream,
                                      grpc::ServerCompletionQueue* queue, void* tag)>;

  // The arguments outlive it.
  FetchServer(TensorSource* source, Alarms* alarms, uint64_t incarnation, Authorize authorize,
              Admit admit, FetchServerOptions options = {});
  ~FetchServer();  // REQUIRES: Shutdown() was called, and Join() if Start() was.

  // Serves calls from when the gRPC server has started. `queue` is of its builder, turned by an
  // EventThread.
  void Start(grpc::ServerCompletionQueue* queue, NextCall next);
  // Waits for the last of them. REQUIRES: the gRPC server has shut down.
  void Join();

  // Refuses what comes and cancels what waits; streams that move a tensor go on.
  void Shutdown();

  struct Counts {
    uint64_t requests = 0;     // First attempts.
    uint64_t repetitions = 0;  // Later ones.
    uint64_t tensors = 0;      // Landed.
    uint64_t bytes = 0;        // Of those.
    uint64_t given_back = 0;   // Taken for a fetch that ended early.
    uint64_t refused = 0;
    uint64_t dropped = 0;     // Nobody came back for them.
    uint64_t waiting = 0;     // Now, for the source.
    uint64_t parked = 0;      // Of those that wait: without a call of their own.
    uint64_t sending = 0;     // Now, to a consumer.
    uint64_t kept_bytes = 0;  // Now, without a stream.
  };
  Counts counts() const;

  // Adds what has not ended: what each waits for, and since when.
  void ListOps(LiveOps* ops) const;

 private:
  class State;
  const std::shared_ptr<State> state_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_FETCH_SERVER_H_
