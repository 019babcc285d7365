#include "verbs/soft/soft_hand.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "base/crew.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr int64_t kHurryNs = 1'000'000;

// Works until it is told to leave, if it waits at all.
struct CountedHand final : SoftHand {
  void Work() override {
    ++begun;
    while (waits && Stay(/*moved=*/true)) std::this_thread::yield();
    ++ended;
  }
  bool waits = false;
  std::atomic<int> begun{0};
  std::atomic<int> ended{0};
};

// Keeps the only helper.
struct Plug final : CrewTask {
  void RunOnCrew() override {
    in = true;
    while (!out) std::this_thread::yield();
    gone = true;
  }
  void Pull() {
    out = true;
    while (!gone) std::this_thread::yield();
  }
  std::atomic<bool> in{false};
  std::atomic<bool> out{false};
  std::atomic<bool> gone{false};
};

class SoftHandTest : public ::testing::Test {
 protected:
  void TearDown() override {
    if (plug_.in) plug_.Pull();
  }
  void PlugCrew() {
    crew_.Post(&plug_);
    while (!plug_.in) std::this_thread::yield();
  }
  bool Rung() const {
    pollfd bell = {bell_->fd(), POLLIN, 0};
    return poll(&bell, 1, 0) == 1;
  }

  Crew crew_{1, &Crew::Never};
  Plug plug_;
  const std::shared_ptr<SoftBell> bell_ = std::make_shared<SoftBell>();
  CountedHand hand_;
};

TEST_F(SoftHandTest, AHelperWorksAndRings) {
  EXPECT_FALSE(hand_.given());
  EXPECT_FALSE(hand_.done());
  for (int i = 1; i <= 2; ++i) {
    bell_->Listen();
    hand_.Give(&crew_, bell_, 0);
    EXPECT_TRUE(hand_.given());
    while (!Rung()) std::this_thread::yield();
    EXPECT_TRUE(hand_.done());
    EXPECT_EQ(hand_.ended, i);
    hand_.TakeBack();
    EXPECT_FALSE(hand_.given());
    EXPECT_FALSE(hand_.done());
    bell_->Clear();
    EXPECT_FALSE(Rung());
  }
}

TEST_F(SoftHandTest, WhereNobodyListensTheBellIsNotRung) {
  hand_.Give(&crew_, bell_, 0);
  while (!hand_.done()) std::this_thread::yield();
  EXPECT_FALSE(Rung());
  hand_.Recall();  // Waits for the helper to be through.
  EXPECT_FALSE(hand_.given());
}

TEST_F(SoftHandTest, WhereNoHelperComesInTimeTheWorkIsDoneHere) {
  hand_.Hurry(10 * kHurryNs);
  EXPECT_EQ(hand_.begun, 0) << "it was not given";
  PlugCrew();
  hand_.Give(&crew_, bell_, 5);
  EXPECT_FALSE(hand_.done());
  hand_.Hurry(kHurryNs + 4);
  EXPECT_EQ(hand_.begun, 0) << "a helper may still come";
  hand_.Hurry(kHurryNs + 5);
  EXPECT_EQ(hand_.ended, 1);
  EXPECT_TRUE(hand_.done());
  hand_.Hurry(kHurryNs + 5);
  EXPECT_EQ(hand_.ended, 1) << "once";
  hand_.TakeBack();
  plug_.Pull();
  EXPECT_EQ(hand_.ended, 1);
}

TEST_F(SoftHandTest, WhatNoHelperHasBegunIsRecalledAtOnce) {
  hand_.Recall();
  PlugCrew();
  hand_.Give(&crew_, bell_, 0);
  hand_.Recall();
  EXPECT_FALSE(hand_.given());
  plug_.Pull();
  EXPECT_EQ(hand_.begun, 0);
}

// And goes on when it is given again.
TEST_F(SoftHandTest, WhoWorksIsToldToLeaveAndWaitedFor) {
  hand_.waits = true;
  for (int i = 1; i <= 2; ++i) {
    hand_.Give(&crew_, bell_, 0);
    while (hand_.begun < i) std::this_thread::yield();
    EXPECT_FALSE(hand_.done());
    hand_.Recall();
    EXPECT_EQ(hand_.ended, i);
    EXPECT_FALSE(hand_.given());
  }
}

// ---- The two that move bytes ----

class SoftSocketHandTest : public SoftHandTest {
 protected:
  static constexpr uint32_t kUnknownKey = 4711;

