#include "plugins/nccl/devices.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plugins/nccl/interfaces.h"
#include "verbs/ibv/device_choice.h"
#include "verbs/ibv/ibv_nic.h"
#include "verbs/ibv/peer_memory.h"
#include "verbs/ofi/ofi_nic.h"
#include "verbs/ofi/ofi_provider.h"
#include "verbs/soft/soft_nic.h"

namespace tryst::nccl {
namespace {

class SoftDevice final : public PhysicalDevice {
 public:
  explicit SoftDevice(std::string token) : token_(std::move(token)) {}

 protected:
  absl::StatusOr<std::unique_ptr<Nic>> OpenNic(int) override {
    SoftNicOptions options;
    options.name = name;
    options.listen_address = absl::StrCat(control_host, ":0");
    options.tls = !token_.empty();
    options.secret = token_;
    absl::StatusOr<std::unique_ptr<SoftNic>> nic = OpenSoftNic(std::move(options));
    if (!nic.ok()) return nic.status();
    return std::unique_ptr<Nic>(*std::move(nic));
  }

 private:
  const std::string token_;  // Empty: nothing is encrypted.
};

class IbvDevice final : public PhysicalDevice {
 public:
  explicit IbvDevice(RdmaSettings rdma) : rdma_(std::move(rdma)) {}

 protected:
  absl::StatusOr<std::unique_ptr<Nic>> OpenNic(int traffic_class) override {
    IbvNicOptions options;
    options.choice.settings = rdma_;
    if (traffic_class >= 0) {
      options.choice.settings.traffic_class = static_cast<uint8_t>(traffic_class);
    }
    absl::StatusOr<std::unique_ptr<Nic>> nic = OpenIbvNic(options);
    if (!nic.ok()) return nic;
    const absl::Status serves = ServesNccl((*nic)->limits());
    if (!serves.ok()) return serves;
    return nic;
  }

 private:
  const RdmaSettings rdma_;
};

class OfiDevice final : public PhysicalDevice {
 public:
  explicit OfiDevice(std::string provider) : provider_(std::move(provider)) {}

 protected:
  absl::StatusOr<std::unique_ptr<Nic>> OpenNic(int) override {
    OfiNicOptions options;
    options.provider = provider_;
    options.host = control_host;
    absl::StatusOr<std::unique_ptr<Nic>> nic = OpenOfiNic(options);
    if (!nic.ok()) return nic;
    const absl::Status serves = ServesNccl((*nic)->limits());
    if (!serves.ok()) return serves;
    return nic;
  }

