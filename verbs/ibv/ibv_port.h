#ifndef TRYST_VERBS_IBV_IBV_PORT_H_
#define TRYST_VERBS_IBV_IBV_PORT_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "verbs/ibv/gid_choice.h"
#include "verbs/ibv/ibv_calls.h"
#include "verbs/ibv/rdma_settings.h"
#include "verbs/nic.h"

namespace tryst {

// The present state of a port, with the address and MTU that we would use on it.
struct IbvPort {
  uint8_t number = 1;
  bool ethernet = false;
  bool global_route = false;  // Packets need a GID even within the subnet.
  PortState state = PortState::kDown;
  uint16_t lid = 0;
  uint32_t mtu_bytes = 0;
  uint32_t max_message_bytes = 0;
  uint64_t bits_per_second = 0;
  ChosenGid gid;
  // Why no queue pair can be made here: kUnavailable, or kInvalidArgument if `settings` ask for
  // what the port does not have.
  absl::Status usable;
  std::string description;  // "Ethernet, 25 Gb/s, MTU 4096, GID index 1, ...".
};

// Asks the port itself each time, because addresses come and go: after a flap a stale GID would
// break every later connection. Costs a few system calls.
IbvPort ProbePort(const IbvCalls& calls, ibv_context* context, uint8_t number,
                  const RdmaSettings& settings, const std::string& sysfs_root);

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_IBV_PORT_H_
