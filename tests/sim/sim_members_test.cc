// Who is in a large job, and how soon everybody knows: 100 hosts in every `./run test`, a thousand
// with TRYST_SIM_HOSTS=1000.

#include "tests/sim/sim_members.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kHeartbeats = 3 * kSecondNs;  // The announcer's: one a second.

uint32_t Hosts() {
  uint32_t hosts = 100;
  const char* const said = getenv("TRYST_SIM_HOSTS");
  EXPECT_TRUE(said == nullptr || absl::SimpleAtoi(said, &hosts));
  return hosts;
}

class SimMembersTest : public ::testing::Test {
 protected:
  void StartAll(bool open) {
    members_ = std::make_unique<SimMembers>(7, hosts_, open);
    for (uint32_t host = 0; host < hosts_; ++host) members_->Start(host);
  }
  // All hosts know all others within three heartbeats, and each sends at most `messages_for_each`
  // messages for every other host.
  void ExpectSettles(const char* what, double messages_for_each) {
    const int64_t settled_ns = members_->SettleNs(kHeartbeats);
    EXPECT_GE(settled_ns, 0) << what << ": not settled after " << kHeartbeats / kSecondNs << " s";
    const SimMembers::Messages messages = members_->TakeMessages();
    EXPECT_LE(static_cast<double>(messages.most), messages_for_each * hosts_) << what;
    printf(
        "%u hosts, %s: settled after %.1f s; %.0f messages of a host, %lu of one at most; %.0f "
        "members told to a host\n",
        hosts_, what, static_cast<double>(settled_ns) * 1e-9,
        static_cast<double>(messages.all) / hosts_, static_cast<unsigned long>(messages.most),
        static_cast<double>(messages.members_told) / hosts_);
  }

  const uint32_t hosts_ = Hosts();
  std::unique_ptr<SimMembers> members_;
};

TEST_F(SimMembersTest, AllJoinAtOnceByAList) {
  StartAll(false);
  // Each calls all others and is called by them; nobody is told what the list says.
  ExpectSettles("all join by a list", 2);
}

TEST_F(SimMembersTest, AllJoinAtOnceByOneOfThem) {
  StartAll(true);
  ExpectSettles("all join by one", 4);
}

// Nobody tells it who is there: all others joined by it. One of them fetches from it.
TEST_F(SimMembersTest, TheOneThatAllJoinedByRestartsAndIsFoundByOneThatFetches) {
  StartAll(true);
  ExpectSettles("all join by one", 4);
  members_->Kill(0);
  members_->RunFor(kSecondNs / 5);
  members_->Start(0);
  members_->RunFor(kSecondNs / 5);
  EXPECT_LT(members_->SettleNs(0), 0) << "nobody had to tell it";
  for (int i = 0; i < 100; ++i) members_->Fetch(7, 0);
  ExpectSettles("the first comes back", 3);
}

TEST_F(SimMembersTest, OneInAHundredDiesAtOnceAndComesBack) {
  StartAll(false);
  ExpectSettles("all join", 2);
  for (uint32_t host = 3; host < hosts_; host += 100) members_->Kill(host);
  members_->RunFor(kSecondNs / 5);
  for (uint32_t host = 3; host < hosts_; host += 100) members_->Start(host);
  ExpectSettles("1 % come back", 1.1);
}

TEST_F(SimMembersTest, ARackThatWasDarkLearnsWhoCameMeanwhile) {
  StartAll(false);
  ExpectSettles("all join", 2);
  const uint32_t rack = hosts_ / 25;
  for (uint32_t host = 0; host < rack; ++host) members_->SetDark(host, true);
  for (uint32_t host = rack; host < hosts_; host += 50) {
    members_->Kill(host);
    members_->Start(host);
  }
  // Longer than a call lasts; the next one is under way.
  members_->RunFor(3 * kSecondNs + kSecondNs / 5);
  EXPECT_LT(members_->SettleNs(0), 0) << "the rack was not dark";
  for (uint32_t host = 0; host < rack; ++host) members_->SetDark(host, false);
  ExpectSettles("a rack was dark", 2);
}

TEST_F(SimMembersTest, EachRestartsInTurn) {
  StartAll(false);
  ExpectSettles("all join", 2);
  for (uint32_t host = 0; host < hosts_; ++host) {
    members_->Leave(host);
    members_->RunFor(kSecondNs / 50);
    members_->Start(host);
    members_->RunFor(kSecondNs / 50);
  }
  // A host sends each of the others a goodbye and a greeting when it restarts itself, and a goodbye
  // and a greeting when the other does.
  ExpectSettles("each restarts in turn", 5);
}

// Who was configured and down for longer than the quick attempts is greeted again all the same.
TEST_F(SimMembersTest, TriesEverLessOften) {
  members_ = std::make_unique<SimMembers>(7, hosts_, false);
  members_->Start(0);
  members_->RunFor(100 * kSecondNs);
  // Each second until the sixth, and then after 2, 4, 8, 16, 30 and 30 more.
  const uint64_t messages = members_->TakeMessages().all;
  EXPECT_GE(messages, uint64_t{hosts_ - 1} * 8);
  EXPECT_LE(messages, uint64_t{hosts_ - 1} * 13);
}

}  // namespace
}  // namespace tryst
