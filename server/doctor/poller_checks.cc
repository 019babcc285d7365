#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/config/pollers.h"
#include "server/doctor/checks.h"

namespace tryst {
namespace {

void Pollers(const Host& host, Report* report) {
  const ServerConfig& config = host.config();
  const int cpus = host.calls().usable_cpus();
  const int count = PollerCount(config, cpus);
  const auto plan = PollerPlan::Parse(config.pollers);
  if (!plan.ok()) return;  // The check of limits says so.
  if (plan->count > count) {
    report->Warn(absl::StrCat("pollers asks for ", plan->count, ", and ", count, " will run"),
                 config.gpus.empty() ? absl::StrCat("the process may use ", cpus, " processors")
                                     : std::string("one poller moves all device tensors"),
                 config.gpus.empty()
                     ? "give it more (taskset -p, docker: --cpuset-cpus), or lower it"
                     : "leave pollers at auto where gpus is set");
  } else if (plan->count == 1 && cpus >= 8 && config.gpus.empty()) {
    report->Note(absl::StrCat("pollers is 1, and ", cpus, " processors are usable"),
                 "one processor moves everything between this worker and its peers",
                 absl::StrCat("pollers=auto starts ", PollerCount(ServerConfig(), cpus)));
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
  const auto near = ParseCpus(nearest);
  const auto plan = PollerPlan::Parse(host.config().pollers);
  if (!near.ok() || near->empty() || !plan.ok()) return;
  const std::string action = absl::StrCat("set pollers=cpus:LIST, with processors of ", nearest);
  const std::string means = "each completion and each copy crosses from one NUMA node to another";
  if (plan->cpus.empty()) {
    report->Note("pollers are not bound to processors, on a machine of several NUMA nodes",
                 "where the system puts a poller far from the NIC or GPU, " + means, action);
    return;
  }
  std::vector<int> far;
  for (const int cpu : plan->cpus) {
    if (std::count(near->begin(), near->end(), cpu) == 0) far.push_back(cpu);
  }
  if (far.empty()) return;
  report->Warn(absl::StrCat("pollers names ", absl::StrJoin(far, ","),
                            ", on another NUMA node than the NIC or GPU"),
               means, action);
}

}  // namespace

std::vector<Check> PollerChecks() { return {{"pollers", Pollers}, {"poller-numa", PollerNuma}}; }

}  // namespace tryst
