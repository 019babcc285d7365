#include "gpu/driver.h"

#include <dlfcn.h>

#include <cctype>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

// The driver's ABI, as its documentation gives it: the toolkit's headers are not needed
// to build, and need not be as old as the driver.
using CuResult = int;
using CuDevice = int;
constexpr CuResult kCuSuccess = 0;
constexpr int kComputeMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kComputeMinor = 76;

}  // namespace

struct CudaDriver::Calls {
  CuResult (*init)(unsigned int flags) = nullptr;
  CuResult (*driver_version)(int* version) = nullptr;
  CuResult (*error_string)(CuResult error, const char** text) = nullptr;
  CuResult (*device_count)(int* count) = nullptr;
  CuResult (*device_get)(CuDevice* device, int ordinal) = nullptr;
  CuResult (*device_name)(char* name, int bytes, CuDevice device) = nullptr;
  CuResult (*device_bus_id)(char* id, int bytes, CuDevice device) = nullptr;
  CuResult (*device_attribute)(int* value, int attribute, CuDevice device) = nullptr;
  CuResult (*device_memory)(size_t* bytes, CuDevice device) = nullptr;

  absl::Status Error(const char* call, CuResult result) const {
    if (result == kCuSuccess) return absl::OkStatus();
    const char* text = nullptr;
    if (error_string(result, &text) != kCuSuccess || text == nullptr) text = "unknown error";
    return absl::UnavailableError(absl::StrCat(call, ": ", text, " (", result, ")"));
  }
};

CudaDriver::CudaDriver() : calls_(std::make_unique<Calls>()) {}
CudaDriver::~CudaDriver() = default;

absl::StatusOr<std::unique_ptr<CudaDriver>> CudaDriver::Load(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no CUDA driver: ", dlerror(), "; install NVIDIA's driver to use GPUs"));
  }
  std::unique_ptr<CudaDriver> driver(new CudaDriver());
  Calls* calls = driver->calls_.get();
  std::string missing;
  const auto find = [&](const char* name, auto* call) {
    void* symbol = dlsym(handle, name);
    if (symbol == nullptr) missing = name;
    *reinterpret_cast<void**>(call) = symbol;
  };
  find("cuInit", &calls->init);
  find("cuDriverGetVersion", &calls->driver_version);
  find("cuGetErrorString", &calls->error_string);
  find("cuDeviceGetCount", &calls->device_count);
  find("cuDeviceGet", &calls->device_get);
  find("cuDeviceGetName", &calls->device_name);
  find("cuDeviceGetPCIBusId", &calls->device_bus_id);
  find("cuDeviceGetAttribute", &calls->device_attribute);
  find("cuDeviceTotalMem_v2", &calls->device_memory);
  if (!missing.empty()) {
    dlclose(handle);
    return absl::UnavailableError(
        absl::StrCat(library, " has no ", missing, ": it is not a CUDA driver, or too old a one"));
  }
  absl::Status started = calls->Error("cuInit", calls->init(0));
  if (!started.ok()) return started;
  started = calls->Error("cuDriverGetVersion", calls->driver_version(&driver->version_));
  if (!started.ok()) return started;
  return driver;
}

absl::StatusOr<std::vector<GpuDevice>> CudaDriver::Devices() const {
  int count = 0;
  absl::Status status = calls_->Error("cuDeviceGetCount", calls_->device_count(&count));
  std::vector<GpuDevice> devices;
  for (int ordinal = 0; status.ok() && ordinal < count; ++ordinal) {
    CuDevice device = 0;
    char name[256] = {};
    char bus_id[32] = {};
    size_t memory_bytes = 0;
    GpuDevice found;
    found.ordinal = ordinal;
    status.Update(calls_->Error("cuDeviceGet", calls_->device_get(&device, ordinal)));
    if (!status.ok()) break;
    status.Update(
        calls_->Error("cuDeviceGetName", calls_->device_name(name, sizeof(name) - 1, device)));
    status.Update(calls_->Error("cuDeviceGetPCIBusId",
                                calls_->device_bus_id(bus_id, sizeof(bus_id) - 1, device)));
    status.Update(
        calls_->Error("cuDeviceGetAttribute",
                      calls_->device_attribute(&found.compute_major, kComputeMajor, device)));
    status.Update(
        calls_->Error("cuDeviceGetAttribute",
                      calls_->device_attribute(&found.compute_minor, kComputeMinor, device)));
    status.Update(calls_->Error("cuDeviceTotalMem", calls_->device_memory(&memory_bytes, device)));
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
