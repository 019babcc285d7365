#include <fcntl.h>
#include <netdb.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "channel/device/gdr_check.h"
#include "server/config/pollers.h"
#include "server/doctor/host.h"
#include "server/security/free_with.h"

namespace tryst {
namespace {

absl::Status ErrnoStatus(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

using Addresses = std::unique_ptr<addrinfo, FreeWith<freeaddrinfo>>;

Addresses LookUp(const std::string& host, const std::string& port, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.empty() ? nullptr : host.c_str(), port.empty() ? nullptr : port.c_str(),
                  &hints, &list) != 0) {
    return nullptr;
  }
  return Addresses(list);
}

absl::Status TryListen(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return absl::InvalidArgumentError("the address is not host:port");
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[') host = host.substr(1, host.size() - 2);
  const Addresses found = LookUp(host, address.substr(colon + 1), AI_PASSIVE | AI_NUMERICSERV);
  if (found == nullptr)
    return absl::NotFoundError(absl::StrCat("the host name ", host, " leads to no address"));
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoStatus("socket");
  const int on = 1;  // gRPC sets it, too, so a port in TIME_WAIT counts as free.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  absl::Status status = absl::OkStatus();
  if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1) != 0) {
    status = ErrnoStatus("bind");
  }
  close(fd);
  return status;
}

std::vector<std::string> Resolve(const std::string& name) {
  std::vector<std::string> out;
  const Addresses found = LookUp(name, "", 0);
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) ==
        0) {
      out.emplace_back(text);
    }
  }
  return out;
}

absl::Status SealMemory() {
  const int fd = memfd_create("tryst-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return ErrnoStatus("memfd_create");
  absl::Status status = absl::OkStatus();
  if (ftruncate(fd, 4096) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    status = ErrnoStatus("fcntl(F_ADD_SEALS)");
  }
  close(fd);
  return status;
}

absl::Status BeRead() {
  static const int known = 0x5ad;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus("fork");
  if (child == 0) {  // Yama lets a parent read its child, and not the other way around.
    int seen = 0;
    const iovec here = {&seen, sizeof(seen)};
    const iovec there = {const_cast<int*>(&known), sizeof(known)};
    const bool read = process_vm_readv(parent, &here, 1, &there, 1, 0) == sizeof(seen);
    _exit(read && seen == known ? 0 : errno);
  }
  int ended = 0;
  if (waitpid(child, &ended, 0) != child) return ErrnoStatus("waitpid");
  errno = WIFEXITED(ended) ? WEXITSTATUS(ended) : ENOSYS;  // Some profiles kill.
  return errno == 0 ? absl::OkStatus() : ErrnoStatus("process_vm_readv");
}

bool ClockIsSynchronised() {
  timex state = {};
  return adjtimex(&state) != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

bool HasCrc32cInstruction() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("sse4.2") != 0;
#else
  return true;  // Every Arm server that runs 64-bit Linux has it.
#endif
}

absl::StatusOr<std::vector<HostCalls::DirectPair>> ProveDirect() {
  GdrCheckOptions options;
  options.measure = false;
  auto findings = CheckGdr(options);
  if (!findings.ok()) return findings.status();
  std::vector<HostCalls::DirectPair> pairs;
  for (const GdrFinding& finding : *findings) {
    pairs.push_back({finding.reach.ToText(), finding.reach.way != DirectWay::kStaging});
  }
  return pairs;
}

}  // namespace

HostCalls RealHostCalls() {
  HostCalls calls;
  calls.file_system_bytes = [](const std::string& path) -> absl::StatusOr<uint64_t> {
    struct statvfs space = {};
    if (statvfs(path.c_str(), &space) != 0) return ErrnoStatus(path);
    return uint64_t{space.f_blocks} * space.f_frsize;
  };
  calls.may_read_and_write = [](const std::string& path) {
    return access(path.c_str(), R_OK | W_OK) == 0;
  };
  calls.mode = [](const std::string& path) -> absl::StatusOr<uint32_t> {
    struct stat found = {};
    if (stat(path.c_str(), &found) != 0) return ErrnoStatus(path);
    return found.st_mode & 07777;
  };
  calls.clock_is_synchronised = ClockIsSynchronised;
  calls.usable_cpus = UsableCpus;
  calls.has_crc32c_instruction = HasCrc32cInstruction;
  calls.seal_memory = SealMemory;
  calls.be_read = BeRead;
  calls.prove_direct = ProveDirect;
  calls.try_listen = TryListen;
  calls.host_name = HostName;
  calls.resolve = Resolve;
  calls.now = [] { return absl::Now(); };
  return calls;
}

}  // namespace tryst
