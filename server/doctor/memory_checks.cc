#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/doctor/checks.h"

namespace tryst {
namespace {

// The soft limit on a line like "Max locked memory  65536  65536  bytes"; nothing for "unlimited".
absl::optional<uint64_t> SoftLimit(const Host& host, const std::string& name) {
  const auto line = host.ReadField("/proc/self/limits", name);
  uint64_t limit = 0;
  if (!line) return absl::nullopt;
  const std::string first = std::string(line->substr(0, line->find(' ')));
  if (!absl::SimpleAtoi(first, &limit)) return absl::nullopt;
  return limit;
}

uint64_t MeminfoBytes(const Host& host, const std::string& name) {
  const auto field = host.ReadField("/proc/meminfo", name);
  uint64_t kibibytes = 0;
  if (!field || !absl::SimpleAtoi(field->substr(0, field->find(' ')), &kibibytes)) return 0;
  return kibibytes << 10;
}

void LockedMemory(const Host& host, Report* report) {
  const auto limit = SoftLimit(host, "Max locked memory");
  const bool devices = !host.List("/sys/class/infiniband").empty();
  if (!devices || !limit || *limit >= host.config().landing_bytes) return;
  report->Warn(absl::StrCat("RLIMIT_MEMLOCK is ", BytesText(*limit), ", and landing_bytes ",
                            BytesText(host.config().landing_bytes)),
               "memory cannot be registered with the RDMA device past the limit",
               "ulimit -l unlimited; systemd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1");
}

void CgroupMemory(const Host& host, Report* report) {
  auto limit = CgroupLeast(host, "memory", "memory.max");
  if (!limit) limit = CgroupLeast(host, "memory", "memory.limit_in_bytes");
  const ServerConfig& config = host.config();
  const uint64_t wanted = config.landing_bytes + config.max_kept_bytes + config.max_held_bytes;
  if (!limit || static_cast<uint64_t>(*limit) >= wanted) return;
  report->Warn(
      absl::StrCat("the cgroup allows ", BytesText(static_cast<uint64_t>(*limit)),
                   ", and landing_bytes + max_kept_bytes + max_held_bytes are ", BytesText(wanted)),
      "the kernel kills the process before its own limits push back",
      "raise memory.max (docker: --memory), or lower those settings");
}

void FreeMemory(const Host& host, Report* report) {
  const uint64_t free = MeminfoBytes(host, "MemAvailable");
  if (free == 0 || free >= host.config().landing_bytes) return;
  report->Warn(absl::StrCat(BytesText(free), " of memory are available, and landing_bytes ",
                            BytesText(host.config().landing_bytes)),
               "the machine will swap, or the kernel will kill a process",
               "end what takes the memory (ps aux --sort -rss | head), or lower landing_bytes");
}

void SharedMemoryMissing(const Host& host, Report* report) {
  if (host.Exists("/dev/shm")) return;
  report->Warn("/dev/shm is not there",
               "other libraries on this machine (MPI, NCCL) fail without it; ours does not need it",
               "mount -t tmpfs tmpfs /dev/shm");
}

void SharedMemorySize(const Host& host, Report* report) {
  if (!host.Exists("/dev/shm")) return;
  const auto bytes = host.calls().file_system_bytes(host.Below("/dev/shm"));
  if (!bytes.ok() || *bytes >= uint64_t{1} << 30) return;
  report->Note(absl::StrCat("/dev/shm holds ", BytesText(*bytes)),
               "NCCL and MPI run out of it; Tryst's own shared memory is anonymous and counts "
               "against the cgroup instead",
               "docker: --shm-size=8g; Kubernetes: an emptyDir of medium Memory on /dev/shm");
}

void HugePages(const Host& host, Report* report) {
  const auto shared = host.Read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const auto reserved = host.ReadNumber("/proc/sys/vm/nr_hugepages");
  if (!shared || !(absl::StrContains(*shared, "[never]") || absl::StrContains(*shared, "[deny]")) ||
      reserved.value_or(0) > 0) {
    return;
  }
  report->Note("no huge pages for shared memory",
               "first touches of large shared tensors cost a fault for each 4 KiB",
               "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
}

void Overcommit(const Host& host, Report* report) {
  if (host.ReadNumber("/proc/sys/vm/overcommit_memory") != 2) return;
  report->Warn(
      "vm.overcommit_memory is 2",
      "the kernel counts address space that is reserved and not used, and refuses large arenas",
      "sysctl vm.overcommit_memory=0");
}

void MapCount(const Host& host, Report* report) {
  const auto limit = host.ReadNumber("/proc/sys/vm/max_map_count");
  if (!limit || *limit >= 65530) return;
  report->Warn(absl::StrCat("vm.max_map_count is ", *limit),
               "each peer's shared memory and each large tensor is a mapping",
               "sysctl vm.max_map_count=262144");
}

void NumaBalancing(const Host& host, Report* report) {
  const bool several = host.Exists("/sys/devices/system/node/node1");
  if (!several || host.ReadNumber("/proc/sys/kernel/numa_balancing").value_or(0) == 0) return;
  report->Note("kernel.numa_balancing is on",
               "pages are unmapped to see who uses them, which shows as latency",
               "bind the process to a node (numactl -N) and: sysctl kernel.numa_balancing=0");
}

void OpenFiles(const Host& host, Report* report) {
  const auto limit = SoftLimit(host, "Max open files");
  if (!limit || *limit >= 1024) return;
  report->Warn(absl::StrCat("RLIMIT_NOFILE is ", *limit),
               "each peer takes a handful of descriptors",
               "ulimit -n 65536; systemd: LimitNOFILE=65536");
}

}  // namespace

std::vector<Check> MemoryChecks() {
  return {{"locked-memory", LockedMemory},
          {"cgroup-memory", CgroupMemory},
          {"free-memory", FreeMemory},
          {"shared-memory-missing", SharedMemoryMissing},
          {"shared-memory-size", SharedMemorySize},
          {"huge-pages", HugePages},
          {"overcommit", Overcommit},
          {"map-count", MapCount},
          {"numa-balancing", NumaBalancing},
          {"open-files", OpenFiles}};
}

}  // namespace tryst
