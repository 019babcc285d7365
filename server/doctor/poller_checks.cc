#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/doctor/checks.h"
#include "server/pollers.h"

namespace tryst {
namespace {

void Pollers(const Host& host, Report* report) {
  const ServerConfig& config = host.config();
  const int cpus = host.calls().usable_cpus();
  const int count = PollerCount(config, cpus);
  const auto pinned = PollerCpus(config.poller_cpus);
  if (pinned.ok() && !pinned->empty() && static_cast<int>(pinned->size()) < count) {
    report->Warn(
        absl::StrCat("poller_cpus names ", pinned->size(), " processors for ", count, " pollers"),
        "pollers that share a processor keep each other waiting",
        "name one for each, or set pollers to as many");
  }
  if (config.pollers > count) {
    report->Warn(absl::StrCat("pollers is ", config.pollers, ", and ", count, " will run"),
                 config.gpus.empty() ? absl::StrCat("the process may use ", cpus, " processors")
                                     : std::string("device tensors are one poller's"),
                 config.gpus.empty()
                     ? "give it more (taskset -p, docker: --cpuset-cpus), or lower it"
                     : "leave pollers at 0 where gpus is set");
  } else if (config.pollers == 1 && cpus >= 8 && config.gpus.empty()) {
    report->Note(absl::StrCat("pollers is 1, and ", cpus, " processors are usable"),
                 "all that is between this worker and its peers is moved by one of them",
                 absl::StrCat("set pollers to 0: that starts ", PollerCount(ServerConfig(), cpus)));
  }
}

void Helpers(const Host& host, Report* report) {
  const ServerConfig& config = host.config();
  const int cpus = host.calls().usable_cpus();
  const int fitting = HelperCount(ServerConfig(), cpus);
  if (config.helpers > cpus) {
    report->Warn(
        absl::StrCat("helpers is ", config.helpers, ", and ", cpus, " processors are usable"),
        "helpers that share a processor with a poller keep it waiting",
        absl::StrCat("set helpers to -1: that is ", fitting));
  } else if (config.helpers == 0 && cpus >= 8) {
    report->Note(absl::StrCat("helpers is 0, and ", cpus, " processors are usable"),
                 "one thread at each end moves what one peer sends, however large it is",
                 absl::StrCat("set helpers to -1: that is ", fitting));
  }
}

// The folders in sysfs of the devices whose memory and completions the pollers touch.
std::vector<std::string> DeviceFolders(const Host& host) {
  std::vector<std::string> folders;
  for (const std::string& nic : host.List("/sys/class/infiniband")) {
    folders.push_back(absl::StrCat("/sys/class/infiniband/", nic, "/device"));
  }
  if (host.config().gpus.empty()) return folders;
  for (const std::string& gpu : GpuBusIds(host)) {
    folders.push_back(absl::StrCat("/sys/bus/pci/devices/", gpu));
  }
  return folders;
}

// The processors on the NUMA nodes of those devices, as the kernel lists them: "0-7,16-23".
std::string NearCpus(const Host& host) {
  std::vector<std::string> lists;
  for (const std::string& folder : DeviceFolders(host)) {
    const int64_t node = host.ReadNumber(folder + "/numa_node").value_or(-1);
    if (node < 0) continue;
    const auto list = host.Read(absl::StrCat("/sys/devices/system/node/node", node, "/cpulist"));
    if (list && std::count(lists.begin(), lists.end(), *list) == 0) lists.push_back(*list);
  }
  return absl::StrJoin(lists, ",");
}

void PollerNuma(const Host& host, Report* report) {
  if (!host.Exists("/sys/devices/system/node/node1")) return;
  const std::string nearest = NearCpus(host);
  const auto near = PollerCpus(nearest);
  const auto pinned = PollerCpus(host.config().poller_cpus);
  if (!near.ok() || near->empty() || !pinned.ok()) return;
  const std::string action = absl::StrCat("choose poller_cpus from ", nearest);
  const std::string means = "each completion and each copy crosses from one NUMA node to another";
  if (pinned->empty()) {
    report->Note("poller_cpus is empty on a machine of several NUMA nodes",
                 "where the system puts a poller far from the NIC or GPU, " + means, action);
    return;
  }
  std::vector<int> far;
  for (const int cpu : *pinned) {
    if (std::count(near->begin(), near->end(), cpu) == 0) far.push_back(cpu);
  }
  if (far.empty()) return;
  report->Warn(absl::StrCat("poller_cpus names ", absl::StrJoin(far, ","),
                            ", on another NUMA node than the NIC or GPU"),
               means, action);
}

}  // namespace

std::vector<Check> PollerChecks() {
  return {{"pollers", Pollers}, {"helpers", Helpers}, {"poller-numa", PollerNuma}};
}

}  // namespace tryst
