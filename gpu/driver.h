#ifndef TRYST_GPU_DRIVER_H_
#define TRYST_GPU_DRIVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tryst {

// One GPU, as its driver describes it.
struct GpuDevice {
  int ordinal = 0;
  std::string name;
  std::string pci_bus_id;  // "0000:3b:00.0", lower case: what sysfs calls it.
  int compute_major = 0;
  int compute_minor = 0;
  uint64_t memory_bytes = 0;
};

// libcuda, loaded while the process runs, so that one binary runs with or without a
// driver. Thread-safe. The library stays loaded: CUDA cannot be unloaded.
class CudaDriver {
 public:
  // kNotFound: there is no such library, and what to install. kUnavailable: it is here
  // and does not start, with its reason (no device, a driver older than the toolkit).
  static absl::StatusOr<std::unique_ptr<CudaDriver>> Load(
      const std::string& library = "libcuda.so.1");

  ~CudaDriver();

  int version() const { return version_; }  // 13000: CUDA 13.0.
  absl::StatusOr<std::vector<GpuDevice>> Devices() const;

 private:
  struct Calls;
  CudaDriver();

  std::unique_ptr<Calls> calls_;
  int version_ = 0;
};

}  // namespace tryst

#endif  // TRYST_GPU_DRIVER_H_
