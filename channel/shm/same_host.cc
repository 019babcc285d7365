#include "channel/shm/same_host.h"

#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace tryst {

HostIdentity OwnHost() {
  HostIdentity host;
  std::ifstream boot_id("/proc/sys/kernel/random/boot_id");
  std::getline(boot_id, host.boot_id);
  struct stat space {};
  if (stat("/proc/self/ns/net", &space) == 0) host.network_space = space.st_ino;
  return host;
}

absl::Status CheckSameHost(const HostIdentity& ours, const HostIdentity& theirs) {
  if (ours.boot_id.empty() || theirs.boot_id.empty()) {
    return absl::UnimplementedError(
        "no memory is shared: /proc/sys/kernel/random/boot_id cannot be read, so it is not known "
        "whether both workers are on one host");
  }
  if (ours.boot_id != theirs.boot_id) {
    return absl::UnimplementedError(absl::StrCat("no memory is shared: another host (boot id ",
                                                 theirs.boot_id, ", here ", ours.boot_id, ")"));
  }
  if (ours.network_space != theirs.network_space) {
    return absl::UnimplementedError(
        absl::StrCat("no memory is shared: the same host, but another network namespace (net:[",
                     theirs.network_space, "], here net:[", ours.network_space,
                     "]): let the containers share one"));
  }
  return absl::OkStatus();
}

bool IsAnotherUser(int64_t user, int64_t ours) { return user != ours && user != 0; }

}  // namespace tryst
