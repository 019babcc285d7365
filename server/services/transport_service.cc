#include "server/services/transport_service.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "channel/grpc/grpc_status.h"
#include "channel/grpc/hello_wire.h"
#include "proto/transport.grpc.pb.h"
#include "server/members/heartbeat.h"
#include "server/members/trace_wire.h"
#include "server/services/unary_calls.h"

namespace tryst {
namespace {

using grpc::ByteBuffer;
using Call = UnaryCalls::Call;

constexpr size_t kMostTextBytes = 1024;  // The longest reason for an abort that is kept.
constexpr size_t kMostTraced = 8000;     // Traced operations in one answer, about 2 MiB.

constexpr char kHeartbeat[] = "/tryst.rpc.TransportService/Heartbeat";

using S = rpc::TransportService;
// Every method gets the request's raw bytes, because the caller's signature covers those.
using RawService = S::WithRawMethod_Hello<
    S::WithRawMethod_FetchTensor<S::WithRawMethod_Converse<S::WithRawMethod_BeginStep<
        S::WithRawMethod_AbortStep<S::WithRawMethod_CleanupStep<S::WithRawMethod_Heartbeat<
            S::WithRawMethod_SendSamples<S::WithRawMethod_Explain<S::WithRawMethod_DumpWaiting<
                S::WithRawMethod_Stats<S::WithRawMethod_TraceKey<S::Service>>>>>>>>>>>>;

class TransportServiceImpl final : public TransportService {
 public:
  explicit TransportServiceImpl(TransportServiceParts parts) : parts_(std::move(parts)) {}

  grpc::Service* service() override { return &methods_; }
  FetchServer::NextCall next_fetch() override {
    return [this](grpc::ServerContext* context, FetchServer::CallStream* stream,
                  grpc::ServerCompletionQueue* queue,
                  void* tag) { methods_.RequestFetchTensor(context, stream, queue, queue, tag); };
  }
  GrpcPipes::NextCall next_converse() override {
    return [this](grpc::ServerContext* context, GrpcPipes::CallStream* stream,
                  grpc::ServerCompletionQueue* queue,
                  void* tag) { methods_.RequestConverse(context, stream, queue, queue, tag); };
  }
  void Start(grpc::ServerCompletionQueue* queue) override;
  void Join() override { calls_.Join(); }

 private:
  using RequestCall = void (RawService::*)(grpc::ServerContext*, ByteBuffer*, UnaryCalls::Writer*,
                                           grpc::CompletionQueue*, grpc::ServerCompletionQueue*,
                                           void*);

  void Serve(RequestCall request, UnaryCalls::Handle handle) {
    calls_.Serve(
        [this, request](grpc::ServerContext* context, ByteBuffer* bytes, UnaryCalls::Writer* writer,
                        void* tag) {
          (methods_.*request)(context, bytes, writer, queue_, queue_, tag);
        },
        std::move(handle));
  }

  // Serves a call with its authenticated caller.
  template <typename Handle>
  void ServeMembers(RequestCall request, const char* method, Handle handle) {
    Serve(request, [this, method, handle](Call* call) {
      const absl::StatusOr<Caller> caller =
          parts_.authenticate(call->context(), method, call->request());
      if (!caller.ok()) return call->Answer(ToGrpc(caller.status()), "");
      handle(call, *caller);
    });
  }

  // Parses the request, and answers with what `handle` returns.
  template <typename Request, typename Response, typename Handle>
  void Answer(Call* call, const char* method, const Caller& caller, const Handle& handle) {
    Request request;
    Response response;
    const absl::Status status = request.ParseFromString(call->request())
                                    ? handle(caller, request, &response)
                                    : absl::InvalidArgumentError(absl::StrCat(
                                          "the caller sent a malformed request: ", method));
    if (status.ok()) Prove(*call, method, &response);
    call->Answer(ToGrpc(status), status.ok() ? response.SerializeAsString() : "");
  }

  // Signs the answer: the caller believes an answer that changes something only if it is signed.
  template <typename Response>
  void Prove(const Call& call, const char* method, Response* response) const {
    if constexpr (std::is_same_v<Response, rpc::HeartbeatResponse> ||
                  std::is_same_v<Response, rpc::StepResponse>) {
      if (parts_.token.empty()) return;
      response->set_mac(
          AnswerMac(parts_.token, method, StatementOf(call), response->SerializeAsString()));
    }
  }
  static absl::string_view StatementOf(const Call& call) {
    const auto said = call.context().client_metadata().find(kCallerMetadata);
    if (said == call.context().client_metadata().end()) return "";
    return absl::string_view(said->second.data(), said->second.size());
  }

