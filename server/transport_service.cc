#include "server/transport_service.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/slice.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "channel/grpc/grpc_status.h"
#include "channel/grpc/hello_wire.h"
#include "proto/transport.grpc.pb.h"
#include "server/trace_wire.h"

namespace tryst {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

std::string ToString(const ByteBuffer& buffer) {
  std::string out;
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return out;
  for (const grpc::Slice& slice : slices) {
    out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return out;
}

ByteBuffer ToBuffer(const google::protobuf::Message& message) {
  grpc::Slice slice(message.SerializeAsString());
  return ByteBuffer(&slice, 1);
}

constexpr size_t kMostTraced = 8000;  // In one answer: two MiB or so.

using S = rpc::TransportService;
// Every method gets its request as it came: the caller's proof is over those bytes.
using RawService = S::WithRawCallbackMethod_Hello<S::WithRawMethod_FetchTensor<
    S::WithRawCallbackMethod_BeginStep<S::WithRawCallbackMethod_AbortStep<
        S::WithRawCallbackMethod_CleanupStep<S::WithRawCallbackMethod_Heartbeat<
            S::WithRawCallbackMethod_SendSamples<S::WithRawCallbackMethod_Explain<
                S::WithRawCallbackMethod_DumpWaiting<S::WithRawCallbackMethod_Stats<
                    S::WithRawCallbackMethod_TraceKey<S::Service>>>>>>>>>>>;

class TransportService final : public RawService {
 public:
  explicit TransportService(TransportServiceParts parts) : parts_(std::move(parts)) {}

 private:
  using Context = CallbackServerContext;

  // One unary call: checks who calls, parses, answers with what `handle` says.
  template <typename Request, typename Response, typename Handle>
  ServerUnaryReactor* Unary(Context* context, const ByteBuffer* in, ByteBuffer* out,
                            const char* method, Handle handle) {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    const std::string bytes = ToString(*in);
    const absl::StatusOr<Caller> caller = parts_.authenticate(*context, method, bytes);
    Request request;
    absl::Status status = caller.status();
    if (status.ok() && !request.ParseFromString(bytes)) {
      status = absl::InvalidArgumentError(absl::StrCat("not a request of ", method));
    }
    if (status.ok()) {
      Response response;
      status = handle(*caller, request, &response);
      if (status.ok()) *out = ToBuffer(response);
    }
    reactor->Finish(ToGrpc(status));
    return reactor;
  }

  ServerUnaryReactor* Hello(Context* context, const ByteBuffer* in, ByteBuffer* out) override;
  absl::StatusOr<tryst::Hello> CheckHello(const Caller& caller, const std::string& bytes) const;

  ServerUnaryReactor* BeginStep(Context* context, const ByteBuffer* in, ByteBuffer* out) override {
    return Unary<rpc::BeginStepRequest, rpc::StepResponse>(
        context, in, out, "/tryst.rpc.TransportService/BeginStep",
        [this](const Caller&, const auto& request, auto* response) {
          response->set_incarnation(parts_.self.incarnation);
          return parts_.begin_step(request.step_id());
        });
  }

  ServerUnaryReactor* AbortStep(Context* context, const ByteBuffer* in, ByteBuffer* out) override {
    return Unary<rpc::AbortStepRequest, rpc::StepResponse>(
        context, in, out, "/tryst.rpc.TransportService/AbortStep",
        [this](const Caller&, const auto& request, auto* response) -> absl::Status {
          if (request.code() == 0) {
            return absl::InvalidArgumentError("a step cannot be aborted with OK");
          }
          response->set_incarnation(parts_.self.incarnation);
          return parts_.abort_step(
              request.step_id(),
              absl::Status(static_cast<absl::StatusCode>(request.code()), request.message()));
        });
  }

  ServerUnaryReactor* CleanupStep(Context* context, const ByteBuffer* in,
                                  ByteBuffer* out) override {
    return Unary<rpc::CleanupStepRequest, rpc::StepResponse>(
        context, in, out, "/tryst.rpc.TransportService/CleanupStep",
        [this](const Caller&, const auto& request, auto* response) {
          response->set_incarnation(parts_.self.incarnation);
          return parts_.cleanup_step(request.step_id());
        });
  }

  ServerUnaryReactor* Heartbeat(Context* context, const ByteBuffer* in, ByteBuffer* out) override {
    return Unary<rpc::HeartbeatRequest, rpc::HeartbeatResponse>(
        context, in, out, "/tryst.rpc.TransportService/Heartbeat",
        [this](const Caller& caller, const auto& request, auto* response) {
          return OnHeartbeat(caller, request, response);
        });
  }
  absl::Status OnHeartbeat(const Caller& caller, const rpc::HeartbeatRequest& request,
                           rpc::HeartbeatResponse* response);

  ServerUnaryReactor* SendSamples(Context* context, const ByteBuffer* in,
                                  ByteBuffer* out) override {
    return Unary<rpc::SendSamplesRequest, rpc::StepResponse>(
        context, in, out, "/tryst.rpc.TransportService/SendSamples",
        [this](const Caller& caller, const auto& request, auto* response) {
          response->set_incarnation(parts_.self.incarnation);
          return parts_.samples->Send(caller.worker, request.step_id(), request.bytes(),
                                      request.count());
        });
  }

  ServerUnaryReactor* Explain(Context* context, const ByteBuffer* in, ByteBuffer* out) override {
    return Unary<rpc::ExplainRequest, rpc::TextResponse>(
        context, in, out, "/tryst.rpc.TransportService/Explain",
        [this](const Caller&, const auto& request, auto* response) {
          response->set_text(request.json() ? parts_.insight->PathsJson(request.peer())
                                            : parts_.insight->PathsText(request.peer()));
          return absl::OkStatus();
        });
  }

  ServerUnaryReactor* DumpWaiting(Context* context, const ByteBuffer* in,
                                  ByteBuffer* out) override {
    return Unary<rpc::DumpWaitingRequest, rpc::TextResponse>(
        context, in, out, "/tryst.rpc.TransportService/DumpWaiting",
        [this](const Caller&, const auto& request, auto* response) {
          const int64_t step = request.step_id() == 0 ? -1 : request.step_id();
          response->set_text(request.json() ? parts_.insight->WaitingJson(step)
                                            : parts_.insight->WaitingText(step));
          return absl::OkStatus();
        });
  }

  ServerUnaryReactor* Stats(Context* context, const ByteBuffer* in, ByteBuffer* out) override {
    return Unary<rpc::StatsRequest, rpc::StatsResponse>(
        context, in, out, "/tryst.rpc.TransportService/Stats",
        [this](const Caller&, const auto&, auto* response) {
          for (const auto& [name, value] : parts_.insight->Stats()) {
            (*response->mutable_values())[name] = value;
          }
          return absl::OkStatus();
        });
  }

  ServerUnaryReactor* TraceKey(Context* context, const ByteBuffer* in, ByteBuffer* out) override {
    return Unary<rpc::TraceKeyRequest, rpc::TraceResponse>(
        context, in, out, "/tryst.rpc.TransportService/TraceKey",
        [this](const Caller&, const auto& request, auto* response) {
          TraceFilter filter;
          filter.key_part = request.key();
          if (request.has_step()) filter.step = request.step_id();
          if (request.most() > 0) filter.most = std::min<size_t>(request.most(), kMostTraced);
          DumpToProto(parts_.insight->Dump(filter), response);
          return absl::OkStatus();
        });
  }

  const TransportServiceParts parts_;
};

absl::StatusOr<tryst::Hello> TransportService::CheckHello(const Caller& caller,
                                                          const std::string& bytes) const {
  rpc::HelloRequest request;
  if (!request.ParseFromString(bytes)) return absl::InvalidArgumentError("not a hello");
  absl::StatusOr<tryst::Hello> hello = HelloFromProto(request);
  if (!hello.ok()) return hello;
  if (request.peer() != parts_.self.worker) {
    return absl::FailedPreconditionError(
        absl::StrCat("this is ", parts_.self.worker, ", not ", request.peer()));
  }
  if (hello->worker != caller.worker || hello->incarnation != caller.incarnation) {
    return absl::PermissionDeniedError(
        absl::StrCat("the hello is of ", hello->worker, ", its caller is ", caller.worker));
  }
  if (hello->protocol_oldest > kProtocolNewest || hello->protocol_newest < kProtocolOldest ||
      hello->protocol_oldest > hello->protocol_newest) {
    return absl::FailedPreconditionError(absl::StrCat(
        hello->worker, " speaks protocol ", hello->protocol_oldest, " to ", hello->protocol_newest,
        ", ", parts_.self.worker, " ", kProtocolOldest, " to ", kProtocolNewest));
  }
  if (parts_.hellos == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(parts_.self.worker, " runs protocol grpc: it has no data plane to open"));
  }
  return hello;
}

ServerUnaryReactor* TransportService::Hello(Context* context, const ByteBuffer* in,
                                            ByteBuffer* out) {
  ServerUnaryReactor* reactor = context->DefaultReactor();
  const std::string bytes = ToString(*in);
  const absl::StatusOr<Caller> caller =
      parts_.authenticate(*context, "/tryst.rpc.TransportService/Hello", bytes);
  const absl::StatusOr<tryst::Hello> hello =
      caller.ok() ? CheckHello(*caller, bytes) : absl::StatusOr<tryst::Hello>(caller.status());
  if (!hello.ok()) {
    reactor->Finish(ToGrpc(hello.status()));
    return reactor;
  }
  std::string statement;
  const auto said = context->client_metadata().find(kCallerMetadata);
  if (said != context->client_metadata().end()) {
    statement.assign(said->second.data(), said->second.size());
  }
  parts_.hellos->OnHello(*hello, [this, reactor, out, statement = std::move(statement)](
                                     absl::StatusOr<tryst::Hello> answer) {
    if (answer.ok()) {
      rpc::HelloResponse response;
      HelloToProto(*answer, response.mutable_hello());
      if (!parts_.token.empty()) {
        response.set_mac(HelloAnswerMac(parts_.token, statement, response.hello()));
      }
      *out = ToBuffer(response);
    }
    reactor->Finish(ToGrpc(answer.status()));
  });
  return reactor;
}

absl::Status TransportService::OnHeartbeat(const Caller& caller,
                                           const rpc::HeartbeatRequest& request,
                                           rpc::HeartbeatResponse* response) {
  if (request.has_self()) {
    const rpc::Member& said = request.self();
    // Nobody speaks for another.
    if (said.worker() != caller.worker || said.incarnation() != caller.incarnation) {
      return absl::PermissionDeniedError(
          absl::StrCat(caller.worker, " may not announce ", said.worker()));
    }
    if (request.leaving()) {
      parts_.members->Leave(said.worker(), said.incarnation());
    } else {
      absl::Status announced =
          parts_.members->Announce({said.worker(), said.address(), said.incarnation()});
      if (!announced.ok()) return announced;
    }
  }
  response->mutable_self()->set_worker(parts_.self.worker);
  response->mutable_self()->set_address(parts_.address());
  response->mutable_self()->set_incarnation(parts_.self.incarnation);
  response->set_steady_ns(SteadyClock().NowNs());
  for (const Member& member : parts_.members->Members()) {
    rpc::Member* out = response->add_members();
    out->set_worker(member.worker);
    out->set_address(member.address);
    out->set_incarnation(member.incarnation);
  }
  return absl::OkStatus();
}

}  // namespace

MadeTransportService MakeTransportService(TransportServiceParts parts) {
  auto service = std::make_unique<TransportService>(std::move(parts));
  FetchServer::NextCall next_fetch =
      [service = service.get()](grpc::ServerContext* context, FetchServer::CallStream* stream,
                                grpc::ServerCompletionQueue* queue, void* tag) {
        service->RequestFetchTensor(context, stream, queue, queue, tag);
      };
  return {std::move(service), std::move(next_fetch)};
}

}  // namespace tryst
