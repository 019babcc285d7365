#include "verbs/ibv/ibv_completion_queue.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "verbs/ibv/ibv_queue_pair.h"
#include "verbs/ibv/ibv_status.h"

namespace tryst {
namespace {

constexpr int kBatch = 16;
constexpr unsigned kAcknowledgeEvery = 256;

absl::Status MakeNonBlocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    return FromErrno(errno, "fcntl of the completion channel");
  }
  return absl::OkStatus();
}

}  // namespace

IbvCompletionQueue::IbvCompletionQueue(IbvDevice* device, ibv_comp_channel* channel, ibv_cq* queue,
                                       uint32_t depth)
    : device_(device), channel_(channel), queue_(queue), depth_(depth) {
  device_->OnMade();
}

IbvCompletionQueue::~IbvCompletionQueue() {
  TRYST_CHECK(works_ == 0) << "queue pairs outlive their completion queue";
  // Destroying the queue waits until every event that was read is acknowledged.
  if (unacknowledged_ > 0) device_->calls().ack_cq_events(queue_, unacknowledged_);
  absl::Status status = FromReturned(device_->calls().destroy_cq(queue_), "ibv_destroy_cq");
  if (!status.ok()) TRYST_LOG(Error) << status;
  status =
      FromReturned(device_->calls().destroy_comp_channel(channel_), "ibv_destroy_comp_channel");
  if (!status.ok()) TRYST_LOG(Error) << status;
  device_->OnGone();
}

absl::StatusOr<std::unique_ptr<CompletionQueue>> IbvCompletionQueue::Create(IbvDevice* device,
                                                                            uint32_t depth) {
  if (depth == 0 || depth > device->limits().max_completion_depth) {
    return absl::InvalidArgumentError(
        absl::StrCat("a completion queue of ", depth, " entries is not possible: ", device->name(),
                     " allows 1 to ", device->limits().max_completion_depth));
  }
  const IbvCalls& calls = device->calls();
  const absl::StatusOr<ibv_comp_channel*> channel =
      FromPointer(calls.create_comp_channel(device->context()), "ibv_create_comp_channel");
  if (!channel.ok()) return channel.status();
  absl::Status status = MakeNonBlocking((*channel)->fd);
  if (status.ok()) {
    // A queue pair has at least as many works as markers, so twice the depth holds both.
    const absl::StatusOr<ibv_cq*> queue =
        FromPointer(calls.create_cq(device->context(), static_cast<int>(depth * 2), nullptr,
                                    *channel, device->NextCompletionVector()),
                    "ibv_create_cq");
    if (queue.ok()) {
      return std::unique_ptr<CompletionQueue>(
          new IbvCompletionQueue(device, *channel, *queue, depth));
    }
    status = queue.status();
  }
  const absl::Status undone =
      FromReturned(calls.destroy_comp_channel(*channel), "ibv_destroy_comp_channel");
  if (!undone.ok()) TRYST_LOG(Error) << undone;
  return status;
}

absl::StatusOr<uint32_t> IbvCompletionQueue::Reserve(uint32_t works) {
  const uint32_t hardware = static_cast<uint32_t>(std::max(queue_->cqe, 0));
  if (works > depth_ - works_ || works_ + works + markers_ + kMarkers > hardware) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a completion queue of ", depth_, " entries has ", works_,
                     " taken, and no room for another connection, which takes ", works,
                     ": connect fewer peers (max_peers), or lower queue_pairs"));
  }
  const auto free = std::find(pairs_.begin(), pairs_.end(), nullptr);
  const uint32_t slot = static_cast<uint32_t>(free - pairs_.begin());
  if (slot > IbvQueuePair::kMaxSlot) {
    return absl::ResourceExhaustedError(
        "a completion queue has no room for another queue pair: connect fewer peers (max_peers), "
        "or lower queue_pairs");
  }
  if (free == pairs_.end()) pairs_.push_back(nullptr);
  works_ += works;
  markers_ += kMarkers;
  return slot;
}

void IbvCompletionQueue::Remove(uint32_t slot, uint32_t number, uint32_t works) {
  pairs_[slot] = nullptr;  // From here on its completions are dropped.
  kept_.erase(std::remove_if(kept_.begin(), kept_.end(),
                             [&](const Completion& one) { return one.queue_pair == number; }),
              kept_.end());
  Completion taken[kBatch];
  while (true) {
    const absl::StatusOr<size_t> count = PollHardware(absl::MakeSpan(taken));
    if (!count.ok()) break;  // The NIC is lost; the next Poll() reports it.
    kept_.insert(kept_.end(), taken, taken + *count);
    if (*count < kBatch) break;
  }
  Unreserve(works);
}

void IbvCompletionQueue::Unreserve(uint32_t works) {
  works_ -= works;
  markers_ -= kMarkers;
}

absl::StatusOr<size_t> IbvCompletionQueue::PollHardware(absl::Span<Completion> out) {
  size_t filled = 0;
  ibv_wc works[kBatch];
  while (filled < out.size()) {
    const int room = static_cast<int>(std::min<size_t>(out.size() - filled, kBatch));
    const absl::StatusOr<size_t> count = FromPolled(ibv_poll_cq(queue_, room, works));
    if (!count.ok()) {
      if (filled == 0) return count.status();
      break;
    }
    for (size_t i = 0; i < *count; ++i) {
      const uint32_t slot = IbvQueuePair::SlotOf(works[i].wr_id);
      IbvQueuePair* const pair = slot < pairs_.size() ? pairs_[slot] : nullptr;
      if (pair != nullptr && pair->OnCompletion(works[i], &out[filled])) ++filled;
    }
    if (*count < static_cast<size_t>(room)) break;
  }
  return filled;
}

absl::StatusOr<size_t> IbvCompletionQueue::Poll(absl::Span<Completion> out) {
  if (ABSL_PREDICT_TRUE(kept_.empty())) return PollHardware(out);
  const size_t count = std::min(out.size(), kept_.size());
  std::copy_n(kept_.begin(), count, out.begin());
  kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

absl::Status IbvCompletionQueue::TakeEvents() {
  ibv_cq* queue = nullptr;
  void* cookie = nullptr;
  while (true) {
    const absl::StatusOr<bool> taken =
        FromEventCall(device_->calls().get_cq_event(channel_, &queue, &cookie), "ibv_get_cq_event");
    if (!taken.ok()) return taken.status();
    if (!*taken) break;
    ++unacknowledged_;
  }
  if (unacknowledged_ >= kAcknowledgeEvery) {
    device_->calls().ack_cq_events(queue_, unacknowledged_);
    unacknowledged_ = 0;
  }
  return absl::OkStatus();
}

absl::Status IbvCompletionQueue::Arm() {
  const absl::Status taken = TakeEvents();
  if (!taken.ok()) return taken;
  return FromReturned(ibv_req_notify_cq(queue_, 0), "ibv_req_notify_cq");
}

}  // namespace tryst
