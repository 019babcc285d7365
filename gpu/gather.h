#ifndef TRYST_GPU_GATHER_H_
#define TRYST_GPU_GATHER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/device_memory.h"
#include "gpu/gather_piece.h"
#include "gpu/gpu.h"
#include "gpu/pinned_memory.h"
#include "gpu/strided_runs.h"

namespace tryst {

// A table of pieces, in memory that the GPU reads. It grows and stays grown. REQUIRES, for all but
// Launch(): no launch of it is running.
class GatherList {
 public:
  void Clear() { count_ = 0; }
  // Room for `count` pieces. kResourceExhausted.
  absl::Status Reserve(const Gpu* gpu, uint32_t count);
  // REQUIRES: room.
  void Add(const GatherPiece& piece) {
    static_cast<GatherPiece*>(pinned_.data())[count_++] = piece;
  }
  uint32_t count() const { return count_; }
  uint32_t room() const { return room_; }

 private:
  friend class GatherKernel;
  PinnedMemory pinned_;
  DeviceMemory table_;
  uint32_t room_ = 0;
  uint32_t count_ = 0;
};

// Copies many small pieces with one launch, or one small piece quickly. Its code travels in the
// binary as PTX and is compiled by the driver, once.
class GatherKernel {
 public:
  // kUnimplemented: the GPU is older than compute capability 7.5.
  static absl::StatusOr<std::unique_ptr<GatherKernel>> Load(const Gpu* gpu);
  ~GatherKernel();  // REQUIRES: no launch is running.

  // Puts all pieces of `list` on `stream`, as one table copy and one kernel.
  absl::Status Launch(const GatherList& list, cuda::Stream stream) const;
  // Copies one piece as soon as possible. Its last write is `value` to `flag`, in pinned memory;
  // when that is seen, the bytes are there for every reader.
  absl::Status LaunchCopy(const GatherPiece& piece, uint64_t* flag, uint64_t value,
                          cuda::Stream stream) const;
  // Copies all runs, with their casts. REQUIRES: at most kMostUnits.
  absl::Status LaunchStrided(const StridedRuns& runs, cuda::Stream stream) const;
  // What a launch of the kernel that stands by (Standby) is told.
  struct StandbyLaunch {
    StandbyWords* words;   // Pinned.
    cuda::Address blocks;  // StandbyBlocks, in the GPU's memory.
    uint64_t next;         // The number of the first copy.
    uint64_t launch;       // Its own, which it writes to words->came and to words->left.
    uint64_t linger_ns;
    uint64_t life_ns;
  };
  absl::Status LaunchStandby(const StandbyLaunch& launch, unsigned blocks,
                             cuda::Stream stream) const;

 private:
  explicit GatherKernel(const Gpu* gpu) : gpu_(gpu) {}
  const Gpu* const gpu_;
  cuda::Module module_ = nullptr;
  cuda::Function gather_ = nullptr;
  cuda::Function copy_ = nullptr;
  cuda::Function standby_ = nullptr;
  cuda::Function strided_ = nullptr;
};

}  // namespace tryst

#endif  // TRYST_GPU_GATHER_H_
