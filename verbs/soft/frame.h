#ifndef TRYST_VERBS_SOFT_FRAME_H_
#define TRYST_VERBS_SOFT_FRAME_H_

#include <cstddef>
#include <cstdint>

namespace tryst {

// What travels on a connected socket: a header of fixed width, little-endian, and `bytes` of
// payload. A message larger than kMaxFrameBytes is a first frame and kFragments. The headers on the
// first socket also carry acknowledgements.
inline constexpr size_t kFrameHeaderBytes = 48;
inline constexpr uint32_t kMaxFrameBytes = 1 << 20;

enum class FrameType : uint8_t {
  kWrite = 1,     // address, remote_key: the destination. Begins a message of `total` bytes.
  kSend,          // Begins a message of `total` bytes for a posted receive.
  kRead,          // address, remote_key, total: the source. No payload.
  kFragment,      // address: the offset in message `sequence`.
  kReadResponse,  // address: the offset in the answer to `sequence`.
  kAck,           // Only a header, for its `executed` and `receives`.
  kError,         // immediate: a WireError, about request `sequence`. Nothing follows.
};

enum class WireError : uint32_t {
  kRemoteAccess = 1,
  kRemoteInvalidRequest,
  kRemoteOperation,
};

struct FrameHeader {
  FrameType type = FrameType::kAck;
  bool has_immediate = false;  // For kWrite.
  uint32_t sequence = 0;       // The request's that this is, or belongs to.
  uint32_t executed = 0;       // How many requests the sender has executed; wraps.
  uint32_t receives = 0;       // How many receives the sender has ever posted; wraps.
  uint32_t remote_key = 0;
  uint32_t immediate = 0;
  uint64_t address = 0;
  uint64_t total = 0;
  uint32_t bytes = 0;
};

// Whether the message that this frame begins uses up a posted receive.
inline bool ConsumesReceive(const FrameHeader& frame) {
  return frame.type == FrameType::kSend || frame.has_immediate;
}

void EncodeFrameHeader(const FrameHeader& header, uint8_t out[kFrameHeaderBytes]);

// False: EncodeFrameHeader() never writes these bytes for a consistent header. After true, the
// payload lies within the message.
[[nodiscard]] bool DecodeFrameHeader(const uint8_t in[kFrameHeaderBytes], FrameHeader* header);

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_FRAME_H_
