#ifndef TRYST_GPU_GATHER_PIECE_H_
#define TRYST_GPU_GATHER_PIECE_H_

// What host and kernels say to each other (gather.cu).
namespace tryst {

struct GatherPiece {
  unsigned long long to;
  unsigned long long from;
  unsigned long long bytes;
};

// Copy number n is named in slot n % kStandbySlots: a GatherPiece whose words each have the
// lower 16 bits of n above kStandbyTagShift. None is seen half written, in whatever order.
constexpr unsigned kStandbySlots = 8;
constexpr unsigned kStandbyTagShift = 48;

// In pinned memory.
struct StandbyWords {
  alignas(64) unsigned long long slots[kStandbySlots][4];
  alignas(64) unsigned long long ended;  // The copies up to this number; by the kernel.
  alignas(64) unsigned long long left;   // The last launch that has ended; by the kernel.
};

}  // namespace tryst

#endif  // TRYST_GPU_GATHER_PIECE_H_
