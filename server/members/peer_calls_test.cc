#include "server/members/peer_calls.h"

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "channel/grpc/peer_directory.h"
#include "channel/signing/caller.h"
#include "server/listener/listening_sockets.h"

namespace tryst {
namespace {

const char kPeer[] = "/job:ps/replica:0/task:0";

// A peer whose kernel takes the connection, and that never says anything.
class SilentPeerTest : public testing::Test {
 protected:
  // Explains what it says of a failed call in its own time.
  class Directory final : public PeerDirectory {
   public:
    absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(absl::string_view) override {
      return channel;
    }
    absl::Status Explain(absl::string_view, absl::Status status) override {
      absl::SleepFor(absl::Milliseconds(200));
      explained = true;
      return status;
    }
    std::shared_ptr<grpc::Channel> channel;
    std::atomic<bool> explained{false};
  };

  SilentPeerTest() {
    directory_.channel = grpc::CreateChannel(absl::StrCat("127.0.0.1:", sockets_.port),
                                             grpc::InsecureChannelCredentials());
  }

  Directory directory_;
  CallSigner signer_{{"lab", "/job:worker/replica:0/task:0", 9}, "", UnixMs};

 private:
  const ListeningSockets sockets_ = *ListenOn("127.0.0.1:0");
};

TEST_F(SilentPeerTest, CallsEndWhenTheyAreClosed) {
  PeerCalls calls(&directory_, &signer_);
  absl::Status ended;
  const absl::Time began = absl::Now();
  std::thread caller([&] { ended = calls.Ping(kPeer, absl::Seconds(60)).status(); });
  absl::SleepFor(absl::Seconds(1));  // By then it is under way.
  calls.Close();
  // What a call uses must not go before it.
  EXPECT_TRUE(directory_.explained) << "the call is still under way";
  caller.join();
  EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
  EXPECT_LT(absl::Now() - began, absl::Seconds(20));
  EXPECT_TRUE(absl::IsCancelled(calls.Ping(kPeer, absl::Seconds(60)).status()));
}

// Nobody knows where the peer is, so the call asks again after ever longer pauses, of 500 ms at
// last.
class LostPeer final : public PeerDirectory {
 public:
  absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(absl::string_view) override {
    ++asked;
    return absl::UnavailableError("it has left");
  }
  std::atomic<int> asked{0};
};

absl::Duration EndOfARestingCall() {
  LostPeer directory;
  CallSigner signer({"lab", "/job:worker/replica:0/task:0", 9}, "", UnixMs);
  PeerCalls calls(&directory, &signer);
  std::thread caller([&] { EXPECT_FALSE(calls.Ping(kPeer, absl::Seconds(60)).ok()); });
  while (directory.asked < 7) absl::SleepFor(absl::Milliseconds(1));
  const absl::Time closed = absl::Now();
  calls.Close();
  const absl::Duration took = absl::Now() - closed;
  caller.join();
  return took;
}

// Others of this machine may make one slow, or a pause that is nearly over; not each of five.
TEST(PeerCalls, ACallThatRestsBetweenAttemptsEndsWhenItIsClosed) {
  absl::Duration least = absl::InfiniteDuration();
  for (int i = 0; i < 5 && least > absl::Milliseconds(100); ++i) {
    least = std::min(least, EndOfARestingCall());
  }
  EXPECT_LT(least, absl::Milliseconds(300));
}

}  // namespace
}  // namespace tryst
