#ifndef TRYST_CHANNEL_SHM_SAME_HOST_H_
#define TRYST_CHANNEL_SHM_SAME_HOST_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tryst {

// What two processes compare before they try to share memory. Equal is not proof: that is
// a descriptor that arrived and a number found in the memory behind it.
struct HostIdentity {
  std::string boot_id;         // Of the running kernel: containers of one host have one.
  uint64_t network_space = 0;  // Names of abstract sockets reach no further.
};

// Of this process. Empty where /proc does not say.
HostIdentity OwnHost();

// kUnimplemented, with the reason, unless sharing memory is worth a try.
absl::Status CheckSameHost(const HostIdentity& ours, const HostIdentity& theirs);

// Whether a process of `user` (-1: not known) is another's than ours, and not the system's own: who
// runs as we do can read our memory anyway, and so can root.
bool IsAnotherUser(int64_t user, int64_t ours);

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SAME_HOST_H_
