#include "weights/cast.h"

#include <cfenv>
#include <cstring>

#include "base/log.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tryst {
namespace {

constexpr uint32_t kFloatInfinity = 0x7f800000, kFloatMagnitude = 0x7fffffff;
constexpr uint32_t kQuiet = 0x40;  // In the upper half of a float.

uint16_t ToBfloat16(uint32_t bits) {
  const uint32_t upper = bits >> 16;
  if ((bits & kFloatMagnitude) > kFloatInfinity) return static_cast<uint16_t>(upper | kQuiet);
  // A carry out of the fraction is the next exponent, up to infinity.
  return static_cast<uint16_t>((bits + 0x7fff + (upper & 1)) >> 16);
}

// Each half is a float.
uint32_t HalfToFloat(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  uint32_t exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
  if (exponent == 0x1f) return sign | kFloatInfinity | fraction << 13;
  if (exponent == 0) {
    if (fraction == 0) return sign;
    const int shift = __builtin_clz(fraction) - 21;  // To where a normal one has its leading 1.
    fraction = fraction << shift & 0x3ff;
    exponent = 1 - shift;
  }
  return sign | (exponent + 112) << 23 | fraction << 13;
}

void FloatsToBfloat16(const char* from, char* to, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
    const uint16_t rounded = ToBfloat16(bits);
    memcpy(to + i * sizeof(rounded), &rounded, sizeof(rounded));
  }
}

void HalvesToBfloat16(const char* from, char* to, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    uint16_t half;
    memcpy(&half, from + i * sizeof(half), sizeof(half));
    const uint16_t rounded = ToBfloat16(HalfToFloat(half));
    memcpy(to + i * sizeof(rounded), &rounded, sizeof(rounded));
  }
}

#if defined(__x86_64__)
constexpr uint64_t kFloatLanes = 8;

// bfloat16 in the lower half of each lane.
__attribute__((target("avx2"))) __m256i ToBfloat16(__m256i bits) {
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i is_nan =
      _mm256_cmpgt_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(kFloatMagnitude)),
                         _mm256_set1_epi32(kFloatInfinity));
  const __m256i half_less =
      _mm256_add_epi32(_mm256_and_si256(upper, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half_less), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(kQuiet));
  return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

__attribute__((target("avx2"))) void StoreLowerHalves(__m256i first, __m256i second, char* to) {
  // The packing works on halves of a register: they come out first, second, first, second.
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed);
}

__attribute__((target("avx2"))) void FloatsToBfloat16Avx2(const char* from, char* to,
                                                          uint64_t count) {
  uint64_t i = 0;
  for (; i + 2 * kFloatLanes <= count; i += 2 * kFloatLanes) {
    const __m256i* const at = reinterpret_cast<const __m256i*>(from + i * sizeof(float));
    StoreLowerHalves(ToBfloat16(_mm256_loadu_si256(at)), ToBfloat16(_mm256_loadu_si256(at + 1)),
                     to + i * sizeof(uint16_t));
  }
  FloatsToBfloat16(from + i * sizeof(float), to + i * sizeof(uint16_t), count - i);
}

__attribute__((target("avx2,f16c"))) void HalvesToBfloat16Avx2(const char* from, char* to,
                                                               uint64_t count) {
  uint64_t i = 0;
  for (; i + 2 * kFloatLanes <= count; i += 2 * kFloatLanes) {
    const __m128i* const at = reinterpret_cast<const __m128i*>(from + i * sizeof(uint16_t));
    const __m256 first = _mm256_cvtph_ps(_mm_loadu_si128(at));
    const __m256 second = _mm256_cvtph_ps(_mm_loadu_si128(at + 1));
    StoreLowerHalves(ToBfloat16(_mm256_castps_si256(first)),
                     ToBfloat16(_mm256_castps_si256(second)), to + i * sizeof(uint16_t));
  }
  HalvesToBfloat16(from + i * sizeof(uint16_t), to + i * sizeof(uint16_t), count - i);
}
#endif

// The processor's conversion, which heeds the thread's mode: a program may have set it to flush
// subnormals to zero.
void DoublesToFloats(const char* from, char* to, uint64_t count) {
  fenv_t mode;
  fegetenv(&mode);
  fesetenv(FE_DFL_ENV);
  for (uint64_t i = 0; i < count; ++i) {
    double value;
    memcpy(&value, from + i * sizeof(value), sizeof(value));
    const float rounded = static_cast<float>(value);
    memcpy(to + i * sizeof(rounded), &rounded, sizeof(rounded));
  }
  fesetenv(&mode);
}

bool HasVectors() {
#if defined(__x86_64__)
  // Clang 14 has no name for F16C in __builtin_cpu_supports(). AVX2 also says that the kernel keeps
  // the wide registers.
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool halves = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return __builtin_cpu_supports("avx2") && halves;
#else
  return false;
#endif
}

void CastWith(bool vectors, DType from, const void* source, DType to, void* target,
              uint64_t elements) {
  TRYST_CHECK(CanCast(from, to));
  const char* const read = static_cast<const char*>(source);
  char* const write = static_cast<char*>(target);
  if (from == DType::kDouble) return DoublesToFloats(read, write, elements);
#if defined(__x86_64__)
  if (vectors) {
    return from == DType::kFloat ? FloatsToBfloat16Avx2(read, write, elements)
                                 : HalvesToBfloat16Avx2(read, write, elements);
  }
#endif
  static_cast<void>(vectors);
  return from == DType::kFloat ? FloatsToBfloat16(read, write, elements)
                               : HalvesToBfloat16(read, write, elements);
}

}  // namespace

bool CanCast(DType from, DType to) {
  if (to == DType::kBfloat16) return from == DType::kFloat || from == DType::kHalf;
  return to == DType::kFloat && from == DType::kDouble;
}

void Cast(DType from, const void* source, DType to, void* target, uint64_t elements) {
  CastWith(HasVectors(), from, source, to, target, elements);
}

void CastPortable(DType from, const void* source, DType to, void* target, uint64_t elements) {
  CastWith(false, from, source, to, target, elements);
}

}  // namespace tryst
