#ifndef TRYST_TESTS_PROCESS_FAULTS_FENCE_STORM_H_
#define TRYST_TESTS_PROCESS_FAULTS_FENCE_STORM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "verbs/nic.h"

namespace tryst {

struct FenceStormOptions {
  std::function<std::unique_ptr<Nic>()> open_nic;  // Opens the producer's NIC, then the consumer's.
  uint64_t cancels = 1000;                         // Cancels of transfers that have not ended.
  uint64_t bytes_per_second = 1'000'000'000;       // A rough rate, to know when to cancel.
  uint32_t queue_pairs = 1;
  bool digests = false;
  uint64_t seed = 1;
};

struct FenceStormReport {
  uint64_t transfers = 0;
  uint64_t cancels = 0;    // Cancels of transfers that had not ended.
  uint64_t in_flight = 0;  // Those of which bytes had landed already.
  uint64_t cancelled = 0;  // Transfers that ended with kCancelled.
  uint64_t delivered = 0;
  uint64_t bytes = 0;
  uint64_t reused = 0;      // Buffers that were used again.
  uint64_t late_words = 0;  // Words that changed in memory that had been given back.
  uint64_t wrong = 0;       // Tensors with wrong bytes, and other wrong ends.
  // Connections that were lost. If nothing else breaks connections, each is a late write that was
  // refused.
  uint64_t breaks = 0;
  std::string first_wrong;
};

// Cancels transfers of 1 KiB to 16 MiB while they are under way, with real threads and a real NIC.
// Buffers are filled with canaries and reused as soon as their fetch has ended. Ends when `cancels`
// have hit a transfer that had not ended.
FenceStormReport RunFenceStorm(const FenceStormOptions& options);

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_FAULTS_FENCE_STORM_H_
