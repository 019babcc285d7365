// The source of gather_ptx.h: gather_ptx_test compares the two where there is an nvcc.

#include "gpu/gather_piece.h"

namespace {

template <typename Unit>
__device__ __forceinline__ void CopyUnits(char* to, const char* from, unsigned long long bytes) {
  Unit* out = reinterpret_cast<Unit*>(to);
  const Unit* in = reinterpret_cast<const Unit*>(from);
  const unsigned long long count = bytes / sizeof(Unit);
  unsigned long long i = threadIdx.x;
  // Six independent loads in flight before the first store; those past the end are left out
  // and not made up for one by one, so that a piece of 45 KB is one round of 512 threads.
  constexpr int kDepth = 6;
  for (; i < count; i += static_cast<unsigned long long>(kDepth) * blockDim.x) {
    Unit held[kDepth];
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const unsigned long long at = i + static_cast<unsigned long long>(k) * blockDim.x;
      if (at < count) held[k] = __ldcs(in + at);  // Read once.
    }
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const unsigned long long at = i + static_cast<unsigned long long>(k) * blockDim.x;
      if (at < count) __stcs(out + at, held[k]);
    }
  }
}

// By all threads of a block.
__device__ __forceinline__ void CopyPiece(const tryst::GatherPiece& piece) {
  char* to = reinterpret_cast<char*>(piece.to);
  const char* from = reinterpret_cast<const char*>(piece.from);
  unsigned long long bytes = piece.bytes;
  // The widest unit at which the two can be aligned together.
  const unsigned long long skew = (piece.to ^ piece.from) & 15;
  const unsigned unit = skew == 0 ? 16 : skew == 8 ? 8 : (skew & 3) == 0 ? 4 : 1;
  unsigned long long head = (unit - (piece.to & (unit - 1))) & (unit - 1);
  if (head > bytes) head = bytes;
  const unsigned long long body = (bytes - head) / unit * unit;
  if (threadIdx.x < head) to[threadIdx.x] = from[threadIdx.x];
  if (unit == 16) {
    CopyUnits<uint4>(to + head, from + head, body);
  } else if (unit == 8) {
    CopyUnits<uint2>(to + head, from + head, body);
  } else if (unit == 4) {
    CopyUnits<unsigned>(to + head, from + head, body);
  } else {
    CopyUnits<unsigned char>(to + head, from + head, body);
  }
  const unsigned long long tail = head + body + threadIdx.x;
  if (tail < bytes) to[tail] = from[tail];
}

}  // namespace

// Copies every piece; a block takes one piece after the other. Pieces do not overlap.
extern "C" __global__ void __launch_bounds__(512, 2)
    tryst_gather(const tryst::GatherPiece* pieces, unsigned count) {
  for (unsigned at = blockIdx.x; at < count; at += gridDim.x) CopyPiece(pieces[at]);
}

// Copies one small piece, and then tells the host so, which need not ask the driver. One block.
extern "C" __global__ void __launch_bounds__(512)
    tryst_copy(const tryst::GatherPiece piece, unsigned long long* flag, unsigned long long value) {
  CopyPiece(piece);
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();  // For all threads' bytes: they were written before the barrier.
  *reinterpret_cast<volatile unsigned long long*>(flag) = value;
}
