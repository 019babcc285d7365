#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/doctor/checks.h"
#include "server/doctor/libraries.h"
#include "verbs/ibv/pci_distance.h"

namespace tryst {
namespace {

constexpr char kPci[] = "/sys/bus/pci/devices";

bool HasGpuAndNic(const Host& host) {
  return !GpuBusIds(host).empty() && !host.List("/sys/class/infiniband").empty();
}

std::string KernelModule(const Host& host) {
  return host.Read("/proc/driver/nvidia/version").value_or("");
}

void Module(const Host& host, Report* report) {
  if (GpuBusIds(host).empty() || !KernelModule(host).empty()) return;
  report->Warn("an NVIDIA GPU is here, and its kernel module is not loaded", "no GPU can be used",
               "install the driver, then: modprobe nvidia nvidia_uvm");
}

void GpuLibrary(const Host& host, Report* report) {
  if (KernelModule(host).empty() || !LibraryFiles(host, "libcuda.so.1").empty()) return;
  report->Warn("the NVIDIA kernel module is loaded, and there is no libcuda.so.1",
               "device tensors cannot be used in this process",
               "apt-get install libcuda1; in a container: docker run --gpus all");
}

// The file name of the library ends with the driver's version: libcuda.so.580.65.06.
void Versions(const Host& host, Report* report) {
  const std::string module = KernelModule(host);
  if (module.empty()) return;
  for (const std::string& file : LibraryFiles(host, "libcuda.so.1")) {
    const std::string target = host.LinkOf(file);
    const std::vector<std::string> parts = absl::StrSplit(target, absl::MaxSplits(".so.", 1));
    if (parts.size() != 2 || !absl::StrContains(parts[1], '.') ||
        absl::StrContains(module, parts[1])) {
      continue;
    }
    report->Fault(absl::StrCat(file, " is of driver ", parts[1],
                               ", and the kernel module of another version"),
                  "CUDA does not start (driver/library version mismatch)",
                  "reboot, or reload the module: rmmod nvidia_uvm nvidia && modprobe nvidia");
  }
}

void Stub(const Host& host, Report* report) {
  const std::vector<std::string> folders =
      absl::StrSplit(host.Variable("LD_LIBRARY_PATH"), ':', absl::SkipEmpty());
  for (const std::string& folder : folders) {
    if (!absl::EndsWith(folder, "/stubs") || !host.Exists(folder + "/libcuda.so.1")) continue;
    report->Fault(absl::StrCat("LD_LIBRARY_PATH leads to ", folder, "/libcuda.so.1"),
                  "that one is for linking and answers every call with an error",
                  "take the stubs folder out of LD_LIBRARY_PATH");
  }
}

void GpuPermission(const Host& host, Report* report) {
  for (const char* file : {"/dev/nvidiactl", "/dev/nvidia-uvm"}) {
    if (!host.Exists(file) || host.calls().may_read_and_write(host.Below(file))) continue;
    report->Warn(absl::StrCat(file, " may not be opened by this user"), "CUDA finds no device",
                 "chmod 666 the file, or add the user to its group (video)");
  }
}

void Hidden(const Host& host, Report* report) {
  const auto& environment = host.environment();
  const auto found = environment.find("CUDA_VISIBLE_DEVICES");
  if (GpuBusIds(host).empty() || found == environment.end()) return;
  if (!found->second.empty() && found->second != "-1") return;
  report->Note("CUDA_VISIBLE_DEVICES hides every GPU", "device tensors cannot be used",
               "unset CUDA_VISIBLE_DEVICES");
}

bool KernelHasDmaBuf(const Host& host) {
  const std::vector<std::string> parts =
      absl::StrSplit(host.Read("/proc/sys/kernel/osrelease").value_or(""), absl::MaxSplits('.', 2));
  int major = 0;
  int minor = 0;
  return parts.size() >= 2 && absl::SimpleAtoi(parts[0], &major) &&
         absl::SimpleAtoi(parts[1], &minor) && (major > 5 || (major == 5 && minor >= 12));
}

void DmaBuf(const Host& host, Report* report) {
  if (!HasGpuAndNic(host) || KernelModule(host).empty()) return;
  const bool open = absl::StrContains(KernelModule(host), "Open Kernel Module");
  if (open && KernelHasDmaBuf(host)) return;
  report->Note(open ? "the kernel is older than 5.12" : "NVIDIA's kernel module is the closed one",
               "GPU memory cannot be exported as a dma-buf; nvidia_peermem is the other way to the "
               "NIC",
               open ? "use a newer kernel" : "install the open kernel modules (nvidia-open)");
}

void PeerMemory(const Host& host, Report* report) {
  if (!HasGpuAndNic(host) || KernelModule(host).empty()) return;
  const bool dma_buf =
      absl::StrContains(KernelModule(host), "Open Kernel Module") && KernelHasDmaBuf(host);
  if (dma_buf || host.Exists("/sys/module/nvidia_peermem") ||
      host.Exists("/sys/module/nv_peer_mem")) {
    return;
  }
  report->Warn("neither dma-buf nor a peer-memory module joins the GPU and the NIC",
               "device tensors are staged through host memory", "modprobe nvidia_peermem");
}

// Reads BAR1, the second line of sysfs' "resource" file: "0xstart 0xend 0xflags".
uint64_t Bar1Bytes(const Host& host, const std::string& bus_id) {
  const std::vector<std::string> lines =
      absl::StrSplit(host.Read(absl::StrCat(kPci, "/", bus_id, "/resource")).value_or(""), '\n');
  if (lines.size() < 2) return 0;
  const std::vector<std::string> ends = absl::StrSplit(lines[1], ' ');
  uint64_t first = 0;
  uint64_t last = 0;
  if (ends.size() < 2 || !absl::SimpleHexAtoi(ends[0], &first) ||
      !absl::SimpleHexAtoi(ends[1], &last) || last <= first) {
    return 0;
  }
  return last - first + 1;
}

void Bar1(const Host& host, Report* report) {
  if (!HasGpuAndNic(host)) return;
  for (const std::string& gpu : GpuBusIds(host)) {
    const uint64_t bytes = Bar1Bytes(host, gpu);
    if (bytes == 0 || bytes > uint64_t{256} << 20) continue;
    report->Warn(absl::StrCat("GPU ", gpu, " shows ", BytesText(bytes), " of its memory (BAR1)"),
                 "a NIC reaches that much of it at a time; larger registrations fail",
                 "enable 'Above 4G decoding' and 'Resizable BAR' in the firmware");
  }
}

void Iommu(const Host& host, Report* report) {
  if (!HasGpuAndNic(host) || host.List("/sys/class/iommu").empty()) return;
  const std::string line = host.Read("/proc/cmdline").value_or("");
  if (absl::StrContains(line, "iommu=pt") || absl::StrContains(line, "iommu.passthrough=1") ||
      absl::StrContains(line, "iommu=off")) {
    return;
  }
  report->Warn("the IOMMU translates, and GPU and NIC are to reach each other",
               "peer-to-peer traffic is refused or goes through the CPU",
               "boot with iommu=pt (bare machines; virtual ones need ATS)");
}

void Distance(const Host& host, Report* report) {
  if (!HasGpuAndNic(host)) return;
  const PciTree tree(host.Below("/sys"));
  for (const std::string& gpu : GpuBusIds(host)) {
    PciDistance nearest = PciDistance::kUnknown;
    for (const std::string& nic : host.List("/sys/class/infiniband")) {
      nearest = std::min(nearest, tree.Distance(tree.PathOfBusId(gpu), tree.PathOfRdmaDevice(nic)));
    }
    if (nearest != PciDistance::kSystem && nearest != PciDistance::kNode) continue;
    report->Warn(absl::StrCat("GPU ", gpu, " has no near NIC: ", PciDistanceName(nearest)),
                 "their traffic crosses the CPUs' link at a fraction of the speed",
                 "use a GPU and a NIC below one PCIe switch: nvidia-smi topo -m shows them");
  }
}

// Tries every GPU with every NIC instead of guessing from files. It takes some hundred milliseconds
// for each GPU.
void Direct(const Host& host, Report* report) {
  if (!HasGpuAndNic(host)) return;
  const auto pairs = host.calls().prove_direct();
  if (!pairs.ok()) {
    report->Warn(absl::StrCat("no GPU could be tried with a NIC: ", pairs.status().message()),
                 "device tensors are staged through host memory", "see the reason");
    return;
  }
  for (const auto& pair : *pairs) {
    if (pair.direct) continue;
    report->Warn(pair.text, "between these two, device tensors are staged through host memory",
                 "see the reasons; ./run gdr-check tries them one by one");
  }
}

}  // namespace

std::vector<Check> GpuChecks() {
  return {{"gpu-module", Module},  {"gpu-library", GpuLibrary},       {"gpu-versions", Versions},
          {"gpu-stub", Stub},      {"gpu-permission", GpuPermission}, {"gpu-hidden", Hidden},
          {"gpu-dma-buf", DmaBuf}, {"gpu-peer-memory", PeerMemory},   {"gpu-bar1", Bar1},
          {"gpu-iommu", Iommu},    {"gpu-nic-distance", Distance},    {"gpu-direct", Direct}};
}

}  // namespace tryst
