#include "verbs/soft/frame.h"

#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

FrameHeader Full(FrameType type) {
  FrameHeader header;
  header.type = type;
  header.sequence = 0x01020304;
  header.executed = 0x11121314;
  header.receives = 0x21222324;
  header.remote_key = 0x31323334;
  header.immediate = 0x41424344;
  header.address = 0x51;
  header.total = 0x100000000;
  header.bytes = 1000;
  return header;
}

bool SameFields(const FrameHeader& a, const FrameHeader& b) {
  return a.type == b.type && a.has_immediate == b.has_immediate && a.sequence == b.sequence &&
         a.executed == b.executed && a.receives == b.receives && a.remote_key == b.remote_key &&
         a.immediate == b.immediate && a.address == b.address && a.total == b.total &&
         a.bytes == b.bytes;
}

bool Decodes(const FrameHeader& header) {
  uint8_t bytes[kFrameHeaderBytes];
  EncodeFrameHeader(header, bytes);
  FrameHeader decoded;
  return DecodeFrameHeader(bytes, &decoded) && SameFields(header, decoded);
}

TEST(FrameTest, EveryTypeComesBackAsItWas) {
  for (FrameType type : {FrameType::kWrite, FrameType::kSend}) {
    FrameHeader header = Full(type);
    EXPECT_TRUE(Decodes(header));
    header.has_immediate = true;
    EXPECT_EQ(Decodes(header), type == FrameType::kWrite);
  }
  EXPECT_TRUE(Decodes(Full(FrameType::kFragment)));
  EXPECT_TRUE(Decodes(Full(FrameType::kReadResponse)));
  for (FrameType type : {FrameType::kRead, FrameType::kAck, FrameType::kError}) {
    FrameHeader header = Full(type);
    header.bytes = 0;
    EXPECT_TRUE(Decodes(header));
  }
}

TEST(FrameTest, LayoutIsFixed) {
  uint8_t bytes[kFrameHeaderBytes];
  memset(bytes, 0xff, sizeof(bytes));  // What was sent before.
  FrameHeader header = Full(FrameType::kWrite);
  header.has_immediate = true;
  EncodeFrameHeader(header, bytes);
  const uint8_t expected[kFrameHeaderBytes] = {
      'T',  'R',  'Y',  'S',  1,    1,    0,    0,    0x04, 0x03, 0x02, 0x01,
      0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21, 0x34, 0x33, 0x32, 0x31,
      0x44, 0x43, 0x42, 0x41, 0xe8, 0x03, 0,    0,    0x51, 0,    0,    0,
      0,    0,    0,    0,    0,    0,    0,    0,    1,    0,    0,    0};
  EXPECT_EQ(memcmp(bytes, expected, sizeof(bytes)), 0);
}

TEST(FrameTest, PayloadMustLieInItsMessage) {
  FrameHeader header = Full(FrameType::kWrite);
  header.total = header.bytes - 1;
  EXPECT_FALSE(Decodes(header));
  header = Full(FrameType::kFragment);
  header.address = header.total - header.bytes;
  EXPECT_TRUE(Decodes(header));
  ++header.address;
  EXPECT_FALSE(Decodes(header));
  header.address = std::numeric_limits<uint64_t>::max() - 10;
  EXPECT_FALSE(Decodes(header));
  header.type = FrameType::kReadResponse;
  EXPECT_FALSE(Decodes(header));
}

TEST(FrameTest, PayloadIsBounded) {
  FrameHeader header = Full(FrameType::kWrite);
  header.bytes = kMaxFrameBytes;
  EXPECT_TRUE(Decodes(header));
  ++header.bytes;
  EXPECT_FALSE(Decodes(header));
}

TEST(FrameTest, OnlyMessagesHavePayloadOrImmediate) {
  for (FrameType type : {FrameType::kRead, FrameType::kAck, FrameType::kError}) {
    EXPECT_FALSE(Decodes(Full(type))) << "payload";
  }
  for (FrameType type : {FrameType::kFragment, FrameType::kReadResponse, FrameType::kRead,
                         FrameType::kAck, FrameType::kError}) {
    FrameHeader header = Full(type);
    header.bytes = 0;
    header.has_immediate = true;
    EXPECT_FALSE(Decodes(header)) << "immediate";
  }
}

TEST(FrameTest, WhatIsNoFrameIsRefused) {
  uint8_t good[kFrameHeaderBytes];
  EncodeFrameHeader(Full(FrameType::kWrite), good);
  FrameHeader header;
  // In the fixed part no bit may differ, except for the type and the immediate's flag.
  for (size_t bit = 0; bit < 8 * 8; ++bit) {
    uint8_t bytes[kFrameHeaderBytes];
    memcpy(bytes, good, sizeof(bytes));
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    if (bit / 8 == 4 || bit == 40) continue;
    EXPECT_FALSE(DecodeFrameHeader(bytes, &header)) << "bit " << bit;
  }
  for (int type : {0, 8, 255}) {
    uint8_t bytes[kFrameHeaderBytes];
    memcpy(bytes, good, sizeof(bytes));
    bytes[4] = static_cast<uint8_t>(type);
    EXPECT_FALSE(DecodeFrameHeader(bytes, &header)) << "type " << type;
  }
}

TEST(FrameTest, NothingAtTheEndOfAMessageLiesInIt) {
  for (const FrameType type : {FrameType::kFragment, FrameType::kReadResponse}) {
    FrameHeader header = Full(type);
    header.bytes = 0;
    header.address = header.total;
    EXPECT_TRUE(Decodes(header));
    ++header.address;
    EXPECT_FALSE(Decodes(header));
  }
}

}  // namespace
}  // namespace tryst
