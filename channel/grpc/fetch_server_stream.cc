#include "channel/grpc/fetch_server_stream.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace tryst {
namespace {

std::string ToString(const grpc::ByteBuffer& buffer) {
  std::string out;
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return out;
  for (const grpc::Slice& slice : slices) {
    out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return out;
}

}  // namespace

void FetchServerStream::Begin() {
  self_ = shared_from_this();
  StartRead(&first_);
}

void FetchServerStream::OnReadDone(bool ok) {
  if (!ok) return End(grpc::Status(grpc::StatusCode::CANCELLED, "the consumer is gone"));
  if (first_done_) return OnSecondRequest();
  first_done_ = true;
  StartRead(&second_);
  owner_->OnRequest(shared_from_this(), ToString(first_));
}

void FetchServerStream::OnSecondRequest() {
  rpc::FetchRequest request;
  if (!request.ParseFromString(ToString(second_)) || !request.ends()) {
    return End(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "a second request"));
  }
  owner_->OnEnds(this, !request.is_unwanted());
  bool unwanted = false;
  {
    MutexLock lock(&mu_);
    unwanted = writing_ && outcome_ != nullptr && offset_ < outcome_->tensor.bytes();
  }
  if (unwanted) context_->TryCancel();  // Its consumer no longer reads.
  End(grpc::Status::OK);
}

void FetchServerStream::Send(std::shared_ptr<const FetchOutcome> outcome, uint64_t offset) {
  if (outcome->header.code() != 0) offset = 0;  // It failed after all.
  if (offset > outcome->tensor.bytes()) {
    return End(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "offset beyond the tensor"));
  }
  {
    MutexLock lock(&mu_);
    outcome_ = std::move(outcome);
    offset_ = offset;
  }
  Pump();
}

void FetchServerStream::End(const grpc::Status& status) {
  {
    MutexLock lock(&mu_);
    if (ending_) return;
    ending_ = true;
    end_ = status;
  }
  Pump();
}

void FetchServerStream::Pump() {
  grpc::ByteBuffer* write = nullptr;
  grpc::Status end;
  {
    MutexLock lock(&mu_);
    if (writing_ || finished_) return;
    if (ending_) {
      finished_ = true;
      end = end_;
    } else {
      if (outcome_ == nullptr || broken_) return;
      const uint64_t left = outcome_->tensor.bytes() - offset_;
      if (header_sent_ && left == 0) return;  // The consumer has the word.
      const uint64_t bytes = std::min(left, kFetchChunkBytes);
      write_ = outcome_->tensor.Message(header_sent_ ? nullptr : &outcome_->header, offset_, bytes,
                                        digests);
      header_sent_ = true;
      offset_ += bytes;
      writing_ = true;
      write = &write_;
    }
  }
  if (write != nullptr) {
    StartWrite(write);
  } else {
    Finish(end);
  }
}

void FetchServerStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(&mu_);
    writing_ = false;
    broken_ |= !ok;
    write_.Clear();
  }
  Pump();
}

void FetchServerStream::OnDone() {
  owner_->OnStreamDone(this);
  self_.reset();
}

}  // namespace tryst