 private:
  const std::string provider_;
};

// Every process of a machine computes the same number for a device, and different ones for
// different devices.
uint64_t GuidOf(const std::string& device) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : device) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

// Pieces begin on pages, and an immediate has room for a limited number of pieces.
uint64_t MessageBytes(const NicLimits& limits) {
  const uint64_t piece = std::min(limits.max_message_bytes, kMaxMessageBytes) / 4096 * 4096;
  return std::min(kMaxMessageBytes, piece * Immediate::kMaxPieces);
}

absl::StatusOr<RdmaSettings> RdmaSettingsOf(const Settings& settings) {
  std::vector<std::string> warnings;
  absl::StatusOr<RdmaSettings> rdma = ParseRdmaSettings(Environment(), &warnings);
  if (!rdma.ok()) return rdma;
  if (settings.gid_index >= 0) rdma->gid_index = static_cast<uint32_t>(settings.gid_index);
  if (settings.traffic_class >= 0) {
    rdma->traffic_class = static_cast<uint8_t>(settings.traffic_class);
  }
  return rdma;
}

absl::Status AddIbvDevice(const IbvCandidate& candidate, RdmaSettings rdma,
                          const std::string& control_host, DeviceSearch* search) {
  rdma.device = candidate.device;
  rdma.port = candidate.port.number;
  auto device = std::make_unique<IbvDevice>(std::move(rdma));
  device->name = absl::StrCat(candidate.device, ":", candidate.port.number);
  device->kind = DeviceKind::kIbv;
  device->port = candidate.port.number;
  device->pci_path = PciPath(absl::StrCat("/sys/class/infiniband/", candidate.device, "/device"));
  device->guid = GuidOf(device->pci_path.empty() ? device->name : device->pci_path);
  device->control_host = control_host;
  const absl::StatusOr<Rail*> rail = device->Open(kUndefined);
  if (!rail.ok()) return rail.status();
  const NicLimits& limits = (*rail)->nic->limits();
  const std::vector<NicPort> ports = (*rail)->nic->Ports();
  device->speed_mbps = ports.empty() ? 0 : static_cast<int>(ports[0].bits_per_second / 1'000'000);
  device->max_message_bytes = MessageBytes(limits);
  device->pointer_support = PointerSupport(limits, HasPeerMemoryModule());
  device->reason = absl::StrCat(
      ports.empty() ? "" : ports[0].description, "; GPU memory: ",
      (device->pointer_support & kPointerDmaBuf) != 0 ? "by dma-buf"
      : (device->pointer_support & kPointerCuda) != 0
          ? "by the peer-memory module"
          : "not reached (neither dma-buf nor a peer-memory module), so NCCL copies it through "
            "host memory");
  search->found.push_back(std::move(device));
  return absl::OkStatus();
}

void FindIbvDevices(const Settings& settings, const std::string& control_host,
                    DeviceSearch* search) {
  const auto explain = [&](const std::string& line) { search->explanation.push_back(line); };
  absl::StatusOr<IbvCalls> calls = LoadIbvCalls();
  if (!calls.ok()) return explain(absl::StrCat("RDMA: ", calls.status().message()));
  absl::StatusOr<RdmaSettings> rdma = RdmaSettingsOf(settings);
  if (!rdma.ok()) return explain(absl::StrCat("RDMA: ", rdma.status().message()));
  IbvChoiceOptions options;
  options.settings = *rdma;
  const IbvChoice choice = ChooseIbvPort(*calls, options);
  if (choice.candidates.empty()) explain("RDMA: this machine shows no RDMA device");
  for (const IbvCandidate& candidate : choice.candidates) {
    const std::string name = absl::StrCat(candidate.device, ":", candidate.port.number);
    absl::Status status = candidate.usable;
    if (status.ok() && !InterfaceMatches(candidate.device, settings.hca)) {
      status = absl::UnavailableError(
          absl::StrCat("NCCL_IB_HCA=", settings.hca, " leaves this NIC out"));
    }
    if (status.ok()) status = AddIbvDevice(candidate, *rdma, control_host, search);
    explain(absl::StrCat(
        name, ": ",
        status.ok() ? search->found.back()->reason : absl::StrCat("not used: ", status.message())));
  }
}

void AddSoftDevices(const InterfaceChoice& interfaces, const std::string& token,
                    DeviceSearch* search) {
  for (const NetworkInterface& one : interfaces.chosen) {
    auto device = std::make_unique<SoftDevice>(token);
    device->name = one.name;
    device->kind = DeviceKind::kSoft;
    device->pci_path = PciPath(absl::StrCat("/sys/class/net/", one.name, "/device"));
    device->guid = GuidOf(device->pci_path.empty() ? one.name : device->pci_path);
    device->speed_mbps = InterfaceSpeedMbps(one.name);
    device->control_host = one.host;
    device->max_message_bytes = MessageBytes(DefaultSoftNicLimits());
    device->reason = absl::StrCat(one.reason,
                                  "; GPU memory: not reached over sockets, so NCCL "
                                  "copies it through host memory; ",
                                  token.empty() ? "in the clear" : "encrypted");
    search->explanation.push_back(
        absl::StrCat(one.name, " (", one.host, "), software NIC: ", device->reason));
    search->found.push_back(std::move(device));
  }
  for (const NetworkInterface& one : interfaces.passed_over) {
    search->explanation.push_back(
        absl::StrCat(one.name, " (", one.host, "): not used: ", one.reason));
  }
}

absl::Status AddOfiDevice(const NetworkInterface& interface, const std::string& nic,
                          DeviceSearch* search) {
  auto device = std::make_unique<OfiDevice>(nic);
  device->name = absl::StrCat(interface.name, "/", nic);
  device->kind = DeviceKind::kOfi;
  device->pci_path = PciPath(absl::StrCat("/sys/class/net/", interface.name, "/device"));
  device->guid = GuidOf(device->name);
  device->speed_mbps = InterfaceSpeedMbps(interface.name);
  device->control_host = interface.host;
  const absl::StatusOr<Rail*> rail = device->Open(kUndefined);
  if (!rail.ok()) return rail.status();
  device->max_message_bytes = MessageBytes((*rail)->nic->limits());
  const std::vector<NicPort> ports = (*rail)->nic->Ports();
  device->reason = absl::StrCat(ports.empty() ? "" : ports[0].description,
                                "; GPU memory: not reached, so NCCL copies it through host memory");
  search->found.push_back(std::move(device));
  return absl::OkStatus();
}

// One device for each interface, or a single one if the provider does not listen on interfaces.
void FindOfiDevices(const std::string& nic, const InterfaceChoice& interfaces,
                    DeviceSearch* search) {
  const absl::StatusOr<OfiProvider> provider = FindOfiProvider(nic);
  for (const NetworkInterface& one : interfaces.chosen) {
    const absl::Status added =
        provider.ok() ? AddOfiDevice(one, nic, search) : absl::Status(provider.status());
    search->explanation.push_back(absl::StrCat(
        one.name, "/", nic, ": ",
        added.ok() ? search->found.back()->reason : absl::StrCat("not used: ", added.message())));
    if (added.ok() && !provider->takes_host) return;
  }
}

}  // namespace

