#ifndef TRYST_TESTS_CONTRACT_BREAKABLE_NIC_H_
#define TRYST_TESTS_CONTRACT_BREAKABLE_NIC_H_

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "verbs/nic.h"

namespace tryst {

// Any NIC, whose queue pairs a test can break from outside. Queue pairs are made and
// broken on one thread.
class BreakableNic final : public Nic {
 public:
  explicit BreakableNic(std::unique_ptr<Nic> nic) : nic_(std::move(nic)) {}

  // Breaks every queue pair that is ready; how many there were. On their thread.
  int BreakAll() {
    int broken = 0;
    for (QueuePair* queue_pair : queue_pairs_) {
      if (queue_pair->state() != QueuePairState::kReady) continue;
      queue_pair->Break();
      ++broken;
    }
    return broken;
  }

  // From now on as if it were gone: nothing can be made with it. Until told otherwise. On
  // the queue pairs' thread.
  void SetLost(bool lost) {
    lost_ = lost;
    if (lost) BreakAll();
  }

  std::string name() const override { return nic_->name(); }
  const NicLimits& limits() const override { return nic_->limits(); }
  std::vector<NicPort> Ports() const override { return nic_->Ports(); }
  absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void* address, uint64_t bytes,
                                                         uint32_t access) override {
    return nic_->RegisterRegion(address, bytes, access);
  }
  absl::StatusOr<std::unique_ptr<Region>> RegisterDmaBuf(int fd, uint64_t offset, uint64_t bytes,
                                                         uint64_t remote_base,
                                                         uint32_t access) override {
    return nic_->RegisterDmaBuf(fd, offset, bytes, remote_base, access);
  }
  absl::Status ReachesDevice(int ordinal) const override { return nic_->ReachesDevice(ordinal); }
  absl::StatusOr<std::unique_ptr<Region>> RegisterDevice(int ordinal, void* address, uint64_t bytes,
                                                         uint32_t access) override {
    return nic_->RegisterDevice(ordinal, address, bytes, access);
  }
  absl::StatusOr<std::unique_ptr<Window>> CreateWindow() override { return nic_->CreateWindow(); }
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t depth) override {
    return nic_->CreateCompletionQueue(depth);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override {
    if (lost_) return absl::UnavailableError("the NIC is lost");
    auto made = nic_->CreateQueuePair(options);
    if (!made.ok()) return made.status();
    return std::unique_ptr<QueuePair>(new Tracked(this, *std::move(made)));
  }
  absl::optional<NicEvent> NextEvent() override { return nic_->NextEvent(); }
  int event_fd() const override { return nic_->event_fd(); }

 private:
  class Tracked final : public QueuePair {
   public:
    Tracked(BreakableNic* nic, std::unique_ptr<QueuePair> queue_pair)
        : nic_(nic), queue_pair_(std::move(queue_pair)) {
      nic_->queue_pairs_.insert(this);
    }
    ~Tracked() override { nic_->queue_pairs_.erase(this); }
    uint32_t number() const override { return queue_pair_->number(); }
    QueuePairState state() const override { return queue_pair_->state(); }
    std::string LocalAddress() const override { return queue_pair_->LocalAddress(); }
    absl::Status Connect(absl::string_view remote) override { return queue_pair_->Connect(remote); }
    absl::Status PostSend(absl::Span<const SendWork> works) override {
      return queue_pair_->PostSend(works);
    }
    absl::Status PostReceive(absl::Span<const ReceiveWork> works) override {
      return queue_pair_->PostReceive(works);
    }
    uint32_t send_room() const override { return queue_pair_->send_room(); }
    uint32_t receive_room() const override { return queue_pair_->receive_room(); }
    void Break() override { queue_pair_->Break(); }

   private:
    BreakableNic* const nic_;
    const std::unique_ptr<QueuePair> queue_pair_;
  };

  const std::unique_ptr<Nic> nic_;
  std::set<QueuePair*> queue_pairs_;
  bool lost_ = false;
};

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_BREAKABLE_NIC_H_
