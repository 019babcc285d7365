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

// The words, in pinned memory, by which host and kernel talk.
struct StandbyWords {
  alignas(64) unsigned long long slots[kStandbySlots][4];
  // The number of the last copy that has ended; written by the kernel.
  alignas(64) unsigned long long ended;
  // The number of the last launch of which all blocks run, and of the last that has ended; written
  // by the kernel.
  alignas(64) unsigned long long came;
  alignas(64) unsigned long long left;
};

// What the blocks of a launch tell each other, in the GPU's memory.
struct StandbyBlocks {
  // The host's, as the first block has read them, in every launch: the words of copy n are followed
  // by those of copy n + kStandbySlots. They stay from launch to launch: a copy whose number is a
  // multiple of 2^16 has the tag of zeroes.
  alignas(64) unsigned long long slots[kStandbySlots][4];
  // How many blocks run, have left, and are done with their share of the copy in that slot. Zeroes
  // between launches.
  struct Counts {
    unsigned came;
    unsigned gone;
    unsigned done[kStandbySlots];
    unsigned leave;  // Not 0: all shall leave.
  } counts;
};

}  // namespace tryst

#endif  // TRYST_GPU_GATHER_PIECE_H_
