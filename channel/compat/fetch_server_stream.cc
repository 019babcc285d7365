#include "channel/compat/fetch_server_stream.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <utility>

#include "channel/grpc/byte_buffers.h"
#include "channel/signing/caller.h"

namespace tryst {

void FetchServerStream::OnCalled(bool ok) {
  owner_->OnCall(ok);
  if (!ok) {
    self_.reset();
    return;
  }
  {
    MutexLock lock(&mu_);
    under_way_ = 2;  // The read, and AsyncNotifyWhenDone.
  }
  stream_.Read(&request_, &read_step_);
}

void FetchServerStream::OnRead(bool ok) {
  if (ok) {
    owner_->OnRequest(self_, BytesOf(request_));
  } else {
    End(grpc::Status(grpc::StatusCode::CANCELLED, "the consumer is gone"));
  }
  Leave();
}

void FetchServerStream::Send(std::shared_ptr<const FetchOutcome> outcome, uint64_t offset) {
  // The fetch failed, although an earlier attempt had begun.
  if (outcome->header.code() != 0) offset = 0;
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

void FetchServerStream::Seal(const std::string& token) {
  const auto said = context_.client_metadata().find(kCallerMetadata);
  if (said == context_.client_metadata().end()) return;  // Nobody is let in without.
  const absl::string_view statement(said->second.data(), said->second.size());
  MutexLock lock(&mu_);
  sealing_ = std::make_unique<CallSealing>(token, statement);
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
  grpc::ByteBuffer write;
  grpc::Status end;
  bool ending = false;
  bool last = false;
  {
    MutexLock lock(&mu_);
    if (writing_ || finished_) return;
    ending = ending_;
    if (ending) {
      end = end_;
    } else {
      if (outcome_ == nullptr) return;
      const uint64_t left = outcome_->tensor.bytes() - offset_;
      const uint64_t bytes = std::min(left, kFetchChunkBytes);
      write = outcome_->tensor.Message(header_sent_ ? nullptr : &outcome_->header, offset_, bytes,
                                       digests);
      if (sealing_ != nullptr) write = sealing_->Seal(write);
      header_sent_ = true;
      offset_ += bytes;
      last = bytes == left;
    }
    finished_ = ending || last;
    writing_ = !finished_;
    ++under_way_;
  }
  if (ending) {
    stream_.Finish(end, &finished_step_);
  } else if (last) {
    // One system call for the headers, the bytes and the end.
    stream_.WriteAndFinish(write, grpc::WriteOptions(), grpc::Status::OK, &finished_step_);
  } else {
    stream_.Write(write, &written_step_);
  }
}

void FetchServerStream::OnWritten(bool ok) {
  {
    MutexLock lock(&mu_);
    writing_ = false;
    finished_ |= !ok;
  }
  if (ok) Pump();
  Leave();
}

void FetchServerStream::OnFinished(bool) { Leave(); }

void FetchServerStream::OnDone(bool) {
  {
    MutexLock lock(&mu_);
    finished_ = true;
  }
  Leave();
}

void FetchServerStream::Leave() {
  {
    MutexLock lock(&mu_);
    if (--under_way_ > 0) return;
    outcome_.reset();
  }
  owner_->OnStreamDone(this);
  self_.reset();
}

}  // namespace tryst
