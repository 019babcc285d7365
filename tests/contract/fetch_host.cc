#include "tests/contract/fetch_host.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "channel/compat/fetch_wire.h"
#include "channel/grpc/event_thread.h"
#include "channel/signing/caller.h"
#include "server/members/membership.h"
#include "server/services/transport_service.h"

namespace tryst {

class FetchHost::Impl {
 public:
  Impl(TensorSource* source, Alarms* alarms, uint64_t incarnation,
       const FetchServerOptions& options)
      : verifier_("lab", kHostWorker, 1, "", [] { return UnixMs(); }),
        members_(false, nullptr),
        fetches_(
            source, alarms, incarnation,
            [this](const grpc::ServerContextBase& context, absl::string_view request) {
              return Authenticate(context, kFetchMethod, request);
            },
            [](const Caller&, const TensorKey&) { return absl::OkStatus(); }, options) {
    members_.Set(kHostConsumer, "");
    TransportServiceParts parts;
    parts.self = {"lab", kHostWorker, incarnation};
    parts.address = [] { return ""; };
    parts.members = &members_;
    parts.authenticate = [this](const grpc::ServerContextBase& context, absl::string_view method,
                                absl::string_view request) {
      return Authenticate(context, method, request);
    };
    service_ = MakeTransportService(std::move(parts));
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(service_->service());
    auto queue = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    grpc::ServerCompletionQueue* const server_queue = queue.get();
    events_ = std::make_unique<EventThread>(std::move(queue), std::vector<Poller*>());
    service_->Start(server_queue);
    fetches_.Start(server_queue, service_->next_fetch());
  }

  ~Impl() {
    Join();
    service_->Join();
  }

  void Join() {
    fetches_.Shutdown();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    server_->Wait();
    fetches_.Join();
  }

  void Shutdown() { fetches_.Shutdown(); }
  int port() const { return port_; }
  FetchServer* server() { return &fetches_; }
  FetchServer::Counts counts() const { return fetches_.counts(); }

 private:
  absl::StatusOr<Caller> Authenticate(const grpc::ServerContextBase& context,
                                      absl::string_view method, absl::string_view request) {
    const auto said = context.client_metadata().find(kCallerMetadata);
    if (said == context.client_metadata().end()) return absl::UnauthenticatedError("nobody");
    return verifier_.Verify(absl::string_view(said->second.data(), said->second.size()), method,
                            request);
  }

  CallVerifier verifier_;
  Membership members_;
  FetchServer fetches_;
  int port_ = 0;
  std::unique_ptr<TransportService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<EventThread> events_;
};

FetchHost::FetchHost(TensorSource* source, Alarms* alarms, uint64_t incarnation,
                     const FetchServerOptions& options)
    : impl_(std::make_unique<Impl>(source, alarms, incarnation, options)) {}

FetchHost::~FetchHost() = default;

void FetchHost::Shutdown() { impl_->Shutdown(); }

void FetchHost::Join() { impl_->Join(); }

int FetchHost::port() const { return impl_->port(); }

FetchServer* FetchHost::server() { return impl_->server(); }

FetchServer::Counts FetchHost::counts() const { return impl_->counts(); }

}  // namespace tryst
