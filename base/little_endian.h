#ifndef TRYST_BASE_LITTLE_ENDIAN_H_
#define TRYST_BASE_LITTLE_ENDIAN_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tryst {

// Integers as they lie on a wire: little-endian, at any alignment. One load or store where the
// machine has that order; GCC 12 makes a loop of the portable form.
template <typename T>
void StoreLittle(uint8_t* at, T value) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  memcpy(at, &value, sizeof(T));
#else
  for (size_t i = 0; i < sizeof(T); ++i) {
    at[i] = static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i));
  }
#endif
}

template <typename T>
T LoadLittle(const uint8_t* at) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  T value;
  memcpy(&value, at, sizeof(T));
  return value;
#else
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= uint64_t{at[i]} << (8 * i);
  return static_cast<T>(value);
#endif
}

}  // namespace tryst

#endif  // TRYST_BASE_LITTLE_ENDIAN_H_
