#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_SIM_ENDS_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_SIM_ENDS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {

// For tests: a NIC with memory, a completion queue and queue pairs.
struct SimEnd {
  SimEnd(SimWorld* world, uint32_t place, uint64_t memory_bytes,
         const SimNicOptions& options = SimNicOptions());

  // A new queue pair, not connected. `options` overrides the defaults.
  QueuePair* AddQueuePair(QueuePairOptions options = QueuePairOptions());
  // One work over memory[offset, offset + bytes).
  absl::Status Post(QueuePair* pair, SendWork work, uint64_t offset, uint64_t bytes);
  absl::Status PostReceive(QueuePair* pair, uint64_t id);  // It has no entries.
  // All completions; checks that polling works.
  std::vector<Completion> Poll();
  // A write to the same offset of `peer`'s memory.
  SendWork WriteTo(const SimEnd& peer, uint64_t id, uint64_t offset) const;

  SimWorld* const world;
  std::vector<uint8_t> memory;
  std::unique_ptr<SimNic> nic;
  std::unique_ptr<Region> region;  // Over all of the memory; everything is allowed.
  std::unique_ptr<CompletionQueue> completions;
  std::vector<std::unique_ptr<QueuePair>> pairs;
};

// Connects both; CHECKs that it works.
void Join(QueuePair* one, QueuePair* other);

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_SIM_ENDS_H_
