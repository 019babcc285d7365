#ifndef TRYST_VERBS_IBV_PCI_DISTANCE_H_
#define TRYST_VERBS_IBV_PCI_DISTANCE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace tryst {

// The distance of two PCIe devices, nearest first. From kHostBridge on, peer-to-peer traffic
// crosses the CPU and is seldom worth it.
enum class PciDistance {
  kSameSwitch,  // One PCIe switch between them.
  kSwitches,    // Several, but no host bridge.
  kHostBridge,  // Through one CPU root complex.
  kNode,        // Different root complexes of one NUMA node.
  kSystem,      // Across the sockets.
  kUnknown,     // sysfs does not tell: a virtual device, or a container without /sys.
};
const char* PciDistanceName(PciDistance distance);

// Reads sysfs below `sysfs_root` ("/sys" except in tests). It makes system calls, so it is not for
// a fast path.
class PciTree {
 public:
  explicit PciTree(std::string sysfs_root) : root_(std::move(sysfs_root)) {}

  // The real path of an RDMA device's PCIe function; empty: it is virtual.
  std::string PathOfRdmaDevice(absl::string_view name) const;
  // The path of "0000:3b:00.0", in upper or lower case; empty: there is none.
  std::string PathOfBusId(absl::string_view bus_id) const;
  absl::optional<int> NumaNode(const std::string& path) const;
  PciDistance Distance(const std::string& a, const std::string& b) const;

 private:
  const std::string root_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_PCI_DISTANCE_H_
