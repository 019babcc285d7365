#include "weights/delta.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/doubles/weights/random_layouts.h"

namespace tryst {
namespace {

constexpr uint32_t kSizes[] = {1, 2, 4, 8, 16};

// EncodeDelta() of one block, in the words of its header.
std::string ReferenceBlock(const std::string& base, const std::string& now, size_t element_bytes,
                           bool* changed, bool* whole) {
  std::string gaps, values;
  size_t gap = 0;
  for (size_t at = 0; at < now.size(); at += element_bytes) {
    if (base.compare(at, element_bytes, now, at, element_bytes) == 0) {
      ++gap;
      continue;
    }
    for (; gap >= 255; gap -= 255) gaps.push_back('\xff');
    gaps.push_back(static_cast<char>(gap));
    gap = 0;
    values.append(now, at, element_bytes);
  }
  *changed = !values.empty();
  *whole = *changed && 2 + gaps.size() + values.size() >= now.size();
  if (!*changed) return "";
  if (*whole) return now;
  std::string coded = {static_cast<char>(gaps.size()), static_cast<char>(gaps.size() >> 8)};
  return coded + gaps + values;
}

std::string Reference(const std::string& base, const std::string& now, uint32_t element_bytes) {
  const size_t blocks = (now.size() + kDeltaBlockBytes - 1) / kDeltaBlockBytes;
  std::string changed_bits((blocks + 7) / 8, '\0'), whole_bits = changed_bits, coded;
  for (size_t block = 0; block < blocks; ++block) {
    bool changed, whole;
    coded += ReferenceBlock(base.substr(block * kDeltaBlockBytes, kDeltaBlockBytes),
                            now.substr(block * kDeltaBlockBytes, kDeltaBlockBytes),
                            std::min(element_bytes, 8u), &changed, &whole);
    if (changed)
      changed_bits[block / 8] = static_cast<char>(changed_bits[block / 8] | 1 << block % 8);
    if (whole) whole_bits[block / 8] = static_cast<char>(whole_bits[block / 8] | 1 << block % 8);
  }
  return changed_bits + whole_bits + coded;
}

std::string RandomBytes(Random* random, size_t size) {
  std::string bytes(size + sizeof(uint64_t), '\0');
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    const uint64_t word = (*random)();
    memcpy(&bytes[at], &word, sizeof(word));
  }
  bytes.resize(size);
  return bytes;
}

// Changes about one element of every `among`, and in some blocks none.
std::string Changed(Random* random, const std::string& base, uint32_t element_bytes,
                    int64_t among) {
  std::string now = base;
  const int64_t elements = base.size() / element_bytes;
  if (elements == 0) return now;
  for (int64_t left = elements / among; left >= 0; --left) {
    const size_t at = Below(random, elements) * element_bytes;
    if (at / kDeltaBlockBytes % 3 == 1) continue;
    // One byte of the element changes, sometimes only its last one.
    now[at + Below(random, element_bytes)] ^= static_cast<char>(1 + Below(random, 255));
  }
  return now;
}

TEST(DeltaTest, ComesBackBitByBit) {
  Random random(4500050);
  int shorter = 0;
  for (int i = 0; i < 400; ++i) {
    const uint32_t element_bytes = kSizes[i % 5];
    const size_t bytes =
        (i % 3 == 0 ? Below(&random, 300) : Below(&random, 400000)) / element_bytes * element_bytes;
    const std::string base = RandomBytes(&random, bytes);
    const std::string now = Changed(&random, base, element_bytes, int64_t{1} << Below(&random, 14));
    std::string coded = "before";
    EncodeDelta(base.data(), now.data(), bytes, element_bytes, &coded);
    ASSERT_EQ(coded.substr(0, 6), "before");
    coded.erase(0, 6);
    ASSERT_EQ(coded, Reference(base, now, element_bytes));
    ASSERT_LE(coded.size(), MaxDeltaBytes(bytes));
    shorter += coded.size() < bytes / 2;
    std::string beside(bytes, 'x'), in_place = base;
    absl::Status decoded = DecodeDelta(coded, base.data(), bytes, element_bytes, beside.data());
    ASSERT_TRUE(decoded.ok()) << decoded;
    ASSERT_EQ(beside, now);
    decoded = DecodeDelta(coded, in_place.data(), bytes, element_bytes, in_place.data());
    ASSERT_TRUE(decoded.ok()) << decoded;
    ASSERT_EQ(in_place, now);
  }
  EXPECT_GT(shorter, 100);
}

TEST(DeltaTest, LongGapsAndBlocksAtTheirBounds) {
  // Each distance around a multiple of 255, and the last element of a block.
  for (const size_t at : {0u, 1u, 254u, 255u, 256u, 509u, 510u, 511u, 32767u, 32768u, 65535u}) {
    const std::string base(2 * kDeltaBlockBytes + 2, '\0');
    std::string now = base;
    now[2 * at] = 1;
    std::string coded;
    EncodeDelta(base.data(), now.data(), now.size(), 2, &coded);
    ASSERT_EQ(coded, Reference(base, now, 2));
    std::string decoded = base;
    ASSERT_TRUE(DecodeDelta(coded, base.data(), now.size(), 2, decoded.data()).ok());
    ASSERT_EQ(decoded, now);
  }
}

TEST(DeltaTest, NeverMuchMoreThanAll) {
  Random random(4500051);
  const size_t bytes = 40 * kDeltaBlockBytes + 8;
  const std::string base = RandomBytes(&random, bytes), now = RandomBytes(&random, bytes);
  for (const uint32_t element_bytes : kSizes) {
    if (bytes % element_bytes != 0) continue;
    std::string coded;
    EncodeDelta(base.data(), now.data(), bytes, element_bytes, &coded);
    EXPECT_EQ(coded.size(), MaxDeltaBytes(bytes));
  }
  std::string same;
  EncodeDelta(base.data(), base.data(), bytes, 2, &same);
  EXPECT_EQ(same, std::string(12, '\0'));
  EXPECT_EQ(MaxDeltaBytes(0), 0u);
}

// Where the bits of the blocks fill their bytes, other bits follow those of the last block.
TEST(DeltaTest, NoMoreBlocksThanThereAreAreLookedAt) {
  for (const size_t blocks : {8u, 16u}) {
    const std::string base(blocks * kDeltaBlockBytes, 'b');
    std::string now = base;
    now.replace(0, kDeltaBlockBytes, kDeltaBlockBytes, '\2');
    std::string coded;
    EncodeDelta(base.data(), now.data(), now.size(), 1, &coded);
    ASSERT_EQ(coded, Reference(base, now, 1));
    std::string decoded = base;
    const absl::Status status = DecodeDelta(coded, base.data(), now.size(), 1, decoded.data());
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(decoded == now);
  }
  EXPECT_TRUE(CheckDelta({}, 0, 1).ok()) << "of nothing there is nothing to read";
}

TEST(DeltaTest, WhatIsMalformedChangesNothing) {
  const std::string base(kDeltaBlockBytes + 4, 'b');
  // Bits for two blocks; then the second block, which has two elements of 2 bytes.
  const auto delta = [](char changed, char whole, const std::string& rest) {
    return std::string{changed, whole} + rest;
  };
  const auto says = [&base](const std::string& coded) {
    std::string now = base;
    const absl::Status status = DecodeDelta(coded, now.data(), now.size(), 2, now.data());
    EXPECT_TRUE(status.ok() || now == base);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    }
    return std::string(status.message());
  };
  EXPECT_EQ(says(delta(0, 0, "")), "");
  EXPECT_EQ(says(delta(2, 2, "abcd")), "");
  EXPECT_EQ(says(delta(2, 0, std::string("\1\0\1ab", 5))), "");
  EXPECT_EQ(says(""), "a delta of weights is malformed: 0 bytes of it cannot stand for 65540");
  EXPECT_EQ(says(std::string(65543, '\0')),
            "a delta of weights is malformed: 65543 bytes of it cannot stand for 65540");
  EXPECT_EQ(says(delta(0, 2, "")),
            "a delta of weights is malformed: a block is marked as unchanged and as whole");
  EXPECT_EQ(says(delta(2, 2, "abc")),
            "a delta of weights is malformed: it ends within a whole block");
  EXPECT_EQ(says(delta(2, 2, "abcde")),
            "a delta of weights is malformed: it goes on after its last block");
  EXPECT_EQ(says(delta(2, 0, "a")),
            "a delta of weights is malformed: it ends before a block's gaps");
  EXPECT_EQ(says(delta(2, 0, std::string("\0\0", 2))),
            "a delta of weights is malformed: it ends within a block's gaps");
  EXPECT_EQ(says(delta(2, 0, std::string("\2\0\0", 3))),
            "a delta of weights is malformed: it ends within a block's gaps");
  EXPECT_EQ(says(delta(2, 0, std::string("\1\0\2ab", 5))),
            "a delta of weights is malformed: a block's gaps lead past its end");
  EXPECT_EQ(says(delta(2, 0, std::string("\2\0\0\1abcd", 8))),
            "a delta of weights is malformed: a block's gaps lead past its end");
  EXPECT_EQ(says(delta(1, 0, std::string("\1\0\xff", 3))),
            "a delta of weights is malformed: a block's gaps lead past its end");
  EXPECT_EQ(says(delta(2, 0, std::string("\1\0\1a", 4))),
            "a delta of weights is malformed: it ends within a block's values");
  EXPECT_EQ(says(delta(2, 0, std::string("\2\0\0\0abc", 7))),
            "a delta of weights is malformed: it ends within a block's values");
}

