// The source of gather_ptx.h: gather_ptx_test compares the two where there is an nvcc.

#include "gpu/gather_piece.h"

namespace {

// A kernel that stays longer than what it reads does not look into its caches for it.
template <bool kStays, typename Unit>
__device__ __forceinline__ Unit Load(const Unit* from) {
  if constexpr (kStays) return __ldcv(from);
  return __ldcs(from);  // Read once.
}

template <bool kStays, typename Unit>
__device__ __forceinline__ void CopyUnits(unsigned char* to, const unsigned char* from,
                                          unsigned long long bytes) {
  Unit* out = reinterpret_cast<Unit*>(to);
  const Unit* in = reinterpret_cast<const Unit*>(from);
  const unsigned long long count = bytes / sizeof(Unit);
  unsigned long long i = threadIdx.x;
  // So many independent loads in flight before the first store; those past the end are left out
  // and not made up for one by one: a piece of 45 KB is one round of 512 threads, one of 64 KiB
  // one of the 1024 that stand by.
  constexpr int kDepth = kStays ? 4 : 6;
  for (; i < count; i += static_cast<unsigned long long>(kDepth) * blockDim.x) {
    Unit held[kDepth];
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const unsigned long long at = i + static_cast<unsigned long long>(k) * blockDim.x;
      if (at < count) held[k] = Load<kStays>(in + at);
    }
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const unsigned long long at = i + static_cast<unsigned long long>(k) * blockDim.x;
      if (at < count) __stcs(out + at, held[k]);
    }
  }
}

// By all threads of a block.
template <bool kStays>
__device__ __forceinline__ void CopyPiece(const tryst::GatherPiece& piece) {
  auto* to = reinterpret_cast<unsigned char*>(piece.to);
  const auto* from = reinterpret_cast<const unsigned char*>(piece.from);
  unsigned long long bytes = piece.bytes;
  // The widest unit at which the two can be aligned together.
  const unsigned long long skew = (piece.to ^ piece.from) & 15;
  const unsigned unit = skew == 0 ? 16 : skew == 8 ? 8 : (skew & 3) == 0 ? 4 : 1;
  unsigned long long head = (unit - (piece.to & (unit - 1))) & (unit - 1);
  if (head > bytes) head = bytes;
  const unsigned long long body = (bytes - head) / unit * unit;
  if (threadIdx.x < head) to[threadIdx.x] = Load<kStays>(from + threadIdx.x);
  if (unit == 16) {
    CopyUnits<kStays, uint4>(to + head, from + head, body);
  } else if (unit == 8) {
    CopyUnits<kStays, uint2>(to + head, from + head, body);
  } else if (unit == 4) {
    CopyUnits<kStays, unsigned>(to + head, from + head, body);
  } else {
    CopyUnits<kStays, unsigned char>(to + head, from + head, body);
  }
  const unsigned long long tail = head + body + threadIdx.x;
  if (tail < bytes) to[tail] = Load<kStays>(from + tail);
}

__device__ __forceinline__ unsigned long long Now() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

// Every earlier load and store of this thread comes before every later one, for all readers.
__device__ __forceinline__ void Fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

}  // namespace

// Copies every piece; a block takes one piece after the other. Pieces do not overlap.
extern "C" __global__ void __launch_bounds__(512, 2)
    tryst_gather(const tryst::GatherPiece* pieces, unsigned count) {
  for (unsigned at = blockIdx.x; at < count; at += gridDim.x) CopyPiece<false>(pieces[at]);
}

// Copies one small piece, and then tells the host so, which need not ask the driver. One block.
extern "C" __global__ void __launch_bounds__(512)
    tryst_copy(const tryst::GatherPiece piece, unsigned long long* flag, unsigned long long value) {
  CopyPiece<false>(piece);
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();  // For all threads' bytes: they were written before the barrier.
  *reinterpret_cast<volatile unsigned long long*>(flag) = value;
}

// Copies one small piece after the other as the host names them, until there was none for
// `linger_ns`, or for `life_ns` in all: nobody who waits for the whole device waits longer. One
// block of at least a warp.
extern "C" __global__ void __launch_bounds__(1024)
    tryst_standby(tryst::StandbyWords* words, unsigned long long next, unsigned long long launch,
                  unsigned long long linger_ns, unsigned long long life_ns) {
  __shared__ unsigned long long piece[3];
  __shared__ bool leaves;
  const unsigned long long born = Now();
  unsigned long long busy = born;
  for (;; ++next) {
    if (threadIdx.x < 32) {
      const volatile unsigned long long* const slot = words->slots[next % tryst::kStandbySlots];
      for (;;) {
        // One read over the bus; each word says for itself whether it is this copy's.
        const unsigned long long word = threadIdx.x < 3 ? slot[threadIdx.x] : 0;
        const bool whole = threadIdx.x >= 3 || word >> tryst::kStandbyTagShift == (next & 0xffff);
        if (__all_sync(~0u, whole)) {
          if (threadIdx.x < 3) piece[threadIdx.x] = word & ((1ull << tryst::kStandbyTagShift) - 1);
          if (threadIdx.x == 0) leaves = false;
          break;
        }
        const unsigned long long now = Now();
        const bool enough = now - busy > linger_ns || now - born > life_ns;
        if (__any_sync(~0u, enough)) {
          if (threadIdx.x == 0) leaves = true;
          break;
        }
      }
      Fence();  // What the host knew of when it wrote the words is there for us.
    }
    __syncthreads();
    if (leaves) break;
    CopyPiece<true>({piece[0], piece[1], piece[2]});
    __syncthreads();
    if (threadIdx.x == 0) {
      Fence();
      *static_cast<volatile unsigned long long*>(&words->ended) = next;
    }
    busy = Now();
  }
  if (threadIdx.x == 0) *static_cast<volatile unsigned long long*>(&words->left) = launch;
}
