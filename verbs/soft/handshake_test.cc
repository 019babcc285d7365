#include "verbs/soft/handshake.h"

#include <cstring>

#include "gtest/gtest.h"

namespace tryst {
namespace {

SoftAddress SomeAddress() {
  SoftAddress address;
  for (size_t i = 0; i < address.token.size(); ++i) address.token[i] = static_cast<uint8_t>(i + 1);
  address.number = 0xdeadbeef;
  address.sockets = 3;
  address.tls = true;
  address.listener = "[::1]:1234";
  return address;
}

TEST(HandshakeTest, AddressComesBackAsItWas) {
  const absl::StatusOr<SoftAddress> address = DecodeSoftAddress(EncodeSoftAddress(SomeAddress()));
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->token, SomeAddress().token);
  EXPECT_EQ(address->number, 0xdeadbeef);
  EXPECT_EQ(address->sockets, 3);
  EXPECT_TRUE(address->tls);
  EXPECT_EQ(address->listener, "[::1]:1234");
}

TEST(HandshakeTest, WhatIsNoAddressIsRefused) {
  const std::string good = EncodeSoftAddress(SomeAddress());
  EXPECT_FALSE(DecodeSoftAddress("").ok());
  EXPECT_FALSE(DecodeSoftAddress(good.substr(0, 28)).ok()) << "no listener";
  EXPECT_FALSE(DecodeSoftAddress(good + std::string(200, 'x')).ok());
  for (size_t i : {0, 4, 6, 7}) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 2);
    EXPECT_FALSE(DecodeSoftAddress(bad).ok()) << "byte " << i;
  }
  std::string no_sockets = good;
  no_sockets[5] = 0;
  EXPECT_FALSE(DecodeSoftAddress(no_sockets).ok());
}

TEST(HandshakeTest, ASealedAddressShowsItsTokenToThoseWithTheSecret) {
  const Token salt = {1, 2, 3};
  const std::string secret = "sixteen bytes and more";
  const std::string sealed = SealSoftAddress(SomeAddress(), secret, salt);
  EXPECT_EQ(sealed.find(std::string("\x01\x02\x03\x04\x05\x06\x07\x08")), std::string::npos);
  const absl::StatusOr<SoftAddress> address = DecodeSoftAddress(sealed, secret);
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->token, SomeAddress().token);
  EXPECT_EQ(address->listener, SomeAddress().listener);
  EXPECT_TRUE(address->tls);
  EXPECT_FALSE(DecodeSoftAddress(sealed, "another").ok());
  EXPECT_FALSE(DecodeSoftAddress(sealed).ok()) << "nobody takes the salt for the token";
  EXPECT_FALSE(DecodeSoftAddress(EncodeSoftAddress(SomeAddress()), secret).ok())
      << "nobody takes what is not sealed";
  for (size_t i = 0; i < sealed.size(); ++i) {
    std::string edited = sealed;
    edited[i] = static_cast<char>(edited[i] ^ 1);
    EXPECT_FALSE(DecodeSoftAddress(edited, secret).ok()) << "byte " << i;
  }
}

TEST(HandshakeTest, HelloComesBackAsItWas) {
  SoftHello hello;
  hello.token = SomeAddress().token;
  hello.to_number = 1;
  hello.from_number = 2;
  hello.socket = 3;
  hello.sockets = 4;
  hello.receives = 5;
  uint8_t bytes[kHelloBytes];
  EncodeHello(hello, bytes);
  SoftHello decoded;
  ASSERT_TRUE(DecodeHello(bytes, &decoded));
  EXPECT_EQ(decoded.token, hello.token);
  EXPECT_EQ(decoded.to_number, 1u);
  EXPECT_EQ(decoded.from_number, 2u);
  EXPECT_EQ(decoded.socket, 3);
  EXPECT_EQ(decoded.sockets, 4);
  EXPECT_EQ(decoded.receives, 5u);
  for (size_t i : {0, 4, 7, 20}) {
    uint8_t bad[kHelloBytes];
    memcpy(bad, bytes, sizeof(bad));
    bad[i] ^= 1;
    EXPECT_FALSE(DecodeHello(bad, &decoded)) << "byte " << i;
  }
  hello.socket = 4;
  EncodeHello(hello, bytes);
  EXPECT_FALSE(DecodeHello(bytes, &decoded)) << "the fifth of four sockets";
  hello.socket = 0;
  hello.sockets = 1;
  EncodeHello(hello, bytes);
  EXPECT_TRUE(DecodeHello(bytes, &decoded)) << "the only socket";
}

