#include "verbs/soft/frame.h"

#include "base/little_endian.h"

namespace tryst {
namespace {

constexpr uint32_t kMagic = 0x53595254;  // "TRYS"
constexpr uint8_t kImmediateFlag = 1;

bool FieldsAgree(const FrameHeader& header) {
  switch (header.type) {
    case FrameType::kWrite:
      return header.bytes <= header.total;
    case FrameType::kSend:
      return !header.has_immediate && header.bytes <= header.total;
    case FrameType::kFragment:
    case FrameType::kReadResponse:
      return !header.has_immediate && header.address <= header.total &&
             header.bytes <= header.total - header.address;
    case FrameType::kRead:
    case FrameType::kAck:
    case FrameType::kError:
      return !header.has_immediate && header.bytes == 0;
  }
  return false;  // No such type.
}

}  // namespace

void EncodeFrameHeader(const FrameHeader& header, uint8_t out[kFrameHeaderBytes]) {
  StoreLittle<uint32_t>(out, kMagic);
  out[4] = static_cast<uint8_t>(header.type);
  out[5] = header.has_immediate ? kImmediateFlag : 0;
  out[6] = 0;
  out[7] = 0;
  StoreLittle<uint32_t>(out + 8, header.sequence);
  StoreLittle<uint32_t>(out + 12, header.executed);
  StoreLittle<uint32_t>(out + 16, header.receives);
  StoreLittle<uint32_t>(out + 20, header.remote_key);
  StoreLittle<uint32_t>(out + 24, header.immediate);
  StoreLittle<uint32_t>(out + 28, header.bytes);
  StoreLittle<uint64_t>(out + 32, header.address);
  StoreLittle<uint64_t>(out + 40, header.total);
}

bool DecodeFrameHeader(const uint8_t in[kFrameHeaderBytes], FrameHeader* header) {
  if (LoadLittle<uint32_t>(in) != kMagic) return false;
  if ((in[5] & ~kImmediateFlag) != 0 || in[6] != 0 || in[7] != 0) return false;
  header->type = static_cast<FrameType>(in[4]);
  header->has_immediate = in[5] != 0;
  header->sequence = LoadLittle<uint32_t>(in + 8);
  header->executed = LoadLittle<uint32_t>(in + 12);
  header->receives = LoadLittle<uint32_t>(in + 16);
  header->remote_key = LoadLittle<uint32_t>(in + 20);
  header->immediate = LoadLittle<uint32_t>(in + 24);
  header->bytes = LoadLittle<uint32_t>(in + 28);
  header->address = LoadLittle<uint64_t>(in + 32);
  header->total = LoadLittle<uint64_t>(in + 40);
  return header->bytes <= kMaxFrameBytes && FieldsAgree(*header);
}

}  // namespace tryst