TEST(DeltaTest, HostileBytesAreRefusedOrDecoded) {
  Random random(4500052);
  int refused = 0, decoded = 0;
  for (int i = 0; i < 2000; ++i) {
    const uint32_t element_bytes = kSizes[i % 5];
    const size_t bytes = (kDeltaBlockBytes + Below(&random, 2000)) / element_bytes * element_bytes;
    const std::string base = RandomBytes(&random, bytes);
    std::string coded;
    EncodeDelta(base.data(), Changed(&random, base, element_bytes, 2000).data(), bytes,
                element_bytes, &coded);
    for (int n = Below(&random, 3); n >= 0; --n) {
      const size_t at = Below(&random, std::min<size_t>(coded.size(), 200));
      coded[at] = static_cast<char>(random());
    }
    if (Below(&random, 4) == 0) coded.resize(Below(&random, coded.size()));
    // Exactly as large as it may be read, for AddressSanitizer.
    const std::vector<char> exact(coded.begin(), coded.end());
    std::vector<char> now(base.begin(), base.end());
    const absl::Status status =
        DecodeDelta({exact.data(), exact.size()}, now.data(), bytes, element_bytes, now.data());
    ++(status.ok() ? decoded : refused);
    ASSERT_TRUE(status.ok() || std::equal(now.begin(), now.end(), base.begin()));
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(decoded, 200);
}

}  // namespace
}  // namespace tryst
