#ifndef TRYST_VERBS_IBV_DEVICE_CHOICE_H_
#define TRYST_VERBS_IBV_DEVICE_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "verbs/ibv/ibv_calls.h"
#include "verbs/ibv/ibv_port.h"
#include "verbs/ibv/pci_distance.h"
#include "verbs/ibv/rdma_settings.h"

namespace tryst {

// One port of one device, and what speaks for or against it.
struct IbvCandidate {
  std::string device;
  IbvPort port;
  absl::Status usable;  // The device's own trouble, or the port's, or "not asked for".
  absl::optional<int> numa_node;
  PciDistance gpu_distance = PciDistance::kUnknown;
};

// All of them, and the one to use: nobody should have to guess why.
struct IbvChoice {
  std::vector<IbvCandidate> candidates;  // In the library's order.
  absl::optional<size_t> chosen;
  // Why there is none: kUnavailable, or kInvalidArgument when `settings` name what is
  // not there.
  absl::Status status;

  // One line per candidate, for people.
  std::string Explain() const;
};

struct IbvChoiceOptions {
  RdmaSettings settings;
  std::string near_bus_id;  // A GPU's "0000:3b:00.0"; empty: no matter.
  absl::optional<int> near_numa_node;
  std::string sysfs_root = "/sys";
};

// Opens and closes every device. Of the usable ports the one nearest to the GPU is
// taken, then the nearest to the NUMA node, then the fastest, then the first.
IbvChoice ChooseIbvPort(const IbvCalls& calls, const IbvChoiceOptions& options);

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_DEVICE_CHOICE_H_
