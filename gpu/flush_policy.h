#ifndef TRYST_GPU_FLUSH_POLICY_H_
#define TRYST_GPU_FLUSH_POLICY_H_

#include <string>

#include "gpu/driver.h"

namespace tryst {

// How a NIC's writes reach a GPU.
enum class GpuLink { kPcie, kC2c };

struct FlushPolicy {
  bool flush = true;  // After each landing, over every NIC that wrote.
  std::string why;
};

// Whether what a NIC has written to `device` may be used once its completion was seen.
// `control_by_c2c`: the completion reaches the CPU by another link than the data takes.
FlushPolicy ChooseFlush(const GpuDevice& device, GpuLink data, bool control_by_c2c);

}  // namespace tryst

#endif  // TRYST_GPU_FLUSH_POLICY_H_
