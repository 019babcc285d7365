#ifndef TRYST_TESTS_HARDWARE_GUEST_RDMA_END_H_
#define TRYST_TESTS_HARDWARE_GUEST_RDMA_END_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "verbs/nic.h"

namespace tryst {

// One end of a connection over a real device, for the guest lane's programs. Used by one thread.
struct RdmaEnd {
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  std::unique_ptr<Nic> nic;
  std::unique_ptr<char, Free> memory;  // Page-aligned and zero.
  size_t bytes = 0;
  std::unique_ptr<Region> region;
  std::unique_ptr<CompletionQueue> completions;
  std::unique_ptr<QueuePair> pair;
  // The peer's memory, after Meet().
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;

  // A write of `length` bytes from our memory at `offset` to the same place in the peer's. `entry`
  // must live as long as the work.
  SendWork Write(uint64_t id, size_t offset, size_t length, Entry* entry) const;
};

// Opens a device such as "rxe0", with `bytes` of memory that the peer may write, a completion
// queue, and a queue pair.
absl::StatusOr<RdmaEnd> OpenRdmaEnd(const std::string& device, size_t bytes,
                                    QueuePairOptions options);

// Exchanges addresses with the other process over a stream socket, and connects. When it returns,
// both are connected.
absl::Status Meet(int socket, RdmaEnd* end);

// Connects two ends of one process.
absl::Status Join(RdmaEnd* a, RdmaEnd* b);

}  // namespace tryst

#endif  // TRYST_TESTS_HARDWARE_GUEST_RDMA_END_H_
