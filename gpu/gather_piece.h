#ifndef TRYST_GPU_GATHER_PIECE_H_
#define TRYST_GPU_GATHER_PIECE_H_

namespace tryst {

// As the kernel reads it (gather.cu).
struct GatherPiece {
  unsigned long long to;
  unsigned long long from;
  unsigned long long bytes;
};

}  // namespace tryst

#endif  // TRYST_GPU_GATHER_PIECE_H_
