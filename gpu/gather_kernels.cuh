#ifndef TRYST_GPU_GATHER_KERNELS_CUH_
#define TRYST_GPU_GATHER_KERNELS_CUH_

// The kernels. Includes no CUDA, and not gather_asm.cuh: gather_kernels_test runs them on the host.
#include "gpu/gather_piece.h"

namespace {

// A kernel that stays longer than what it reads does not look into its caches for it.
template <bool kStays, typename Unit>
__device__ __forceinline__ Unit Load(const Unit* from) {
  if constexpr (kStays) return __ldcv(from);
  return __ldcs(from);  // Read once.
}

// Thread number `thread` of `threads` copies its share of the units.
template <bool kStays, typename Unit>
__device__ __forceinline__ void CopyUnits(unsigned char* to, const unsigned char* from,
                                          unsigned long long bytes, unsigned thread,
                                          unsigned threads) {
  Unit* out = reinterpret_cast<Unit*>(to);
  const Unit* in = reinterpret_cast<const Unit*>(from);
  const unsigned long long count = bytes / sizeof(Unit);
  unsigned long long i = thread;
  // A thread has kDepth independent loads in flight before its first store. It leaves out loads
  // past the end and does not make up for them one by one: a piece of 45 KB is one round of 512
  // threads, one of 64 KiB is one round of the 1024 that stand by.
  constexpr int kDepth = kStays ? 4 : 6;
  for (; i < count; i += static_cast<unsigned long long>(kDepth) * threads) {
    Unit held[kDepth];
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const unsigned long long at = i + static_cast<unsigned long long>(k) * threads;
      if (at < count) held[k] = Load<kStays>(in + at);
    }
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const unsigned long long at = i + static_cast<unsigned long long>(k) * threads;
      if (at < count) __stcs(out + at, held[k]);
    }
  }
}

// Thread number `thread` of `threads` copies its share of the piece.
template <bool kStays>
__device__ __forceinline__ void CopyPiece(const tryst::GatherPiece& piece, unsigned thread,
                                          unsigned threads) {
  auto* to = reinterpret_cast<unsigned char*>(piece.to);
  const auto* from = reinterpret_cast<const unsigned char*>(piece.from);
  unsigned long long bytes = piece.bytes;
  // The widest unit at which the two can be aligned together.
  const unsigned long long skew = (piece.to ^ piece.from) & 15;
  const unsigned unit = skew == 0 ? 16 : skew == 8 ? 8 : (skew & 3) == 0 ? 4 : 1;
  unsigned long long head = (unit - (piece.to & (unit - 1))) & (unit - 1);
  if (head > bytes) head = bytes;
  const unsigned long long body = (bytes - head) / unit * unit;
  if (thread < head) to[thread] = Load<kStays>(from + thread);
  if (unit == 16) {
    CopyUnits<kStays, uint4>(to + head, from + head, body, thread, threads);
  } else if (unit == 8) {
    CopyUnits<kStays, uint2>(to + head, from + head, body, thread, threads);
  } else if (unit == 4) {
    CopyUnits<kStays, unsigned>(to + head, from + head, body, thread, threads);
  } else {
    CopyUnits<kStays, unsigned char>(to + head, from + head, body, thread, threads);
  }
  const unsigned long long tail = head + body + thread;
  if (tail < bytes) to[tail] = Load<kStays>(from + tail);
}

template <typename Word>
__device__ __forceinline__ void Tell(Word* word, Word value) {
  *static_cast<volatile Word*>(word) = value;
}

// Whether this is the last of all blocks to count itself here. By one thread of each.
__device__ __forceinline__ bool IsLastBlock(unsigned* count) {
  return gridDim.x == 1 || atomicAdd(count, 1) == gridDim.x - 1;
}

}  // namespace

// Copies every piece; a block takes one piece after the other. Pieces do not overlap.
extern "C" __global__ void __launch_bounds__(512, 2)
    tryst_gather(const tryst::GatherPiece* pieces, unsigned count) {
  for (unsigned at = blockIdx.x; at < count; at += gridDim.x) {
    CopyPiece<false>(pieces[at], threadIdx.x, blockDim.x);
  }
}

