#ifndef TRYST_TESTS_CONTRACT_HOP_BUDGET_COUNTING_NIC_H_
#define TRYST_TESTS_CONTRACT_HOP_BUDGET_COUNTING_NIC_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "channel/rdma/wire.h"
#include "verbs/forwarding_nic.h"
#include "verbs/nic.h"

namespace tryst {

// What a channel posts to its NIC.
struct NicTally {
  uint64_t doorbells = 0;  // PostSend() calls.
  uint64_t messages = 0;   // Ring messages.
  uint64_t writes = 0;     // Writes of tensors.
  uint64_t acks = 0;       // Writes of ack pages; no tensor waits for them.
  uint64_t sources_registered = 0;
  uint64_t destinations_registered = 0;
  // The source and the destination of the last tensor write.
  uint64_t write_from = 0;
  uint64_t write_to = 0;
};

// Wraps any NIC and counts its works. Used by one thread.
class CountingNic final : public ForwardingNic {
 public:
  CountingNic(std::unique_ptr<Nic> nic, NicTally* tally)
      : ForwardingNic(std::move(nic)), tally_(tally) {}

  absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void* address, uint64_t bytes,
                                                         uint32_t access) override {
    ++(access == kLocalOnly ? tally_->sources_registered : tally_->destinations_registered);
    return nic()->RegisterRegion(address, bytes, access);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override {
    auto made = nic()->CreateQueuePair(options);
    if (!made.ok()) return made.status();
    return std::unique_ptr<QueuePair>(new Counting(tally_, *std::move(made)));
  }

 private:
  class Counting final : public ForwardingQueuePair {
   public:
    Counting(NicTally* tally, std::unique_ptr<QueuePair> queue_pair)
        : ForwardingQueuePair(std::move(queue_pair)), tally_(tally) {}
    absl::Status PostSend(absl::Span<const SendWork> works) override {
      ++tally_->doorbells;
      for (const SendWork& work : works) Count(work);
      return ForwardingQueuePair::PostSend(works);
    }

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
  };

  NicTally* const tally_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_HOP_BUDGET_COUNTING_NIC_H_
