#ifndef TRYST_BASE_CRC32C_H_
#define TRYST_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace tryst {

// CRC-32C (Castagnoli) of the bytes, continued from `crc` (0 at the start). Uses the processor's
// instruction if there is one.
uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes);

// Copies the bytes as well: one pass over the memory instead of two.
uint32_t CopyCrc32c(uint32_t crc, void* to, const void* from, size_t bytes);

// The table versions, for processors without the instruction, and for tests.
uint32_t Crc32cPortable(uint32_t crc, const void* data, size_t bytes);
uint32_t CopyCrc32cPortable(uint32_t crc, void* to, const void* from, size_t bytes);

}  // namespace tryst

#endif  // TRYST_BASE_CRC32C_H_
