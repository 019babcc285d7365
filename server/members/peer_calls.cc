#include "server/members/peer_calls.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/async_unary_call.h>

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "channel/grpc/calls_under_way.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/grpc_status.h"
#include "channel/grpc/peer_directory.h"
#include "channel/signing/caller.h"
#include "channel/trace/trace_dump.h"
#include "proto/transport.grpc.pb.h"
#include "server/members/trace_wire.h"

namespace tryst {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr int kClockReadings = 5;
constexpr size_t kMostWhyBytes = 1024;  // The longest reason for an abort that is sent.
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);

gpr_timespec After(absl::Duration timeout) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(absl::ToInt64Nanoseconds(timeout), GPR_TIMESPAN));
}

std::string MethodName(const char* name) {
  return absl::StrCat("/tryst.rpc.TransportService/", name);
}

Member FromProto(const rpc::Member& in) { return {in.worker(), in.address(), in.incarnation()}; }

template <typename Response>
constexpr bool kIsProved =
    std::is_same_v<Response, rpc::HeartbeatResponse> || std::is_same_v<Response, rpc::StepResponse>;

// In shared-token mode, checks that the peer knows the token: a stranger may have taken its
// address.
template <typename Response>
absl::Status CheckProof(const std::string& token, const std::string& peer,
                        const std::string& method, const std::string& statement,
                        const Response& response) {
  if constexpr (kIsProved<Response>) {
    if (token.empty()) return absl::OkStatus();
    Response bare = response;
    bare.clear_mac();
    if (!SameSecret(response.mac(),
                    AnswerMac(token, method, statement, bare.SerializeAsString()))) {
      return absl::UnauthenticatedError(
          absl::StrCat("the process that answers as ", peer,
                       " does not hold this cluster's token, or runs a release that cannot prove "
                       "that it does: set token_file alike on both, or upgrade that worker"));
    }
  }
  return absl::OkStatus();
}

PeerCalls::Heard FromProto(const rpc::HeartbeatResponse& in) {
  PeerCalls::Heard heard;
  heard.self = FromProto(in.self());
  heard.steady_ns = in.steady_ns();
  heard.rest_after = in.rest_after();
  for (const rpc::Member& member : in.members()) heard.members.push_back(FromProto(member));
  return heard;
}

}  // namespace

struct PeerCalls::Heartbeat final : GrpcEvent {
  Heartbeat(Heartbeats* h, CallSigner* s, std::string p)
      : heartbeats(h), signer(s), peer(std::move(p)) {}
  void OnEvent(bool) override;

  Heartbeats* const heartbeats;
  CallSigner* const signer;
  const std::string peer;
  std::string statement;
  HeardFn done;
  std::unique_ptr<rpc::TransportService::Stub> stub;
  std::unique_ptr<grpc::ClientContext> context = std::make_unique<grpc::ClientContext>();
  rpc::HeartbeatRequest request;
  std::unique_ptr<grpc::ClientAsyncResponseReader<rpc::HeartbeatResponse>> reader;
  rpc::HeartbeatResponse response;
  grpc::Status status;
};

class PeerCalls::Heartbeats : public CallsUnderWay<Heartbeat> {};

void PeerCalls::Heartbeat::OnEvent(bool) {
  absl::Status heard = signer->Heed(peer, statement, FromGrpc(status));
  if (heard.ok())
    heard = CheckProof(signer->token(), peer, MethodName("Heartbeat"), statement, response);
  if (heard.ok()) {
    std::move(done)(FromProto(response));
  } else {
    std::move(done)(heard);
  }
  reader.reset();
  heartbeats->Over(this);
}

// The calls that threads wait for, and the contexts of their attempts.
class PeerCalls::UnderWay {
 public:
  // A call is under way as long as this lives.
  class Scope {
   public:
    explicit Scope(UnderWay* all) : all_(all), begun_(all->Begin()) {}
    ~Scope() {
      if (begun_) all_->End();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    // False: Close() was called, so the call must not be made.
    bool begun() const { return begun_; }

   private:
    UnderWay* const all_;
    const bool begun_;
  };

  // False: Close() was called meanwhile.
  bool Add(grpc::ClientContext* context) {
    MutexLock lock(&mu_);
    if (!closing_) contexts_.insert(context);
    return !closing_;
  }
  void Remove(grpc::ClientContext* context) {
    MutexLock lock(&mu_);
    contexts_.erase(context);
  }
  // False: Close() was called meanwhile, and ended the pause.
  bool Pause(absl::Duration pause) {
    MutexLock lock(&mu_);
    const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(pause);
    while (!closing_ && !changed_.WaitUntil(&mu_, until)) {
    }
    return !closing_;
  }
  void CancelAndWait() {
    MutexLock lock(&mu_);
    closing_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
    changed_.NotifyAll();
    while (calls_ > 0) changed_.Wait(&mu_);
  }

