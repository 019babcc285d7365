#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/etcd/etcd_members.h"
#include "server/etcd/member_record.h"
#include "server/members/membership.h"

namespace tryst {
namespace {

const char kPs[] = "/job:ps/replica:0/task:0";
const char kSelf[] = "/job:worker/replica:0/task:0";

TEST(MemberRecord, ComesBackAsItWent) {
  const std::string prefix = MemberKeyPrefix("train");
  const Member said{kPs, "node1:2222", 0xabcdef};
  const auto read = ParseMember(prefix, MemberKey("train", kPs), MemberValue(said));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->worker, kPs);
  EXPECT_EQ(read->address, "node1:2222");
  EXPECT_EQ(read->incarnation, 0xabcdefU);
  EXPECT_LT(MemberKey("train", kPs), EndOfPrefix(prefix));
  EXPECT_GT(MemberKey("train2", kPs), EndOfPrefix(prefix));  // The key is of another cluster.
}

TEST(MemberRecord, RefusesWhatIsNone) {
  const std::string prefix = MemberKeyPrefix("train");
  const std::string key = MemberKey("train", kPs);
  EXPECT_FALSE(ParseMember(prefix, key, "").ok());
  EXPECT_FALSE(ParseMember(prefix, key, "node1:2222").ok());
  EXPECT_FALSE(ParseMember(prefix, key, "{\"address\":\"a:1\",\"incarnation\":\"0\"}").ok());
  EXPECT_FALSE(ParseMember(prefix, key, "{\"address\":\"\",\"incarnation\":\"1\"}").ok());
  EXPECT_FALSE(ParseMember(prefix, key, "{\"address\":7,\"incarnation\":[]}").ok());
  EXPECT_FALSE(ParseMember(prefix, key, MemberValue({kPs, std::string(600, 'a'), 1})).ok());
  EXPECT_FALSE(ParseMember(prefix, key, std::string(1 << 20, ' ')).ok());
  EXPECT_FALSE(ParseMember(prefix, prefix + "../etc", MemberValue({kPs, "a:1", 1})).ok());
  EXPECT_FALSE(ParseMember(prefix, "/other", MemberValue({kPs, "a:1", 1})).ok());
}

class MirrorTest : public ::testing::Test {
 protected:
  MirrorTest()
      : members_(false, [](const std::string&, const std::string&) { return nullptr; }),
        mirror_(MemberKeyPrefix("train"), kSelf, &members_) {}

  static etcdserverpb::KeyValue Entry(const Member& member) {
    etcdserverpb::KeyValue entry;
    entry.set_key(MemberKey("train", member.worker));
    entry.set_value(MemberValue(member));
    return entry;
  }
  void Put(const Member& member) {
    etcdserverpb::Event event;
    *event.mutable_kv() = Entry(member);
    mirror_.OnEvent(event, now_ns_);
  }
  void Delete(const std::string& worker) {
    etcdserverpb::Event event;
    event.set_type(etcdserverpb::Event::DELETE);
    event.mutable_kv()->set_key(MemberKey("train", worker));
    mirror_.OnEvent(event, now_ns_);
  }
  static std::string WorkerName(size_t i) { return absl::StrCat("/job:w/replica:0/task:", i); }
  Member Known(const std::string& worker) const {
    for (const Member& member : members_.Members()) {
      if (member.worker == worker) return member;
    }
    return {};
  }

  int64_t now_ns_ = 1;
  Membership members_;
  MemberMirror mirror_;
};

TEST_F(MirrorTest, WhoComesMovesAndGoes) {
  Put({kPs, "node1:1", 11});
  EXPECT_EQ(Known(kPs).address, "node1:1");
  Put({kPs, "node2:1", 12});
  EXPECT_EQ(Known(kPs).address, "node2:1");
  EXPECT_EQ(Known(kPs).incarnation, 12U);
  EXPECT_EQ(members_.restarts(), 1);
  Delete(kPs);
  // Only its lease has lapsed, so it keeps its address for a while.
  EXPECT_EQ(Known(kPs).incarnation, 0U);
  EXPECT_EQ(Known(kPs).address, "node2:1");
  now_ns_ += MemberMirror::kForgetNs;
  Put({"/job:ps/replica:0/task:1", "node3:1", 13});
  EXPECT_EQ(Known(kPs).worker, "");
}

// Its lease had lapsed, and it has registered again.
TEST_F(MirrorTest, WhoComesBackInTimeStays) {
  Put({kPs, "node1:1", 11});
  Delete(kPs);
  Put({kPs, "node1:1", 11});
  now_ns_ += MemberMirror::kForgetNs;
  Put({"/job:ps/replica:0/task:1", "node3:1", 13});
  EXPECT_EQ(Known(kPs).address, "node1:1");
  EXPECT_EQ(Known(kPs).incarnation, 11U);
}

TEST_F(MirrorTest, WhatIsNoMembersKeyTakesNobodyAway) {
  Put({kPs, "node1:1", 11});
  etcdserverpb::Event event;
  event.set_type(etcdserverpb::Event::DELETE);
  event.mutable_kv()->set_key("/other");
  mirror_.OnEvent(event, now_ns_);
  EXPECT_EQ(Known(kPs).incarnation, 11U);
}

TEST_F(MirrorTest, AllAtOnceTakesThoseAwayThatAreNotThere) {
  Put({kPs, "node1:1", 11});
  etcdserverpb::RangeResponse all;
  *all.add_kvs() = Entry({"/job:ps/replica:0/task:1", "node3:1", 13});
  *all.add_kvs() = Entry({kSelf, "elsewhere:1", 99});
  mirror_.SetAll(all, now_ns_);
  EXPECT_EQ(Known(kPs).incarnation, 0U);
  EXPECT_EQ(Known("/job:ps/replica:0/task:1").incarnation, 13U);
  EXPECT_EQ(Known(kSelf).worker, "");  // Nothing in etcd overrides what we know of ourselves.
}

TEST_F(MirrorTest, NeitherMembersNorThoseWhoLeftGrowWithoutEnd) {
  for (size_t i = 0; i < MemberMirror::kMostMembers + 10; ++i) {
    Put({WorkerName(i), "a:1", i + 1});
  }
  EXPECT_EQ(mirror_.size(), MemberMirror::kMostMembers);
  EXPECT_EQ(mirror_.refused(), 10U);
  for (size_t i = 0; i < MemberMirror::kMostLapsed + 100; ++i) Delete(WorkerName(i));
  EXPECT_EQ(members_.Members().size(), MemberMirror::kMostMembers - 100);
}

}  // namespace
}  // namespace tryst
