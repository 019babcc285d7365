// The source of gather_ptx.h: gather_ptx_test compares the two where there is an nvcc.

#include "gpu/gather_piece.h"

namespace {

template <typename Unit>
__device__ __forceinline__ void CopyUnits(char* to, const char* from, unsigned long long bytes) {
  Unit* out = reinterpret_cast<Unit*>(to);
  const Unit* in = reinterpret_cast<const Unit*>(from);
  const unsigned long long count = bytes / sizeof(Unit);
  unsigned long long i = threadIdx.x;
  // Four independent loads in flight before the first store.
  for (; i + 3ull * blockDim.x < count; i += 4ull * blockDim.x) {
    const Unit a = in[i];
    const Unit b = in[i + blockDim.x];
    const Unit c = in[i + 2ull * blockDim.x];
    const Unit d = in[i + 3ull * blockDim.x];
    out[i] = a;
    out[i + blockDim.x] = b;
    out[i + 2ull * blockDim.x] = c;
    out[i + 3ull * blockDim.x] = d;
  }
  for (; i < count; i += blockDim.x) out[i] = in[i];
}

}  // namespace

// Copies every piece; a block takes one piece after the other. Pieces do not overlap.
extern "C" __global__ void tryst_gather(const tryst::GatherPiece* pieces, unsigned count) {
  for (unsigned at = blockIdx.x; at < count; at += gridDim.x) {
    const tryst::GatherPiece piece = pieces[at];
    char* to = reinterpret_cast<char*>(piece.to);
    const char* from = reinterpret_cast<const char*>(piece.from);
    unsigned long long bytes = piece.bytes;
    // The widest unit at which the two can be aligned together.
    const unsigned long long skew = (piece.to ^ piece.from) & 15;
    const unsigned unit = skew == 0 ? 16 : (skew & 3) == 0 ? 4 : 1;
    unsigned long long head = (unit - (piece.to & (unit - 1))) & (unit - 1);
    if (head > bytes) head = bytes;
    const unsigned long long body = (bytes - head) / unit * unit;
    if (threadIdx.x < head) to[threadIdx.x] = from[threadIdx.x];
    if (unit == 16) {
      CopyUnits<uint4>(to + head, from + head, body);
    } else if (unit == 4) {
      CopyUnits<unsigned>(to + head, from + head, body);
    } else {
      CopyUnits<unsigned char>(to + head, from + head, body);
    }
    const unsigned long long tail = head + body + threadIdx.x;
    if (tail < bytes) to[tail] = from[tail];
  }
}
