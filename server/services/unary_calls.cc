#include "server/services/unary_calls.h"

#include <utility>

#include "base/log.h"
#include "channel/grpc/byte_buffers.h"

namespace tryst {

UnaryCalls::~UnaryCalls() {
  MutexLock lock(&mu_);
  TRYST_CHECK(calls_ == 0);
}

void UnaryCalls::Serve(Next next, Handle handle) {
  Await(std::make_shared<const Method>(Method{this, std::move(next), std::move(handle)}));
}

void UnaryCalls::Join() {
  MutexLock lock(&mu_);
  while (calls_ > 0) none_.Wait(&mu_);
}

void UnaryCalls::Await(std::shared_ptr<const Method> method) {
  {
    MutexLock lock(&method->calls->mu_);
    ++method->calls->calls_;
  }
  auto* call = new Call(std::move(method));
  call->method_->next(&call->context_, &call->buffer_, &call->writer_, static_cast<void*>(call));
}

UnaryCalls::Call::~Call() {
  UnaryCalls* const calls = method_->calls;
  MutexLock lock(&calls->mu_);
  if (--calls->calls_ == 0) calls->none_.NotifyAll();
}

void UnaryCalls::Call::OnEvent(bool ok) {
  if (!ok || has_come_) {  // gRPC shuts down and brings no call, or this call has been answered.
    delete this;
    return;
  }
  has_come_ = true;
  Await(method_);
  request_ = BytesOf(buffer_);
  method_->handle(this);
}

void UnaryCalls::Call::Answer(const grpc::Status& status, const std::string& bytes) {
  GrpcEvent* const tag = this;
  if (status.ok()) {
    writer_.Finish(BufferOf(bytes), status, tag);
  } else {
    writer_.FinishWithError(status, tag);
  }
}

}  // namespace tryst
