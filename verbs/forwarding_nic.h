#ifndef TRYST_VERBS_FORWARDING_NIC_H_
#define TRYST_VERBS_FORWARDING_NIC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "verbs/nic.h"

// Wrappers for the parts of another NIC. Every call is forwarded unless a subclass overrides it.
namespace tryst {

class ForwardingNic : public Nic {
 public:
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
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t depth) override {
    return nic_->CreateCompletionQueue(depth);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override {
    return nic_->CreateQueuePair(options);
  }
  absl::optional<NicEvent> NextEvent() override { return nic_->NextEvent(); }
  int event_fd() const override { return nic_->event_fd(); }

 protected:
  explicit ForwardingNic(std::shared_ptr<Nic> nic) : nic_(std::move(nic)) {}
  Nic* nic() const { return nic_.get(); }

 private:
  const std::shared_ptr<Nic> nic_;
};

class ForwardingQueuePair : public QueuePair {
 public:
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
  bool sends_wait_for_poll() const override { return queue_pair_->sends_wait_for_poll(); }
  void Break() override { queue_pair_->Break(); }

 protected:
  explicit ForwardingQueuePair(std::unique_ptr<QueuePair> queue_pair)
      : queue_pair_(std::move(queue_pair)) {}

 private:
  const std::unique_ptr<QueuePair> queue_pair_;
};

class ForwardingRegion : public Region {
 public:
  uint64_t address() const override { return region_->address(); }
  uint64_t bytes() const override { return region_->bytes(); }
  uint32_t local_key() const override { return region_->local_key(); }
  uint32_t remote_key() const override { return region_->remote_key(); }
  bool RenewRemoteKey() override { return region_->RenewRemoteKey(); }

 protected:
  explicit ForwardingRegion(std::unique_ptr<Region> region) : region_(std::move(region)) {}
  // For a destructor that must do something after the region is gone.
  void Deregister() { region_.reset(); }

 private:
  std::unique_ptr<Region> region_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_FORWARDING_NIC_H_