// Copies one small piece, and then tells the host so, which need not ask the driver. One block.
extern "C" __global__ void __launch_bounds__(512)
    tryst_copy(const tryst::GatherPiece piece, unsigned long long* flag, unsigned long long value) {
  CopyPiece<false>(piece, threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();  // For all threads' bytes: they were written before the barrier.
  *reinterpret_cast<volatile unsigned long long*>(flag) = value;
}

// Copies one piece after the other as the host names them, until there was none for `linger_ns`, or
// for `life_ns` in all: nobody who waits for the whole device waits longer. Blocks of at least a
// warp, each of which copies a share of every piece. The first block alone asks the host, whose
// memory takes 4 us longer to read for each other block that reads it; and it judges the time.
extern "C" __global__ void __launch_bounds__(1024)
    tryst_standby(tryst::StandbyWords* words, tryst::StandbyBlocks* blocks, unsigned long long next,
                  unsigned long long launch, unsigned long long linger_ns,
                  unsigned long long life_ns) {
  __shared__ unsigned long long piece[3];
  __shared__ bool leaves;
  const unsigned long long born = Now();
  unsigned long long busy = born;
  if (threadIdx.x == 0 && IsLastBlock(&blocks->counts.came)) Tell(&words->came, launch);
  for (;; ++next) {
    if (threadIdx.x < 32) {
      const unsigned at = next % tryst::kStandbySlots;
      for (;;) {
        // One read; each word says for itself whether it is this copy's.
        unsigned long long word = 0;
        if (threadIdx.x < 3) {
          word = blockIdx.x == 0 ? LoadOfHost(&words->slots[at][threadIdx.x])
                                 : LoadOfGpu(&blocks->slots[at][threadIdx.x]);
        }
        // The kernel leaves when it is old, even where one copy always waits behind the other.
        const bool is_old = blockIdx.x == 0 && busy - born > life_ns;
        const bool whole =
            !is_old && (threadIdx.x >= 3 || word >> tryst::kStandbyTagShift == (next & 0xffff));
        if (__all_sync(~0u, whole)) {
          if (threadIdx.x < 3) {
            // A block that is alone stores it, too: what stays in a slot is never as old as the
            // tag that a later launch of several blocks waits for.
            if (blockIdx.x == 0) {
              unsigned long long* const told = &blocks->slots[at][threadIdx.x];
              if (gridDim.x > 1) {
                StoreForGpu(told, word);
              } else {
                Tell(told, word);
              }
            }
            piece[threadIdx.x] = word & ((1ull << tryst::kStandbyTagShift) - 1);
          }
          if (threadIdx.x == 0) leaves = false;
          break;
        }
        bool enough;
        if (blockIdx.x == 0) {
          const unsigned long long now = Now();
          enough = now - busy > linger_ns || now - born > life_ns;
        } else {
          enough = *static_cast<volatile unsigned*>(&blocks->counts.leave) != 0;
        }
        if (__any_sync(~0u, enough)) {
          if (threadIdx.x == 0) leaves = true;
          break;
        }
      }
    }
    __syncthreads();
    if (leaves) break;
    CopyPiece<true>({piece[0], piece[1], piece[2]}, blockIdx.x * blockDim.x + threadIdx.x,
                    gridDim.x * blockDim.x);
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned* const done = &blocks->counts.done[next % tryst::kStandbySlots];
      if (gridDim.x > 1) FenceOfGpu();  // The last block's fence is for all of their bytes.
      if (IsLastBlock(done)) {
        *done = 0;
        Fence();
        Tell(&words->ended, next);
      }
    }
    busy = Now();
  }
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) Tell(&blocks->counts.leave, 1u);
  if (gridDim.x > 1)
    FenceOfGpu();  // What this block has told comes before what the last one tells.
  if (!IsLastBlock(&blocks->counts.gone)) return;
  if (gridDim.x > 1) FenceOfGpu();
  // What another block has begun to copy since is copied again by the next launch.
  blocks->counts = tryst::StandbyBlocks::Counts();
  Fence();
  Tell(&words->left, launch);
}

#endif  // TRYST_GPU_GATHER_KERNELS_CUH_
