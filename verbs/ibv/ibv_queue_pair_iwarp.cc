#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "verbs/ibv/ibv_queue_pair.h"
#include "verbs/ibv/ibv_status.h"

// A queue pair of an iWARP device, which the connection manager connects. After a break the device
// may return only the works that it still has, and never a marker that was posted later.
namespace tryst {
namespace {

// On a slow machine one attempt to connect takes this long, so a shorter ack timeout does not
// count.
constexpr std::chrono::seconds kLeastPatience(3);

}  // namespace

std::unique_ptr<IwarpSide> IbvQueuePair::MakeIwarpSide() {
  if (device_->connector() == nullptr) return nullptr;
  const uint64_t token = static_cast<uint64_t>(device_->Random()) << 32 | device_->Random();
  const std::chrono::nanoseconds attempt(uint64_t{4096} << options_.ack_timeout);
  return std::make_unique<IwarpSide>(
      device_->connector(), pair_->qp_num, token, completions_->wake_fd(),
      std::max<std::chrono::nanoseconds>(attempt * (options_.retry_count + 1), kLeastPatience));
}

void IbvQueuePair::HoldSends(absl::Span<const SendWork> works) {
  for (const SendWork& work : works) iwarp_->Hold(work);
}

void IbvQueuePair::Advance() {
  if (state_ == QueuePairState::kBroken) flush_by_hand_ = true;
  if (state_ != QueuePairState::kReady) return;
  switch (iwarp_->Look()) {
    case IwarpSide::Change::kNone:
      return;
    case IwarpSide::Change::kLost:
      return StartBreak(absl::UnavailableError(
          absl::StrCat("queue pair ", number(),
                       ": the iWARP peer does not answer, or has closed the connection")));
    case IwarpSide::Change::kUp:
      break;
  }
  while (iwarp_->held() > 0) {
    const absl::Status status = PostNow({&iwarp_->OldestHeld(), 1});
    if (!status.ok()) return StartBreak(status);
    iwarp_->Release();
  }
}

size_t IbvQueuePair::FlushByHand(absl::Span<Completion> out) {
  if (!flush_by_hand_ || marked_) return 0;
  size_t filled = 0;
  const auto flush = [&](uint64_t id, CompletionStatus status) {
    out[filled] = Completion();
    out[filled].id = id;
    out[filled].status = status;
    out[filled].queue_pair = number();
    ++filled;
  };
  for (; filled < out.size() && sends_.outstanding() > 0; sends_.Retire(sends_.oldest())) {
    flush(sends_.id(sends_.oldest()), CompletionStatus::kFlushed);
  }
  // Sends that never left, because no peer was there, complete here; the first of them reports the
  // loss.
  for (; filled < out.size() && iwarp_->held() > 0; iwarp_->Release()) {
    const bool lost = absl::IsUnavailable(cause_) && !iwarp_->up() && !told_loss_;
    told_loss_ |= lost;
    flush(iwarp_->OldestHeld().id,
          lost ? CompletionStatus::kRetryExceeded : CompletionStatus::kFlushed);
  }
  for (; filled < out.size() && receives_.outstanding() > 0; receives_.Retire(receives_.oldest())) {
    flush(receives_.id(receives_.oldest()), CompletionStatus::kFlushed);
  }
  marked_ = sends_.outstanding() + iwarp_->held() + receives_.outstanding() == 0;
  receive_flushed_ = marked_;
  return filled;
}

}  // namespace tryst
