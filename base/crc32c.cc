#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tryst {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, bits reversed.

constexpr std::array<uint32_t, 256> MakeByteTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kByteTable = MakeByteTable();

#if defined(__x86_64__)
// The instruction has a latency of three cycles and a throughput of one. So three neighbouring
// lanes are summed at the same time. To join them, the earlier sums are shifted over kLaneBytes of
// zeroes; that is a linear map, so a table does it.
constexpr size_t kLaneBytes = 1024;
constexpr size_t kCacheLineBytes = 64;

using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

constexpr uint32_t ShiftOneByte(uint32_t crc) { return (crc >> 8) ^ kByteTable[crc & 0xff]; }

ShiftTable MakeShiftTable(size_t zero_bytes) {
  // The image of each single bit. Every byte's image is a sum of these.
  std::array<uint32_t, 32> bits;
  for (int bit = 0; bit < 32; ++bit) {
    uint32_t crc = uint32_t{1} << bit;
    for (size_t i = 0; i < zero_bytes; ++i) crc = ShiftOneByte(crc);
    bits[static_cast<size_t>(bit)] = crc;
  }
  ShiftTable table;
  for (size_t byte = 0; byte < 4; ++byte) {
    for (size_t value = 0; value < 256; ++value) {
      uint32_t sum = 0;
      for (size_t bit = 0; bit < 8; ++bit) {
        if ((value >> bit & 1) != 0) sum ^= bits[byte * 8 + bit];
      }
      table[byte][value] = sum;
    }
  }
  return table;
}

uint32_t Shift(const ShiftTable& table, uint32_t crc) {
  return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^
         table[3][crc >> 24];
}

uint64_t Load64(const uint8_t* at) {
  uint64_t word;
  memcpy(&word, at, sizeof(word));
  return word;
}

// Sums three lanes at a time while there are three; advances the pointers.
template <bool kCopy>
__attribute__((target("sse4.2"), noinline)) uint64_t Lanes(uint64_t sum, uint8_t*& to,
                                                           const uint8_t*& from, size_t& bytes) {
  static const ShiftTable& shift_lane = *new ShiftTable(MakeShiftTable(kLaneBytes));
  while (bytes >= 3 * kLaneBytes) {
    uint64_t a = sum, b = 0, c = 0;
    for (size_t i = 0; i < kLaneBytes; i += 8) {
      // The processor does not prefetch three streams by itself. For memory outside its cache,
      // prefetching makes this two to three times as fast.
      if (i % kCacheLineBytes == 0) {
        for (size_t lane = 0; lane < 3; ++lane) {
          __builtin_prefetch(from + (3 + lane) * kLaneBytes + i);
        }
      }
      const uint64_t wa = Load64(from + i);
      const uint64_t wb = Load64(from + kLaneBytes + i);
      const uint64_t wc = Load64(from + 2 * kLaneBytes + i);
      a = _mm_crc32_u64(a, wa);
      b = _mm_crc32_u64(b, wb);
      c = _mm_crc32_u64(c, wc);
      if (kCopy) {
        memcpy(to + i, &wa, 8);
        memcpy(to + kLaneBytes + i, &wb, 8);
        memcpy(to + 2 * kLaneBytes + i, &wc, 8);
      }
    }
    sum = Shift(shift_lane, static_cast<uint32_t>(a)) ^ b;
    sum = Shift(shift_lane, static_cast<uint32_t>(sum)) ^ c;
    from += 3 * kLaneBytes;
    if (kCopy) to += 3 * kLaneBytes;
    bytes -= 3 * kLaneBytes;
  }
  return sum;
}

template <bool kCopy>
__attribute__((target("sse4.2"))) uint32_t Sse42(uint32_t crc, uint8_t* to, const uint8_t* from,
                                                 size_t bytes) {
  uint64_t sum = ~crc;
  if (bytes >= 3 * kLaneBytes) sum = Lanes<kCopy>(sum, to, from, bytes);
  // Unrolled, because headers and digests are this short.
  for (; bytes >= 32; bytes -= 32, from += 32) {
    const uint64_t words[4] = {Load64(from), Load64(from + 8), Load64(from + 16),
                               Load64(from + 24)};
    sum = _mm_crc32_u64(sum, words[0]);
    sum = _mm_crc32_u64(sum, words[1]);
    sum = _mm_crc32_u64(sum, words[2]);
    sum = _mm_crc32_u64(sum, words[3]);
    if (kCopy) {
      memcpy(to, words, 32);
      to += 32;
    }
  }
  for (; bytes >= 8; bytes -= 8, from += 8) {
    const uint64_t word = Load64(from);
    sum = _mm_crc32_u64(sum, word);
    if (kCopy) {
      memcpy(to, &word, 8);
      to += 8;
    }
  }
  uint32_t tail = static_cast<uint32_t>(sum);
  if (bytes >= 4) {
    uint32_t word;
    memcpy(&word, from, 4);
    tail = _mm_crc32_u32(tail, word);
    if (kCopy) {
      memcpy(to, &word, 4);
      to += 4;
    }
    from += 4;
    bytes -= 4;
  }
  for (; bytes > 0; --bytes, ++from) {
    tail = _mm_crc32_u8(tail, *from);
    if (kCopy) *to++ = *from;
  }
  return ~tail;
}

// Until it is set, callers take the slow way.
const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
#endif

}  // namespace

uint32_t Crc32cPortable(uint32_t crc, const void* data, size_t bytes) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kByteTable[(crc ^ at[i]) & 0xff];
  return ~crc;
}

uint32_t CopyCrc32cPortable(uint32_t crc, void* to, const void* from, size_t bytes) {
  if (bytes > 0) memcpy(to, from, bytes);
  return Crc32cPortable(crc, from, bytes);
}

uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes) {
#if defined(__x86_64__)
  if (has_instruction) {
    return Sse42<false>(crc, nullptr, static_cast<const uint8_t*>(data), bytes);
  }
#endif
  return Crc32cPortable(crc, data, bytes);
}

uint32_t CopyCrc32c(uint32_t crc, void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  if (has_instruction) {
    return Sse42<true>(crc, static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), bytes);
  }
#endif
  return CopyCrc32cPortable(crc, to, from, bytes);
}

}  // namespace tryst
