#include "verbs/ibv/peer_memory.h"

#include <unistd.h>

namespace tryst {

bool HasPeerMemoryModule(const std::string& sysfs_root) {
  for (const char* name :
       {"/module/nvidia_peermem/version", "/kernel/mm/memory_peers/nv_mem/version",
        "/kernel/mm/memory_peers/nv_mem_nc/version"}) {
    if (access((sysfs_root + name).c_str(), F_OK) == 0) return true;
  }
  return false;
}

}  // namespace tryst
