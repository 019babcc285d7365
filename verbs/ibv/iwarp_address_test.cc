#include "verbs/ibv/iwarp_address.h"

#include <arpa/inet.h>

#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

IwarpAddress Some() {
  sockaddr_in host = {};
  host.sin_family = AF_INET;
  host.sin_port = htons(4711);
  inet_pton(AF_INET, "10.0.0.2", &host.sin_addr);
  IwarpAddress address;
  address.number = 17;
  address.token = 0x0123456789abcdef;
  EXPECT_TRUE(FromSocketAddress(reinterpret_cast<const sockaddr*>(&host), &address.host));
  return address;
}

TEST(IwarpAddressTest, ComesBackAsItWas) {
  const IwarpAddress some = Some();
  const auto back = DecodeIwarpAddress(EncodeIwarpAddress(some));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->number, some.number);
  EXPECT_EQ(back->token, some.token);
  const sockaddr_storage raw = ToSocketAddress(back->host);
  sockaddr_in host;
  std::memcpy(&host, &raw, sizeof(host));
  EXPECT_EQ(host.sin_family, AF_INET);
  EXPECT_EQ(ntohs(host.sin_port), 4711);
  EXPECT_STREQ(inet_ntoa(host.sin_addr), "10.0.0.2");
}

TEST(IwarpAddressTest, AnIPv6HostStaysOne) {
  IwarpAddress some = Some();
  inet_pton(AF_INET6, "2001:db8::7", &some.host.sin6_addr);
  const auto back = DecodeIwarpAddress(EncodeIwarpAddress(some));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToSocketAddress(back->host).ss_family, AF_INET6);
}

TEST(IwarpAddressTest, OtherBytesAreRefused) {
  const std::string good = EncodeIwarpAddress(Some());
  std::string other_kind = good;
  other_kind[3] = '2';
  IwarpAddress without_number = Some();
  without_number.number = 0;
  IwarpAddress without_port = Some();
  without_port.host.sin6_port = 0;
  for (const std::string& bytes :
       {std::string(), good.substr(1), good + "x", other_kind, EncodeIwarpAddress(without_number),
        EncodeIwarpAddress(without_port)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeIwarpAddress(bytes).status()));
  }
}

TEST(IwarpAddressTest, AnAddressOfAnotherFamilyIsNone) {
  sockaddr_storage other = {};
  other.ss_family = AF_UNIX;
  sockaddr_in6 host;
  EXPECT_FALSE(FromSocketAddress(reinterpret_cast<const sockaddr*>(&other), &host));
  EXPECT_FALSE(FromSocketAddress(nullptr, &host));
}

}  // namespace
}  // namespace tryst
