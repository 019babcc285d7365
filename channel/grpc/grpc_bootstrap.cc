#include "channel/grpc/grpc_bootstrap.h"

#include <grpcpp/alarm.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/async_unary_call.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "channel/grpc/calls_under_way.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/grpc_status.h"
#include "channel/grpc/hello_wire.h"
#include "proto/transport.grpc.pb.h"

namespace tryst {
namespace {

constexpr char kMethod[] = "/tryst.rpc.TransportService/Hello";

}  // namespace

struct GrpcBootstrap::Call final : GrpcEvent {
  explicit Call(GrpcBootstrap* b) : bootstrap(b) {}
  void OnEvent(bool) override { bootstrap->OnEnded(this); }

  GrpcBootstrap* const bootstrap;
  std::string peer;
  HelloDone done;
  std::string statement;
  absl::Status refused;  // An error that was found before anything was sent.
  grpc::Alarm alarm;     // Delivers that error on the queue's thread.
  std::unique_ptr<rpc::TransportService::Stub> stub;
  std::unique_ptr<grpc::ClientContext> context = std::make_unique<grpc::ClientContext>();
  std::unique_ptr<grpc::ClientAsyncResponseReader<rpc::HelloResponse>> reader;
  rpc::HelloRequest request;
  rpc::HelloResponse response;
  grpc::Status status;
};

class GrpcBootstrap::Calls : public CallsUnderWay<Call> {};

GrpcBootstrap::GrpcBootstrap(PeerDirectory* directory, CallSigner* signer,
                             grpc::CompletionQueue* queue, const Clock* clock,
                             absl::Duration longest)
    : directory_(directory),
      signer_(signer),
      queue_(queue),
      clock_(clock),
      started_us_(static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()))),
      longest_ns_(absl::ToInt64Nanoseconds(longest)),
      calls_(std::make_unique<Calls>()) {}

GrpcBootstrap::~GrpcBootstrap() = default;

void GrpcBootstrap::CancelAndLimit(absl::Duration most) {
  longest_ns_.store(absl::ToInt64Nanoseconds(most));
  calls_->CancelAll();
}

void GrpcBootstrap::Exchange(const std::string& peer, const Hello& hello, Deadline deadline,
                             HelloDone done) {
  Call* const call = calls_->Add(std::make_unique<Call>(this));
  GrpcEvent* const tag = call;
  call->peer = peer;
  call->done = std::move(done);
  HelloToProto(hello, &call->request);
  call->request.set_started_us(started_us_);
  call->request.set_peer(peer);

  auto channel = directory_->ChannelTo(peer);
  if (!channel.ok()) {
    call->refused = channel.status();
    call->alarm.Set(queue_, gpr_now(GPR_CLOCK_MONOTONIC), tag);
    return;
  }
  int64_t left_ns = longest_ns_.load();
  if (!deadline.is_never()) left_ns = std::min(left_ns, deadline.at_ns() - clock_->NowNs());
  call->context->set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left_ns, GPR_TIMESPAN)));
  call->statement = signer_->Sign(peer, kMethod, call->request.SerializeAsString());
  call->context->AddMetadata(kCallerMetadata, call->statement);
  call->stub = rpc::TransportService::NewStub(*channel);
  call->reader = call->stub->AsyncHello(call->context.get(), call->request, queue_);
  call->reader->Finish(&call->response, &call->status, tag);
}

void GrpcBootstrap::OnEnded(Call* call) {
  absl::StatusOr<Hello> answer = Hello();
  if (!call->refused.ok()) {
    answer = call->refused;
  } else if (call->status.ok()) {
    answer = HelloFromProto(call->response.hello());
    if (!signer_->token().empty() &&
        !SameSecret(call->response.mac(),
                    HelloAnswerMac(signer_->token(), call->statement, call->response.hello()))) {
      answer = absl::UnauthenticatedError(
          absl::StrCat("the process that answers as ", call->peer,
                       " does not hold this cluster's token: set token_file alike on both"));
    }
  } else if (call->status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    answer = absl::UnavailableError(
        absl::StrCat(call->peer, " did not answer the request to open a connection (hello)"));
    directory_->NoteNoAnswer(call->peer);
  } else {
    answer = directory_->Explain(
        call->peer, signer_->Heed(call->peer, call->statement, FromGrpc(call->status)));
  }
  if (answer.ok()) directory_->NoteIncarnation(call->peer, answer->incarnation);
  std::move(call->done)(std::move(answer));
  call->reader.reset();
  calls_->Over(call);
}

}  // namespace tryst
