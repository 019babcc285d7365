#ifndef TRYST_SERVER_SERVICES_TRANSPORT_SERVICE_H_
#define TRYST_SERVER_SERVICES_TRANSPORT_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "channel/bootstrap.h"
#include "channel/compat/fetch_server.h"
#include "channel/grpc/grpc_pipes.h"
#include "channel/signing/caller.h"
#include "rendezvous/executor.h"
#include "server/members/membership.h"
#include "server/services/samples.h"
#include "server/status/insight.h"

namespace grpc {
class ServerCompletionQueue;
class ServerContextBase;
class Service;
}  // namespace grpc

namespace tryst {

// What TransportService uses. Everything outlives it and may be called from any thread.
struct TransportServiceParts {
  Caller self;
  std::function<std::string()> address;  // Where peers reach us.
  std::string token;                     // In shared-token mode; otherwise empty.
  Membership* members = nullptr;
  HelloHandler* hellos = nullptr;  // Null: this worker has no path but gRPC.
  // Authenticates the caller, as far as the server's security mode can, and returns it. `request`
  // is the message as it arrived.
  std::function<absl::StatusOr<Caller>(const grpc::ServerContextBase&, absl::string_view method,
                                       absl::string_view request)>
      authenticate;
  std::function<absl::Status(int64_t step_id)> begin_step;
  std::function<absl::Status(int64_t step_id, const absl::Status& why)> abort_step;
  std::function<absl::Status(int64_t step_id)> cleanup_step;
  // Runs the calls that may wait or run callbacks. Null: they run on the thread that received them.
  Executor* executor = nullptr;
  SampleSender* samples = nullptr;
  const Insight* insight = nullptr;
};

// The gRPC service of one worker.
class TransportService {
 public:
  virtual ~TransportService() = default;
  virtual grpc::Service* service() = 0;  // Register it with a grpc::ServerBuilder.
  // How a FetchServer asks gRPC for the next FetchTensor call.
  virtual FetchServer::NextCall next_fetch() = 0;
  // How the pipes of the NIC over gRPC ask for the next Converse call.
  virtual GrpcPipes::NextCall next_converse() = 0;
  // Serves all other calls. `queue` belongs to the builder, and an EventThread turns it. REQUIRES:
  // the gRPC server has started.
  virtual void Start(grpc::ServerCompletionQueue* queue) = 0;
  // Waits for the last call. REQUIRES: the gRPC server has shut down.
  virtual void Join() = 0;
};
std::unique_ptr<TransportService> MakeTransportService(TransportServiceParts parts);

}  // namespace tryst

#endif  // TRYST_SERVER_SERVICES_TRANSPORT_SERVICE_H_
