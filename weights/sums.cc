#include "weights/sums.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/log.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tryst {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

// SplitMix64: a pseudo-random number of each number.
constexpr uint64_t Mix(uint64_t x) {
  x += kGolden;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A place's factors are an entry of this table and a number of the stretch of kStretch places, by
// exclusive or: one operation, where a number mixed for each place takes ten.
constexpr uint64_t kStretch = 4096;
struct Factors {
  std::array<uint32_t, kStretch> a, b;
};
constexpr Factors MakeFactors() {
  Factors factors{};
  for (uint64_t i = 0; i < kStretch; ++i) {
    const uint64_t mixed = Mix(i);
    factors.a[i] = static_cast<uint32_t>(mixed);
    factors.b[i] = static_cast<uint32_t>(mixed >> 32);
  }
  return factors;
}
constexpr Factors kFactors = MakeFactors();

// Each element that is there adds these, so that one of value 0 counts, too.
constexpr uint64_t kPresentLow = 0xc2b2ae3d27d4eb4f, kPresentHigh = 0x165667b19e3779f9;

template <typename Unit>
void SumPortable(const uint32_t* a, const uint32_t* b, uint32_t stretch_a, uint32_t stretch_b,
                 const char* from, uint64_t count, CoverSum* sum) {
  for (uint64_t i = 0; i < count; ++i) {
    Unit unit;
    memcpy(&unit, from + i * sizeof(Unit), sizeof(Unit));
    sum->low += uint64_t{a[i] ^ stretch_a} * unit;
    sum->high += uint64_t{b[i] ^ stretch_b} * unit;
  }
}

#if defined(__x86_64__)
constexpr uint64_t kUnitLanes = 8;

template <typename Unit>
__attribute__((target("avx2"))) __m256i LoadUnits(const char* from) {
  if constexpr (sizeof(Unit) == 1) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  } else if constexpr (sizeof(Unit) == 2) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  } else {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
}

__attribute__((target("avx2"))) uint64_t AddLanes(__m256i lanes) {
  alignas(sizeof(__m256i)) uint64_t each[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(each), lanes);
  return each[0] + each[1] + each[2] + each[3];
}

template <typename Unit>
__attribute__((target("avx2"))) void SumAvx2(const uint32_t* a, const uint32_t* b,
                                             uint32_t stretch_a, uint32_t stretch_b,
                                             const char* from, uint64_t count, CoverSum* sum) {
  const __m256i of_a = _mm256_set1_epi32(static_cast<int>(stretch_a));
  const __m256i of_b = _mm256_set1_epi32(static_cast<int>(stretch_b));
  __m256i low = _mm256_setzero_si256(), high = low, low_odd = low, high_odd = low;
  uint64_t i = 0;
  for (; i + kUnitLanes <= count; i += kUnitLanes) {
    const __m256i units = LoadUnits<Unit>(from + i * sizeof(Unit));
    const __m256i by_a =
        _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i)), of_a);
    const __m256i by_b =
        _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i)), of_b);
    const __m256i odd = _mm256_srli_epi64(units, 32);
    low = _mm256_add_epi64(low, _mm256_mul_epu32(units, by_a));
    high = _mm256_add_epi64(high, _mm256_mul_epu32(units, by_b));
    low_odd = _mm256_add_epi64(low_odd, _mm256_mul_epu32(odd, _mm256_srli_epi64(by_a, 32)));
    high_odd = _mm256_add_epi64(high_odd, _mm256_mul_epu32(odd, _mm256_srli_epi64(by_b, 32)));
  }
  sum->low += AddLanes(_mm256_add_epi64(low, low_odd));
  sum->high += AddLanes(_mm256_add_epi64(high, high_odd));
  SumPortable<Unit>(a + i, b + i, stretch_a, stretch_b, from + i * sizeof(Unit), count - i, sum);
}
#endif

using SumStretch = void (*)(const uint32_t* a, const uint32_t* b, uint32_t stretch_a,
                            uint32_t stretch_b, const char* from, uint64_t count, CoverSum* sum);

// Units from place `at` on, which follow each other in memory.
void SumRun(SumStretch sum_stretch, uint64_t tensor_mix, uint64_t at, const char* from,
            uint64_t count, uint32_t unit_bytes, CoverSum* sum) {
  while (count > 0) {
    const uint64_t within = at % kStretch;
    const uint64_t now = std::min(count, kStretch - within);
    const uint64_t stretch = Mix(tensor_mix ^ (at / kStretch));
    sum_stretch(&kFactors.a[within], &kFactors.b[within], static_cast<uint32_t>(stretch),
                static_cast<uint32_t>(stretch >> 32), from, now, sum);
    at += now;
    from += now * unit_bytes;
    count -= now;
  }
}

SumStretch Choose(uint32_t unit_bytes, bool portable) {
#if defined(__x86_64__)
  if (!portable && __builtin_cpu_supports("avx2")) {
    if (unit_bytes == 1) return SumAvx2<uint8_t>;
    return unit_bytes == 2 ? SumAvx2<uint16_t> : SumAvx2<uint32_t>;
  }
#endif
  static_cast<void>(portable);
  if (unit_bytes == 1) return SumPortable<uint8_t>;
  return unit_bytes == 2 ? SumPortable<uint16_t> : SumPortable<uint32_t>;
}

CoverSum Sum(uint32_t tensor, const TensorShape& shape, const Box& box, uint32_t element_bytes,
             const void* memory, const Strides& lies, bool portable) {
  TRYST_CHECK(element_bytes == 1 || element_bytes == 2 || element_bytes % 4 == 0);
  CoverSum sum;
  const Box whole = Box::Whole(shape);
  // Runs that are contiguous in the memory and in the global tensor, as if they were copied there.
  const StridedCopy copy =
      PlanCopy(box.extent, element_bytes, lies, PartOf(whole, Dense(whole.extent), box));
  if (copy.run_bytes == 0) return sum;
  const uint32_t unit_bytes = std::min<uint32_t>(element_bytes, sizeof(uint32_t));
  const SumStretch sum_stretch = Choose(unit_bytes, portable);
  const uint64_t tensor_mix = Mix(Mix(tensor));
  const uint64_t units = copy.run_bytes / unit_bytes;
  Extents at(copy.loops.size(), 0);
  const char* from = static_cast<const char*>(memory) + copy.from;
  int64_t to = copy.to;
  for (;;) {
    SumRun(sum_stretch, tensor_mix, to / unit_bytes, from, units, unit_bytes, &sum);
    size_t i = at.size();
    for (; i > 0; --i) {
      const StridedCopy::Loop& loop = copy.loops[i - 1];
      from += loop.from_step;
      to += loop.to_step;
      if (++at[i - 1] < loop.count) break;
      from -= loop.count * loop.from_step;
      to -= loop.count * loop.to_step;
      at[i - 1] = 0;
    }
    if (i == 0) break;
  }
  const uint64_t present = copy.bytes() / unit_bytes;
  sum.low += present * kPresentLow;
  sum.high += present * kPresentHigh;
  return sum;
}

}  // namespace

CoverSum SumOf(uint32_t tensor, const TensorShape& shape, const Box& box, uint32_t element_bytes,
               const void* memory, const Strides& lies) {
  return Sum(tensor, shape, box, element_bytes, memory, lies, false);
}

CoverSum SumOfPortable(uint32_t tensor, const TensorShape& shape, const Box& box,
                       uint32_t element_bytes, const void* memory, const Strides& lies) {
  return Sum(tensor, shape, box, element_bytes, memory, lies, true);
}

}  // namespace tryst
