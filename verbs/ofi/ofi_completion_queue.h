#ifndef TRYST_VERBS_OFI_OFI_COMPLETION_QUEUE_H_
#define TRYST_VERBS_OFI_OFI_COMPLETION_QUEUE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "verbs/nic.h"
#include "verbs/ofi/ofi_device.h"
#include "verbs/ofi/ofi_naps.h"

namespace tryst {

class OfiQueuePair;

// Turns its queue pairs, and holds their completions. Used by one thread.
class OfiCompletionQueue final : public CompletionQueue {
 public:
  static absl::StatusOr<std::unique_ptr<CompletionQueue>> Create(OfiDevice* device, uint32_t depth);
  ~OfiCompletionQueue() override;

  absl::StatusOr<size_t> Poll(absl::Span<Completion> out) override;
  absl::Status Arm() override;
  int event_fd() const override { return epoll_; }

  const OfiDevice* device() const { return device_; }
  int64_t NowNs() const { return clock_.NowNs(); }
  // kResourceExhausted: `works` more completions do not fit.
  absl::Status Add(OfiQueuePair* pair, uint32_t works);
  void Remove(OfiQueuePair* pair, uint32_t works);
  // Adds a descriptor that wakes the sleeping thread. It must be removed before it is closed.
  absl::Status Watch(int descriptor);
  void Unwatch(int descriptor);
  // `credits`: how many entries of the send queue it frees; 0 for a receive.
  void Push(OfiQueuePair* pair, const Completion& completion, uint32_t credits);

 private:
  struct Ready {
    Completion completion;
    OfiQueuePair* pair = nullptr;
    uint32_t credits = 0;
  };

  OfiCompletionQueue(OfiDevice* device, uint32_t depth) : device_(device), depth_(depth) {}
  absl::Status OpenDescriptors();

  const SteadyClock clock_;
  OfiDevice* const device_;
  const uint32_t depth_;
  int epoll_ = -1;
  int wake_ = -1;   // An eventfd: completions are waiting already.
  int timer_ = -1;  // Wakes the thread to poll although no descriptor tells.
  uint32_t reserved_ = 0;
  std::vector<OfiQueuePair*> pairs_;
  std::vector<Ready> ready_;  // A ring, as large as what is reserved.
  size_t first_ready_ = 0;
  size_t ready_count_ = 0;
  OfiNaps naps_;  // For a provider that wakes nobody.
};

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_COMPLETION_QUEUE_H_
