#include "server/doctor/rdma_ports.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tryst {
namespace {

// "4: ACTIVE" -> "ACTIVE".
std::string AfterColon(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(": ", 1));
  return parts.back();
}

std::vector<RdmaPort::Gid> ReadGidTable(const Host& host, const std::string& folder) {
  std::vector<RdmaPort::Gid> gids;
  for (const std::string& name : host.List(folder + "/gids")) {
    RdmaPort::Gid gid;
    gid.address = host.Read(absl::StrCat(folder, "/gids/", name)).value_or("");
    if (!absl::SimpleAtoi(name, &gid.index) ||
        gid.address.find_first_not_of("0:") == std::string::npos ||
        gid.address == "fe80:0000:0000:0000:0000:0000:0000:0000") {
      continue;  // This entry of the table is empty.
    }
    gid.type = host.Read(absl::StrCat(folder, "/gid_attrs/types/", name)).value_or("");
    gid.interface = host.Read(absl::StrCat(folder, "/gid_attrs/ndevs/", name)).value_or("");
    gids.push_back(std::move(gid));
  }
  return gids;
}

}  // namespace

std::vector<RdmaPort> ReadRdmaPorts(const Host& host) {
  std::vector<RdmaPort> ports;
  for (const std::string& device : host.List("/sys/class/infiniband")) {
    const std::string folder = absl::StrCat("/sys/class/infiniband/", device, "/ports");
    for (const std::string& number : host.List(folder)) {
      RdmaPort port;
      port.device = device;
      if (!absl::SimpleAtoi(number, &port.number)) continue;
      port.folder = absl::StrCat(folder, "/", number);
      port.state = AfterColon(host.Read(port.folder + "/state").value_or("unknown"));
      port.link = AfterColon(host.Read(port.folder + "/phys_state").value_or("unknown"));
      port.rate = host.Read(port.folder + "/rate").value_or("");
      port.ethernet = host.Read(port.folder + "/link_layer").value_or("") == "Ethernet";
      port.gids = ReadGidTable(host, port.folder);
      ports.push_back(std::move(port));
    }
  }
  return ports;
}

}  // namespace tryst
