#ifndef TRYST_CHANNEL_SHM_PEER_MEMORY_H_
#define TRYST_CHANNEL_SHM_PEER_MEMORY_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "channel/arena/shared_memory.h"

namespace tryst {

// The private memory of another process of ours, read with process_vm_readv: the one copy
// for bytes that lie in no shared segment. Whether the kernel permits it depends on users,
// namespaces and ptrace rules, so it is tried once on known bytes.
class PeerMemory {
 public:
  // Reads `probe_bytes` at `address` of `pid` and compares. Never null; ok() says whether
  // it works, and status() why not.
  static std::unique_ptr<PeerMemory> Probe(pid_t pid, uint64_t address, const uint8_t* probe,
                                           uint64_t probe_bytes);
  const absl::Status& status() const { return status_; }

  // kUnavailable: the process is gone, and what was read is worth nothing. kPermissionDenied:
  // not all of it could be read.
  absl::Status Read(uint64_t address, void* to, uint64_t bytes) const;

 private:
  PeerMemory() = default;
  bool Gone() const;

  pid_t pid_ = 0;
  OwnedFd process_;  // Keeps a number that the kernel used again from being taken for it.
  absl::Status status_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_PEER_MEMORY_H_
