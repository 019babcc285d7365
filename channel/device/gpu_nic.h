#ifndef TRYST_CHANNEL_DEVICE_GPU_NIC_H_
#define TRYST_CHANNEL_DEVICE_GPU_NIC_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "channel/device/direct_reach.h"
#include "gpu/device_memory.h"
#include "gpu/gpu.h"
#include "verbs/forwarding_nic.h"
#include "verbs/nic.h"

namespace tryst {

struct FlushCounters {
  uint64_t flushes = 0;
  uint64_t failed = 0;
  uint64_t ns = 0;       // Sum of the times from a READ's posting to its completion,
  uint64_t ns_most = 0;  // and the longest of them.
};

// A NIC that can also read and write the memory of those GPUs for which that was proved.
//
// Where a GPU needs a flush, a completion that reports bytes in GPU memory is held back: this NIC
// first posts an RDMA READ from that GPU on a loop-back queue pair, and waits for its end. A read's
// answer does not overtake earlier writes, so the bytes are there. Each NIC flushes for itself, so
// a tensor that came over several NICs is complete once each has reported its part.
//
// Threads: as for any Nic.
class GpuNic final : public ForwardingNic {
 public:
  // Proves every GPU; blocks meanwhile (ProveReach). `gpus` outlive it.
  static std::unique_ptr<GpuNic> Wrap(std::shared_ptr<Nic> nic, const std::vector<const Gpu*>& gpus,
                                      const DirectOptions& options);
  ~GpuNic() override;

  std::vector<DirectReach> reaches() const;
  FlushCounters flushes() const;
  std::string Explain() const;  // One line for each GPU.

  absl::Status ReachesDevice(int ordinal) const override;
  absl::StatusOr<std::unique_ptr<Region>> RegisterDevice(int ordinal, void* address, uint64_t bytes,
                                                         uint32_t access) override;
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t depth) override;
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override;

 private:
  class Queue;
  class CountedRegion;
  // One GPU; its address does not change after Wrap().
  struct Side {
    const Gpu* gpu = nullptr;
    DirectReach reach;
    DeviceMemory flushed;            // The memory that a flush reads.
    std::unique_ptr<Region> region;  // Over it.
    // How many regions peers may write.
    std::shared_ptr<std::atomic<int>> writable = std::make_shared<std::atomic<int>>(0);
    bool flushes() const { return region != nullptr; }
  };

  explicit GpuNic(std::shared_ptr<Nic> nic) : ForwardingNic(std::move(nic)) {}
  absl::Status PrepareFlush(Side* side);
  const Side* SideOf(int ordinal) const;
  void CountFlush(int64_t ns, bool ok);

  std::vector<std::unique_ptr<Side>> sides_;
  bool any_flushes_ = false;
  const SteadyClock clock_;
  std::atomic<uint64_t> flushes_{0};
  std::atomic<uint64_t> flushes_failed_{0};
  std::atomic<uint64_t> flush_ns_{0};
  std::atomic<uint64_t> flush_ns_most_{0};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_GPU_NIC_H_
