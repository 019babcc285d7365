#include "server/members/announcer.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rendezvous/virtual_alarms.h"
#include "server/members/membership.h"

namespace tryst {
namespace {

// Keeps every call until the test answers it.
class HeldCalls final : public HeartbeatCalls {
 public:
  struct Call {
    std::string worker;
    HeartbeatWord word;
    HeardFn done;
  };
  void StartHeartbeat(const std::string& worker, const Member&, HeartbeatWord word, absl::Duration,
                      const std::string&, HeardFn done) override {
    made.push_back(worker);
    if (answers_at_once) return std::move(done)(absl::UnavailableError("it is dead"));
    out.push_back({worker, word, std::move(done)});
  }
  void Fail(size_t which) {
    HeardFn done = std::move(out[which].done);
    out.erase(out.begin() + static_cast<std::ptrdiff_t>(which));
    std::move(done)(absl::UnavailableError("it is dead"));
  }

  std::vector<std::string> made;
  std::vector<Call> out;
  bool answers_at_once = false;
};

class AnnouncerTest : public testing::Test {
 protected:
  AnnouncerTest() {
    for (int task = 0; task < kMembers; ++task) {
      members_.Set(absl::StrCat("/job:dead/replica:0/task:", task), "127.0.0.1:1");
    }
  }

  static constexpr int kMembers = 5000;
  static constexpr char kNew[] = "/job:new/replica:0/task:0";
  Membership members_{true, nullptr};
  HeldCalls calls_;
  VirtualAlarms alarms_;
  Announcer announcer_{
      {"/job:ps/replica:0/task:0", "127.0.0.1:2", 7}, &members_, &calls_, &alarms_};
};

TEST_F(AnnouncerTest, CallsAFewOfThousandsOfDeadMembersAtOnce) {
  announcer_.Start();
  EXPECT_EQ(calls_.out.size(), 256u);
  for (int i = 0; i < kMembers; ++i) {
    ASSERT_FALSE(calls_.out.empty()) << i;
    calls_.Fail(calls_.out.size() / 2);
    ASSERT_LE(calls_.out.size(), 256u);
  }
  EXPECT_EQ(calls_.made.size(), static_cast<size_t>(kMembers));
  alarms_.AdvanceBy(absl::Seconds(2));  // Those that are called again.
  EXPECT_EQ(calls_.out.size(), 256u);
  // One answers, and names a member that nobody has called yet: it does not wait for the dead.
  Heard heard;
  heard.self.worker = calls_.out[0].worker;
  heard.members.push_back({kNew, "127.0.0.1:3", 9});
  HeardFn done = std::move(calls_.out[0].done);
  calls_.out.erase(calls_.out.begin());
  std::move(done)(std::move(heard));
  EXPECT_EQ(calls_.made.back(), kNew);
  // Nothing more is called, and nobody is waited for longer than it takes.
  const size_t made = calls_.made.size();
  announcer_.Leave(absl::ZeroDuration());  // It has no time to say goodbye to any.
  while (!calls_.out.empty()) calls_.Fail(0);
  EXPECT_EQ(calls_.made.size(), made);
}

TEST_F(AnnouncerTest, SaysGoodbyeToWhoIsUpAlone) {
  const std::string up = "/job:up/replica:0/task:0";
  ASSERT_TRUE(members_.Announce({up, "127.0.0.1:3", 5}).ok());
  ASSERT_TRUE(members_.Announce({"/job:ps/replica:0/task:0", "127.0.0.1:2", 7}).ok());
  calls_.answers_at_once = true;
  announcer_.Leave(absl::Seconds(20));
  EXPECT_EQ(calls_.made, std::vector<std::string>{up});
  members_.Greet(up, HeartbeatWord::kStillHere);
  EXPECT_EQ(calls_.made.size(), 1u) << "it has left";
}

// Nobody else tells it who is there: all others joined by it.
TEST_F(AnnouncerTest, WhoRestartsIsGreetedEachTime) {
  const std::string seed = "/job:seed/replica:0/task:0";
  ASSERT_TRUE(members_.Announce({seed, "127.0.0.1:3", 5}).ok());
  for (uint64_t life = 6; life < 9; ++life) {
    members_.NoteIncarnation(seed, life);
    ASSERT_EQ(calls_.out.size(), 1u) << life;
    EXPECT_EQ(calls_.out[0].worker, seed);
    EXPECT_TRUE(calls_.out[0].word == HeartbeatWord::kStillHere);
    Heard heard;
    heard.self = {seed, "127.0.0.1:3", life};
    HeardFn done = std::move(calls_.out[0].done);
    calls_.out.clear();
    std::move(done)(std::move(heard));
  }
  calls_.answers_at_once = true;
}

// A list of pages is asked for to its end; one that has none is not.
TEST_F(AnnouncerTest, AFaultyPeerDoesNotKeepItAsking) {
  const std::string peer = "/job:peer/replica:0/task:0";
  for (const size_t pages : {size_t{3}, size_t{1000}}) {
    ASSERT_TRUE(members_.Announce({peer, "127.0.0.1:3", 5}).ok());
    calls_.made.clear();
    members_.Greet(peer, HeartbeatWord::kHere);
    for (size_t page = 1; page <= pages && !calls_.out.empty(); ++page) {
      Heard heard;
      heard.self = {peer, "127.0.0.1:3", 5};
      heard.members.push_back({peer, "127.0.0.1:3", 5});
      if (page < pages) heard.rest_after = absl::StrCat("~", 1000 + page);
      HeardFn done = std::move(calls_.out[0].done);
      calls_.out.clear();
      std::move(done)(std::move(heard));
    }
    EXPECT_TRUE(calls_.out.empty());
    EXPECT_EQ(calls_.made.size(), std::min<size_t>(pages, 16));
  }
  calls_.answers_at_once = true;
}

TEST_F(AnnouncerTest, CallsThatEndAtOnceEndOneAfterTheOther) {
  calls_.answers_at_once = true;
  announcer_.Start();
  EXPECT_EQ(calls_.made.size(), static_cast<size_t>(kMembers));
}

}  // namespace
}  // namespace tryst
