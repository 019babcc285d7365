#include "channel/shm/local_socket.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/failing_call.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

using Received = LocalSocket::Received;
using shm_wire::PacketType;

class LocalSocketTest : public ::testing::Test {
 protected:
  LocalSocketTest() {
    const std::string name = absl::StrCat("tryst-local-socket-test-", getpid());
    const auto door = *LocalSocket::Listen(name);
    EXPECT_EQ(door->Accept(), nullptr);
    ours_ = *LocalSocket::Connect(name);
    theirs_ = door->Accept();
  }
  static shm_wire::Packet PacketOf(PacketType type) {
    shm_wire::Packet packet;
    packet.type = type;
    return packet;
  }
  Received Receive() {
    fd_ = OwnedFd();
    packet_ = PacketOf(PacketType::kJoin);
    return theirs_->Receive(&packet_, &fd_);
  }

  std::unique_ptr<LocalSocket> ours_;
  std::unique_ptr<LocalSocket> theirs_;
  shm_wire::Packet packet_;
  OwnedFd fd_;
};

TEST_F(LocalSocketTest, PacketsComeInOrderWithTheirDescriptors) {
  ASSERT_NE(theirs_, nullptr);
  EXPECT_EQ(Receive(), Received::kNothing);
  ASSERT_TRUE(ours_->Send(PacketOf(PacketType::kWake)));
  ASSERT_TRUE(ours_->Send(PacketOf(PacketType::kSegment), STDIN_FILENO));
  ASSERT_EQ(Receive(), Received::kPacket);
  EXPECT_EQ(packet_.type, PacketType::kWake);
  EXPECT_FALSE(fd_.valid());
  ASSERT_EQ(Receive(), Received::kPacket);
  EXPECT_EQ(packet_.type, PacketType::kSegment);
  EXPECT_TRUE(fd_.valid());
  EXPECT_EQ(Receive(), Received::kNothing);
}

TEST_F(LocalSocketTest, ADescriptorThatThereIsNoRoomForIsLost) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "needs a process without the sanitizer of undefined behaviour, which opens "
                  "descriptors to look at objects";
#endif
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  for (const bool any_left : {false, true}) {
    const int lowest = dup(0);
    close(lowest);
    const rlimit low = {static_cast<rlim_t>(lowest) + any_left, limit.rlim_max};
    ASSERT_TRUE(ours_->Send(PacketOf(PacketType::kSegment), STDIN_FILENO));
    ASSERT_TRUE(ours_->Send(PacketOf(PacketType::kWake)));
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    bool fd_lost = any_left;
    const Received received = theirs_->Receive(&packet_, &fd_, &fd_lost);
    bool of_none = true;
    OwnedFd none;
    const Received without = theirs_->Receive(&packet_, &none, &of_none);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_EQ(received, Received::kPacket);
    EXPECT_EQ(fd_.valid(), any_left);
    EXPECT_EQ(fd_lost, !any_left);
    EXPECT_EQ(without, Received::kPacket);
    EXPECT_FALSE(of_none) << "it had none";
  }
}

TEST_F(LocalSocketTest, APacketOfAnotherVersionIsOfNoType) {
  shm_wire::Packet packet = PacketOf(PacketType::kWake);
  ++packet.version;
  ASSERT_TRUE(ours_->Send(packet));
  ASSERT_EQ(Receive(), Received::kPacket);
  EXPECT_EQ(packet_.type, static_cast<PacketType>(0));
}

// Another release may send one, or somebody who tries what we read.
TEST_F(LocalSocketTest, APacketOfAnotherLengthIsOfNoType) {
  const std::string bytes(sizeof(shm_wire::Packet) + 1, 1);
  for (const size_t length : {size_t{1}, bytes.size() - 2, bytes.size()}) {
    ASSERT_EQ(send(ours_->fd(), bytes.data(), length, 0), static_cast<ssize_t>(length));
    ASSERT_EQ(Receive(), Received::kPacket) << length;
    EXPECT_EQ(static_cast<int>(packet_.type), 0) << length;
  }
}

TEST_F(LocalSocketTest, ItsEndIsSeenBehindWhatWasSaid) {
  ASSERT_TRUE(ours_->Send(PacketOf(PacketType::kWake)));
  ours_->Shutdown();
  EXPECT_EQ(Receive(), Received::kPacket);
  EXPECT_EQ(Receive(), Received::kEnd);
  EXPECT_TRUE(theirs_->Send(PacketOf(PacketType::kWake))) << "we still read";
  ours_.reset();
  EXPECT_FALSE(theirs_->Send(PacketOf(PacketType::kWake)));
}

TEST_F(LocalSocketTest, NobodyListensUnderThatName) {
  EXPECT_TRUE(absl::IsUnimplemented(
      LocalSocket::Connect(absl::StrCat("tryst-no-socket-", getpid())).status()));
}

// A security module of the kernel keeps them apart. Another path may do.
TEST_F(LocalSocketTest, ASocketThatMayNotBeReachedIsNoPath) {
  absl::Status status;
  if (!RunWhereCallFails(SYS_connect, EACCES,
                         [&status] { status = LocalSocket::Connect("anything").status(); })) {
    GTEST_SKIP() << "needs seccomp filters";
  }
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
}

TEST_F(LocalSocketTest, ThePeersUserIsKnown) {
  EXPECT_EQ(theirs_->peer_user(), static_cast<int64_t>(geteuid()));
}

}  // namespace
}  // namespace tryst
