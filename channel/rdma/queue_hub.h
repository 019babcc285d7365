#ifndef TRYST_CHANNEL_RDMA_QUEUE_HUB_H_
#define TRYST_CHANNEL_RDMA_QUEUE_HUB_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/poller/poller.h"
#include "channel/rdma/source_regions.h"
#include "verbs/nic.h"

namespace tryst {

// The user of a queue pair, which gets its completions.
class QueuePairUser {
 public:
  virtual ~QueuePairUser() = default;
  virtual void OnCompletion(const Completion& completion) = 0;
  // The NIC can no longer be polled, so nothing will complete any more.
  virtual void OnNicLost(const absl::Status& why) = 0;
  // The NIC reports that this queue pair is broken; there may be no completion that shows it.
  virtual void OnQueuePairFatal(const absl::Status& why) = 0;
};

// One NIC on one poller: polls its completion queue in every turn, passes each completion to the
// user of its queue pair, and keeps registrations of what is sent. Poller thread only, except for
// construction.
class QueueHub final : public PollerSource {
 public:
  static absl::StatusOr<std::unique_ptr<QueueHub>> Create(Nic* nic, Poller* poller, uint32_t depth);
  ~QueueHub() override;  // REQUIRES: it is detached, and every queue pair is gone.

  Nic* nic() const { return nic_; }
  Poller* poller() const { return poller_; }
  CompletionQueue* completions() const { return completions_.get(); }
  SourceRegions* sources() { return &sources_; }

  // The poller polls it between these two calls.
  void Attach();
  void Detach();
  void AttachOnceUsed() { attach_once_used_ = true; }  // With the first queue pair.
  // OK, or why no queue pair can be made now. A lost completion queue is replaced as soon as the
  // last queue pair on it is gone.
  absl::Status Revive();

  // Passes an asynchronous event of the NIC to the users that it concerns.
  void OnEvent(const NicEvent& event);

  void AddUser(uint32_t queue_pair, QueuePairUser* user);
  void RemoveUser(uint32_t queue_pair);

  bool Poll() override;
  void Arm() override;
  bool ArmTellsAll() const override { return completions_->ArmTellsAll(); }
  int event_fd() const override { return completions_->event_fd(); }

 private:
  QueueHub(Nic* nic, Poller* poller, uint32_t depth, std::unique_ptr<CompletionQueue> completions)
      : nic_(nic),
        poller_(poller),
        depth_(depth),
        completions_(std::move(completions)),
        sources_(nic, kMaxSourceBytes, kMaxSourceRegions) {}
  void OnLost(const absl::Status& why);

  static constexpr size_t kBatch = 64;
  // Bounds on the memory that stays registered between sends.
  static constexpr uint64_t kMaxSourceBytes = uint64_t{4} << 30;
  static constexpr size_t kMaxSourceRegions = 4096;

  Nic* const nic_;
  Poller* const poller_;
  const uint32_t depth_;

  // Poller thread only.
  std::unique_ptr<CompletionQueue> completions_;
  SourceRegions sources_;
  // The output of Poll(); a member, because clearing it in every turn would cost more than the
  // turn.
  Completion batch_[kBatch];
  bool attached_ = false;
  bool attach_once_used_ = false;
  absl::flat_hash_map<uint32_t, QueuePairUser*> users_;
  uint32_t last_number_ = 0;  // The user of the last completion; usually the next is its, too.
  QueuePairUser* last_user_ = nullptr;
  bool lost_ = false;
  absl::Status lost_why_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_QUEUE_HUB_H_
