#ifndef TRYST_VERBS_SOFT_SOFT_RING_H_
#define TRYST_VERBS_SOFT_SOFT_RING_H_

#include <cstdint>

#include "absl/types/span.h"
#include "verbs/nic.h"

// What the rings of sends and of receives have in common.
namespace tryst {

// Turns a running number into a slot of a ring that holds at least `depth` works.
inline uint64_t RingMask(uint32_t depth) {
  uint64_t capacity = 1;
  while (capacity < depth) capacity *= 2;
  return capacity - 1;
}

// Sums the entries' bytes; false: the sum exceeds `limit`.
inline bool AddUp(absl::Span<const Entry> entries, uint64_t limit, uint64_t* total) {
  *total = 0;
  for (const Entry& entry : entries) {
    if (entry.bytes > limit - *total) return false;
    *total += entry.bytes;
  }
  return true;
}

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_RING_H_