 private:
  bool Begin() {
    MutexLock lock(&mu_);
    calls_ += !closing_;
    return !closing_;
  }
  void End() {
    MutexLock lock(&mu_);
    --calls_;
    changed_.NotifyAll();
  }

  Mutex mu_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  size_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  std::unordered_set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mu_);
};

PeerCalls::PeerCalls(PeerDirectory* directory, CallSigner* signer)
    : directory_(directory),
      signer_(signer),
      heartbeats_(std::make_unique<Heartbeats>()),
      under_way_(std::make_unique<UnderWay>()) {}

PeerCalls::~PeerCalls() { under_way_->CancelAndWait(); }

void PeerCalls::Close() {
  under_way_->CancelAndWait();
  heartbeats_->CancelAll();
}

void PeerCalls::StartHeartbeat(grpc::CompletionQueue* queue, const std::string& peer,
                               const Member& self, HeartbeatWord word, absl::Duration timeout,
                               HeardFn done, const std::string& after) {
  auto channel = directory_->ChannelTo(peer);
  if (!channel.ok()) return std::move(done)(channel.status());
  Heartbeat* const call =
      heartbeats_->Add(std::make_unique<Heartbeat>(heartbeats_.get(), signer_, peer));
  call->done = std::move(done);
  if (!self.worker.empty()) {
    call->request.mutable_self()->set_worker(self.worker);
    call->request.mutable_self()->set_address(self.address);
    call->request.mutable_self()->set_incarnation(self.incarnation);
    call->request.set_leaving(word == HeartbeatWord::kLeaving);
    call->request.set_still_here(word == HeartbeatWord::kStillHere);
  }
  call->request.set_after(after);
  call->context->set_deadline(After(timeout));
  call->statement = signer_->Sign(peer, MethodName("Heartbeat"), call->request.SerializeAsString());
  call->context->AddMetadata(kCallerMetadata, call->statement);
  call->stub = rpc::TransportService::NewStub(*channel);
  call->reader = call->stub->AsyncHeartbeat(call->context.get(), call->request, queue);
  GrpcEvent* const tag = call;
  call->reader->Finish(&call->response, &call->status, tag);
}

template <typename Method, typename Request, typename Response>
absl::Status PeerCalls::Call(const std::string& peer, const char* name, Method method,
                             const Request& request, absl::Duration timeout, Response* response) {
  const SteadyClock clock;
  const Deadline until = Deadline::After(clock, timeout);
  const auto left = [&] { return absl::Nanoseconds(until.at_ns() - clock.NowNs()); };
  const UnderWay::Scope scope(under_way_.get());
  if (!scope.begun()) return Stopped(peer);
  for (absl::Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    absl::Status status =
        directory_->Explain(peer, Attempt(peer, name, method, request, left(), response));
    // The peer may come up at another address, so the directory is asked again.
    if (!absl::IsUnavailable(status) || left() <= pause) return status;
    if (!under_way_->Pause(pause)) return Stopped(peer);
  }
}

template <typename Method, typename Request, typename Response>
absl::Status PeerCalls::Attempt(const std::string& peer, const char* name, Method method,
                                const Request& request, absl::Duration timeout,
                                Response* response) {
  auto channel = directory_->ChannelTo(peer);
  if (!channel.ok()) return channel.status();
  grpc::ClientContext context;
  context.set_deadline(After(timeout));
  const std::string statement = signer_->Sign(peer, MethodName(name), request.SerializeAsString());
  context.AddMetadata(kCallerMetadata, statement);
  auto stub = rpc::TransportService::NewStub(*channel);
  if (!under_way_->Add(&context)) return Stopped(peer);
  const grpc::Status status = (stub.get()->*method)(&context, request, response);
  under_way_->Remove(&context);
  if (!status.ok()) return signer_->Heed(peer, statement, FromGrpc(status));
  return CheckProof(signer_->token(), peer, MethodName(name), statement, *response);
}

absl::Status PeerCalls::Stopped(const std::string& peer) const {
  return absl::CancelledError(
      absl::StrCat(signer_->self().worker, " has stopped, and so does not call ", peer));
}

absl::StatusOr<PeerCalls::Heard> PeerCalls::Ping(const std::string& peer, absl::Duration timeout) {
  rpc::HeartbeatResponse response;
  absl::Status status = Call(peer, "Heartbeat", &rpc::TransportService::Stub::Heartbeat,
                             rpc::HeartbeatRequest(), timeout, &response);
  if (!status.ok()) return status;
  return FromProto(response);
}

absl::Status PeerCalls::BeginStep(const std::string& peer, int64_t step_id,
                                  absl::Duration timeout) {
  rpc::BeginStepRequest request;
  request.set_step_id(step_id);
  rpc::StepResponse response;
  return Call(peer, "BeginStep", &rpc::TransportService::Stub::BeginStep, request, timeout,
              &response);
}

