#ifndef TRYST_CHANNEL_GRPC_GRPC_PIPES_H_
#define TRYST_CHANNEL_GRPC_GRPC_PIPES_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/peer_directory.h"
#include "channel/signing/caller.h"
#include "verbs/soft/soft_pipe.h"

namespace grpc {
class ByteBuffer;
class ServerCompletionQueue;
class ServerContext;
class ServerContextBase;
template <class Response, class Request>
class ServerAsyncReaderWriter;
}  // namespace grpc

namespace tryst {

inline constexpr char kConverseMethod[] = "/tryst.rpc.TransportService/Converse";

// The pipes of a soft NIC as calls to peers and from them: TransportService.Converse. The first
// message of a call names the listener that it is for, and the caller's statement covers it.
// Thread- safe.
class GrpcPipes final : public SoftPipes {
 public:
  // Authenticates and authorizes the caller. `request` is the raw first message.
  using Authorize = std::function<absl::StatusOr<Caller>(const grpc::ServerContextBase& context,
                                                         absl::string_view request)>;
  using CallStream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;
  // Asks gRPC for the next call of Converse.
  using NextCall = std::function<void(grpc::ServerContext* context, CallStream* stream,
                                      grpc::ServerCompletionQueue* queue, void* tag)>;
  struct Parts {  // All outlive the pipes.
    PeerDirectory* peers = nullptr;
    CallSigner* signer = nullptr;
    EventThread* events = nullptr;
    Authorize authorize;
    // Runs for each kHeardBytes that an authorized caller has sent. May be null.
    std::function<void(const grpc::ServerContextBase& context)> heard;
    bool seals = false;  // With the token that we share with the peers.
  };
  // Bounds of what peers can make us keep: calls under way from one worker, and calls for one
  // listener that it has not accepted yet.
  static constexpr size_t kMostFromOne = 64;
  static constexpr size_t kMostWaiting = 64;
  // And calls of ours that we have left, and that their peers have not ended.
  static constexpr size_t kMostLeft = 64;
  // And calls whose caller has not said yet who it is. None has a descriptor.
  static constexpr size_t kMostSilent = 256;
  static constexpr size_t kHeardBytes = 1 << 20;

  explicit GrpcPipes(Parts parts);
  ~GrpcPipes() override;  // REQUIRES: Shutdown() and Join(), before the EventThread ends.

  absl::StatusOr<std::unique_ptr<Listener>> Listen() override;
  std::unique_ptr<SoftPipe> Dial(const std::string& address) override;

  // Serves calls. REQUIRES: the gRPC server has started. `queue` belongs to its builder, and an
  // EventThread turns it.
  void Start(grpc::ServerCompletionQueue* queue, NextCall next);
  // Waits until the peers have what was sent, `most` at most, and ends all calls; none begins any
  // more. Idempotent. What a slow peer has not read by then is lost, of which no session hears:
  // they have ended before. A fetch whose answer is among it has lost its link, as has every fetch
  // that was being answered when the session ended, and so ends with a status; no send has said
  // that its tensor came. Where it says which tensors have landed here, their producer keeps them
  // as for a consumer that has vanished, and then lets go of them.
  void Shutdown(absl::Duration most);
  // Waits for the last event of every call. REQUIRES: Shutdown(); the gRPC server, if there was
  // one, has shut down.
  void Join();
  size_t calls() const;  // Under way, of both directions.

 private:
  class State;
  class Door;
  class CallerPipe;
  class CalleePipe;
  const std::shared_ptr<State> state_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_GRPC_PIPES_H_
