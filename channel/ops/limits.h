#ifndef TRYST_CHANNEL_OPS_LIMITS_H_
#define TRYST_CHANNEL_OPS_LIMITS_H_

#include <cstddef>
#include <cstdint>

// What both ends of a session keep to, whatever kind of link carries it.
namespace tryst {
namespace limits {

inline constexpr uint32_t kMaxSlots = 1u << 12;
// The most that any kind of link asks for. A session keeps the slots of its first link, so that
// every kind serves so many.
inline constexpr uint32_t kUsedSlots = 256;
inline constexpr size_t kMaxKeyBytes = 4096;
inline constexpr uint32_t kMaxKeys = 1u << 16;  // The most numbers of keys in use.
// Bounds of the keys' texts. After so many bytes of them since number 0 a consumer numbers from 0
// again; a producer that would have to remember more ends the link.
inline constexpr uint64_t kKeysLapBytes = 16 << 20;
inline constexpr uint64_t kMaxKeysBytes = 64 << 20;
inline constexpr size_t kMaxErrorBytes = 1024;  // Longer texts are cut before they are sent.

}  // namespace limits
}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_LIMITS_H_
