#include "channel/shm/stream_copy.h"

#include <cstdint>
#include <cstring>

namespace tryst {
namespace {

constexpr size_t kPartBytes = 64 << 10;

}  // namespace

void CrewCopy(Crew* crew, void* to, const void* from, size_t bytes, bool streaming) {
  const auto copy = [&](uint64_t begin, uint64_t count) {
    uint8_t* const out = static_cast<uint8_t*>(to) + begin;
    const uint8_t* const in = static_cast<const uint8_t*>(from) + begin;
    if (streaming) return StreamCopy(out, in, count);
    memcpy(out, in, count);
  };
  if (bytes >= kSplitBytes) return crew->Share(bytes, kPartBytes, copy);
  if (bytes > 0) copy(0, bytes);
}

}  // namespace tryst