  SoftSocketHandTest() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    stream_ = SoftStream(Fd(fds[0]));
    other_ = Fd(fds[1]);
    PlugCrew();
  }
  // Here, since no helper comes.
  void Run(SoftHand* hand) {
    hand->Give(&crew_, bell_, 0);
    hand->Hurry(kHurryNs);
    ASSERT_TRUE(hand->done());
    hand->TakeBack();
  }
  void AddToBatch(uint32_t bytes) {
    FrameHeader header;
    header.type = FrameType::kWrite;
    header.total = header.bytes = bytes;
    const iovec payload = {memory_.data(), bytes};
    batch_.Add(header, &payload, 1, 1);
  }
  void OtherSends(size_t bytes) {
    ASSERT_EQ(send(other_.get(), memory_.data(), bytes, 0), static_cast<ssize_t>(bytes));
  }
  static SoftPin UnknownPin() {
    SoftPin pin;
    pin.remote_key = kUnknownKey;
    pin.bytes = 1;
    return pin;
  }

  SoftRegionTable regions_{[](absl::Span<uint8_t> out) { std::fill(out.begin(), out.end(), 1); }};
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(1 << 20, 7);
  SoftBatch batch_;
  SoftStream stream_;
  Fd other_;
  SoftSendHand sends_;
  SoftReceiveHand receives_;
};

TEST_F(SoftSocketHandTest, ABatchIsSentAsFarAsThereIsRoom) {
  AddToBatch(100);
  sends_.Set(&batch_, &stream_, &regions_, SoftPin());
  Run(&sends_);
  EXPECT_EQ(sends_.progress(), SoftBatch::Progress::kAll);
  EXPECT_TRUE(sends_.moved());
  EXPECT_FALSE(sends_.revoked());
  batch_.Clear();
  const int least = 1;
  ASSERT_EQ(setsockopt(stream_.fd(), SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)), 0);
  AddToBatch(1 << 20);
  for (const bool has_room : {true, false}) {
    sends_.Set(&batch_, &stream_, &regions_, SoftPin());
    Run(&sends_);
    EXPECT_EQ(sends_.progress(), SoftBatch::Progress::kSome);
    EXPECT_EQ(sends_.moved(), has_room);
  }
}

TEST_F(SoftSocketHandTest, MemoryThatIsNoLongerOpenIsNotSent) {
  AddToBatch(100);
  sends_.Set(&batch_, &stream_, &regions_, UnknownPin());
  Run(&sends_);
  EXPECT_TRUE(sends_.revoked());
  EXPECT_FALSE(sends_.moved());
  uint8_t byte;
  EXPECT_LT(recv(other_.get(), &byte, 1, MSG_DONTWAIT), 0);
  sends_.Set(&batch_, &stream_, &regions_, SoftPin());
  EXPECT_FALSE(sends_.revoked());
}

TEST_F(SoftSocketHandTest, APayloadIsReceivedWithWhatFollowsIt) {
  std::vector<uint8_t> payload(100), rest(50);
  receives_.Set(&stream_, &regions_, SoftPin(), {payload.data(), payload.size()},
                {rest.data(), rest.size()});
  OtherSends(130);
  Run(&receives_);
  EXPECT_EQ(receives_.got(), 130u);
  EXPECT_EQ(receives_.lost(), 0);
  EXPECT_EQ(payload, std::vector<uint8_t>(100, 7));
  EXPECT_EQ(rest[29], 7);
  EXPECT_EQ(rest[30], 0);
}

// The end of the stream is found later, behind the message that was complete.
TEST_F(SoftSocketHandTest, APayloadThatHasComeIsNotLostWithItsPeer) {
  std::vector<uint8_t> payload(100), rest(50);
  receives_.Set(&stream_, &regions_, SoftPin(), {payload.data(), payload.size()},
                {rest.data(), rest.size()});
  OtherSends(100);
  other_.Close();
  Run(&receives_);
  EXPECT_EQ(receives_.got(), 100u);
  EXPECT_EQ(receives_.lost(), 0);
}

TEST_F(SoftSocketHandTest, WhatHasNotComeIsLeftToLater) {
  std::vector<uint8_t> payload(100), rest(50);
  const auto set = [&](size_t got) {
    receives_.Set(&stream_, &regions_, SoftPin(), {payload.data() + got, payload.size() - got},
                  {rest.data(), rest.size()});
  };
  set(0);
  OtherSends(60);
  Run(&receives_);
  EXPECT_EQ(receives_.got(), 60u);
  EXPECT_EQ(receives_.lost(), 0);
  set(60);
  Run(&receives_);
  EXPECT_EQ(receives_.got(), 0u);
  EXPECT_EQ(receives_.lost(), 0);
  OtherSends(30);
  other_.Close();
  set(60);
  Run(&receives_);
  EXPECT_EQ(receives_.got(), 30u);
  EXPECT_EQ(receives_.lost(), ECONNRESET);
  EXPECT_EQ(payload[89], 7);
  EXPECT_EQ(payload[90], 0);
  set(90);
  EXPECT_EQ(receives_.lost(), 0);
}

TEST_F(SoftSocketHandTest, NothingIsReceivedIntoMemoryThatIsNoLongerOpen) {
  std::vector<uint8_t> payload(100);
  receives_.Set(&stream_, &regions_, UnknownPin(), {payload.data(), payload.size()}, {});
  OtherSends(60);
  Run(&receives_);
  EXPECT_TRUE(receives_.revoked());
  EXPECT_EQ(receives_.got(), 0u);
  EXPECT_EQ(payload[0], 0);
}

}  // namespace
}  // namespace tryst
