#include "channel/shm/peer_memory.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace tryst {

std::unique_ptr<PeerMemory> PeerMemory::Probe(pid_t pid, uint64_t address, const uint8_t* probe,
                                              uint64_t probe_bytes) {
  std::unique_ptr<PeerMemory> peer(new PeerMemory());
  if (pid == 0) {
    peer->status_ = absl::UnimplementedError(
        "the producer's memory cannot be read in place: it is in another pid namespace");
    return peer;
  }
  peer->pid_ = pid;
  peer->process_ = OwnedFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!peer->process_.valid()) {
    peer->status_ = absl::UnimplementedError(absl::StrCat(
        "the producer's memory cannot be read in place: pidfd_open: ", strerror(errno)));
    return peer;
  }
  std::vector<uint8_t> seen(probe_bytes);
  peer->status_ = peer->Read(address, seen.data(), probe_bytes);
  if (peer->status_.ok() && memcmp(seen.data(), probe, probe_bytes) != 0) {
    peer->status_ = absl::UnimplementedError(
        "the producer's memory cannot be read in place: its process number is another process's "
        "here, so it is in another pid namespace");
  }
  return peer;
}

bool PeerMemory::Gone() const {
  pollfd wait{process_.get(), POLLIN, 0};
  return poll(&wait, 1, 0) != 0;
}

absl::Status PeerMemory::Read(uint64_t address, void* to, uint64_t bytes) const {
  uint64_t done = 0;
  while (done < bytes) {
    iovec ours{static_cast<uint8_t*>(to) + done, bytes - done};
    iovec theirs{reinterpret_cast<void*>(address + done), bytes - done};
    const ssize_t got = process_vm_readv(pid_, &ours, 1, &theirs, 1, 0);
    if (got <= 0) {
      if (got < 0 && errno == EINTR) continue;
      if (Gone()) break;
      return absl::PermissionDeniedError(
          absl::StrCat("the producer's memory cannot be read in place: process_vm_readv: ",
                       got < 0 ? strerror(errno) : "it read nothing"));
    }
    done += static_cast<uint64_t>(got);
  }
  // Checked after the last byte: if the process had ended before, its number could belong to
  // another.
  if (Gone()) return absl::UnavailableError("the producer's process has ended");
  return absl::OkStatus();
}

}  // namespace tryst
