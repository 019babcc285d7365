#ifndef TRYST_VERBS_OFI_OFI_FRAME_H_
#define TRYST_VERBS_OFI_OFI_FRAME_H_

#include <cstddef>
#include <cstdint>

namespace tryst {

// What queue pairs send each other besides writes and reads: greetings, sends cut into parts, and
// immediates without bytes. Little-endian, and validated, because anybody may send one.
//
//   0 magic  4 kind  5 flags  6 zero (2)  8 payload bytes  12 immediate  16 sender's token
//   24 bytes of the whole send
enum class OfiFrameKind : uint8_t {
  kHello = 1,      // Payload: the receiver's token, which proves that the sender was told it.
  kSend = 2,       // A part of a send.
  kImmediate = 3,  // A write with immediate and no bytes.
  kBye = 4,        // The sender's queue pair is broken or gone.
};

enum OfiFrameFlags : uint8_t {
  kOfiFirst = 1,
  kOfiLast = 2,
};

struct OfiFrame {
  OfiFrameKind kind = OfiFrameKind::kHello;
  uint8_t flags = 0;
  uint32_t payload_bytes = 0;
  uint32_t immediate = 0;
  uint64_t token = 0;
  uint64_t total_bytes = 0;
};

inline constexpr size_t kOfiFrameHeaderBytes = 32;
inline constexpr size_t kOfiFrameBytes = 4096;
inline constexpr size_t kOfiFramePayloadBytes = kOfiFrameBytes - kOfiFrameHeaderBytes;

void EncodeOfiFrame(const OfiFrame& frame, uint8_t* out);
// False: it is not a frame, or not a complete one.
bool DecodeOfiFrame(const uint8_t* in, size_t bytes, OfiFrame* out);

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_FRAME_H_
