#include "server/members/cluster_file.h"

#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "rendezvous/virtual_alarms.h"
#include "server/members/membership.h"

namespace tryst {
namespace {

class ClusterFileTest : public testing::Test {
 protected:
  ClusterFileTest() {
    for (const auto& [worker, address] : present_) members_.Set(worker, address);
  }

  static std::string Worker(int task) { return absl::StrCat("/job:worker/replica:0/task:", task); }
  void Write(const std::string& text) {
    std::ofstream(path_) << text;
    alarms_.AdvanceBy(kPeriod);
  }
  void WriteTasks(const std::string& tasks) {
    Write(absl::StrCat(R"({"job": [{"name": "worker", "tasks": {)", tasks, "}}]}"));
  }

  static constexpr char kSelf[] = "/job:ps/replica:0/task:0";
  static constexpr absl::Duration kPeriod = absl::Seconds(1);
  const std::map<std::string, std::string> present_ = {{kSelf, "node1:1"}, {Worker(0), "node2:1"}};
  const std::string path_ = absl::StrCat(testing::TempDir(), "/cluster_file_test.json");
  Membership members_{/*open=*/false, nullptr};
  VirtualAlarms alarms_;
  ClusterFileWatch watch_{path_, kSelf, present_, kPeriod, &members_, &alarms_};
};

TEST_F(ClusterFileTest, WhomTheFileNoLongerNamesIsNoMemberAnyMore) {
  WriteTasks(R"("0": "node2:1", "1": "node3:1")");
  EXPECT_TRUE(members_.Admits(Worker(0)));
  EXPECT_TRUE(members_.Admits(Worker(1)));
  WriteTasks(R"("1": "node3:1")");
  EXPECT_FALSE(members_.Admits(Worker(0)));
  EXPECT_TRUE(members_.Admits(Worker(1)));
  WriteTasks("");
  EXPECT_FALSE(members_.Admits(Worker(1))) << "it came later";
  EXPECT_TRUE(members_.Admits(kSelf)) << "it has never been named";
}

TEST_F(ClusterFileTest, WhatCannotBeReadTakesNobodyAway) {
  WriteTasks(R"("0": "node2:1")");
  Write("{");
  EXPECT_TRUE(members_.Admits(Worker(0)));
}

}  // namespace
}  // namespace tryst
