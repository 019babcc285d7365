#include "channel/grpc/fetch_stream.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/slice.h>

#include <utility>

#include "channel/grpc/caller.h"

namespace tryst {
namespace {

constexpr char kMethod[] = "/tryst.rpc.TransportService/FetchTensor";
constexpr int64_t kLingerNs = int64_t{2} * 1000 * 1000 * 1000;
constexpr int64_t kHurriedLingerNs = int64_t{100} * 1000 * 1000;

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

FetchStream::FetchStream(Poller* poller, IncomingTensor* incoming, uint64_t serial, Event on_landed,
                         Event on_ended)
    : poller_(poller),
      serial_(serial),
      on_landed_(std::move(on_landed)),
      on_ended_(std::move(on_ended)),
      linger_(this),
      landed_task_(this),
      ended_task_(this),
      incoming_(incoming) {}

FetchStream::~FetchStream() = default;

void FetchStream::EndedTask::RunOnPoller() {
  stream->poller_->CancelTimer(&stream->linger_);
  Event on_ended = std::move(stream->on_ended_);
  on_ended(stream);
}

void FetchStream::Start(const std::shared_ptr<grpc::Channel>& channel, const std::string& statement,
                        const std::string& request) {
  context_.AddMetadata(kCallerMetadata, statement);
  request_ = ToBuffer(request);
  grpc::GenericStub stub(channel);
  stub.PrepareBidiStreamingCall(&context_, kMethod, grpc::StubOptions(), this);
  AddHold();  // SendEnds() comes from outside of gRPC's reactions.
  StartWrite(&request_);
  StartRead(&read_);
  StartCall();
}

void FetchStream::Detach() {
  serial_ = 0;
  MutexLock lock(&mu_);
  incoming_ = nullptr;
}

bool FetchStream::may_be_known() {
  MutexLock lock(&mu_);
  return request_written_;
}

void FetchStream::SendEnds(bool delivered) {
  bool write = false;
  {
    MutexLock lock(&mu_);
    if (dead_ || ends_wanted_) return;
    ends_wanted_ = true;
    rpc::FetchRequest ends;
    ends.set_ends(true);
    ends.set_is_unwanted(!delivered);
    ends_ = ToBuffer(ends.SerializeAsString());
    write = !request_pending_;  // Else OnWriteDone goes on.
  }
  poller_->SetTimer(&linger_, poller_->clock().NowNs() + kLingerNs);
  if (write) WriteEnds();
}

void FetchStream::Abandon() {
  bool release = false;
  {
    MutexLock lock(&mu_);
    if (dead_ || ends_wanted_) return;
    dead_ = true;
    release = !request_pending_;  // Else OnWriteDone does.
  }
  Cancel();
  if (release) RemoveHold();
}

void FetchStream::Hurry() {
  poller_->SetTimer(&linger_, poller_->clock().NowNs() + kHurriedLingerNs);
}

void FetchStream::WriteEnds() {
  StartWriteLast(&ends_, grpc::WriteOptions());
  RemoveHold();
}

void FetchStream::OnWriteDone(bool ok) {
  bool ends = false;
  bool dead = false;
  {
    MutexLock lock(&mu_);
    if (!request_pending_) return;  // That was the ends message.
    request_pending_ = false;
    request_written_ = ok;
    ends = ends_wanted_;
    dead = dead_;
  }
  if (ends) {
    WriteEnds();
  } else if (dead) {
    RemoveHold();
  }
}

void FetchStream::OnReadDone(bool ok) {
  bool landed = false;
  bool release = false;
  {
    MutexLock lock(&mu_);
    if (!ok) {
      dead_ = true;
      release = !ends_wanted_ && !request_pending_;
    } else if (incoming_ != nullptr) {
      taken_ = incoming_->Take(&read_);
      landed = !taken_.ok() || incoming_->header().code() != 0 || incoming_->complete();
    }
  }
  if (landed) {
    poller_->Post(&landed_task_);
  } else if (ok) {
    read_.Clear();
    StartRead(&read_);
  } else if (release) {
    RemoveHold();
  }
}

void FetchStream::OnDone(const grpc::Status& status) {
  status_ = status;
  poller_->Post(&ended_task_);
}

}  // namespace tryst
