// What a queue pair gets from its endpoint, and what it does by itself.
#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>

#include "base/reached.h"
#include "verbs/ofi/ofi_queue_pair.h"

namespace tryst {
namespace {

// How long a broken queue pair tries to tell its peer.
constexpr int64_t kLingerNs = 20'000'000;
constexpr int64_t kGreetAgainNs = 1'000'000;

CompletionStatus StatusOf(int error) {
  switch (error) {
    case FI_EACCES:
    case FI_EPERM:
    case FI_EKEYREJECTED:
      return CompletionStatus::kRemoteAccess;
    case FI_ETRUNC:
    case FI_EMSGSIZE:
      return CompletionStatus::kLocalLength;
    case FI_ENOMEM:
    case FI_EINVAL:
      return CompletionStatus::kLocalOperation;
    default:
      // Also a refused write: providers close the connection and do not say why.
      return CompletionStatus::kRetryExceeded;
  }
}

}  // namespace

void OfiQueuePair::Progress() {
  if (endpoint_->closed()) return;
  Collect();
  if (broken_) {
    const int64_t now_ns = completions_->NowNs();
    if (linger_until_ns_ == 0) linger_until_ns_ = now_ns + kLingerNs;
    if (!bye_said_) SayBye();
    if ((bye_said_ && !frames_.AnyBusy()) || now_ns >= linger_until_ns_) CloseDown();
    return;
  }
  if (!connected_) return;
  if (!greeted_) Greet(completions_->NowNs());
  if (works_.any_waits()) Issue();
  Retire();
  if (broken_ || works_.empty()) return patience_.Restart();
  if (patience_.Exhausted(completions_->NowNs())) {
    TRYST_REACHED("rare: a libfabric peer does not answer");
    FailOldest(CompletionStatus::kRetryExceeded, 0);
  }
}

void OfiQueuePair::Collect() {
  constexpr int kBatches = 4;
  for (int i = 0; i < kBatches; ++i) {
    fi_cq_data_entry ends[16];
    const int64_t count = endpoint_->ReadCompletions(ends, 16);
    if (count == -FI_EAGAIN) return;
    if (count == -FI_EAVAIL) {
      fi_cq_err_entry error = {};
      if (endpoint_->ReadError(&error) > 0) OnError(error);
      continue;
    }
    if (count < 0) return FailOldest(CompletionStatus::kFatal, static_cast<uint32_t>(-count));
    for (int64_t at = 0; at < count; ++at) OnEnd(ends[at]);
    if (count < 16) return;
  }
}

void OfiQueuePair::OnEnd(const fi_cq_data_entry& end) {
  if ((end.flags & FI_REMOTE_WRITE) != 0) {
    Arrival arrival;
    arrival.immediate = static_cast<uint32_t>(end.data);
    arrival.bytes = device_->tells_length() ? end.data >> 32 : 0;
    return OnArrival(arrival);
  }
  auto* const context = static_cast<OfiContext*>(end.op_context);
  switch (context->owner) {
    case OfiContext::Owner::kFrameIn:
      return OnFrame(context->index, end.len);
    case OfiContext::Owner::kFrameOut:
      return OnFrameSent(&frames_.OutAt(context->index));
    case OfiContext::Owner::kWork: {
      OfiWork& work = works_.InSlot(context->index);
      work.done = true;
      return patience_.Restart();
    }
  }
}

void OfiQueuePair::OnFrameSent(OfiFrames::Out* frame) {
  frame->busy = false;
  patience_.Restart();
  if (frame->work == OfiFrames::kNoWork) return;
  OfiWork& work = works_.At(frame->work);
  if (--work.frames_out == 0 && work.sent == work.bytes) work.done = true;
}

void OfiQueuePair::OnError(const fi_cq_err_entry& error) {
  if (error.op_context == nullptr) return;
  auto* const context = static_cast<OfiContext*>(error.op_context);
  const CompletionStatus status = StatusOf(error.err);
  switch (context->owner) {
    case OfiContext::Owner::kFrameIn:
      if (error.err == FI_ECANCELED && broken_) return;
      // It is longer than any frame of ours, so it is not from a peer that we know.
      TRYST_REACHED("hostile: a libfabric frame that is too long");
      return PostFrameIn(context->index);
    case OfiContext::Owner::kFrameOut: {
      OfiFrames::Out& frame = frames_.OutAt(context->index);
      frame.busy = false;
      if (frame.work != OfiFrames::kNoWork) {
        failed_ = true;
        works_.At(frame.work).status = status;
        works_.At(frame.work).vendor_error = static_cast<uint32_t>(error.err);
      } else if (!broken_) {
        greeted_ = false;  // A hello was lost.
      }
      return;
    }
    case OfiContext::Owner::kWork:
      // For the next message a provider would open a new connection, and what was lost with the old
      // one would be missing before it.
      failed_ = true;
      works_.InSlot(context->index).status = status;
      works_.InSlot(context->index).vendor_error = static_cast<uint32_t>(error.err);
      return;
  }
}

void OfiQueuePair::PostFrameIn(uint32_t index) {
  if (frames_.Receive(endpoint_.get(), index) != 0) {
    TRYST_REACHED("rare: libfabric takes no receive");
    FailOldest(CompletionStatus::kLocalOperation, 0);
  }
}

void OfiQueuePair::OnFrame(uint32_t index, size_t bytes) {
  OfiFrame frame;
  const bool ours = DecodeOfiFrame(frames_.In(index), bytes, &frame);
  if (ours && frame.kind == OfiFrameKind::kHello) {
    OnHello(frame, frames_.In(index) + kOfiFrameHeaderBytes);
  } else if (ours && connected_ && frame.token == tokens_.peers()) {
    if (frame.kind != OfiFrameKind::kBye) {
      Arrival arrival;
      arrival.frame = static_cast<int>(index);
      return OnArrival(arrival);
    }
    if (!broken_) {
      peer_gone_ = true;
      FailOldest(CompletionStatus::kRetryExceeded, 0);
    }
  } else {
    TRYST_REACHED("hostile: a libfabric frame from a stranger");
  }
  PostFrameIn(index);
}

void OfiQueuePair::OnHello(const OfiFrame& frame, const uint8_t* payload) {
  if (!tokens_.AreOurs(payload, frame.payload_bytes)) {
    TRYST_REACHED("hostile: a libfabric hello without our token");
    return;
  }
  if (tokens_.OnHello(frame.token)) patience_.Restart();
}

void OfiQueuePair::OnArrival(const Arrival& arrival) {
  if (broken_) return;
  if (waiting_.empty() && !receives_.empty() && Deliver(arrival)) return;
  if (waiting_.size() == kMaxWaiting) {
    TRYST_REACHED("hostile: far more immediates than receives");
    return FailOldest(CompletionStatus::kReceiverNotReady, 0);
  }
  waiting_.push_back(arrival);
}

// REQUIRES: there is a receive. Always returns true: the arrival is handled.
bool OfiQueuePair::Deliver(const Arrival& arrival) {
  if (arrival.frame < 0) {
    Complete(receives_.TakeForImmediate(arrival.immediate, arrival.bytes), 0);
    return true;
  }
  const uint32_t index = static_cast<uint32_t>(arrival.frame);
  OfiFrame frame;
  // It was valid when it came, and nothing else writes there.
  (void)DecodeOfiFrame(frames_.In(index), kOfiFrameHeaderBytes, &frame);
  if (frame.kind == OfiFrameKind::kImmediate) {
    Complete(receives_.TakeForImmediate(frame.immediate, 0), 0);
  } else {
    Completion completion;
    if (receives_.Fill(frame, frames_.In(index) + kOfiFrameHeaderBytes, &completion)) {
      Complete(completion, 0);
      if (completion.status != CompletionStatus::kOk) {
        FailOldest(CompletionStatus::kRemoteAborted, 0);
        return true;
      }
    }
  }
  PostFrameIn(index);
  return true;
}

absl::Status OfiQueuePair::PostReceive(absl::Span<const ReceiveWork> works) {
  if (broken_) return absl::FailedPreconditionError("the queue pair is broken");
  if (works.size() > receive_room()) {
    return absl::ResourceExhaustedError(
        "more receives are posted than the queue pair has room for");
  }
  for (const ReceiveWork& work : works) {
    if (work.entries.size() > options_.max_entries) {
      return absl::InvalidArgumentError(
          "a receive has more pieces of memory than its queue pair takes");
    }
  }
  for (const ReceiveWork& work : works) receives_.Post(work);
  receives_used_ += static_cast<uint32_t>(works.size());
  DeliverWaiting();
  return absl::OkStatus();
}

void OfiQueuePair::DeliverWaiting() {
  while (!waiting_.empty() && !receives_.empty() && !broken_) {
    const Arrival arrival = waiting_.front();
    waiting_.pop_front();
    Deliver(arrival);
  }
}

void OfiQueuePair::Greet(int64_t now_ns) {
  if (now_ns < greet_again_ns_) return;
  greet_again_ns_ = now_ns + kGreetAgainNs;
  OfiFrame hello;
  hello.token = tokens_.ours();
  hello.payload_bytes = sizeof(tokens_.peers());
  greeted_ = PostFrame(hello, &tokens_.peers(), OfiFrames::kNoWork) == 0;
}

void OfiQueuePair::SayBye() {
  if (!connected_ || peer_gone_ || !greeted_) {
    bye_said_ = true;  // There is no peer to tell.
    return;
  }
  OfiFrame bye;
  bye.kind = OfiFrameKind::kBye;
  bye.token = tokens_.ours();
  bye_said_ = PostFrame(bye, nullptr, OfiFrames::kNoWork) == 0;
}

}  // namespace tryst
