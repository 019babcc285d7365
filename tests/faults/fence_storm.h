#ifndef TRYST_TESTS_FAULTS_FENCE_STORM_H_
#define TRYST_TESTS_FAULTS_FENCE_STORM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "verbs/nic.h"

namespace tryst {

struct FenceStormOptions {
  std::function<std::unique_ptr<Nic>()> open_nic;  // The producer's, then the consumer's.
  uint64_t cancels = 1000;                         // Of transfers that have not ended.
  uint64_t bytes_per_second = 1'000'000'000;       // Roughly, to know when to cancel.
  uint32_t queue_pairs = 1;
  bool digests = false;
  uint64_t seed = 1;
};

struct FenceStormReport {
  uint64_t transfers = 0;
  uint64_t cancels = 0;    // Of transfers that had not ended.
  uint64_t in_flight = 0;  // Of those: bytes had landed already.
  uint64_t cancelled = 0;  // Ended with kCancelled.
  uint64_t delivered = 0;
  uint64_t bytes = 0;
  uint64_t reused = 0;      // Buffers used again.
  uint64_t late_words = 0;  // In memory that had been given back.
  uint64_t wrong = 0;       // Tensors with other bytes than were sent; other ends.
  // Connections lost. Where nothing else breaks one: a write that came too late, refused.
  uint64_t breaks = 0;
  std::string first_wrong;
};

// Cancels transfers of 1 KiB to 16 MiB while they are on their way, over real threads and a
// real NIC, into buffers that are filled with canaries and used again the moment their
// fetch has ended. Goes on until so many cancels have hit a transfer that had not ended.
FenceStormReport RunFenceStorm(const FenceStormOptions& options);

}  // namespace tryst

#endif  // TRYST_TESTS_FAULTS_FENCE_STORM_H_
