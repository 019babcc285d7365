#include "verbs/soft/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/syscall.h>

#include <cerrno>
#include <string>

#include "base/failing_call.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

TEST(SocketTest, AddressesComeBackAsTheyWere) {
  for (const char* text :
       {"127.0.0.1:0", "10.1.2.3:65535", "[::1]:80", "[fe80::1]:1", "unix:@name", "unix:"}) {
    const absl::StatusOr<SocketAddress> address = SocketAddress::Parse(text);
    ASSERT_TRUE(address.ok()) << text << ": " << address.status();
    EXPECT_EQ(address->ToString(), text);
  }
}

TEST(SocketTest, WhatIsNoAddressIsRefused) {
  for (const char* text : {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
                           "127.0.0.1:x", "127.0.0:1", "localhost:1", "::1:80", "[::1]", "[::1:80",
                           "[127.0.0.1]:80", "unix:name", "unix:@"}) {
    EXPECT_EQ(SocketAddress::Parse(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_TRUE(SocketAddress::Parse("unix:@" + std::string(107, 'x')).ok());
  EXPECT_FALSE(SocketAddress::Parse("unix:@" + std::string(108, 'x')).ok());
}

TEST(SocketTest, WildcardsAreKnown) {
  EXPECT_TRUE(SocketAddress::Parse("0.0.0.0:1")->is_wildcard());
  EXPECT_TRUE(SocketAddress::Parse("[::]:1")->is_wildcard());
  EXPECT_FALSE(SocketAddress::Parse("127.0.0.1:1")->is_wildcard());
  EXPECT_FALSE(SocketAddress::Parse("[::1]:1")->is_wildcard());
  EXPECT_FALSE(SocketAddress::Parse("unix:")->is_wildcard());
}

TEST(SocketTest, PortThatIsTakenIsUnavailable) {
  const absl::StatusOr<Fd> first = SocketAddress::Parse("127.0.0.1:0")->Listen();
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::StatusOr<SocketAddress> bound = SocketAddress::Of(first->get());
  ASSERT_TRUE(bound.ok());
  EXPECT_NE(bound->port(), 0);
  EXPECT_EQ(SocketAddress::Parse("unix:@name")->port(), 0);
  EXPECT_EQ(bound->Listen().status().code(), absl::StatusCode::kUnavailable);
}

// Two of which neither listened yet may have bound the same port.
TEST(SocketTest, APortOnWhichAnotherBeganToListenMeanwhileIsUnavailable) {
  absl::Status status;
  if (!RunWhereCallFails(SYS_listen, EADDRINUSE, [&status] {
        status = SocketAddress::Parse("127.0.0.1:0")->Listen().status();
      })) {
    GTEST_SKIP() << "needs seccomp filters";
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST(SocketTest, DialledSocketIsAccepted) {
  for (const char* text : {"127.0.0.1:0", "unix:"}) {
    const absl::StatusOr<Fd> listener = SocketAddress::Parse(text)->Listen();
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_FALSE(AcceptFrom(listener->get()).valid());
    const Fd dialled = SocketAddress::Of(listener->get())->Dial();
    EXPECT_TRUE(dialled.valid());
    EXPECT_TRUE(AcceptFrom(listener->get()).valid());
  }
}

std::string CongestionControlOf(const Fd& fd) {
  char name[16] = {};
  socklen_t length = sizeof(name);
  getsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name, &length);
  return name;
}

TEST(SocketTest, NothingPacesBytesThatStayOnTheHost) {
  for (const char* text : {"127.0.0.1:0", "[::1]:0"}) {
    const absl::StatusOr<Fd> listener = SocketAddress::Parse(text)->Listen();
    if (!listener.ok()) continue;  // There is no IPv6 here.
    const Fd dialled = SocketAddress::Of(listener->get())->Dial();
    const Fd accepted = AcceptFrom(listener->get());
    EXPECT_EQ(CongestionControlOf(dialled), "reno") << text;
    EXPECT_EQ(CongestionControlOf(accepted), "reno") << text;
  }
}

}  // namespace
}  // namespace tryst
