#include "server/services/health_service.h"

#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>

#include <utility>

#include "channel/grpc/byte_buffers.h"
#include "proto/transport.pb.h"

namespace tryst {
namespace {

enum Method { kCheck, kWatch };
enum Status : uint32_t { kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

std::string Encode(Status status) {
  rpc::HealthResponse response;
  response.set_status(status);
  return response.SerializeAsString();
}

// Whether the client asks about the server as a whole. Single services have no health of their own.
bool AsksAboutAll(const std::string& bytes) {
  rpc::HealthRequest request;
  return request.ParseFromString(bytes) && request.service().empty();
}

}  // namespace

// A client's Watch call: gets each change until the client or the server ends it.
class HealthService::Watch final : public std::enable_shared_from_this<Watch> {
 public:
  explicit Watch(HealthService* service) : service_(service) {}

  void Await() {
    context_.AsyncNotifyWhenDone(&done_);
    service_->RequestAsyncServerStreaming(kWatch, &context_, &request_, &writer_, service_->queue_,
                                          service_->queue_, &called_);
  }
  void Tell(Status status) {
    {
      MutexLock lock(&mu_);
      if (!has_come_ || told_ == kServiceUnknown) return;
      told_ = status;
    }
    Pump();
  }

 private:
  using Step = GrpcStep<Watch>;

  void OnCalled(bool ok);
  void OnWritten(bool ok) {
    {
      MutexLock lock(&mu_);
      writing_ = false;
      gone_ |= !ok;
    }
    Pump();
    Leave();
  }
  void OnDone(bool) {
    {
      MutexLock lock(&mu_);
      gone_ = true;
    }
    Leave();
  }
  // Writes the latest state, unless the client has it already.
  void Pump() {
    Status status;
    {
      MutexLock lock(&mu_);
      if (writing_ || gone_ || written_status_ == told_) return;
      writing_ = true;
      ++under_way_;
      written_status_ = status = told_;
    }
    writer_.Write(BufferOf(Encode(status)), &written_);
  }
  void Leave() {
    {
      MutexLock lock(&mu_);
      if (--under_way_ > 0) return;
    }
    service_->OnWatchOver(shared_from_this());
  }

  HealthService* const service_;
  grpc::ServerContext context_;
  grpc::ServerAsyncWriter<grpc::ByteBuffer> writer_{&context_};
  grpc::ByteBuffer request_;
  Step called_{this, &Watch::OnCalled};
  Step written_{this, &Watch::OnWritten};
  Step done_{this, &Watch::OnDone};

  Mutex mu_;
  bool has_come_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
  Status told_ ABSL_GUARDED_BY(mu_) = kServing;
  uint32_t written_status_ ABSL_GUARDED_BY(mu_) = 0;
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
};

void HealthService::Watch::OnCalled(bool ok) {
  if (!ok) {
    service_->OnWatchOver(shared_from_this());
    return;
  }
  service_->AwaitWatch();
  const bool known = AsksAboutAll(BytesOf(request_));
  {
    // Both locks, so that a change from now on is told after this first answer.
    MutexLock service_lock(&service_->mu_);
    MutexLock lock(&mu_);
    has_come_ = true;
    under_way_ = 1;  // AsyncNotifyWhenDone.
    told_ = !known ? kServiceUnknown : service_->serving_ ? kServing : kNotServing;
  }
  Pump();
}

HealthService::HealthService() {
  using grpc::internal::RpcMethod;
  using grpc::internal::RpcServiceMethod;
  AddMethod(new RpcServiceMethod("/grpc.health.v1.Health/Check", RpcMethod::NORMAL_RPC, nullptr));
  AddMethod(
      new RpcServiceMethod("/grpc.health.v1.Health/Watch", RpcMethod::SERVER_STREAMING, nullptr));
  MarkMethodRaw(kCheck);
  MarkMethodRaw(kWatch);
}

HealthService::~HealthService() = default;

void HealthService::Start(grpc::ServerCompletionQueue* queue) {
  queue_ = queue;
  checks_.Serve(
      [this](grpc::ServerContext* context, grpc::ByteBuffer* request, UnaryCalls::Writer* writer,
             void* tag) {
        RequestAsyncUnary(kCheck, context, request, writer, queue_, queue_, tag);
      },
      [this](UnaryCalls::Call* call) {
        if (!AsksAboutAll(call->request())) {
          return call->Answer(grpc::Status(grpc::StatusCode::NOT_FOUND, "unknown service"), "");
        }
        bool serving = false;
        {
          MutexLock lock(&mu_);
          serving = serving_;
        }
        call->Answer(grpc::Status::OK, Encode(serving ? kServing : kNotServing));
      });
  AwaitWatch();
}

void HealthService::AwaitWatch() {
  auto watch = std::make_shared<Watch>(this);
  {
    MutexLock lock(&mu_);
    watches_.insert(watch);
  }
  watch->Await();
}

void HealthService::OnWatchOver(const std::shared_ptr<Watch>& watch) {
  MutexLock lock(&mu_);
  watches_.erase(watch);
  if (watches_.empty()) none_.NotifyAll();
}

void HealthService::SetNotServing() {
  std::set<std::shared_ptr<Watch>> watches;
  {
    MutexLock lock(&mu_);
    serving_ = false;
    watches = watches_;
  }
  for (const std::shared_ptr<Watch>& watch : watches) watch->Tell(kNotServing);
}

void HealthService::Join() {
  checks_.Join();
  MutexLock lock(&mu_);
  while (!watches_.empty()) none_.Wait(&mu_);
}

}  // namespace tryst
