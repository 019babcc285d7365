#include "channel/compat/fetch_stream.h"

#include <chrono>
#include <utility>

#include "channel/grpc/byte_buffers.h"
#include "channel/signing/caller.h"

namespace tryst {
namespace {

constexpr int64_t kHurriedNs = int64_t{100} * 1000 * 1000;

}  // namespace

FetchStream::FetchStream(Poller* poller, IncomingTensor* incoming, uint64_t serial, Event on_landed,
                         Event on_ended)
    : poller_(poller),
      serial_(serial),
      on_landed_(std::move(on_landed)),
      on_ended_(std::move(on_ended)),
      linger_(this),
      over_heard_(incoming == nullptr),  // A note has no answer but its status.
      landed_task_(this),
      ended_task_(this),
      incoming_(incoming) {}

FetchStream::~FetchStream() = default;

void FetchStream::EndedTask::RunOnPoller() {
  stream->poller_->CancelTimer(&stream->linger_);
  Event on_ended = std::move(stream->on_ended_);
  on_ended(stream);
}

void FetchStream::Start(grpc::CompletionQueue* queue, const std::shared_ptr<grpc::Channel>& channel,
                        std::string statement, const std::string& request) {
  statement_ = std::move(statement);
  context_.AddMetadata(kCallerMetadata, statement_);
  // Headers, request and end-of-stream leave together.
  context_.set_initial_metadata_corked(true);
  grpc::GenericStub stub(channel);
  call_ = stub.PrepareCall(&context_, kFetchMethod, queue);
  call_->StartCall(nullptr);
  call_->WriteLast(BufferOf(request), grpc::WriteOptions(), &written_);
  call_->Read(&read_, &was_read_);
}

void FetchStream::Detach() {
  serial_ = 0;
  MutexLock lock(&mu_);
  incoming_ = nullptr;
}

bool FetchStream::Redirect(const Tensor& destination) {
  MutexLock lock(&mu_);
  return taken_.ok() && incoming_->Redirect(destination);
}

void FetchStream::EndWithin(int64_t ns) {
  context_.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(ns));
}

void FetchStream::Hurry() { poller_->SetTimer(&linger_, poller_->clock().NowNs() + kHurriedNs); }

void FetchStream::OnWritten(bool ok) {
  request_written_.store(ok);
  Leave();
}

void FetchStream::OnRead(bool ok) {
  bool landed = false;
  bool more = false;
  if (ok) {
    MutexLock lock(&mu_);
    if (incoming_ != nullptr) {
      taken_ = sealing_ == nullptr ? absl::OkStatus() : sealing_->Open(&read_);
      if (taken_.ok()) taken_ = incoming_->Take(&read_);
      over_heard_ = incoming_->header_seen() && !incoming_->header().is_other_incarnation();
      landed = !taken_.ok() || incoming_->header().code() != 0 || incoming_->complete();
      more = !landed;
    }
  }
  read_.Clear();
  parts_so_far_.store(more ? parts_so_far() + 1 : 0, std::memory_order_relaxed);
  if (more) return call_->Read(&read_, &was_read_);
  if (landed) poller_->PostToTurn(&landed_task_);
  call_->Finish(&status_, &finished_);
}

void FetchStream::OnFinished(bool) { Leave(); }

void FetchStream::Leave() {
  if (left_.fetch_sub(1) == 1) poller_->PostToTurn(&ended_task_);
}

}  // namespace tryst
