#ifndef TRYST_GPU_DEVICE_MEMORY_H_
#define TRYST_GPU_DEVICE_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "gpu/gpu.h"

namespace tryst {

// Owns device memory. Freeing does not wait for queued work, so destroy it only when no work uses
// it any more.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  // cuMemAlloc: may be exported as an IPC handle. kResourceExhausted.
  static absl::StatusOr<DeviceMemory> Allocate(const Gpu* gpu, uint64_t bytes);
  // Virtual memory management: may be exported as a descriptor; rounded up to the
  // device's granularity. kUnimplemented where device().shareable_memory is false.
  static absl::StatusOr<DeviceMemory> AllocateShareable(const Gpu* gpu, uint64_t bytes);
  // Maps memory that another process exported with this size; `fd` stays the caller's.
  static absl::StatusOr<DeviceMemory> Import(const Gpu* gpu, int fd, uint64_t bytes);

  // A descriptor for Import(), to be sent over a Unix socket. kFailedPrecondition when it
  // was not made shareable.
  absl::StatusOr<int> ExportFd() const;

  bool valid() const { return gpu_ != nullptr; }
  cuda::Address address() const { return address_; }
  void* data() const { return reinterpret_cast<void*>(address_); }
  uint64_t bytes() const { return bytes_; }

 private:
  absl::Status Map();
  static cuda::AllocationProperties Properties(const Gpu& gpu);

  const Gpu* gpu_ = nullptr;
  cuda::Address address_ = 0;
  uint64_t bytes_ = 0;
  bool virtual_ = false;
  bool mapped_ = false;
  cuda::Allocation allocation_ = 0;
};

// A dma-buf over the whole pages around [address, address + bytes), which begins at
// `offset` in it. The descriptor is the caller's. kUnimplemented: device or driver cannot.
struct DmaBuf {
  int fd = -1;
  uint64_t offset = 0;
};
absl::StatusOr<DmaBuf> ExportDmaBuf(const Gpu& gpu, cuda::Address address, uint64_t bytes);

// A pool of device memory, because allocating stops the device. Thread-safe. Bound: lent and kept
// memory together are at most cap_bytes.
class DevicePool {
 public:
  class Block {
   public:
    cuda::Address address() const { return memory_.address(); }
    void* data() const { return memory_.data(); }
    uint64_t bytes() const { return memory_.bytes(); }
    // What the next writer must wait for on the device.
    const GpuEvent* last_use() const { return used_ ? &last_use_ : nullptr; }

   private:
    friend class DevicePool;
    DeviceMemory memory_;
    GpuEvent last_use_;
    bool used_ = false;
  };

  DevicePool(const Gpu* gpu, uint64_t cap_bytes) : gpu_(gpu), cap_bytes_(cap_bytes) {}
  ~DevicePool();  // REQUIRES: every block was given back.

  // At least `bytes`. kResourceExhausted: the cap or the device has no more.
  absl::StatusOr<Block*> Take(uint64_t bytes);
  // Work on `stream` may still read it; the next user waits for that on the device.
  void Give(Block* block, cuda::Stream stream);
  uint64_t lent_bytes() const;
  const Gpu* gpu() const { return gpu_; }

 private:
  const Gpu* const gpu_;
  const uint64_t cap_bytes_;
  mutable Mutex mu_;
  std::multimap<uint64_t, std::unique_ptr<Block>> kept_ ABSL_GUARDED_BY(mu_);
  uint64_t held_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t lent_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tryst

#endif  // TRYST_GPU_DEVICE_MEMORY_H_
