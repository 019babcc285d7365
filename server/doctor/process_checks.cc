#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "server/doctor/checks.h"

namespace tryst {
namespace {

void Tasks(const Host& host, Report* report) {
  const auto limit = CgroupLeast(host, "pids", "pids.max");
  if (!limit || *limit >= 100) return;
  report->Warn(absl::StrCat("the cgroup allows ", *limit, " threads and processes"),
               "gRPC and the executors start some dozens; past the limit the process aborts",
               "raise pids.max (docker: --pids-limit)");
}

void CpuQuota(const Host& host, Report* report) {
  const auto text = host.Read(CgroupFolder(host, "cpu") + "/cpu.max");
  if (!text) return;
  const std::vector<std::string> words = absl::StrSplit(*text, ' ');
  double quota = 0;
  double period = 0;
  if (words.size() != 2 || !absl::SimpleAtod(words[0], &quota) ||
      !absl::SimpleAtod(words[1], &period) || quota >= period) {
    return;
  }
  report->Warn(absl::StrFormat("the cgroup allows %.2f of a CPU", quota / period),
               "a poller that spins uses it up and is then stopped for the rest of each period",
               "give it at least one CPU (docker: --cpus, Kubernetes: limits.cpu)");
}

void CpuThrottled(const Host& host, Report* report) {
  const std::string file = CgroupFolder(host, "cpu") + "/cpu.stat";
  int64_t periods = 0;
  int64_t throttled = 0;
  if (!absl::SimpleAtoi(host.ReadField(file, "nr_periods").value_or(""), &periods) ||
      !absl::SimpleAtoi(host.ReadField(file, "nr_throttled").value_or(""), &throttled) ||
      periods < 100 || throttled * 10 < periods) {
    return;
  }
  report->Warn(absl::StrCat("the cgroup was stopped in ", throttled, " of ", periods, " periods"),
               "each stop looks like a silent peer to the others",
               "raise or remove the CPU limit of the container");
}

void CpuCount(const Host& host, Report* report) {
  if (host.calls().usable_cpus() > 1) return;
  report->Note("one CPU is usable",
               "the poller and the program take turns: it sleeps instead of spinning",
               "give the process a second CPU (taskset -p, docker: --cpuset-cpus)");
}

void Seccomp(const Host& host, Report* report) {
  if (host.ReadField("/proc/self/status", "Seccomp") != "2") return;
  report->Note(
      "a seccomp filter is on",
      "it may refuse process_vm_readv, by which a tensor of another process is copied once "
      "instead of twice",
      "docker: --cap-add=SYS_PTRACE, or a profile that allows process_vm_readv");
}

void ClockSource(const Host& host, Report* report) {
  const auto source = host.Read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  if (!source || (*source != "hpet" && *source != "acpi_pm" && *source != "jiffies")) return;
  report->Warn(absl::StrCat("the clock source is ", *source),
               "every look at the clock is a system call of a microsecond or more",
               "find out why the TSC was given up: dmesg | grep -i clocksource");
}

void ClockSet(const Host& host, Report* report) {
  const bool tokens = !host.config().token_file.empty() || !host.config().certificate_file.empty();
  if (host.calls().clock_is_synchronised()) return;
  report->Note("no time service keeps this clock set",
               tokens ? "token calls are refused when clocks differ by more than a minute, and "
                        "certificates may seem expired"
                      : "traces of two machines do not line up by their clocks alone",
               "systemctl enable --now chrony (or systemd-timesyncd)");
}

void Governor(const Host& host, Report* report) {
  if (host.Read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") != "powersave" ||
      host.Read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver") == "intel_pstate") {
    return;  // The "powersave" governor of intel_pstate follows the load.
  }
  report->Warn("the CPU governor is powersave", "the CPU stays at its lowest frequency",
               "cpupower frequency-set -g performance");
}

void Crc32c(const Host& host, Report* report) {
  if (host.calls().has_crc32c_instruction()) return;
  report->Warn(
      "this CPU has no CRC32C instruction", "digests cost more than the copy they guard",
      "use another machine, or set certificates or a token: what is encrypted has no digests");
}

}  // namespace

std::vector<Check> ProcessChecks() {
  return {{"tasks", Tasks},        {"cpu-quota", CpuQuota},    {"cpu-throttled", CpuThrottled},
          {"cpu-count", CpuCount}, {"seccomp", Seccomp},       {"clock-source", ClockSource},
          {"clock-set", ClockSet}, {"cpu-governor", Governor}, {"crc32c", Crc32c}};
}

}  // namespace tryst