TEST(HandshakeTest, TokensDifferInAnyByte) {
  const Token token = SomeAddress().token;
  EXPECT_TRUE(TokensEqual(token, token));
  for (size_t i = 0; i < token.size(); ++i) {
    Token other = token;
    other[i] ^= 0x80;
    EXPECT_FALSE(TokensEqual(token, other)) << "byte " << i;
  }
}

TEST(HandshakeTest, AListenerHasTwoHundredBytesAtMost) {
  SoftAddress address = SomeAddress();
  address.tls = false;
  address.listener = std::string(200, 'x');
  const absl::StatusOr<SoftAddress> longest = DecodeSoftAddress(EncodeSoftAddress(address));
  ASSERT_TRUE(longest.ok()) << longest.status();
  EXPECT_EQ(longest->listener, address.listener);
  EXPECT_FALSE(longest->tls);
  EXPECT_FALSE(DecodeSoftAddress(SealSoftAddress(address, "secret", Token()), "secret")->tls);
  address.listener += 'x';
  EXPECT_FALSE(DecodeSoftAddress(EncodeSoftAddress(address)).ok());
  EXPECT_FALSE(DecodeSoftAddress(SealSoftAddress(address, "secret", Token()), "secret").ok());
  std::string unknown_flag = EncodeSoftAddress(SomeAddress());
  unknown_flag[6] = static_cast<char>(unknown_flag[6] | 4);
  EXPECT_FALSE(DecodeSoftAddress(unknown_flag).ok());
}

// A key and number that are used twice would show how two tokens differ.
TEST(HandshakeTest, TheSaltChangesWhatIsSealed) {
  const std::string one = SealSoftAddress(SomeAddress(), "secret", Token{1});
  const std::string other = SealSoftAddress(SomeAddress(), "secret", Token{2});
  const size_t behind = EncodeSoftAddress(SomeAddress()).size();
  EXPECT_NE(one.substr(behind, sizeof(Token)), other.substr(behind, sizeof(Token)));
}

TEST(HandshakeTest, AHelloIsItsBytesAndNothingAround) {
  struct {
    uint8_t hello[kHelloBytes];
    uint8_t behind[kHelloBytes];
  } bytes;
  memset(&bytes, 0xee, sizeof(bytes));  // What was there before, and what is behind.
  SoftHello hello;
  hello.token = SomeAddress().token;
  hello.to_number = 0x01020304;
  hello.from_number = 0x11121314;
  hello.receives = 0x21222324;
  hello.socket = 3;
  hello.sockets = 4;
  EncodeHello(hello, bytes.hello);
  const uint8_t expected[kHelloBytes] = {'T',  'R',  'Y',  'H',  1,    3,    4,    0,    0x04, 0x03,
                                         0x02, 0x01, 0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21,
                                         0,    0,    0,    0,    1,    2,    3,    4,    5,    6,
                                         7,    8,    9,    10,   11,   12,   13,   14,   15,   16};
  EXPECT_EQ(memcmp(bytes.hello, expected, sizeof(expected)), 0);
  for (const uint8_t byte : bytes.behind) EXPECT_EQ(byte, 0xee);
  SoftHello decoded;
  ASSERT_TRUE(DecodeHello(bytes.hello, &decoded));
  EXPECT_EQ(decoded.token, hello.token);
  hello.socket = hello.sockets = 0;
  EncodeHello(hello, bytes.hello);
  EXPECT_FALSE(DecodeHello(bytes.hello, &decoded)) << "of no sockets";
}

}  // namespace
}  // namespace tryst