absl::Status ServesNccl(const NicLimits& limits) {
  if (!limits.ordered) {
    return absl::UnimplementedError(
        "the NIC does not keep writes in order, which this plugin needs");
  }
  if (!limits.write_with_immediate) {
    return absl::UnimplementedError(
        "the NIC has no writes with immediate, which this plugin needs");
  }
  if (!limits.tells_length) {
    return absl::UnimplementedError(
        "the NIC does not tell how many bytes have arrived, which NCCL asks for");
  }
  return absl::OkStatus();
}

int PointerSupport(const NicLimits& limits, bool peer_memory_module) {
  return kPointerHost | (limits.device_pointers && peer_memory_module ? kPointerCuda : 0) |
         (limits.dma_buf ? kPointerDmaBuf : 0);
}

absl::StatusOr<Rail*> PhysicalDevice::Open(int traffic_class) {
  MutexLock lock(&mu_);
  const auto found = rails_.find(traffic_class);
  if (found != rails_.end()) return &found->second;
  absl::StatusOr<std::unique_ptr<Nic>> nic = OpenNic(traffic_class);
  if (!nic.ok()) return nic.status();
  Rail& rail = rails_[traffic_class];
  rail.nic = *std::move(nic);
  // NCCL itself bounds what it registers. No registration is kept after its last use, because
  // nothing tells the plugin when the memory is freed.
  RegistrationCacheOptions options;
  options.max_bytes = std::numeric_limits<uint64_t>::max() / 2;
  options.max_regions = std::numeric_limits<size_t>::max() / 2;
  rail.cache = std::make_unique<RegistrationCache>(rail.nic.get(), options);
  return &rail;
}

absl::StatusOr<DeviceSearch> FindDevices(const Settings& settings) {
  DeviceSearch search;
  const InterfaceChoice interfaces = ChooseInterfaces(settings.interfaces, settings.family);
  const std::string control_host = interfaces.chosen.empty() ? "" : interfaces.chosen[0].host;
  if (control_host.empty()) {
    search.explanation.push_back(
        "no network interface is up and allowed (NCCL_SOCKET_IFNAME, "
        "NCCL_SOCKET_FAMILY)");
  } else if (IsOfiName(settings.nic)) {
    FindOfiDevices(settings.nic, interfaces, &search);
  } else if (settings.nic != "soft") {
    FindIbvDevices(settings, control_host, &search);
  }
  const bool soft = settings.nic == "auto" || settings.nic == "soft";
  if (!control_host.empty() && search.found.empty() && soft) {
    AddSoftDevices(interfaces, settings.token, &search);
  }
  if (search.found.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no NIC can be offered to NCCL: ", absl::StrJoin(search.explanation, "; ")));
  }
  return search;
}

}  // namespace tryst::nccl
