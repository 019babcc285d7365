#ifndef TRYST_VERBS_SOFT_LITTLE_ENDIAN_H_
#define TRYST_VERBS_SOFT_LITTLE_ENDIAN_H_

#include <cstdint>

namespace tryst {

// Byte by byte: any alignment, any host. Compilers make one load or store of it.
inline void StoreLittle32(uint8_t* out, uint32_t value) {
  for (int i = 0; i < 4; ++i) out[i] = static_cast<uint8_t>(value >> (8 * i));
}
inline void StoreLittle64(uint8_t* out, uint64_t value) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<uint8_t>(value >> (8 * i));
}
inline uint32_t LoadLittle32(const uint8_t* in) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= uint32_t{in[i]} << (8 * i);
  return value;
}
inline uint64_t LoadLittle64(const uint8_t* in) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= uint64_t{in[i]} << (8 * i);
  return value;
}

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_LITTLE_ENDIAN_H_
