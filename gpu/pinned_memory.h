#ifndef TRYST_GPU_PINNED_MEMORY_H_
#define TRYST_GPU_PINNED_MEMORY_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/gpu.h"

namespace tryst {

// Host memory that every GPU of the process reaches by DMA, at the same address as the
// host does. Owns it, or only its registration.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory();  // REQUIRES: no copy uses it.

  // kResourceExhausted: the host has no more to pin.
  static absl::StatusOr<PinnedMemory> Allocate(const Gpu* gpu, uint64_t bytes);
  // A segment that other processes may map by fd() and register too, so that two GPUs'
  // copies meet in it without a copy by the host.
  static absl::StatusOr<PinnedMemory> AllocateShared(const Gpu* gpu, uint64_t bytes);
  // Registers memory of another owner, who must free it after this object. Whole pages.
  static absl::StatusOr<PinnedMemory> Register(const Gpu* gpu, void* data, uint64_t bytes);
  // Like Register(), for a mapping that neither host nor GPUs may write. kUnimplemented: this
  // device cannot do that.
  static absl::StatusOr<PinnedMemory> RegisterReadOnly(const Gpu* gpu, const void* data,
                                                       uint64_t bytes);

  bool valid() const { return gpu_ != nullptr; }
  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_; }  // AllocateShared() made it; else -1.

 private:
  enum class Kind { kAllocated, kRegistered };
  static absl::StatusOr<PinnedMemory> RegisterAs(const Gpu* gpu, void* data, uint64_t bytes,
                                                 unsigned flags);
  const Gpu* gpu_ = nullptr;
  Kind kind_ = Kind::kAllocated;
  bool registered_ = false;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace tryst

#endif  // TRYST_GPU_PINNED_MEMORY_H_