  // Serves a call that may wait or run user callbacks, and so must not run on the thread that
  // serves fetches. Only who is known takes one of the executor's few places.
  template <typename Request, typename Response, typename Handle>
  void ServeElsewhere(RequestCall request, const char* method, Handle handle) {
    ServeMembers(request, method, [this, method, handle](Call* call, const Caller& caller) {
      Executor::Work work = [this, method, handle, call, caller] {
        Answer<Request, Response>(call, method, caller, handle);
      };
      if (parts_.executor == nullptr) return std::move(work)();
      if (!parts_.executor->TryRun(&work)) {
        call->Answer(ToGrpc(absl::ResourceExhaustedError(
                         "too many calls wait for this worker: try again later")),
                     "");
      }
    });
  }

  // Serves a call about a step. The answer says who we are.
  template <typename Request, typename Handle>
  void ServeStep(RequestCall request, const char* method, Handle handle) {
    ServeElsewhere<Request, rpc::StepResponse>(
        request, method,
        [this, handle](const Caller& caller, const Request& asked, rpc::StepResponse* response) {
          response->set_incarnation(parts_.self.incarnation);
          return handle(caller, asked);
        });
  }

  void ServeSteps();
  void ServePeople();
  void OnHello(Call* call, const Caller& caller);
  absl::StatusOr<tryst::Hello> CheckHello(const Caller& caller, const std::string& bytes) const;
  absl::Status OnHeartbeat(const Caller& caller, const rpc::HeartbeatRequest& request,
                           rpc::HeartbeatResponse* response);

