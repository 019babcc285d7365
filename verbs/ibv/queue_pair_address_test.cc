#include "verbs/ibv/queue_pair_address.h"

#include <cstring>

#include "gtest/gtest.h"

namespace tryst {
namespace {

QueuePairAddress Sample() {
  QueuePairAddress address;
  address.number = 0x123456;
  address.first_packet = 0xabcdef;
  address.lid = 0x8001;
  address.ethernet = true;
  address.mtu_bytes = 2048;
  address.reads_served = 16;
  for (int i = 0; i < 16; ++i) address.gid.raw[i] = static_cast<uint8_t>(0xf0 + i);
  address.ece_vendor = 0x15b3;
  address.ece_options = 0x80000001;
  return address;
}

TEST(QueuePairAddressTest, ComesBackAsItWas) {
  const QueuePairAddress sent = Sample();
  const absl::StatusOr<QueuePairAddress> got = DecodeQueuePairAddress(EncodeQueuePairAddress(sent));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->number, sent.number);
  EXPECT_EQ(got->first_packet, sent.first_packet);
  EXPECT_EQ(got->lid, sent.lid);
  EXPECT_EQ(got->ethernet, sent.ethernet);
  EXPECT_EQ(got->mtu_bytes, sent.mtu_bytes);
  EXPECT_EQ(got->reads_served, sent.reads_served);
  EXPECT_EQ(std::memcmp(got->gid.raw, sent.gid.raw, 16), 0);
  EXPECT_EQ(got->ece_vendor, sent.ece_vendor);
  EXPECT_EQ(got->ece_options, sent.ece_options);
}

TEST(QueuePairAddressTest, TheBytesAreLittleEndianOnEveryMachine) {
  const std::string bytes = EncodeQueuePairAddress(Sample());
  EXPECT_EQ(bytes.substr(0, 12), std::string("TIB1\x56\x34\x12\0\xef\xcd\xab\0", 12));
}

TEST(QueuePairAddressTest, EveryOtherLengthIsRefused) {
  const std::string good = EncodeQueuePairAddress(Sample());
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(DecodeQueuePairAddress(good.substr(0, length)).ok()) << length;
  }
  EXPECT_FALSE(DecodeQueuePairAddress(good + '\0').ok());
}

TEST(QueuePairAddressTest, FieldsOutOfRangeAreRefused) {
  const auto refused = [](void (*change)(QueuePairAddress*)) {
    QueuePairAddress address = Sample();
    change(&address);
    return absl::IsInvalidArgument(
        DecodeQueuePairAddress(EncodeQueuePairAddress(address)).status());
  };
  EXPECT_TRUE(refused([](QueuePairAddress* a) { a->number = 0; }));
  EXPECT_TRUE(refused([](QueuePairAddress* a) { a->number = 1u << 24; }));
  EXPECT_TRUE(refused([](QueuePairAddress* a) { a->first_packet = 1u << 24; }));
  EXPECT_TRUE(refused([](QueuePairAddress* a) { a->mtu_bytes = 1500; }));
  std::string other_version = EncodeQueuePairAddress(Sample());
  other_version[3] = '2';
  EXPECT_FALSE(DecodeQueuePairAddress(other_version).ok());
  std::string no_link_layer = EncodeQueuePairAddress(Sample());
  no_link_layer[14] = 2;
  EXPECT_FALSE(DecodeQueuePairAddress(no_link_layer).ok());
}

TEST(QueuePairAddressTest, Mtus) {
  EXPECT_EQ(*MtuFromBytes(4096), IBV_MTU_4096);
  EXPECT_FALSE(MtuFromBytes(0).ok());
  EXPECT_FALSE(MtuFromBytes(8192).ok());
  EXPECT_EQ(MtuBytes(IBV_MTU_256), 256u);
  EXPECT_EQ(MtuBytes(static_cast<ibv_mtu>(0)), 0u);
  EXPECT_EQ(MtuBytes(static_cast<ibv_mtu>(6)), 0u);
}

}  // namespace
}  // namespace tryst
