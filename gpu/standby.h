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

// Small copies without a launch, which is most of what one costs: a kernel of one block reads
// in pinned memory what to copy next, and says there what it has copied. It leaves when nothing
// came for a while, and after kLifeNs in any case: who waits for the whole device, as freeing
// memory does, waits no longer than that. While it stands by it has one block's room on one
// multiprocessor. One thread; no call here waits for the device, but the destructor.
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

  // Makes it stand by, if it does not.
  absl::Status Call();
  // Whether it stands by, as far as is known, and has room for one of these.
  bool Takes(const GatherPiece& piece) const;
  // Its bytes are there, and nobody else uses its destination. REQUIRES: Takes(piece).
  // Copies are numbered from 1 on and end in order.
  uint64_t Copy(const GatherPiece& piece);
  // The copies up to this number have ended; their bytes are there for everybody.
  uint64_t ended() const { return __atomic_load_n(&words()->ended, __ATOMIC_ACQUIRE); }
  // Asks for it again if it left just before it was told of the last copies: to be called now
  // and then while some have not ended. kUnavailable: the GPU is lost.
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
  PinnedMemory memory_;  // Before the stream: the kernel on it writes.
  GpuStream stream_;
  uint64_t launches_ = 0;
  uint64_t last_ = 0;  // Copy.
};

}  // namespace tryst

#endif  // TRYST_GPU_STANDBY_H_
