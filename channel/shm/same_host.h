#ifndef TRYST_CHANNEL_SHM_SAME_HOST_H_
#define TRYST_CHANNEL_SHM_SAME_HOST_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tryst {

// What two processes compare before they try to share memory. Equality is not proof. The proof is a
// descriptor that arrives, and a number in the memory behind it.
struct HostIdentity {
  std::string boot_id;         // The running kernel's; all containers of a host have the same.
  uint64_t network_space = 0;  // The namespace of abstract socket names.
};

// The identity of this process. Empty where /proc does not show it.
HostIdentity OwnHost();

// kUnimplemented, with the reason: they cannot share memory, so do not try.
absl::Status CheckSameHost(const HostIdentity& ours, const HostIdentity& theirs);

// Whether `user` (-1: unknown) is neither our user nor root. A process of our user or of root can
// read our memory anyway.
bool IsAnotherUser(int64_t user, int64_t ours);

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SAME_HOST_H_
