#ifndef TRYST_CHANNEL_SHM_SHM_OPTIONS_H_
#define TRYST_CHANNEL_SHM_SHM_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "base/crew.h"
#include "channel/ops/session_options.h"
#include "channel/shm/wire.h"

namespace tryst {

inline constexpr char kShmPath[] = "shm";  // As in Hello.

// What holds for the links of shared memory, at either end.
struct ShmOptions : SessionOptions {
  shm_wire::LinkSizes sizes;
  bool digests = false;    // Off, because there is no wire that could change a bit.
  bool allow_pull = true;  // Whether process_vm_readv may be used, in both directions.
  // A consumer gets only copies, in memory of its own link, because in our segments it could read
  // tensors that are for others. A process of another user is always treated so.
  bool apart = false;
  uint64_t stage_bytes = 512 << 20;  // How much of the arena may hold copies for one consumer.
  // Tensors for the caller's memory are sent in parts or read from our memory by the consumer,
  // whichever the link has measured to be faster (docs/decisions/0024-large-copies.md). Where
  // parts_bytes is more than pull_bytes, those between the two are read and the others go in parts,
  // unless helpers take part.
  uint64_t pull_bytes = 64 << 10;
  uint64_t parts_bytes = 64 << 10;
  uint64_t parts_room_bytes = 2 << 20;  // For parts on their way to one consumer.
  // How long a consumer waits for the welcome, after the producer's answer to its hello.
  int64_t join_timeout_ms = 5000;
  std::shared_ptr<Crew> crew;  // Helps with large copies. Null: nobody does.
  // For tests: called when a tensor was read out of the producer's memory, before the loan is
  // looked at.
  std::function<void()> before_check;
  // Likewise: whether the kernel forbids a read of the producer's memory from now on.
  std::function<bool()> forbids_read;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SHM_OPTIONS_H_
