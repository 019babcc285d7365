#ifndef TRYST_GPU_STRIDED_KERNELS_CUH_
#define TRYST_GPU_STRIDED_KERNELS_CUH_

// The kernel for boxes of strided memory. Includes no CUDA: fake_cuda.cc runs it on the host.
#include "gpu/strided_runs.h"

namespace {

template <typename To, typename From>
__device__ __forceinline__ To SameBits(From from) {
  static_assert(sizeof(To) == sizeof(From), "these are other bits");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// The casts give what weights/cast.h says, bit by bit.
__device__ __forceinline__ unsigned short FloatToBfloat16(unsigned bits) {
  const unsigned upper = bits >> 16;
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<unsigned short>(upper | 0x40u);
  // A carry out of the fraction is the next exponent, up to infinity.
  return static_cast<unsigned short>((bits + 0x7fffu + (upper & 1u)) >> 16);
}

__device__ __forceinline__ unsigned HalfToFloat(unsigned short half) {
  const unsigned sign = (half & 0x8000u) << 16;
  const unsigned exponent = half >> 10 & 0x1fu, fraction = half & 0x3ffu;
  if (exponent == 0x1fu) return sign | 0x7f800000u | fraction << 13;
  // A subnormal half is that many times 2 to the power of -24, and no subnormal float.
  if (exponent == 0) return sign | SameBits<unsigned>(static_cast<float>(fraction) * 0x1p-24f);
  return sign | (exponent + 112u) << 23 | fraction << 13;
}

__device__ __forceinline__ unsigned DoubleToFloat(unsigned long long bits) {
  if ((bits & ~(1ull << 63)) > 0x7ffull << 52) {
    return static_cast<unsigned>(bits >> 63) << 31 | 0x7fc00000u |
           (static_cast<unsigned>(bits >> 29) & 0x3fffffu);
  }
  return SameBits<unsigned>(static_cast<float>(SameBits<double>(bits)));
}

template <typename From, typename To, typename Cast>
__device__ __forceinline__ void CastUnit(unsigned char* to, const unsigned char* from,
                                         unsigned bytes, Cast cast) {
  for (unsigned i = 0; i < bytes / sizeof(From); ++i) {
    reinterpret_cast<To*>(to)[i] = cast(reinterpret_cast<const From*>(from)[i]);
  }
}

__device__ __forceinline__ void CopyUnit(const tryst::StridedRuns& runs, unsigned char* to,
                                         const unsigned char* from) {
  switch (runs.kind) {
    case tryst::kFloatToBfloat16:
      return CastUnit<unsigned, unsigned short>(to, from, runs.from_unit, FloatToBfloat16);
    case tryst::kHalfToBfloat16:
      return CastUnit<unsigned short, unsigned short>(
          to, from, runs.from_unit,
          [](unsigned short half) { return FloatToBfloat16(HalfToFloat(half)); });
    case tryst::kDoubleToFloat:
      return CastUnit<unsigned long long, unsigned>(to, from, runs.from_unit, DoubleToFloat);
    default:
      break;
  }
  switch (runs.from_unit) {
    case 16:
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      return;
    case 8:
      *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(from);
      return;
    case 4:
      *reinterpret_cast<unsigned*>(to) = *reinterpret_cast<const unsigned*>(from);
      return;
    case 2:
      *reinterpret_cast<unsigned short*>(to) = *reinterpret_cast<const unsigned short*>(from);
      return;
    default:
      *to = *from;
  }
}

}  // namespace

// Copies every run. The two ends do not overlap.
extern "C" __global__ void __launch_bounds__(256) tryst_strided(const tryst::StridedRuns runs) {
  const auto units = static_cast<unsigned>(runs.units);
  const unsigned all = static_cast<unsigned>(runs.runs) * units;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += gridDim.x * blockDim.x) {
    unsigned run = i / units;
    const unsigned long long unit = i - run * units;
    auto* to = reinterpret_cast<unsigned char*>(runs.to) + unit * runs.to_unit;
    const auto* from = reinterpret_cast<const unsigned char*>(runs.from) + unit * runs.from_unit;
    for (int loop = tryst::StridedRuns::kMostLoops - 1; loop >= 0; --loop) {
      if (static_cast<unsigned>(loop) >= runs.loops) continue;
      const auto count = static_cast<unsigned>(runs.counts[loop]);
      const unsigned outer = run / count;
      const auto at = static_cast<long long>(run - outer * count);
      to += at * runs.to_steps[loop];
      from += at * runs.from_steps[loop];
      run = outer;
    }
    CopyUnit(runs, to, from);
  }
}

#endif  // TRYST_GPU_STRIDED_KERNELS_CUH_
