#ifndef TRYST_CHANNEL_SHM_PEER_MEMORY_H_
#define TRYST_CHANNEL_SHM_PEER_MEMORY_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "channel/arena/shared_memory.h"

namespace tryst {

// The private memory of another of our processes, read with process_vm_readv: one copy for bytes
// that are in no shared segment. Users, namespaces and ptrace rules decide whether the kernel
// permits that, so it is first tried on known bytes.
class PeerMemory {
 public:
  // Reads `probe_bytes` at `address` of `pid` and compares. Never null: ok() tells whether it
  // works, and status() why not.
  static std::unique_ptr<PeerMemory> Probe(pid_t pid, uint64_t address, const uint8_t* probe,
                                           uint64_t probe_bytes);
  const absl::Status& status() const { return status_; }

  // kUnavailable: the process is gone, and what was read is invalid. kPermissionDenied: not all of
  // it could be read.
  absl::Status Read(uint64_t address, void* to, uint64_t bytes) const;

 private:
  PeerMemory() = default;
  bool Gone() const;

  pid_t pid_ = 0;
  // Detects that the process has ended, even if the kernel has reused its number.
  OwnedFd process_;
  absl::Status status_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_PEER_MEMORY_H_
