// Who gets in at the door of shared memory, and until when.
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/turned_clock.h"
#include "channel/shm/shm_hub.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr uid_t kNobody = 65534;

struct Inn final : ShmHub::Host {
  void OnGuest(std::unique_ptr<LocalSocket> socket) override { guest = std::move(socket); }
  std::unique_ptr<LocalSocket> guest;
};

class ShmDoorTest : public testing::Test {
 protected:
  ShmDoorTest() {
    ArenaOptions arena;
    arena.cap_bytes = 1 << 20;
    hub_ = *ShmHub::Create(&poller_, Arena::Make(arena), std::make_shared<Crew>(0));
    hub_->Attach();
    invitation_ = *hub_->Invite(&inn_);
    hub_->Disinvite(&inn_);  // Only its name is needed so far.
  }
  ~ShmDoorTest() override { hub_->Detach(); }
  void Turn() {
    clock_.now_ns += 1'000'000;  // So that the sockets are looked at.
    poller_.Turn();
  }
  void Turns() {
    for (int i = 0; i < 3; ++i) Turn();
  }
  std::unique_ptr<LocalSocket> Connect() const { return *LocalSocket::Connect(invitation_.socket); }
  // Null: this process may not become another user.
  std::unique_ptr<LocalSocket> ConnectAsNobody() const {
    std::unique_ptr<LocalSocket> socket;
    std::thread([&] {  // Only this thread becomes another user.
      if (syscall(SYS_setresuid, kNobody, kNobody, kNobody) == 0) socket = Connect();
    })
        .join();
    return socket;
  }
  static void Show(LocalSocket* socket, const shm_wire::Token& token) {
    shm_wire::Packet join;
    join.type = shm_wire::PacketType::kJoin;
    join.version = shm_wire::kVersion;
    join.token = token;
    EXPECT_TRUE(socket->Send(join));
  }
  // Whether the hub has closed the connection.
  static bool IsShut(LocalSocket* socket) {
    shm_wire::Packet packet;
    OwnedFd unwanted;
    return socket->Receive(&packet, &unwanted) == LocalSocket::Received::kEnd;
  }

  TurnedClock clock_;
  Poller poller_{&clock_};
  Inn inn_;
  std::unique_ptr<ShmHub> hub_;
  shm_wire::Invitation invitation_;
};

TEST_F(ShmDoorTest, AnInvitationIsGoodForTenSeconds) {
  constexpr int64_t kTenSeconds = 10'000'000'000;
  for (const bool late : {false, true}) {
    inn_.guest = nullptr;
    Turn();
    invitation_ = *hub_->Invite(&inn_);
    const int64_t invited_ns = clock_.now_ns;
    const auto socket = Connect();
    Turns();
    Show(socket.get(), invitation_.token);
    clock_.now_ns = invited_ns + kTenSeconds - (late ? 0 : 1);
    poller_.Turn();
    EXPECT_EQ(inn_.guest != nullptr, !late);
    Turns();
    EXPECT_EQ(IsShut(socket.get()), late);
  }
}

// The one that has been silent for longest makes way, and no other.
TEST_F(ShmDoorTest, SoManyMayKnockAndSayNothing) {
  constexpr size_t kMost = 64;
  invitation_ = *hub_->Invite(&inn_);
  std::vector<std::unique_ptr<LocalSocket>> silent;
  for (size_t i = 0; i <= kMost; ++i) {
    EXPECT_TRUE(i < kMost || !IsShut(silent[0].get()));
    silent.push_back(Connect());
    clock_.now_ns += 65'000'000;  // However long the door rests.
    Turns();
  }
  EXPECT_TRUE(IsShut(silent[0].get()));
  EXPECT_FALSE(IsShut(silent[1].get()));
  Show(silent[1].get(), invitation_.token);
  Turns();
  EXPECT_NE(inn_.guest, nullptr);
}

TEST_F(ShmDoorTest, AnotherUserIsHeardOnlyWhileAGuestIsExpected) {
  const auto uninvited = ConnectAsNobody();
  if (uninvited == nullptr) GTEST_SKIP() << "needs root, to become another user";
  const auto ours = Connect();
  Turns();
  EXPECT_TRUE(IsShut(uninvited.get()));
  EXPECT_FALSE(IsShut(ours.get()));
  invitation_ = *hub_->Invite(&inn_);
  const auto invited = ConnectAsNobody();
  Turns();
  EXPECT_FALSE(IsShut(invited.get()));
  Show(invited.get(), invitation_.token);
  Turns();
  EXPECT_NE(inn_.guest, nullptr);
  const auto after = ConnectAsNobody();
  Turns();
  EXPECT_TRUE(IsShut(after.get()));
}

}  // namespace
}  // namespace tryst
