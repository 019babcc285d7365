#ifndef TRYST_VERBS_IBV_IBV_COMPLETION_QUEUE_H_
#define TRYST_VERBS_IBV_IBV_COMPLETION_QUEUE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "verbs/ibv/ibv_device.h"
#include "verbs/nic.h"

namespace tryst {

class IbvQueuePair;

// Finds the queue pair of a completion by the slot in the work's id. So it does not depend on queue
// pair numbers, which the kernel reuses. Used by one thread, as verbs/nic.h says.
class IbvCompletionQueue final : public CompletionQueue {
 public:
  // A queue pair has its works and two markers (ibv_queue_pair.h).
  static constexpr uint32_t kMarkers = 2;

  static absl::StatusOr<std::unique_ptr<CompletionQueue>> Create(IbvDevice* device, uint32_t depth);
  ~IbvCompletionQueue() override;

  absl::StatusOr<size_t> Poll(absl::Span<Completion> out) override;
  absl::Status Arm() override;
  int event_fd() const override { return channel_->fd; }

  ibv_cq* verbs() const { return queue_; }
  const IbvDevice* device() const { return device_; }

  // Reserves room for `works` completions and the markers. Returns the slot, or kResourceExhausted.
  // Remove() gives it back, and so does Unreserve() before there was a queue pair.
  absl::StatusOr<uint32_t> Reserve(uint32_t works);
  void Unreserve(uint32_t works);
  void Attach(uint32_t slot, IbvQueuePair* pair) { pairs_[slot] = pair; }
  // Call it when the hardware's queue pair is gone: removes its completions from the queue, so that
  // the slot and the room can be reused.
  void Remove(uint32_t slot, uint32_t number, uint32_t works);

 private:
  IbvCompletionQueue(IbvDevice* device, ibv_comp_channel* channel, ibv_cq* queue, uint32_t depth);
  absl::StatusOr<size_t> PollHardware(absl::Span<Completion> out);
  absl::Status TakeEvents();

  IbvDevice* const device_;
  ibv_comp_channel* const channel_;
  ibv_cq* const queue_;
  const uint32_t depth_;
  uint32_t works_ = 0;                // Reserved, at most depth_.
  uint32_t markers_ = 0;              // Reserved; together with works_ at most queue_->cqe.
  std::vector<IbvQueuePair*> pairs_;  // By slot; null: free.
  std::deque<Completion> kept_;       // Polled while another queue pair was removed.
  unsigned unacknowledged_ = 0;  // Events read: acknowledging each would cost a mutex each time.
};

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_IBV_COMPLETION_QUEUE_H_
