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
#include "channel/grpc/caller.h"
#include "channel/grpc/fetch_server.h"
#include "server/insight.h"
#include "server/membership.h"
#include "server/samples.h"

namespace grpc {
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
  // Who calls, proved as far as the server's security can; `request` as it came.
  std::function<absl::StatusOr<Caller>(const grpc::ServerContextBase&, absl::string_view method,
                                       absl::string_view request)>
      authenticate;
  std::function<absl::Status(int64_t step_id)> begin_step;
  std::function<absl::Status(int64_t step_id, const absl::Status& why)> abort_step;
  std::function<absl::Status(int64_t step_id)> cleanup_step;
  SampleSender* samples = nullptr;
  const Insight* insight = nullptr;
};

// The gRPC service of one worker, to be registered with a grpc::ServerBuilder. Who serves
// fetches gets them from `next_fetch`, while the service is there.
struct MadeTransportService {
  std::unique_ptr<grpc::Service> service;
  FetchServer::NextCall next_fetch;
};
MadeTransportService MakeTransportService(TransportServiceParts parts);

}  // namespace tryst

#endif  // TRYST_SERVER_TRANSPORT_SERVICE_H_
