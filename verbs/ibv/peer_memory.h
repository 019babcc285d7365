#ifndef TRYST_VERBS_IBV_PEER_MEMORY_H_
#define TRYST_VERBS_IBV_PEER_MEMORY_H_

#include <string>

namespace tryst {

// Whether the kernel module is loaded, under any of its names, that makes ibv_reg_mr() take device
// pointers.
bool HasPeerMemoryModule(const std::string& sysfs_root = "/sys");

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_PEER_MEMORY_H_
