#include "server/security/loopback.h"

#include "gtest/gtest.h"

namespace tryst {
namespace {

TEST(LoopbackTest, KnowsWhatOnlyThisHostReaches) {
  for (const char* address : {"127.0.0.1:2222", "127.8.0.1", "localhost", "localhost:0", "::1",
                              "[::1]:2222", "unix:/tmp/socket", "unix:@abstract"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"", "10.0.0.1:2222", "0.0.0.0:0", "[::]:0", "128.0.0.1", "fe80::1",
                              "localhost.example:80", "127.0.0.1.example:80", ":2222"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

}  // namespace
}  // namespace tryst
