#ifndef TRYST_CHANNEL_DEVICE_CHUNK_MAIL_H_
#define TRYST_CHANNEL_DEVICE_CHUNK_MAIL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "channel/arena/shared_memory.h"
#include "gpu/chunks.h"

// Passes descriptors of memory chunks from one process of a host to another, because a channel
// carries bytes only. The reader opens a mailbox and sends its name and token over the channel. The
// owner puts the descriptors in before it answers. Nothing here ever waits.
namespace tryst {

// How many descriptors one request asks for. A process may have only a limited number of them, and
// so may sockets under way.
inline constexpr uint32_t kChunksPerMail = 256;

class ChunkMailbox {
 public:
  // kUnavailable: no socket.
  static absl::StatusOr<std::unique_ptr<ChunkMailbox>> Open();
  const std::string& name() const { return name_; }    // Everybody of the host can see it.
  const std::string& token() const { return token_; }  // Hex; for the sender alone.

  // Appends what is in the mailbox: the chunks of `layout` that follow those in `chunks`. Ignores
  // what strangers put in. kUnavailable: no such chunk is in it.
  absl::Status Collect(uint64_t layout, std::vector<OfferedChunk>* chunks);

 private:
  ChunkMailbox(OwnedFd listening, std::string name, std::string token)
      : listening_(std::move(listening)), name_(std::move(name)), token_(std::move(token)) {}

  const OwnedFd listening_;
  const std::string name_;
  const std::string token_;
};

// Puts `chunks`, which are those of `layout` from number `first` on, into a mailbox.
// kUnimplemented: our network namespace has no mailbox of that name, or it is another user's.
// REQUIRES: at most kChunksPerMail.
absl::Status SendChunks(const std::string& name, const std::string& token, uint64_t layout,
                        uint64_t first, absl::Span<const OfferedChunk> chunks);

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_CHUNK_MAIL_H_
