#include "channel/shm/shm_hub.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

// A link. `says_it_woke` is what its peer has written into the memory, each time with a message.
struct FakeLink final : ShmHub::Link {
  bool PollLink() override { return std::exchange(has_message, false); }
  bool Ready() const override {
    ++looks;
    return false;
  }
  void FallAsleep() override {
    ++sleeps;
    fell_asleep_twice += std::exchange(asleep, true);
    if (finds_work == 0) return;
    --finds_work;
    has_message = true;
  }
  bool WakeUp() override {
    asleep = false;
    return has_message = says_it_woke;
  }

  bool says_it_woke = false;
  bool has_message = false;
  mutable std::atomic<int> looks{0};
  std::atomic<int> sleeps{0};
  int finds_work = 0;  // So often there is a message when it has said that it sleeps.
  bool asleep = false;
  int fell_asleep_twice = 0;
};

// Readable until it was read.
class News final : public ShmHub::Watcher {
 public:
  News() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~News() override { close(fd_); }
  int fd() const { return fd_; }
  int heard() const { return heard_.load(); }
  void Come() {
    const uint64_t one = 1;
    ASSERT_EQ(write(fd_, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }
  void OnSocket() override {
    uint64_t ignored;
    if (read(fd_, &ignored, sizeof(ignored)) == sizeof(ignored)) ++heard_;
  }

 private:
  const int fd_;
  std::atomic<int> heard_{0};
};

// A poller that sleeps at once, with a hub of one link and one watched descriptor.
class ShmHubTest : public testing::TestWithParam<bool> {
 protected:
  ShmHubTest() {
    PollerOptions options;
    options.spin_us = 0;
    poller_ = std::make_unique<Poller>(&clock_, options);
    ArenaOptions arena;
    arena.cap_bytes = 1 << 20;
    hub_ = *ShmHub::Create(poller_.get(), Arena::Make(arena), std::make_shared<Crew>(0));
    EXPECT_TRUE(hub_->Watch(news_.fd(), &news_).ok());
    link_.says_it_woke = GetParam();
    hub_->AddLink(&link_);
    hub_->Attach();
    poller_->Start();
  }
  ~ShmHubTest() override {
    poller_->RunAndWait([this] {
      hub_->RemoveLink(&link_);
      hub_->Unwatch(news_.fd());
      hub_->Detach();
    });
    poller_->Stop();
  }
  bool Heard(int count) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (news_.heard() < count && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return news_.heard() == count;
  }

  SteadyClock clock_;
  News news_;
  FakeLink link_;
  std::unique_ptr<Poller> poller_;
  std::unique_ptr<ShmHub> hub_;
};

// Even if a peer claims each time that it ended the sleep: it may be hostile.
TEST_P(ShmHubTest, NewsOfASocketIsHeardWhoeverWakesTheLinks) {
  for (int i = 1; i <= 200; ++i) {
    if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));  // Lets it sleep.
    news_.Come();
    ASSERT_TRUE(Heard(i)) << i;
  }
  EXPECT_GT(link_.sleeps, 1);
}

// Its peers need not wake one that goes on after all.
TEST_P(ShmHubTest, WhoFindsWorkWhileItFallsAsleepIsAwake) {
  poller_->RunAndWait([this] { link_.finds_work = 20; });
  for (int i = 1; i <= 50; ++i) {
    news_.Come();
    ASSERT_TRUE(Heard(i)) << i;
  }
  poller_->RunAndWait([this] {
    EXPECT_EQ(link_.finds_work, 0);
    EXPECT_LE(link_.fell_asleep_twice, 2) << "as these two tasks may come meanwhile";
  });
}

// Whoever can guess a token comes in as somebody who was invited.
TEST_P(ShmHubTest, EachInvitationHasATokenOfItsOwn) {
  struct Inn final : ShmHub::Host {
    void OnGuest(std::unique_ptr<LocalSocket>) override {}
  } inn;
  std::set<shm_wire::Token> tokens = {shm_wire::Token{}};  // No invitation has that of zeros.
  poller_->RunAndWait([&] {
    for (int i = 0; i < 8; ++i) tokens.insert(hub_->Invite(&inn)->token);
    hub_->Disinvite(&inn);
  });
  EXPECT_EQ(tokens.size(), 9u);
}

// A process of this host connects again and again. The poller must have its turns, and invited
// consumers must get in.
TEST_P(ShmHubTest, StrangersAtTheDoorHoldUpNobody) {
  struct Inn final : ShmHub::Host {
    void OnGuest(std::unique_ptr<LocalSocket> socket) override {
      guest = std::move(socket);
      came.store(true);
    }
    std::unique_ptr<LocalSocket> guest;
    std::atomic<bool> came{false};
  } inn;
  shm_wire::Invitation invitation;
  poller_->RunAndWait([&] { invitation = *hub_->Invite(&inn); });
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> knocks{0};
  std::thread stranger([&] {
    while (!stop.load()) {
      knocks += LocalSocket::Connect(invitation.socket).ok() ? 1 : 0;
    }
  });
  uint64_t turns = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  const uint64_t before = knocks.load();
  while (std::chrono::steady_clock::now() < until) {
    poller_->RunAndWait([] {});
    ++turns;
  }
  const uint64_t taken = knocks.load() - before;
  stop.store(true);
  stranger.join();
  EXPECT_GT(turns, 100u);
  // The backlog, and four for each pause, which soon is 64 ms.
  EXPECT_LT(taken, 128u + 4 * 40);
  std::unique_ptr<LocalSocket> guest;
  for (int i = 0; i < 3000 && !inn.came.load(); ++i) {
    if (guest == nullptr) {
      auto connected = LocalSocket::Connect(invitation.socket);
      if (connected.ok()) {
        guest = *std::move(connected);
        shm_wire::Packet join;
        join.type = shm_wire::PacketType::kJoin;
        join.version = shm_wire::kVersion;
        join.token = invitation.token;
        ASSERT_TRUE(guest->Send(join));
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(inn.came.load());
}

// While it spins it looks at the rings alone, which costs no system call.
TEST(SpinningShmHubTest, ItsLinksAreLookedAt) {
  SteadyClock clock;
  PollerOptions options;
  options.spin_us = 10'000'000;
  Poller poller(&clock, options);
  auto hub = *ShmHub::Create(&poller, Arena::Make({}), std::make_shared<Crew>(0));
  FakeLink link;
  hub->AddLink(&link);
  hub->Attach();
  poller.Start();
  for (int i = 0; i < 3000 && link.looks == 0; ++i) {
    poller.RunAndWait([] {});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GT(link.looks, 0);
  poller.RunAndWait([&] {
    hub->RemoveLink(&link);
    hub->Detach();
  });
  poller.Stop();
}

INSTANTIATE_TEST_SUITE_P(All, ShmHubTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& one) {
                           return one.param ? "ByThePeer" : "ByTheSocket";
                         });

}  // namespace
}  // namespace tryst
