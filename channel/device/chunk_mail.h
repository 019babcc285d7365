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

// How descriptors of memory chunks get from one process of a host to another, beside a channel
// that carries bytes only. Who wants them opens a mailbox and says its name and its token over
// the channel; who has them puts them in, and only then answers. Nothing here ever waits.
namespace tryst {

// How many are asked for at once: a process has a limited number of descriptors, and so has the
// kernel of those on their way.
inline constexpr uint32_t kChunksPerMail = 256;

class ChunkMailbox {
 public:
  // kUnavailable: no socket.
  static absl::StatusOr<std::unique_ptr<ChunkMailbox>> Open();
  const std::string& name() const { return name_; }    // Everybody of the host can see it.
  const std::string& token() const { return token_; }  // Hex; for the sender alone.

  // Appends what was put in: chunks of `layout` that follow those in `chunks`. What strangers
  // put in is passed over. kUnavailable: nothing of ours is there.
  absl::Status Collect(uint64_t layout, std::vector<OfferedChunk>* chunks);

 private:
  ChunkMailbox(OwnedFd listening, std::string name, std::string token)
      : listening_(std::move(listening)), name_(std::move(name)), token_(std::move(token)) {}

  const OwnedFd listening_;
  const std::string name_;
  const std::string token_;
};

// Puts `chunks`, those of `layout` from number `first` on, into a mailbox. kUnimplemented: there is
// none of the name in our network namespace, or it is another user's.
// REQUIRES: at most kChunksPerMail.
absl::Status SendChunks(const std::string& name, const std::string& token, uint64_t layout,
                        uint64_t first, absl::Span<const OfferedChunk> chunks);

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_CHUNK_MAIL_H_
