#ifndef TRYST_GPU_DRIVER_H_
#define TRYST_GPU_DRIVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/cuda_api.h"

namespace tryst {

// One GPU, as its driver describes it.
struct GpuDevice {
  int ordinal = 0;
  std::string name;
  std::string pci_bus_id;  // "0000:3b:00.0", lower case: what sysfs calls it.
  cuda::Uuid uuid{};       // Every process of the host sees this one.
  int compute_major = 0;
  int compute_minor = 0;
  uint64_t memory_bytes = 0;
  bool dma_buf = false;           // Exports dma-bufs.
  bool gpu_direct_rdma = false;   // The way by a peer-memory module may work.
  bool read_only_host = false;    // Registers host memory that we may only read.
  bool shareable_memory = false;  // Virtual memory that is shared by a descriptor.
  bool writes_ordered = false;    // The driver says that a NIC's writes need no flush.
};

// libcuda, loaded while the process runs, so that one binary runs with or without a
// driver. Thread-safe. The library stays loaded: CUDA cannot be unloaded.
class CudaDriver {
 public:
  // kNotFound: there is no such library; the message says what to install. kUnavailable: the
  // library does not start (no device, a driver older than the toolkit).
  static absl::StatusOr<std::unique_ptr<CudaDriver>> Load(
      const std::string& library = "libcuda.so.1");

  int version() const { return version_; }  // 13000: CUDA 13.0.
  absl::StatusOr<std::vector<GpuDevice>> Devices() const;

  const cuda::Calls& calls() const { return calls_; }
  // OK, or what went wrong in `call`: kResourceExhausted (device memory), kUnimplemented
  // (this device or driver cannot), kPermissionDenied, kInternal (we called it wrongly),
  // else kUnavailable: the GPU is lost to this process.
  absl::Status Check(const char* call, cuda::Result result) const;

 private:
  CudaDriver() = default;

  cuda::Calls calls_;
  int version_ = 0;
};

}  // namespace tryst

#endif  // TRYST_GPU_DRIVER_H_