  const TransportServiceParts parts_;
  RawService methods_;
  grpc::ServerCompletionQueue* queue_ = nullptr;  // Constant after Start().
  UnaryCalls calls_;
};

void TransportServiceImpl::Start(grpc::ServerCompletionQueue* queue) {
  queue_ = queue;
  ServeMembers(&RawService::RequestHello, "/tryst.rpc.TransportService/Hello",
               [this](Call* call, const Caller& caller) { OnHello(call, caller); });
  ServeMembers(&RawService::RequestHeartbeat, kHeartbeat, [this](Call* call, const Caller& caller) {
    Answer<rpc::HeartbeatRequest, rpc::HeartbeatResponse>(
        call, kHeartbeat, caller, [this](const Caller& by, const auto& request, auto* response) {
          return OnHeartbeat(by, request, response);
        });
  });
  ServeSteps();
  ServePeople();
}

void TransportServiceImpl::ServeSteps() {
  ServeStep<rpc::BeginStepRequest>(
      &RawService::RequestBeginStep, "/tryst.rpc.TransportService/BeginStep",
      [this](const Caller&, const auto& request) { return parts_.begin_step(request.step_id()); });
  ServeStep<rpc::AbortStepRequest>(
      &RawService::RequestAbortStep, "/tryst.rpc.TransportService/AbortStep",
      [this](const Caller&, const auto& request) -> absl::Status {
        if (request.code() == 0) {
          return absl::InvalidArgumentError(
              "a step must be aborted with the code of a failure, and OK was given");
        }
        return parts_.abort_step(
            request.step_id(),
            absl::Status(static_cast<absl::StatusCode>(request.code()),
                         absl::string_view(request.message()).substr(0, kMostTextBytes)));
      });
  ServeStep<rpc::CleanupStepRequest>(&RawService::RequestCleanupStep,
                                     "/tryst.rpc.TransportService/CleanupStep",
                                     [this](const Caller&, const auto& request) {
                                       return parts_.cleanup_step(request.step_id());
                                     });
  ServeStep<rpc::SendSamplesRequest>(
      &RawService::RequestSendSamples, "/tryst.rpc.TransportService/SendSamples",
      [this](const Caller& caller, const auto& request) {
        return parts_.samples->Send(caller.worker, request.step_id(), request.bytes(),
                                    request.count());
      });
}

void TransportServiceImpl::ServePeople() {
  ServeElsewhere<rpc::ExplainRequest, rpc::TextResponse>(
      &RawService::RequestExplain, "/tryst.rpc.TransportService/Explain",
      [this](const Caller&, const auto& request, auto* response) {
        response->set_text(request.json() ? parts_.insight->PathsJson(request.peer())
                                          : parts_.insight->PathsText(request.peer()));
        return absl::OkStatus();
      });
  ServeElsewhere<rpc::DumpWaitingRequest, rpc::TextResponse>(
      &RawService::RequestDumpWaiting, "/tryst.rpc.TransportService/DumpWaiting",
      [this](const Caller&, const auto& request, auto* response) {
        const int64_t step = request.step_id() == 0 ? -1 : request.step_id();
        response->set_text(request.json() ? parts_.insight->WaitingJson(step)
                                          : parts_.insight->WaitingText(step));
        return absl::OkStatus();
      });
  ServeElsewhere<rpc::StatsRequest, rpc::StatsResponse>(
      &RawService::RequestStats, "/tryst.rpc.TransportService/Stats",
      [this](const Caller&, const auto&, auto* response) {
        for (const auto& [name, value] : parts_.insight->Stats()) {
          (*response->mutable_values())[name] = value;
        }
        return absl::OkStatus();
      });
  ServeElsewhere<rpc::TraceKeyRequest, rpc::TraceResponse>(
      &RawService::RequestTraceKey, "/tryst.rpc.TransportService/TraceKey",
      [this](const Caller&, const auto& request, auto* response) {
        TraceFilter filter;
        filter.key_part = request.key();
        if (request.has_step()) filter.step = request.step_id();
        if (request.most() > 0) filter.most = std::min<size_t>(request.most(), kMostTraced);
        DumpToProto(parts_.insight->Dump(filter), response);
        return absl::OkStatus();
      });
}

absl::StatusOr<tryst::Hello> TransportServiceImpl::CheckHello(const Caller& caller,
                                                              const std::string& bytes) const {
  rpc::HelloRequest request;
  if (!request.ParseFromString(bytes))
    return absl::InvalidArgumentError("the request to open a connection (hello) is malformed");
  absl::StatusOr<tryst::Hello> hello = HelloFromProto(request);
  if (!hello.ok()) return hello;
  if (request.peer() != parts_.self.worker) {
    return absl::FailedPreconditionError(
        absl::StrCat("the call reached ", parts_.self.worker, ", and was meant for ",
                     request.peer(), ": its caller has a wrong address for that worker"));
  }
  if (hello->worker != caller.worker || hello->incarnation != caller.incarnation) {
    return absl::PermissionDeniedError(
        absl::StrFormat("the request to open a connection names %s, incarnation %016x, and its "
                        "caller is %s, incarnation %016x",
                        hello->worker, hello->incarnation, caller.worker, caller.incarnation));
  }
  const absl::Status spoken = CheckProtocol(*hello, parts_.self.worker);
  if (absl::IsFailedPrecondition(spoken)) return spoken;
  if (parts_.hellos == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(parts_.self.worker, " runs protocol grpc: it has no data plane to open"));
  }
  return hello;
}

void TransportServiceImpl::OnHello(Call* call, const Caller& caller) {
  const absl::StatusOr<tryst::Hello> hello = CheckHello(caller, call->request());
  if (!hello.ok()) return call->Answer(ToGrpc(hello.status()), "");
  parts_.hellos->OnHello(*hello, [this, call](absl::StatusOr<tryst::Hello> answer) {
    rpc::HelloResponse response;
    if (answer.ok()) {
      HelloToProto(*answer, response.mutable_hello());
      if (!parts_.token.empty()) {
        response.set_mac(HelloAnswerMac(parts_.token, StatementOf(*call), response.hello()));
      }
    }
    call->Answer(ToGrpc(answer.status()), response.SerializeAsString());
  });
}

absl::Status TransportServiceImpl::OnHeartbeat(const Caller& caller,
                                               const rpc::HeartbeatRequest& request,
                                               rpc::HeartbeatResponse* response) {
  if (request.has_self()) {
    const rpc::Member& said = request.self();
    // A worker may announce only itself.
    if (said.worker() != caller.worker || said.incarnation() != caller.incarnation) {
      return absl::PermissionDeniedError(
          absl::StrCat(caller.worker, " may announce only itself, and announced ", said.worker()));
    }
  }
  const Member said{request.self().worker(), request.self().address(),
                    request.self().incarnation()};
  const HeartbeatWord word = request.leaving()      ? HeartbeatWord::kLeaving
                             : request.still_here() ? HeartbeatWord::kStillHere
                                                    : HeartbeatWord::kHere;
  const absl::StatusOr<Heard> answer =
      AnswerHeartbeat({parts_.self.worker, parts_.address(), parts_.self.incarnation},
                      parts_.members, request.has_self() ? &said : nullptr, word, request.after());
  if (!answer.ok()) return answer.status();
  const auto write = [](const Member& member, rpc::Member* out) {
    out->set_worker(member.worker);
    out->set_address(member.address);
    out->set_incarnation(member.incarnation);
  };
  write(answer->self, response->mutable_self());
  response->set_steady_ns(SteadyClock().NowNs());
  for (const Member& member : answer->members) write(member, response->add_members());
  response->set_rest_after(answer->rest_after);
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<TransportService> MakeTransportService(TransportServiceParts parts) {
  return std::make_unique<TransportServiceImpl>(std::move(parts));
}

}  // namespace tryst
