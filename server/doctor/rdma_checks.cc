#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/doctor/checks.h"
#include "server/doctor/libraries.h"
#include "server/doctor/rdma_ports.h"
#include "verbs/ibv/rdma_settings.h"
#include "verbs/ofi/ofi_provider.h"

namespace tryst {
namespace {

constexpr char kDevices[] = "/sys/class/infiniband";
constexpr char kUverbs[] = "/dev/infiniband";

bool HasDevices(const Host& host) { return !host.List(kDevices).empty(); }
bool WantsRdma(const Host& host) { return host.config().nic == "ibv"; }

// Adds a finding: a fault if the configuration allows no other path, otherwise a warning.
void FaultIfWanted(const Host& host, Report* report, std::string seen, std::string means,
                   std::string action) {
  report->Add(WantsRdma(host) ? Weight::kFault : Weight::kWarning, std::move(seen),
              std::move(means), std::move(action));
}

void Device(const Host& host, Report* report) {
  if (HasDevices(host)) return;
  report->Add(WantsRdma(host) ? Weight::kFault : Weight::kNote, "there is no RDMA device",
              WantsRdma(host) ? "nic=ibv has nothing to open"
                              : "tensors travel by shared memory, the software NIC and gRPC",
              "with such hardware: install its driver (mlx5_ib, irdma, ...); without, to try RDMA "
              "out: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0");
}

void RdmaLibrary(const Host& host, Report* report) {
  if (!HasDevices(host) || !LibraryFiles(host, "libibverbs.so.1").empty()) return;
  FaultIfWanted(host, report, "RDMA devices are here, and libibverbs.so.1 is not",
                "no device can be opened", "apt-get install libibverbs1 ibverbs-providers");
}

void LibraryTwice(const Host& host, Report* report) {
  const std::vector<std::string> files = LibraryFiles(host, "libibverbs.so.1");
  if (files.size() < 2) return;
  report->Warn(absl::StrCat("several libibverbs: ", absl::StrJoin(files, ", ")),
               "which one is loaded depends on the search path, and its providers may be for "
               "another: devices come and go with the environment",
               "keep one (remove the vendor's or the distribution's), or set LD_LIBRARY_PATH");
}

// "mlx5_core" -> "mlx5": libibverbs' name for the provider of a kernel driver.
std::string ProviderOf(const std::string& driver) {
  for (const char* end : {"_core", "_ib", "_re"}) {
    if (absl::EndsWith(driver, end)) {
      const std::string stem = driver.substr(0, driver.size() - 3 - (end[1] == 'c' ? 2 : 0));
      return stem == "bnxt" ? "bnxt_re" : stem;
    }
  }
  if (driver == "ice" || driver == "i40e") return "irdma";
  if (driver == "bnxt_en") return "bnxt_re";
  return driver;
}

void Provider(const Host& host, Report* report) {
  const std::vector<std::string> known = host.List("/etc/libibverbs.d");
  if (known.empty()) return;
  for (const std::string& device : host.List(kDevices)) {
    const std::string link = host.LinkOf(absl::StrCat(kDevices, "/", device, "/device/driver"));
    if (link.empty()) continue;  // A virtual device has no such link.
    const std::string driver = link.substr(link.rfind('/') + 1);
    const std::string file = ProviderOf(driver) + ".driver";
    if (std::find(known.begin(), known.end(), file) != known.end()) continue;
    FaultIfWanted(
        host, report,
        absl::StrCat(device, " is driven by ", driver, ", and /etc/libibverbs.d has no ", file),
        "libibverbs does not see this device", "apt-get install ibverbs-providers");
  }
}

std::vector<std::string> UverbsFiles(const Host& host) {
  std::vector<std::string> files;
  for (const std::string& name : host.List(kUverbs)) {
    if (absl::StartsWith(name, "uverbs")) files.push_back(absl::StrCat(kUverbs, "/", name));
  }
  return files;
}

void Uverbs(const Host& host, Report* report) {
  if (!HasDevices(host) || !UverbsFiles(host).empty()) return;
  FaultIfWanted(host, report, "RDMA devices are here, and no /dev/infiniband/uverbs*",
                "user space cannot open them",
                "modprobe ib_uverbs; for a container: --device=/dev/infiniband");
}

void RdmaPermission(const Host& host, Report* report) {
  for (const std::string& file : UverbsFiles(host)) {
    if (host.calls().may_read_and_write(host.Below(file))) continue;
    FaultIfWanted(host, report, absl::StrCat(file, " may not be opened by this user"),
                  "the device is there for others only",
                  absl::StrCat("chmod 666 ", file, ", or add the user to the file's group"));
  }
}

void PortDown(const Host& host, Report* report) {
  for (const RdmaPort& port : ReadRdmaPorts(host)) {
    if (port.state != "DOWN" || port.link == "Polling") continue;
    FaultIfWanted(host, report, absl::StrCat(port.Name(), " is DOWN, its link ", port.link),
                  "no queue pair can be made on it",
                  port.ethernet ? "ip link set DEV up, for the interface of this device"
                                : "enable the port: ibportstate -D 0 1 enable");
  }
}

void Cable(const Host& host, Report* report) {
  for (const RdmaPort& port : ReadRdmaPorts(host)) {
    if (port.link != "Polling") continue;
    FaultIfWanted(host, report, absl::StrCat(port.Name(), " looks for a partner (Polling)"),
                  "there is no cable, the cable is dead, or the switch's port is off",
                  "check the cable and the switch's port; ethtool DEV or ibstat shows the link");
  }
}

void SubnetManager(const Host& host, Report* report) {
  for (const RdmaPort& port : ReadRdmaPorts(host)) {
    if (port.ethernet || port.state != "INIT") continue;
    FaultIfWanted(host, report, absl::StrCat(port.Name(), " stays in INIT"),
                  "the link is up, and no subnet manager has configured it",
                  "start one in the fabric: systemctl start opensm");
  }
}

using Gids = std::vector<RdmaPort::Gid>;

// Calls `visit` for each active Ethernet port, with its RoCE v2 addresses.
void EachRocePort(const Host& host,
                  const std::function<void(const RdmaPort&, const Gids&)>& visit) {
  for (const RdmaPort& port : ReadRdmaPorts(host)) {
    if (!port.ethernet || port.state != "ACTIVE") continue;
    Gids second;
    std::copy_if(port.gids.begin(), port.gids.end(), std::back_inserter(second),
                 [](const RdmaPort::Gid& gid) { return absl::StrContains(gid.type, "v2"); });
    visit(port, second);
  }
}

void GidMissing(const Host& host, Report* report) {
  EachRocePort(host, [&](const RdmaPort& port, const Gids&) {
    if (!port.gids.empty()) return;
    FaultIfWanted(
        host, report, absl::StrCat(port.Name(), " has no address (its GID table is empty)"),
        "RoCE packets need one", "give the interface an address: ip addr add 10.0.0.1/24 dev DEV");
  });
}

void RoceVersion(const Host& host, Report* report) {
  EachRocePort(host, [&](const RdmaPort& port, const Gids& second) {
    if (port.gids.empty() || !second.empty()) return;
    FaultIfWanted(host, report, absl::StrCat(port.Name(), " has addresses of RoCE v1 only"),
                  "v1 does not cross routers, and peers that speak v2 do not answer it",
                  "enable RoCE v2: cma_roce_mode -d DEVICE -p 1 -m 2, or the NIC's firmware tool");
  });
}

void LinkLocal(const Host& host, Report* report) {
  EachRocePort(host, [&](const RdmaPort& port, const Gids& second) {
    const bool only = std::all_of(second.begin(), second.end(), [](const RdmaPort::Gid& gid) {
      return absl::StartsWith(gid.address, "fe80");
    });
    if (second.empty() || !only) return;
    report->Warn(absl::StrCat(port.Name(), " has a link-local address only"),
                 "it reaches no further than the cable or the switch",
                 "give the interface an IPv4 or a global IPv6 address");
  });
}

void GidIndex(const Host& host, Report* report) {
  const std::string wanted = host.Variable("RDMA_GID_INDEX");
  const std::vector<RdmaPort> ports = ReadRdmaPorts(host);
  if (wanted.empty() || ports.empty()) return;
  for (const RdmaPort& port : ports) {
    for (const RdmaPort::Gid& gid : port.gids) {
      if (absl::StrCat(gid.index) == wanted) return;
    }
  }
  FaultIfWanted(host, report, absl::StrCat("RDMA_GID_INDEX=", wanted, " is empty on every port"),
                "queue pairs would have no address", "show_gids lists them; or unset the variable");
}

void DeviceName(const Host& host, Report* report) {
  const std::string wanted = host.Variable("RDMA_DEVICE");
  const std::vector<std::string> devices = host.List(kDevices);
  if (wanted.empty() || std::find(devices.begin(), devices.end(), wanted) != devices.end()) return;
  report->Fault(absl::StrCat("RDMA_DEVICE=", wanted, ", and there are: ",
                             devices.empty() ? "none" : absl::StrJoin(devices, ", ")),
                "the device that was asked for is not there", "correct or unset RDMA_DEVICE");
}

void Settings(const Host& host, Report* report) {
  std::vector<std::string> warnings;
  const auto parsed = ParseRdmaSettings(host.environment(), &warnings);
  if (!parsed.ok()) {
    report->Fault(std::string(parsed.status().message()), "the server refuses to start",
                  "correct the variable; docs/OPERATIONS.md lists their ranges");
  }
  for (const std::string& warning : warnings) {
    report->Warn(warning, "this worker uses another value than the one that was set",
                 "correct the variable");
  }
}

void Mtu(const Host& host, Report* report) {
  std::set<std::string> seen;
  EachRocePort(host, [&](const RdmaPort& port, const Gids& second) {
    for (const RdmaPort::Gid& gid : second) {
      const auto mtu = host.ReadNumber(absl::StrCat("/sys/class/net/", gid.interface, "/mtu"));
      if (!mtu || *mtu >= 4200 || !seen.insert(gid.interface).second) continue;
      const char* carried = *mtu >= 2200 ? "2048" : *mtu >= 1100 ? "1024" : "512 or less";
      report->Add(*mtu < 1100 ? Weight::kWarning : Weight::kNote,
                  absl::StrCat(port.Name(), " is on ", gid.interface, ", whose MTU is ", *mtu),
                  absl::StrCat("RDMA packets carry ", carried, " bytes instead of 4096"),
                  absl::StrCat("if every switch on the way takes it: ip link set ", gid.interface,
                               " mtu 9000, here and at the peers alike"));
    }
  });
}

void Speed(const Host& host, Report* report) {
  for (const RdmaPort& port : ReadRdmaPorts(host)) {
    if (port.ethernet || port.state != "ACTIVE" || !absl::StrContains(port.rate, "(1X")) continue;
    report->Warn(absl::StrCat(port.Name(), " runs at ", port.rate),
                 "one lane of the usual four: a bad cable or connector",
                 "reseat or replace the cable; iblinkinfo shows both ends");
  }
}

void Errors(const Host& host, Report* report) {
  constexpr int64_t kMany = 100;
  for (const RdmaPort& port : ReadRdmaPorts(host)) {
    for (const char* counter :
         {"counters/symbol_error", "counters/port_rcv_errors", "counters/link_downed",
          "counters/local_link_integrity_errors", "hw_counters/local_ack_timeout_err",
          "hw_counters/packet_seq_err", "hw_counters/out_of_sequence"}) {
      const auto count = host.ReadNumber(absl::StrCat(port.folder, "/", counter));
      if (!count || *count < kMany) continue;
      report->Warn(
          absl::StrCat(port.Name(), " has counted ", counter, "=", *count),
          "packets are lost or damaged on the way; every loss stalls a queue pair",
          "check the cable; on RoCE, that flow control (PFC, ECN) is set alike everywhere");
    }
  }
}

void NetworkNamespace(const Host& host, Report* report) {
  if (HasDevices(host) || host.Read("/sys/module/ib_core/parameters/netns_mode") != "N") return;
  FaultIfWanted(host, report,
                "RDMA devices belong to one network namespace each, and ours has none",
                "this container does not see the host's devices",
                "on the host: rdma system set netns shared, or rdma dev set DEV netns NAME");
}

void Cgroup(const Host& host, Report* report) {
  const std::string folder = CgroupFolder(host, "rdma");
  const auto limits = host.Read(folder + "/rdma.max");
  if (!limits) return;
  for (absl::string_view line : absl::StrSplit(*limits, '\n')) {
    for (absl::string_view word : absl::StrSplit(line, ' ')) {
      if (!absl::StartsWith(word, "hca_") || absl::EndsWith(word, "=max")) continue;
      report->Warn(absl::StrCat("the cgroup limits RDMA objects: ", line),
                   "each peer takes queue pairs and regions; past the limit peers are reached over "
                   "other paths",
                   absl::StrCat("raise ", folder, "/rdma.max"));
      break;
    }
  }
}

void Libfabric(const Host& host, Report* report) {
  if (!IsOfiName(host.config().nic)) return;
  const auto provider = FindOfiProvider(host.config().nic);
  if (!provider.ok()) {
    report->Fault(std::string(provider.status().message()), "the server refuses to start",
                  "correct nic");
    return;
  }
  if (LibraryFiles(host, "libfabric.so.1").empty()) {
    report->Fault(absl::StrCat("nic=", host.config().nic, ", and libfabric.so.1 is not here"),
                  "no NIC can be opened", "apt-get install libfabric1");
    return;
  }
  report->Add(
      Weight::kNote,
      absl::StrCat("nic=", host.config().nic, " is libfabric's provider ", provider->full_name),
      std::string(provider->differences),
      "keep it if that is good enough; else set nic=soft or nic=ibv, which need no libfabric");
}

}  // namespace

std::vector<Check> RdmaChecks() {
  return {{"rdma-device", Device},
          {"rdma-library", RdmaLibrary},
          {"rdma-library-twice", LibraryTwice},
          {"rdma-libfabric", Libfabric},
          {"rdma-provider", Provider},
          {"rdma-uverbs", Uverbs},
          {"rdma-permission", RdmaPermission},
          {"rdma-port-down", PortDown},
          {"rdma-cable", Cable},
          {"rdma-subnet-manager", SubnetManager},
          {"rdma-gid-missing", GidMissing},
          {"rdma-roce-version", RoceVersion},
          {"rdma-gid-link-local", LinkLocal},
          {"rdma-gid-index", GidIndex},
          {"rdma-device-name", DeviceName},
          {"rdma-settings", Settings},
          {"rdma-mtu", Mtu},
          {"rdma-speed", Speed},
          {"rdma-errors", Errors},
          {"rdma-network-namespace", NetworkNamespace},
          {"rdma-cgroup", Cgroup}};
}

}  // namespace tryst
