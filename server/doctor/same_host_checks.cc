#include <string>

#include "absl/strings/str_cat.h"
#include "server/doctor/checks.h"

namespace tryst {
namespace {

void PtraceScope(const Host& host, Report* report) {
  const auto scope = host.ReadNumber("/proc/sys/kernel/yama/ptrace_scope");
  if (scope.value_or(0) == 0) return;
  report->Note(absl::StrCat("kernel.yama.ptrace_scope is ", *scope),
               "one process may not read another's memory: tensors outside the shared arena are "
               "copied by their producer",
               "allocate tensors from the arena; or sysctl kernel.yama.ptrace_scope=0");
}

// The kernel's initial namespaces have fixed numbers (include/linux/proc_ns.h).
void Namespace(const Host& host, Report* report, const char* kind, uint32_t first,
               const char* means, const char* action) {
  const std::string link = host.LinkOf(absl::StrCat("/proc/self/ns/", kind));
  if (link.empty() || link == absl::StrCat(kind, ":[", first, "]")) return;
  report->Note(absl::StrCat("this process is in a ", kind, " namespace of its own"), means, action);
}

void PidNamespace(const Host& host, Report* report) {
  Namespace(host, report, "pid", 4026531836U,
            "a peer in another container cannot be read by process id, which costs one copy",
            "share it among the containers of one host (docker: --pid, Kubernetes: "
            "shareProcessNamespace)");
}

void UserNamespace(const Host& host, Report* report) {
  Namespace(host, report, "user", 4026531837U,
            "capabilities hold only inside it: locking memory and reading peers may be refused",
            "run the container without user remapping where that matters");
}

void BootId(const Host& host, Report* report) {
  if (host.Exists("/proc/sys/kernel/random/boot_id")) return;
  report->Warn("/proc/sys/kernel/random/boot_id cannot be read",
               "that two workers are on one host cannot be proved: they use the network",
               "mount /proc in the container");
}

void SealedMemory(const Host& host, Report* report) {
  const absl::Status sealed = host.calls().seal_memory();
  if (sealed.ok()) return;
  report->Warn(absl::StrCat("anonymous shared memory cannot be made: ", sealed.message()),
               "workers of one host use the network",
               "allow memfd_create (a seccomp profile or a kernel before 3.17 refuses it)");
}

void Grants(const Host& host, Report* report) {
  if (!UsesGrants(host.config())) return;
  const absl::Status read = host.calls().be_read();
  if (read.ok()) return;
  report->Note(absl::StrCat("no process may read another one's memory: ", read.message()),
               "a small fetch from a region of this host wakes its owner, for some 30 us more",
               "allow process_vm_readv where such fetches matter (docker: --cap-add=SYS_PTRACE; "
               "sysctl kernel.yama.ptrace_scope=0)");
}

}  // namespace

std::vector<Check> SameHostChecks() {
  return {{"ptrace-scope", PtraceScope},     {"pid-namespace", PidNamespace},
          {"user-namespace", UserNamespace}, {"boot-id", BootId},
          {"sealed-memory", SealedMemory},   {"region-grants", Grants}};
}

}  // namespace tryst
