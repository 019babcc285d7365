#include "gpu/driver.h"

#include <dlfcn.h>

#include <cctype>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

absl::StatusCode CodeOf(cuda::Result result) {
  switch (result) {
    case cuda::kOutOfMemory:
      return absl::StatusCode::kResourceExhausted;
    case cuda::kNotSupported:
    case cuda::kPeerAccessUnsupported:
      return absl::StatusCode::kUnimplemented;
    case cuda::kNotPermitted:
      return absl::StatusCode::kPermissionDenied;
    case cuda::kInvalidValue:
    case cuda::kInvalidContext:
    case cuda::kInvalidHandle:
      return absl::StatusCode::kInternal;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

absl::Status CudaDriver::Check(const char* call, cuda::Result result) const {
  if (result == cuda::kSuccess) return absl::OkStatus();
  const char* text = nullptr;
  if (calls_.cuGetErrorString(result, &text) != cuda::kSuccess || text == nullptr) {
    text = "unknown error";
  }
  return absl::Status(CodeOf(result), absl::StrCat(call, ": ", text, " (", result, ")"));
}

absl::StatusOr<std::unique_ptr<CudaDriver>> CudaDriver::Load(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::NotFoundError(absl::StrCat("the CUDA driver cannot be loaded: ", dlerror(),
                                            "; install NVIDIA's driver to use GPUs"));
  }
  std::unique_ptr<CudaDriver> driver(new CudaDriver());
  cuda::Calls* calls = &driver->calls_;
  std::string missing;
  const auto find = [&](const char* name, auto* call) {
    void* symbol = dlsym(handle, name);
    *reinterpret_cast<void**>(call) = symbol;
    return symbol != nullptr;
  };
#define TRYST_FIND(name, parameters) \
  if (!find(#name, &calls->name)) missing = #name;
  TRYST_CUDA_CALLS(TRYST_FIND)
#undef TRYST_FIND
#define TRYST_FIND(name, parameters) find(#name, &calls->name);
  TRYST_CUDA_NEWER_CALLS(TRYST_FIND)
#undef TRYST_FIND
  if (!missing.empty()) {
    dlclose(handle);
    return absl::UnavailableError(
        absl::StrCat(library, " lacks the function ", missing,
                     ": it is no CUDA driver, or too old: install a newer one"));
  }
  cuda::Result started = calls->cuInit(0);
  if (started != cuda::kSuccess) {
    return absl::UnavailableError(driver->Check("cuInit", started).message());
  }
  absl::Status status =
      driver->Check("cuDriverGetVersion", calls->cuDriverGetVersion(&driver->version_));
  if (!status.ok()) return status;
  return driver;
}

absl::StatusOr<std::vector<GpuDevice>> CudaDriver::Devices() const {
  int count = 0;
  absl::Status status = Check("cuDeviceGetCount", calls_.cuDeviceGetCount(&count));
  std::vector<GpuDevice> devices;
  for (int ordinal = 0; status.ok() && ordinal < count; ++ordinal) {
    cuda::Device device = 0;
    status = Check("cuDeviceGet", calls_.cuDeviceGet(&device, ordinal));
    if (!status.ok()) break;
    const auto attribute = [&](int which) {
      int value = 0;
      status.Update(
          Check("cuDeviceGetAttribute", calls_.cuDeviceGetAttribute(&value, which, device)));
      return value;
    };
    char name[256] = {};
    char bus_id[32] = {};
    size_t memory_bytes = 0;
    GpuDevice found;
    found.ordinal = ordinal;
    status.Update(Check("cuDeviceGetName", calls_.cuDeviceGetName(name, sizeof(name) - 1, device)));
    status.Update(Check("cuDeviceGetPCIBusId",
                        calls_.cuDeviceGetPCIBusId(bus_id, sizeof(bus_id) - 1, device)));
    status.Update(Check("cuDeviceGetUuid", calls_.cuDeviceGetUuid_v2(&found.uuid, device)));
    status.Update(Check("cuDeviceTotalMem", calls_.cuDeviceTotalMem_v2(&memory_bytes, device)));
    found.compute_major = attribute(cuda::kComputeMajor);
    found.compute_minor = attribute(cuda::kComputeMinor);
    found.dma_buf = attribute(cuda::kDmaBuf) != 0 && calls_.cuMemGetHandleForAddressRange;
    found.gpu_direct_rdma = attribute(cuda::kGpuDirectRdma) != 0;
    found.read_only_host = attribute(cuda::kReadOnlyHostMemory) != 0;
    found.shareable_memory =
        attribute(cuda::kVirtualMemory) != 0 && attribute(cuda::kPosixHandles) != 0;
    // 100: ordered for the GPU that owns the memory; 200: for all.
    found.writes_ordered = attribute(cuda::kGpuDirectWritesOrdering) >= 100;
    found.name = name;
    for (const char* at = bus_id; *at != '\0'; ++at) {
      found.pci_bus_id += static_cast<char>(tolower(static_cast<unsigned char>(*at)));
    }
    found.memory_bytes = memory_bytes;
    devices.push_back(std::move(found));
  }
  if (!status.ok()) return status;
  return devices;
}

}  // namespace tryst
