#include "channel/grpc/grpc_bootstrap.h"

#include <grpcpp/alarm.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/grpc/calls_under_way.h"
#include "channel/grpc/grpc_status.h"
#include "channel/grpc/hello_wire.h"
#include "proto/transport.grpc.pb.h"

namespace tryst {
namespace {

constexpr char kMethod[] = "/tryst.rpc.TransportService/Hello";

}  // namespace

struct GrpcBootstrap::Call {
  std::string peer;
  HelloDone done;
  std::string statement;
  absl::Status refused;  // Found before anything was sent.
  std::unique_ptr<rpc::TransportService::Stub> stub;
  std::unique_ptr<grpc::ClientContext> context = std::make_unique<grpc::ClientContext>();
  rpc::HelloRequest request;
  rpc::HelloResponse response;
};

class GrpcBootstrap::Calls : public CallsUnderWay<Call> {};

GrpcBootstrap::GrpcBootstrap(PeerDirectory* directory, CallSigner* signer, const Clock* clock,
                             absl::Duration longest)
    : directory_(directory),
      signer_(signer),
      clock_(clock),
      longest_(longest),
      calls_(std::make_unique<Calls>()) {}

GrpcBootstrap::~GrpcBootstrap() = default;

void GrpcBootstrap::Cancel() {
  cancelled_.store(true);
  calls_->CancelAll();
}

void GrpcBootstrap::Exchange(const std::string& peer, const Hello& hello, Deadline deadline,
                             HelloDone done) {
  Call* const call = calls_->Add(std::make_unique<Call>());
  call->peer = peer;
  call->done = std::move(done);
  HelloToProto(hello, &call->request);
  call->request.set_peer(peer);

  auto channel = directory_->ChannelTo(peer);
  if (!channel.ok()) {
    call->refused = channel.status();
    auto* alarm = new grpc::Alarm;
    alarm->Set(gpr_now(GPR_CLOCK_MONOTONIC), [this, call, alarm](bool) {
      std::move(call->done)(call->refused);
      delete alarm;
      calls_->Over(call);
    });
    return;
  }
  const int64_t left_ns = deadline.is_never() ? absl::ToInt64Nanoseconds(longest_)
                                              : std::min(absl::ToInt64Nanoseconds(longest_),
                                                         deadline.at_ns() - clock_->NowNs());
  call->context->set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left_ns, GPR_TIMESPAN)));
  call->statement = signer_->Sign(peer, kMethod, call->request.SerializeAsString());
  call->context->AddMetadata(kCallerMetadata, call->statement);
  if (cancelled_.load()) call->context->TryCancel();
  call->stub = rpc::TransportService::NewStub(*channel);
  call->stub->async()->Hello(
      call->context.get(), &call->request, &call->response, [this, call](grpc::Status status) {
        absl::StatusOr<Hello> answer = Hello();
        if (status.ok()) {
          answer = HelloFromProto(call->response.hello());
          if (!signer_->token().empty() &&
              !SameSecret(call->response.mac(), HelloAnswerMac(signer_->token(), call->statement,
                                                               call->response.hello()))) {
            answer = absl::UnauthenticatedError(
                absl::StrCat("who answers as ", call->peer, " does not hold this cluster's token"));
          }
        } else if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
          answer = absl::UnavailableError(absl::StrCat(call->peer, " did not answer the hello"));
        } else {
          answer = directory_->Explain(call->peer, FromGrpc(status));
        }
        std::move(call->done)(std::move(answer));
        calls_->Over(call);
      });
}

}  // namespace tryst
