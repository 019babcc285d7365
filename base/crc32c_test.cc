#include "base/crc32c.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

TEST(Crc32cTest, KnownAnswers) {
  // From RFC 3720, appendix B.4.
  EXPECT_EQ(Crc32c(0, std::string(32, '\0').data(), 32), 0x8a9136aau);
  EXPECT_EQ(Crc32c(0, std::string(32, '\xff').data(), 32), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(0, "123456789", 9), 0xe3069283u);
  EXPECT_EQ(Crc32c(0, "", 0), 0u);
}

TEST(Crc32cTest, AgreesWithTheTableForEveryLengthAndAlignment) {
  std::mt19937 random(7);
  std::vector<uint8_t> data(10'000);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  for (size_t bytes : {1, 7, 8, 63, 1023, 3071, 3072, 3073, 6144, 9000}) {
    for (size_t at = 0; at < 9; ++at) {
      const uint32_t want = Crc32cPortable(5, data.data() + at, bytes);
      EXPECT_EQ(Crc32c(5, data.data() + at, bytes), want) << bytes << " at " << at;
      for (const auto copies : {CopyCrc32c, CopyCrc32cPortable}) {
        std::vector<uint8_t> copy(bytes + 1, 0xee);
        EXPECT_EQ(copies(5, copy.data(), data.data() + at, bytes), want);
        EXPECT_EQ(memcmp(copy.data(), data.data() + at, bytes), 0);
        EXPECT_EQ(copy[bytes], 0xee);
      }
    }
  }
}

TEST(Crc32cTest, ContinuesWhereItStopped) {
  const std::string text(5000, 'x');
  const uint32_t whole = Crc32c(0, text.data(), text.size());
  EXPECT_EQ(Crc32c(Crc32c(0, text.data(), 1234), text.data() + 1234, text.size() - 1234), whole);
}

}  // namespace
}  // namespace tryst
