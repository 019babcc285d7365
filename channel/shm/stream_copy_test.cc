#include "channel/shm/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/crc32c.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

std::vector<uint8_t> Random(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> data(bytes);
  for (uint8_t& one : data) one = static_cast<uint8_t>(random());
  return data;
}

// Copies [0, bytes) of `from` to memory with `shift` guarded bytes before it, and checks every byte
// around.
template <typename Copy>
void Check(const std::vector<uint8_t>& from, size_t from_shift, size_t to_shift, size_t bytes,
           const Copy& copy) {
  constexpr uint8_t kGuard = 0x5a;
  std::vector<uint8_t> to(to_shift + bytes + 256, kGuard);
  copy(to.data() + to_shift, from.data() + from_shift, bytes);
  ASSERT_TRUE(bytes == 0 || memcmp(to.data() + to_shift, from.data() + from_shift, bytes) == 0)
      << bytes << " bytes from +" << from_shift << " to +" << to_shift;
  for (size_t i = 0; i < to_shift; ++i) ASSERT_EQ(to[i], kGuard);
  for (size_t i = to_shift + bytes; i < to.size(); ++i) ASSERT_EQ(to[i], kGuard);
}

TEST(StreamCopyTest, CopiesEveryLengthAndAlignment) {
  const std::vector<uint8_t> from = Random(8192, 1);
  for (size_t bytes : {0, 1, 7, 63, 64, 65, 127, 128, 129, 191, 192, 255, 256, 1000, 4096, 8000}) {
    for (size_t from_shift : {0, 1, 33, 64}) {
      for (size_t to_shift : {0, 1, 31, 63, 64, 100}) {
        Check(from, from_shift, to_shift, bytes, StreamCopy);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// With and without helpers, below and above the size at which copies are split.
TEST(StreamCopyTest, ACrewCopiesWhatOneDoes) {
  const std::vector<uint8_t> from = Random(3 * kSplitBytes + 5000, 2);
  for (int helpers : {0, 1, 3}) {
    Crew crew(helpers, &Crew::Never);
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, kSplitBytes - 1, kSplitBytes,
                         kSplitBytes + 1, 3 * kSplitBytes + 4321}) {
      for (bool streaming : {false, true}) {
        Check(from, 13, 7, bytes, [&](void* to, const void* source, size_t count) {
          CrewCopy(&crew, to, source, count, streaming);
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(StreamCopyTest, ACrewIsUsedAgainAndAgain) {
  Crew crew(2, &Crew::Never);
  std::vector<uint8_t> to(kSplitBytes);
  for (uint64_t i = 0; i < 200; ++i) {
    const std::vector<uint8_t> from(kSplitBytes, static_cast<uint8_t>(i));
    CrewCopy(&crew, to.data(), from.data(), to.size(), i % 2 == 0);
    ASSERT_EQ(to, from) << i;
  }
}

// The digest that is computed during a copy is right, wherever the copy is cut.
TEST(StreamCopyTest, TheFusedDigestIsTheDigest) {
  const std::vector<uint8_t> from = Random(70'000, 3);
  const uint32_t whole = Crc32cPortable(0, from.data(), from.size());
  std::mt19937_64 random(4);
  for (int i = 0; i < 30; ++i) {
    std::vector<uint8_t> to(from.size());
    uint32_t digest = 0;
    for (size_t at = 0; at < from.size();) {
      const size_t part = std::min<size_t>(from.size() - at, 1 + random() % 20'000);
      digest = CopyCrc32c(digest, to.data() + at, from.data() + at, part);
      at += part;
    }
    ASSERT_EQ(digest, whole);
    ASSERT_EQ(to, from);
  }
}

}  // namespace
}  // namespace tryst
