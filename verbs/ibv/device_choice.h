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
  absl::Status usable;  // What is wrong with the device or the port, or "not asked for".
  absl::optional<int> numa_node;
  PciDistance gpu_distance = PciDistance::kUnknown;
};

// All candidates, and the one to use, so that the choice can be explained.
struct IbvChoice {
  std::vector<IbvCandidate> candidates;  // In the library's order.
  absl::optional<size_t> chosen;
  // Why there is none: kUnavailable, or kInvalidArgument if `settings` name what is not there or
  // cannot be used at all.
  absl::Status status;

  // One line per candidate, for people.
  std::string Explain() const;
};

struct IbvChoiceOptions {
  RdmaSettings settings;
  std::string near_bus_id;  // A GPU's "0000:3b:00.0"; empty: any.
  absl::optional<int> near_numa_node;
  std::string sysfs_root = "/sys";
};

// Opens and closes every device but those of iWARP, which are refused. Chooses, of the usable
// ports, the nearest to the GPU, then the nearest to the NUMA node, then the fastest, then the
// first.
IbvChoice ChooseIbvPort(const IbvCalls& calls, const IbvChoiceOptions& options);

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_DEVICE_CHOICE_H_
