#ifndef TRYST_PLUGINS_NCCL_INTERFACES_H_
#define TRYST_PLUGINS_NCCL_INTERFACES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tryst::nccl {

struct NetworkInterface {
  std::string name;
  std::string host;    // Numeric; IPv6 in brackets.
  std::string reason;  // Why it is, or is not, used.
};

// NCCL's way to name interfaces: "eth" is every name that begins so, "=eth0" this one
// alone, "^docker,lo" all others; several are parted by commas. An empty rule takes all.
bool InterfaceMatches(const std::string& name, const std::string& rule);

struct InterfaceChoice {
  std::vector<NetworkInterface> chosen;
  std::vector<NetworkInterface> passed_over;
};

// Those of this machine that `rule` and `family` ("AF_INET", "AF_INET6" or empty) allow.
// Without a rule: all that lead somewhere; else a container bridge; else the loop-back.
InterfaceChoice ChooseInterfaces(const std::string& rule, const std::string& family);

// From sysfs; 10,000 where the kernel does not know, as NCCL assumes.
int InterfaceSpeedMbps(const std::string& name);
// Of the device behind `sysfs_device`, a link; empty for one that is on no bus.
std::string PciPath(const std::string& sysfs_device);

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_INTERFACES_H_
