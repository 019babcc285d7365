#include "weights/cast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tryst {
namespace {

template <typename To, typename From>
To BitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// A finite number, rounded by the definition: to the nearest multiple of the last place that the
// format has at that exponent.
float Nearest(double value, int fraction_bits) {
  constexpr int kLeastExponent = -126, kGreatestExponent = 127;  // A float's, and a bfloat16's.
  if (value == 0) return static_cast<float>(value);
  const int exponent = std::max(std::ilogb(value), kLeastExponent);
  const double last_place = std::ldexp(1.0, exponent - fraction_bits);
  const double rounded = std::nearbyint(value / last_place) * last_place;
  if (std::abs(rounded) >= std::ldexp(1.0, kGreatestExponent + 1)) {
    return std::copysign(HUGE_VALF, static_cast<float>(std::copysign(1.0, value)));
  }
  return static_cast<float>(rounded);  // Exact.
}

uint16_t FloatToBfloat16(uint32_t bits) {
  const float value = BitsAs<float>(bits);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  if (std::isinf(value)) return static_cast<uint16_t>(bits >> 16);
  return static_cast<uint16_t>(BitsAs<uint32_t>(Nearest(value, 7)) >> 16);
}

uint16_t HalfToBfloat16(uint16_t half) {
  const uint16_t sign = half & 0x8000;
  const int exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
  if (exponent == 0x1f) {
    // A bfloat16 keeps the upper 7 of a half's 10 bits of payload.
    return static_cast<uint16_t>(sign | 0x7f80 | (fraction == 0 ? 0 : 0x40 | fraction >> 3));
  }
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<uint16_t>(sign | BitsAs<uint32_t>(Nearest(magnitude, 7)) >> 16);
}

uint32_t DoubleToFloat(uint64_t bits) {
  const double value = BitsAs<double>(bits);
  const uint32_t sign = static_cast<uint32_t>(bits >> 63) << 31;
  if (std::isnan(value)) {
    return sign | 0x7fc00000 | static_cast<uint32_t>(bits >> 29 & 0x7fffff);
  }
  if (std::isinf(value)) return sign | 0x7f800000;
  return BitsAs<uint32_t>(Nearest(value, 23));
}

template <typename From, typename To>
void Compare(DType from_type, DType to_type, const std::vector<From>& from, To (*reference)(From)) {
  std::vector<To> cast(from.size()), portable(from.size());
  Cast(from_type, from.data(), to_type, cast.data(), from.size());
  CastPortable(from_type, from.data(), to_type, portable.data(), from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    const To expected = reference(from[i]);
    ASSERT_EQ(cast[i], expected) << std::hex << uint64_t{from[i]};
    ASSERT_EQ(portable[i], expected) << std::hex << uint64_t{from[i]};
  }
}

constexpr size_t kRandomValues = 10000000;

TEST(CastTest, FloatToBfloat16) {
  std::mt19937_64 random(4500060);
  std::vector<uint32_t> bits = {0,          0x80000000, 1,          0x007fffff, 0x00800000,
                                0x3f808000, 0x3f818000, 0x3f808001, 0x7f7fffff, 0x7f7f7fff,
                                0x7f7f8000, 0x7f800000, 0xff800000, 0x7f800001, 0xff81ffff,
                                0x7fffffff, 0x00008000, 0x00018000, 0x00007fff};
  while (bits.size() < kRandomValues) bits.push_back(static_cast<uint32_t>(random()));
  Compare(DType::kFloat, DType::kBfloat16, bits, FloatToBfloat16);
  // What weights are, where every exponent is near 1, and half of what rounds is a tie.
  for (uint32_t& value : bits) value = 0x3c000000 + (static_cast<uint32_t>(random()) & 0x87ff8000);
  Compare(DType::kFloat, DType::kBfloat16, bits, FloatToBfloat16);
}

TEST(CastTest, EachHalfToBfloat16) {
  std::vector<uint16_t> halves(1 << 16);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  Compare(DType::kHalf, DType::kBfloat16, halves, HalfToBfloat16);
}

TEST(CastTest, DoubleToFloat) {
  std::mt19937_64 random(4500061);
  std::vector<uint64_t> bits = {0,
                                uint64_t{1} << 63,
                                1,
                                0x7ff0000000000000,
                                0xfff0000000000000,
                                0x7ff0000000000001,
                                0x7fffffffffffffff,
                                0x47efffffe0000000,
                                0x47efffffefffffff,
                                0x47effffff0000000,
                                0x36a0000000000000,
                                0x3690000000000000,
                                0x3690000000000001,
                                0x3ff0000010000000,
                                0x3ff0000030000000};
  while (bits.size() < kRandomValues) {
    const uint64_t value = random();
    bits.push_back(value);
    // The next value has an exponent that a float has, or nearly.
    const uint64_t exponent = 1023 - 160 + random() % 300;
    bits.push_back((value & 0x800fffffffffffff) | exponent << 52);
  }
  Compare(DType::kDouble, DType::kFloat, bits, DoubleToFloat);
}

TEST(CastTest, AnyNumberOfElementsAtAnyAddress) {
  std::mt19937_64 random(4500062);
  for (size_t count = 0; count < 70; ++count) {
    for (size_t skew = 0; skew < 4; ++skew) {
      std::vector<char> from(skew + count * 4), to(skew + count * 2 + 1, 'x');
      for (char& byte : from) byte = static_cast<char>(random());
      Cast(DType::kFloat, from.data() + skew, DType::kBfloat16, to.data() + skew, count);
      for (size_t i = 0; i < count; ++i) {
        uint32_t bits;
        memcpy(&bits, from.data() + skew + i * 4, 4);
        uint16_t cast;
        memcpy(&cast, to.data() + skew + i * 2, 2);
        ASSERT_EQ(cast, FloatToBfloat16(bits));
      }
      ASSERT_EQ(to.back(), 'x');
    }
  }
}

TEST(CastTest, TheThreadsModeDoesNotMatter) {
  const uint64_t subnormal = 0x36a0000000000000, tie = 0x3ff0000010000000;
  fesetround(FE_UPWARD);
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // Flushes subnormals to zero, as result and as operand.
#endif
  uint32_t small = 7, even = 7;
  Cast(DType::kDouble, &subnormal, DType::kFloat, &small, 1);
  Cast(DType::kDouble, &tie, DType::kFloat, &even, 1);
#if defined(__x86_64__)
  EXPECT_EQ(_mm_getcsr() & 0x8040, 0x8040u);
  _mm_setcsr(before);
#endif
  EXPECT_EQ(fegetround(), FE_UPWARD);
  fesetround(FE_TONEAREST);
  EXPECT_EQ(small, 1u);
  EXPECT_EQ(even, 0x3f800000u);
}

TEST(CastTest, OnlyTheseThree) {
  int casts = 0;
  for (int from = 0; from < 64; ++from) {
    for (int to = 0; to < 64; ++to) {
      casts += CanCast(static_cast<DType>(from), static_cast<DType>(to));
    }
  }
  EXPECT_EQ(casts, 3);
  EXPECT_TRUE(CanCast(DType::kFloat, DType::kBfloat16));
  EXPECT_TRUE(CanCast(DType::kHalf, DType::kBfloat16));
  EXPECT_TRUE(CanCast(DType::kDouble, DType::kFloat));
}

}  // namespace
}  // namespace tryst
