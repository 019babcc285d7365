#ifndef TRYST_CHANNEL_DEVICE_DIRECT_REACH_H_
#define TRYST_CHANNEL_DEVICE_DIRECT_REACH_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "gpu/flush_policy.h"
#include "gpu/gpu.h"
#include "verbs/ibv/pci_distance.h"
#include "verbs/nic.h"

namespace tryst {

// How a NIC reaches the memory of a GPU, best first.
enum class DirectWay {
  kDmaBuf,      // The GPU's driver exports it; the NIC's driver imports it.
  kPeerMemory,  // A kernel module tells the NIC's driver what device pointers are.
  kStaging,     // It does not; bytes pass through pinned host memory.
};
const char* DirectWayName(DirectWay way);

struct DirectOptions {
  bool dma_buf = true;  // Which ways may be tried.
  bool peer_memory = true;
  // A GPU farther away is staged. If sysfs does not tell the distance, as in most virtual machines,
  // only the proof counts.
  PciDistance farthest = PciDistance::kSwitches;
  GpuLink link = GpuLink::kPcie;
  bool control_by_c2c = false;  // Completions use another link than data (flush_policy.h).
  absl::optional<bool> flush;   // In place of what the policy says.
  std::string sysfs_root = "/sys";
  int rounds = 16;  // How often the proof is repeated.
  int64_t patience_ms = 2000;
  uint64_t seed = 1;  // The proof's bytes follow from it.
};

// What was found out about one GPU and one NIC.
struct DirectReach {
  DirectWay way = DirectWay::kStaging;
  int gpu = 0;
  std::string gpu_name;
  std::string pci_bus_id;
  std::string nic;
  PciDistance distance = PciDistance::kUnknown;
  std::string dma_buf;      // Why this way was refused; empty: it was not.
  std::string peer_memory;  // Why this other way was refused.
  std::string proof;        // What was proved.
  FlushPolicy flush;

  std::string Refusal() const;  // Both reasons.
  std::string ToText() const;   // One line, for people.
};

// Registers [address, address + bytes) of `gpu`'s memory with `nic` in that way, under the same
// address. kUnimplemented, or the error of the driver or the NIC.
absl::StatusOr<std::unique_ptr<Region>> RegisterGpuMemory(Nic* nic, const Gpu& gpu, DirectWay way,
                                                          cuda::Address address, uint64_t bytes,
                                                          uint32_t access);

// A connection of a NIC to itself: two queue pairs on one completion queue.
struct LoopBack {
  std::unique_ptr<QueuePair> far;
  std::unique_ptr<QueuePair> near;  // Works are posted on this one.

  static constexpr uint32_t kDepth = 8;
  static constexpr uint32_t kCompletions = 2 * (kDepth + 1);  // Both queue pairs share the queue.
  static absl::StatusOr<LoopBack> Open(Nic* nic, CompletionQueue* completions);
};

// Tries the ways in their order with real bytes: the NIC writes the GPU's memory and a copy engine
// reads it, then a copy engine writes and the NIC reads; `rounds` times, with digests. If old bytes
// are read where the policy saw no need for a flush, flushing is turned on. For start-up, because
// it blocks, for each transfer up to patience_ms.
DirectReach ProveReach(Nic* nic, const Gpu& gpu, const DirectOptions& options);

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_DIRECT_REACH_H_