absl::Status PeerCalls::AbortStep(const std::string& peer, int64_t step_id, const absl::Status& why,
                                  absl::Duration timeout) {
  rpc::AbortStepRequest request;
  request.set_step_id(step_id);
  request.set_code(why.raw_code());
  // The peer keeps no more of it, and the first message on a connection must be short
  // (listener/connection_table.h).
  request.set_message(std::string(why.message().substr(0, kMostWhyBytes)));
  rpc::StepResponse response;
  return Call(peer, "AbortStep", &rpc::TransportService::Stub::AbortStep, request, timeout,
              &response);
}

absl::Status PeerCalls::CleanupStep(const std::string& peer, int64_t step_id,
                                    absl::Duration timeout) {
  rpc::CleanupStepRequest request;
  request.set_step_id(step_id);
  rpc::StepResponse response;
  return Call(peer, "CleanupStep", &rpc::TransportService::Stub::CleanupStep, request, timeout,
              &response);
}

absl::StatusOr<uint64_t> PeerCalls::SendSamples(const std::string& peer, int64_t step_id,
                                                uint64_t bytes, uint32_t count,
                                                absl::Duration timeout) {
  rpc::SendSamplesRequest request;
  request.set_step_id(step_id);
  request.set_bytes(bytes);
  request.set_count(count);
  rpc::StepResponse response;
  absl::Status status = Call(peer, "SendSamples", &rpc::TransportService::Stub::SendSamples,
                             request, timeout, &response);
  if (absl::IsUnimplemented(status)) {
    return absl::UnimplementedError(absl::StrCat(
        peer, " runs a release that cannot send samples to tryst bench: upgrade that worker"));
  }
  if (!status.ok()) return status;
  return response.incarnation();
}

absl::StatusOr<std::string> PeerCalls::Explain(const std::string& peer, const std::string& about,
                                               bool json, absl::Duration timeout) {
  rpc::ExplainRequest request;
  request.set_peer(about);
  request.set_json(json);
  rpc::TextResponse response;
  absl::Status status =
      Call(peer, "Explain", &rpc::TransportService::Stub::Explain, request, timeout, &response);
  if (!status.ok()) return status;
  return response.text();
}

absl::StatusOr<std::string> PeerCalls::DumpWaiting(const std::string& peer, int64_t step_id,
                                                   bool json, absl::Duration timeout) {
  rpc::DumpWaitingRequest request;
  request.set_step_id(step_id);
  request.set_json(json);
  rpc::TextResponse response;
  absl::Status status = Call(peer, "DumpWaiting", &rpc::TransportService::Stub::DumpWaiting,
                             request, timeout, &response);
  if (!status.ok()) return status;
  return response.text();
}

absl::StatusOr<std::map<std::string, int64_t>> PeerCalls::Stats(const std::string& peer,
                                                                absl::Duration timeout) {
  rpc::StatsResponse response;
  absl::Status status = Call(peer, "Stats", &rpc::TransportService::Stub::Stats,
                             rpc::StatsRequest(), timeout, &response);
  if (!status.ok()) return status;
  return std::map<std::string, int64_t>(response.values().begin(), response.values().end());
}

absl::StatusOr<TraceDump> PeerCalls::TraceKey(const std::string& peer, const TraceFilter& filter,
                                              absl::Duration timeout) {
  rpc::TraceKeyRequest request;
  request.set_key(filter.key_part);
  request.set_has_step(filter.step >= 0);
  request.set_step_id(filter.step);
  request.set_most(static_cast<uint32_t>(filter.most));
  rpc::TraceResponse response;
  absl::Status status =
      Call(peer, "TraceKey", &rpc::TransportService::Stub::TraceKey, request, timeout, &response);
  if (!status.ok()) return status;
  return DumpFromProto(response);
}

absl::StatusOr<PeerCalls::ClockReading> PeerCalls::CompareClocks(const std::string& peer,
                                                                 absl::Duration timeout) {
  const SteadyClock clock;
  ClockReading best;
  for (int i = 0; i < kClockReadings; ++i) {
    const int64_t asked_ns = clock.NowNs();
    const auto heard = Ping(peer, timeout);
    if (!heard.ok()) return heard.status();
    const int64_t half_ns = (clock.NowNs() - asked_ns) / 2;
    if (heard->steady_ns == 0)
      return absl::UnimplementedError(peer +
                                      " runs a release that does not tell its clock, which tryst "
                                      "trace needs: upgrade that worker");
    if (i > 0 && half_ns >= best.error_ns) continue;
    best = {heard->steady_ns - (asked_ns + half_ns), half_ns};
  }
  return best;
}

}  // namespace tryst
