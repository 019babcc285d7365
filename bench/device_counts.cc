#include "bench/device_counts.h"

#include "gpu/cuda_api.h"
#include "tests/doubles/cuda/fake_cuda.h"

namespace tryst {

std::map<std::string, uint64_t> DeviceCounts(const std::string& driver, DeviceEnd* end, int gpu) {
  std::map<std::string, uint64_t> counts;
  const FakeCudaControl* const fake = LoadFakeCuda(driver.c_str());
  if (fake == nullptr) return counts;
#define TRYST_COUNT(name, parameters) counts[#name] = static_cast<uint64_t>(fake->calls(#name));
  TRYST_CUDA_CALLS(TRYST_COUNT)
#undef TRYST_COUNT
  end->RunOnPoller([&] { counts["tasks"] = end->proxy()->engine(gpu)->poller()->tasks_run(); });
  return counts;
}

}  // namespace tryst
