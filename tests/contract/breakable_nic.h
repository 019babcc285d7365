#ifndef TRYST_TESTS_CONTRACT_BREAKABLE_NIC_H_
#define TRYST_TESTS_CONTRACT_BREAKABLE_NIC_H_

#include <memory>
#include <set>
#include <utility>

#include "verbs/forwarding_nic.h"
#include "verbs/nic.h"

namespace tryst {

// Wraps any NIC, so that a test can break its queue pairs. They are made and broken on one thread.
class BreakableNic final : public ForwardingNic {
 public:
  explicit BreakableNic(std::unique_ptr<Nic> nic) : ForwardingNic(std::move(nic)) {}

  // Breaks every queue pair that is ready; returns how many. Call it on their thread.
  int BreakAll() {
    int broken = 0;
    for (QueuePair* queue_pair : queue_pairs_) {
      if (queue_pair->state() != QueuePairState::kReady) continue;
      queue_pair->Break();
      ++broken;
    }
    return broken;
  }

  // While it is lost, nothing can be made with the NIC. Call it on the queue pairs' thread.
  void SetLost(bool lost) {
    lost_ = lost;
    if (lost) BreakAll();
  }

  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override {
    if (lost_) return absl::UnavailableError("the NIC is lost");
    auto made = nic()->CreateQueuePair(options);
    if (!made.ok()) return made.status();
    return std::unique_ptr<QueuePair>(new Tracked(this, *std::move(made)));
  }

 private:
  class Tracked final : public ForwardingQueuePair {
   public:
    Tracked(BreakableNic* nic, std::unique_ptr<QueuePair> queue_pair)
        : ForwardingQueuePair(std::move(queue_pair)), nic_(nic) {
      nic_->queue_pairs_.insert(this);
    }
    ~Tracked() override { nic_->queue_pairs_.erase(this); }

   private:
    BreakableNic* const nic_;
  };

  std::set<QueuePair*> queue_pairs_;
  bool lost_ = false;
};

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_BREAKABLE_NIC_H_
