#ifndef TRYST_CHANNEL_DEVICE_GDR_CHECK_H_
#define TRYST_CHANNEL_DEVICE_GDR_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "channel/device/direct_reach.h"
#include "verbs/ibv/ibv_calls.h"

namespace tryst {

struct GdrCheckOptions {
  std::string cuda_library = "libcuda.so.1";
  absl::optional<IbvCalls> ibv;  // Empty: the machine's libibverbs.
  DirectOptions direct;
  bool measure = true;
};

// One GPU and one NIC. The measurements use the NIC's connection to itself.
struct GdrFinding {
  DirectReach reach;
  double write_gb_per_s = 0;  // NIC into GPU; 0: not measured, since it is staged.
  double read_gb_per_s = 0;   // GPU into NIC.
  double flush_us = 0;        // The median of small READs.

  std::string ToText() const;
};

// Proves and measures every pair of this machine. kNotFound, kUnavailable: a driver, a GPU,
// libibverbs or an RDMA device with a usable port is missing; the message says which.
absl::StatusOr<std::vector<GdrFinding>> CheckGdr(const GdrCheckOptions& options);

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_GDR_CHECK_H_
