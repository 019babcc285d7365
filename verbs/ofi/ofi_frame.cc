#include "verbs/ofi/ofi_frame.h"

#include <cstring>

namespace tryst {
namespace {

constexpr uint32_t kFrameMagic = 0x0146464f;  // "OFF", version 1.

// The machines that we run on are little-endian; golden bytes in the test say so.
template <typename Value>
void Put(uint8_t* out, size_t at, Value value) {
  memcpy(out + at, &value, sizeof(value));
}

template <typename Value>
Value Get(const uint8_t* in, size_t at) {
  Value value;
  memcpy(&value, in + at, sizeof(value));
  return value;
}

}  // namespace

void EncodeOfiFrame(const OfiFrame& frame, uint8_t* out) {
  Put(out, 0, kFrameMagic);
  Put(out, 4, static_cast<uint8_t>(frame.kind));
  Put(out, 5, frame.flags);
  Put(out, 6, uint16_t{0});
  Put(out, 8, frame.payload_bytes);
  Put(out, 12, frame.immediate);
  Put(out, 16, frame.token);
  Put(out, 24, frame.total_bytes);
}

bool DecodeOfiFrame(const uint8_t* in, size_t bytes, OfiFrame* out) {
  if (bytes < kOfiFrameHeaderBytes || bytes > kOfiFrameBytes ||
      Get<uint32_t>(in, 0) != kFrameMagic) {
    return false;
  }
  const uint8_t kind = Get<uint8_t>(in, 4);
  if (kind < static_cast<uint8_t>(OfiFrameKind::kHello) ||
      kind > static_cast<uint8_t>(OfiFrameKind::kBye)) {
    return false;
  }
  out->kind = static_cast<OfiFrameKind>(kind);
  out->flags = Get<uint8_t>(in, 5);
  out->payload_bytes = Get<uint32_t>(in, 8);
  out->immediate = Get<uint32_t>(in, 12);
  out->token = Get<uint64_t>(in, 16);
  out->total_bytes = Get<uint64_t>(in, 24);
  return out->payload_bytes == bytes - kOfiFrameHeaderBytes;
}

}  // namespace tryst
