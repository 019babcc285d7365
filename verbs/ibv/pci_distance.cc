#include "verbs/ibv/pci_distance.h"

#include <climits>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tryst {
namespace {

std::string RealPath(const std::string& path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) == nullptr ? std::string() : std::string(resolved);
}

// The PCIe functions of a path, from the root complex down: "pci0000:3a", "0000:3a:00.0",
// "0000:3b:00.0".
std::vector<std::string> Chain(const std::string& path) {
  std::vector<std::string> chain;
  for (absl::string_view part : absl::StrSplit(path, '/')) {
    if (!chain.empty()) {
      chain.emplace_back(part);
    } else if (absl::StartsWith(part, "pci")) {
      chain.emplace_back(part);
    }
  }
  return chain;
}

}  // namespace

const char* PciDistanceName(PciDistance distance) {
  switch (distance) {
    case PciDistance::kSameSwitch:
      return "same PCIe switch";
    case PciDistance::kSwitches:
      return "several PCIe switches";
    case PciDistance::kHostBridge:
      return "same host bridge";
    case PciDistance::kNode:
      return "same NUMA node";
    case PciDistance::kSystem:
      return "across NUMA nodes";
    case PciDistance::kUnknown:
      return "unknown distance";
  }
  return "unknown distance";
}

std::string PciTree::PathOfRdmaDevice(absl::string_view name) const {
  const std::string path = RealPath(absl::StrCat(root_, "/class/infiniband/", name, "/device"));
  return Chain(path).empty() ? std::string() : path;
}

std::string PciTree::PathOfBusId(absl::string_view bus_id) const {
  return RealPath(absl::StrCat(root_, "/bus/pci/devices/", absl::AsciiStrToLower(bus_id)));
}

absl::optional<int> PciTree::NumaNode(const std::string& path) const {
  if (path.empty()) return absl::nullopt;
  std::ifstream file(path + "/numa_node");
  int node;
  // With -1 the kernel says that the firmware did not tell.
  if (!(file >> node) || node < 0) return absl::nullopt;
  return node;
}

PciDistance PciTree::Distance(const std::string& a, const std::string& b) const {
  const std::vector<std::string> chain_a = Chain(a);
  const std::vector<std::string> chain_b = Chain(b);
  if (chain_a.empty() || chain_b.empty()) return PciDistance::kUnknown;
  size_t shared = 0;
  while (shared < chain_a.size() && shared < chain_b.size() && chain_a[shared] == chain_b[shared]) {
    ++shared;
  }
  if (shared == 0) {
    const absl::optional<int> node_a = NumaNode(a);
    const absl::optional<int> node_b = NumaNode(b);
    if (!node_a || !node_b) return PciDistance::kUnknown;
    return *node_a == *node_b ? PciDistance::kNode : PciDistance::kSystem;
  }
  // They share only the root complex, the CPU's host bridge.
  if (shared == 1) return PciDistance::kHostBridge;
  // A switch is an upstream port with downstream ports below it. So two devices behind one switch
  // have at most a downstream port each below what they share.
  const size_t below_a = chain_a.size() - shared;
  const size_t below_b = chain_b.size() - shared;
  return below_a <= 2 && below_b <= 2 ? PciDistance::kSameSwitch : PciDistance::kSwitches;
}

}  // namespace tryst
