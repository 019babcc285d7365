#ifndef TRYST_GPU_STANDBY_H_
#define TRYST_GPU_STANDBY_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/device_memory.h"
#include "gpu/gather.h"
#include "gpu/gpu.h"
#include "gpu/pinned_memory.h"

namespace tryst {

// Makes copies without a launch, which is most of the cost of a small copy. A kernel waits in a
// loop: it reads in pinned memory what to copy next, and writes there what it has copied. It ends
// when no copy has come for a while, and after kLifeNs in any case, because calls that wait for the
// whole device, such as freeing memory, wait for it. Until then it occupies the room of one block,
// or of kWideBlocks where larger copies are expected, each on a multiprocessor. One thread. Only
// the destructor waits for the device.
class Standby {
 public:
  // The most bytes that one block of threads copies, and that several blocks copy.
  static constexpr uint64_t kMostBytes = 64 << 10;
  static constexpr uint64_t kMostWideBytes = 2 << 20;
  static constexpr unsigned kWideBlocks = 8;
  static constexpr uint64_t kLifeNs = 1'000'000;

  // `kernel` outlives it.
  static absl::StatusOr<std::unique_ptr<Standby>> Create(const Gpu* gpu, const GatherKernel* kernel,
                                                         uint64_t linger_ns);
  ~Standby();
  Standby(const Standby&) = delete;
  Standby& operator=(const Standby&) = delete;

  // Launches the kernel, for copies of up to kMostWideBytes if `wide`, unless it is running. After
  // an error it does not run, and may be called again.
  absl::Status Call(bool wide);
  // Whether the kernel runs, as far as is known, and has room for `piece`. One that waits for other
  // kernels to make room does not run.
  bool Takes(const GatherPiece& piece) const;
  // Begins a copy and returns its number; copies count from 1 and end in order. REQUIRES:
  // Takes(piece), the source's bytes are there, and nothing else uses the destination.
  uint64_t Copy(const GatherPiece& piece);
  // All copies up to this number have ended, and every reader sees their bytes.
  uint64_t ended() const { return __atomic_load_n(&words()->ended, __ATOMIC_ACQUIRE); }
  // Launches the kernel again if it ended just before it saw the last copies. Call it now and then
  // while copies are under way. An error: those that have not ended never will, nothing of them
  // moves, and it must not be used again.
  absl::Status Look();
  cuda::Stream stream() const { return stream_.get(); }

 private:
  Standby(const Gpu* gpu, const GatherKernel* kernel, uint64_t linger_ns)
      : gpu_(gpu), kernel_(kernel), linger_ns_(linger_ns) {}
  StandbyWords* words() const { return static_cast<StandbyWords*>(memory_.data()); }
  bool has_left() const { return __atomic_load_n(&words()->left, __ATOMIC_ACQUIRE) == launches_; }
  bool has_come() const { return __atomic_load_n(&words()->came, __ATOMIC_ACQUIRE) == launches_; }
  absl::Status Launch();

  const Gpu* const gpu_;
  const GatherKernel* const kernel_;
  const uint64_t linger_ns_;
  // Declared before the stream, whose kernel writes them.
  PinnedMemory memory_;
  DeviceMemory blocks_;
  GpuStream stream_;
  bool wide_ = false;
  uint64_t launches_ = 0;
  uint64_t last_ = 0;  // Copy.
};

}  // namespace tryst

#endif  // TRYST_GPU_STANDBY_H_
