#ifndef TRYST_GPU_GATHER_PIECE_H_
#define TRYST_GPU_GATHER_PIECE_H_

// What the host and the kernels in gather.cu share.
namespace tryst {

struct GatherPiece {
  unsigned long long to;
  unsigned long long from;
  unsigned long long bytes;
};

// Copy number n is in slot n % kStandbySlots: a GatherPiece whose words have the lower 16 bits of n
// above kStandbyTagShift. The tags show which words are written, in whatever order they arrive.
constexpr unsigned kStandbySlots = 8;
constexpr unsigned kStandbyTagShift = 48;

// In pinned memory.
struct StandbyWords {
  alignas(64) unsigned long long slots[kStandbySlots][4];
  // The number of the last copy that has ended; written by the kernel.
  alignas(64) unsigned long long ended;
  // The number of the last launch that has ended; written by the kernel.
  alignas(64) unsigned long long left;
};

}  // namespace tryst

#endif  // TRYST_GPU_GATHER_PIECE_H_
