#include "server/members/peer_calls.h"

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "channel/signing/caller.h"
#include "server/members/membership.h"

namespace tryst {
namespace {

// A peer whose kernel takes the connection, and that never says anything.
TEST(PeerCalls, CallsToASilentPeerEndWhenTheyAreClosed) {
  const int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  ASSERT_EQ(bind(silent, reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(listen(silent, 4), 0);
  ASSERT_EQ(getsockname(silent, reinterpret_cast<sockaddr*>(&at), &size), 0);

  const std::string peer = "/job:ps/replica:0/task:0";
  Membership members(false, [](const std::string&, const std::string& address) {
    return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  });
  members.Set(peer, absl::StrCat("127.0.0.1:", ntohs(at.sin_port)));
  CallSigner signer({"lab", "/job:worker/replica:0/task:0", 9}, "", UnixMs);
  PeerCalls calls(&members, &signer);
  absl::Status ended;
  const absl::Time began = absl::Now();
  std::thread caller([&] { ended = calls.Ping(peer, absl::Seconds(60)).status(); });
  absl::SleepFor(absl::Milliseconds(300));
  calls.Close();
  caller.join();
  EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
  EXPECT_LT(absl::Now() - began, absl::Seconds(20));
  EXPECT_TRUE(absl::IsCancelled(calls.Ping(peer, absl::Seconds(60)).status()));
  close(silent);
}

}  // namespace
}  // namespace tryst
