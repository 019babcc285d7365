#ifndef TRYST_PLUGINS_NCCL_INTERFACES_H_
#define TRYST_PLUGINS_NCCL_INTERFACES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tryst::nccl {

struct NetworkInterface {
  std::string name;
  std::string host;    // Numeric; IPv6 in brackets.
  std::string reason;  // Why it is used, or why not.
};

// NCCL's way to select interfaces: "eth" selects every name that begins with it, "=eth0" only that
// name, "^docker,lo" every other name. Commas separate several. An empty rule selects all.
bool InterfaceMatches(const std::string& name, const std::string& rule);

struct InterfaceChoice {
  std::vector<NetworkInterface> chosen;
  std::vector<NetworkInterface> passed_over;
};

// The interfaces of this machine that `rule` and `family` ("AF_INET", "AF_INET6" or empty) allow.
// Without a rule: those that lead to other machines; if there are none, a container bridge; if
// there is none, the loopback.
InterfaceChoice ChooseInterfaces(const std::string& rule, const std::string& family);

// The speed in sysfs, or 10,000 where the kernel does not know it, as NCCL assumes.
int InterfaceSpeedMbps(const std::string& name);
// The PCI path behind the link `sysfs_device`; empty for a device that is on no bus.
std::string PciPath(const std::string& sysfs_device);

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_INTERFACES_H_
