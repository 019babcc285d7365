#ifndef TRYST_GPU_STANDBY_H_
#define TRYST_GPU_STANDBY_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/gather.h"
#include "gpu/gpu.h"
#include "gpu/pinned_memory.h"

namespace tryst {

// Makes small copies without a launch, which is most of the cost of a small copy. A kernel of one
// block waits in a loop: it reads in pinned memory what to copy next, and writes there what it has
// copied. It ends when no copy has come for a while, and after kLifeNs in any case, because calls
// that wait for the whole device, such as freeing memory, wait for it. Until then it occupies one
// block's room on one multiprocessor. One thread. Only the destructor waits for the device.
class Standby {
 public:
  static constexpr uint64_t kMostBytes = 64 << 10;
  static constexpr uint64_t kLifeNs = 1'000'000;

  // `kernel` outlives it.
  static absl::StatusOr<std::unique_ptr<Standby>> Create(const Gpu* gpu, const GatherKernel* kernel,
                                                         uint64_t linger_ns);
  ~Standby();
  Standby(const Standby&) = delete;
  Standby& operator=(const Standby&) = delete;

  // Launches the kernel unless it is running.
  absl::Status Call();
  // Whether the kernel runs, as far as is known, and has room for `piece`.
  bool Takes(const GatherPiece& piece) const;
  // Begins a copy and returns its number; copies count from 1 and end in order. REQUIRES:
  // Takes(piece), the source's bytes are there, and nothing else uses the destination.
  uint64_t Copy(const GatherPiece& piece);
  // All copies up to this number have ended, and every reader sees their bytes.
  uint64_t ended() const { return __atomic_load_n(&words()->ended, __ATOMIC_ACQUIRE); }
  // Launches the kernel again if it ended just before it saw the last copies. Call it now and then
  // while copies are under way. kUnavailable: the GPU is lost.
  absl::Status Look();
  cuda::Stream stream() const { return stream_.get(); }

 private:
  Standby(const Gpu* gpu, const GatherKernel* kernel, uint64_t linger_ns)
      : gpu_(gpu), kernel_(kernel), linger_ns_(linger_ns) {}
  StandbyWords* words() const { return static_cast<StandbyWords*>(memory_.data()); }
  bool stands_by() const { return __atomic_load_n(&words()->left, __ATOMIC_ACQUIRE) != launches_; }
  absl::Status Launch();

  const Gpu* const gpu_;
  const GatherKernel* const kernel_;
  const uint64_t linger_ns_;
  PinnedMemory memory_;  // Declared before the stream, whose kernel writes it.
  GpuStream stream_;
  uint64_t launches_ = 0;
  uint64_t last_ = 0;  // Copy.
};

}  // namespace tryst

#endif  // TRYST_GPU_STANDBY_H_
