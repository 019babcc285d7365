#ifndef TRYST_SERVER_TRANSPORT_SERVICE_H_
#define TRYST_SERVER_TRANSPORT_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "channel/bootstrap.h"
#include "channel/grpc/fetch_server.h"
#include "channel/signing/caller.h"
#include "rendezvous/executor.h"
#include "server/insight.h"
#include "server/membership.h"
#include "server/samples.h"

namespace grpc {
class ServerCompletionQueue;
class ServerContextBase;
class Service;
}  // namespace grpc

namespace tryst {

// What TransportService stands on. Everything outlives it and may be called from any thread.
struct TransportServiceParts {
  Caller self;
  std::function<std::string()> address;  // Where others reach us.
  std::string token;                     // Shared-token mode; or empty.
  Membership* members = nullptr;
  HelloHandler* hellos = nullptr;  // Null: gRPC is the only path here.
  // Returns the caller, authenticated as far as the server's security mode can. `request` is the
  // message as it arrived.
  std::function<absl::StatusOr<Caller>(const grpc::ServerContextBase&, absl::string_view method,
                                       absl::string_view request)>
      authenticate;
  std::function<absl::Status(int64_t step_id)> begin_step;
  std::function<absl::Status(int64_t step_id, const absl::Status& why)> abort_step;
  std::function<absl::Status(int64_t step_id)> cleanup_step;
  // Where calls run that may wait or run callbacks. Null: on the thread that brings them.
  Executor* executor = nullptr;
  SampleSender* samples = nullptr;
  const Insight* insight = nullptr;
};

// The gRPC service of one worker.
class TransportService {
 public:
  virtual ~TransportService() = default;
  virtual grpc::Service* service() = 0;  // To be registered with a grpc::ServerBuilder.
  // Asks for the calls of FetchTensor, for who serves those.
  virtual FetchServer::NextCall next_fetch() = 0;
  // Serves all others, once the gRPC server has started. `queue` is of its builder and turned by
  // an EventThread.
  virtual void Start(grpc::ServerCompletionQueue* queue) = 0;
  // Waits for the last of them. REQUIRES: the gRPC server has shut down.
  virtual void Join() = 0;
};
std::unique_ptr<TransportService> MakeTransportService(TransportServiceParts parts);

}  // namespace tryst

#endif  // TRYST_SERVER_TRANSPORT_SERVICE_H_
