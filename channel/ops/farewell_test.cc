#include "channel/ops/farewell.h"

#include "gtest/gtest.h"

namespace tryst {
namespace {

Farewell Sample() { return {0x1122334455667788, {{3, 9}, {0, 65535}, {4095, 0}}}; }

TEST(FarewellTest, ComesBackAsItWas) {
  const auto decoded = DecodeFarewell(EncodeFarewell(Sample()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->session, Sample().session);
  ASSERT_EQ(decoded->wanted.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(decoded->wanted[i].slot, Sample().wanted[i].slot);
    EXPECT_EQ(decoded->wanted[i].generation, Sample().wanted[i].generation);
  }
}

TEST(FarewellTest, HasTheBytesOfTheWire) {
  const std::string bytes = EncodeFarewell({1, {{2, 0x0304}}});
  EXPECT_EQ(bytes, std::string("\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\4\3", 20));
}

TEST(FarewellTest, RefusesEveryOtherLength) {
  const std::string bytes = EncodeFarewell(Sample());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(DecodeFarewell(bytes.substr(0, size)).status().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_FALSE(DecodeFarewell(bytes + '\0').ok());
}

TEST(FarewellTest, RefusesMoreThanThereAreSlots) {
  Farewell farewell;
  farewell.wanted.resize(Farewell::kMostWanted);
  EXPECT_TRUE(DecodeFarewell(EncodeFarewell(farewell)).ok());
  farewell.wanted.resize(Farewell::kMostWanted + 1);
  EXPECT_FALSE(DecodeFarewell(EncodeFarewell(farewell)).ok());
}

TEST(FarewellTest, RefusesWhatIsToBeZero) {
  std::string bytes = EncodeFarewell(Sample());
  bytes[12] = 1;
  EXPECT_FALSE(DecodeFarewell(bytes).ok());
}

}  // namespace
}  // namespace tryst
