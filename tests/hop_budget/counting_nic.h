#ifndef TRYST_TESTS_HOP_BUDGET_COUNTING_NIC_H_
#define TRYST_TESTS_HOP_BUDGET_COUNTING_NIC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "channel/rdma/wire.h"
#include "verbs/nic.h"

namespace tryst {

// What a channel has its NIC send.
struct NicTally {
  uint64_t doorbells = 0;  // PostSend() calls.
  uint64_t messages = 0;   // Ring messages.
  uint64_t writes = 0;     // Of tensors.
  uint64_t acks = 0;       // Ack pages, which no tensor waits for.
  // Of the tensor writes: from where, to where, the last one.
  uint64_t write_from = 0;
  uint64_t write_to = 0;
};

// Any NIC, and a tally. One thread.
class CountingNic final : public Nic {
 public:
  CountingNic(std::unique_ptr<Nic> nic, NicTally* tally) : nic_(std::move(nic)), tally_(tally) {}

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
  absl::StatusOr<std::unique_ptr<Window>> CreateWindow() override { return nic_->CreateWindow(); }
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t depth) override {
    return nic_->CreateCompletionQueue(depth);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override {
    auto made = nic_->CreateQueuePair(options);
    if (!made.ok()) return made.status();
    return std::unique_ptr<QueuePair>(new Counting(tally_, *std::move(made)));
  }
  absl::optional<NicEvent> NextEvent() override { return nic_->NextEvent(); }
  int event_fd() const override { return nic_->event_fd(); }

 private:
  class Counting final : public QueuePair {
   public:
    Counting(NicTally* tally, std::unique_ptr<QueuePair> queue_pair)
        : tally_(tally), queue_pair_(std::move(queue_pair)) {}
    uint32_t number() const override { return queue_pair_->number(); }
    QueuePairState state() const override { return queue_pair_->state(); }
    std::string LocalAddress() const override { return queue_pair_->LocalAddress(); }
    absl::Status Connect(absl::string_view remote) override { return queue_pair_->Connect(remote); }
    absl::Status PostSend(absl::Span<const SendWork> works) override {
      ++tally_->doorbells;
      for (const SendWork& work : works) Count(work);
      return queue_pair_->PostSend(works);
    }
    absl::Status PostReceive(absl::Span<const ReceiveWork> works) override {
      return queue_pair_->PostReceive(works);
    }
    uint32_t send_room() const override { return queue_pair_->send_room(); }
    uint32_t receive_room() const override { return queue_pair_->receive_room(); }
    void Break() override { queue_pair_->Break(); }

   private:
    void Count(const SendWork& work) {
      wire::ImmediateKind kind = wire::ImmediateKind::kTensor;
      if (work.op == SendOp::kWriteWithImmediate) {
        kind = wire::DecodeImmediate(work.immediate)->kind;
      }
      if (kind == wire::ImmediateKind::kMessage) ++tally_->messages;
      if (kind == wire::ImmediateKind::kAck) ++tally_->acks;
      if (kind != wire::ImmediateKind::kTensor) return;
      ++tally_->writes;
      tally_->write_from = work.entries[0].address;
      tally_->write_to = work.remote_address;
    }

    NicTally* const tally_;
    const std::unique_ptr<QueuePair> queue_pair_;
  };

  const std::unique_ptr<Nic> nic_;
  NicTally* const tally_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_HOP_BUDGET_COUNTING_NIC_H_
