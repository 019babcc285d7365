#include "plugins/nccl/settings.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "plugins/nccl/interfaces.h"
#include "plugins/nccl/load_check.h"

namespace tryst::nccl {
namespace {

TEST(SettingsTest, ThreadsFollowTheProcessors) {
  EXPECT_EQ(ParseSettings({}, 2)->threads, 0);
  EXPECT_EQ(ParseSettings({}, 8)->threads, 2);
  EXPECT_EQ(ParseSettings({}, 128)->threads, 8);
  EXPECT_EQ(ParseSettings({{"TRYST_NCCL_THREADS", "0"}}, 128)->threads, 0);
}

TEST(SettingsTest, WhatMeansNothingIsNamed) {
  for (const char* name : {"TRYST_NCCL_THREADS", "TRYST_NCCL_LANES", "NCCL_IB_GID_INDEX"}) {
    const absl::StatusOr<Settings> parsed = ParseSettings({{name, "many"}}, 4);
    ASSERT_FALSE(parsed.ok());
    EXPECT_NE(parsed.status().message().find(name), absl::string_view::npos);
  }
  EXPECT_FALSE(ParseSettings({{"TRYST_NCCL_NIC", "token-ring"}}, 4).ok());
  EXPECT_FALSE(ParseSettings({{"TRYST_NCCL_LANES", "17"}}, 4).ok());
}

TEST(SettingsTest, LibfabricIsAskedForByItsProvider) {
  EXPECT_EQ(ParseSettings({{"TRYST_NCCL_NIC", "ofi"}}, 4)->nic, "ofi:tcp");
  EXPECT_EQ(ParseSettings({{"TRYST_NCCL_NIC", "ofi:shm"}}, 4)->nic, "ofi:shm");
  const absl::StatusOr<Settings> parsed = ParseSettings({{"TRYST_NCCL_NIC", "ofi:avian"}}, 4);
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.status().message().find("TRYST_NCCL_NIC"), absl::string_view::npos);
  EXPECT_NE(parsed.status().message().find("ofi:tcp"), absl::string_view::npos);
}

TEST(SettingsTest, ATokenEncryptsAndTakesTheNicThatCan) {
  const std::string file = testing::TempDir() + "/nccl.token";
  std::ofstream(file) << "0123456789abcdef0123\n";
  const absl::StatusOr<Settings> settings = ParseSettings({{"TRYST_NCCL_TOKEN_FILE", file}}, 4);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->token, "0123456789abcdef0123");
  EXPECT_EQ(settings->nic, "soft");
  EXPECT_FALSE(ParseSettings({{"TRYST_NCCL_TOKEN_FILE", file}, {"TRYST_NCCL_NIC", "ibv"}}, 4).ok());
  EXPECT_FALSE(ParseSettings({{"TRYST_NCCL_TOKEN_FILE", "/nowhere"}}, 4).ok());
  EXPECT_EQ(ParseSettings({}, 4)->token, "");
}

TEST(InterfacesTest, NamesMatchAsNcclHasIt) {
  EXPECT_TRUE(InterfaceMatches("eth0", ""));
  EXPECT_TRUE(InterfaceMatches("eth0", "eth"));
  EXPECT_TRUE(InterfaceMatches("eth0", "ib,eth"));
  EXPECT_FALSE(InterfaceMatches("eth0", "=eth"));
  EXPECT_TRUE(InterfaceMatches("eth0", "=eth0"));
  EXPECT_FALSE(InterfaceMatches("docker0", "^docker,lo"));
  EXPECT_TRUE(InterfaceMatches("eth0", "^docker,lo"));
  EXPECT_FALSE(InterfaceMatches("eth0", "^=eth0"));
  EXPECT_TRUE(InterfaceMatches("mlx5_0", "mlx5_0:1"));
}

TEST(InterfacesTest, TheLoopBackServesWhereItIsAskedFor) {
  const InterfaceChoice choice = ChooseInterfaces("=lo", "AF_INET");
  if (choice.chosen.empty()) GTEST_SKIP() << "this machine has no loop-back";
  EXPECT_EQ(choice.chosen[0].host, "127.0.0.1");
  for (const NetworkInterface& other : choice.passed_over) EXPECT_NE(other.name, "lo");
}

TEST(LoadCheckTest, EachNcclAsksForItsTable) {
  EXPECT_EQ(NewestTableOf(23007), 12);
  EXPECT_EQ(NewestTableOf(22809), 11);
  EXPECT_EQ(NewestTableOf(22703), 10);
  EXPECT_EQ(NewestTableOf(21500), 6);
}

TEST(LoadCheckTest, FilesAreTriedInNcclsOrder) {
  EXPECT_EQ(FilesTriedFor(""), std::vector<std::string>{"libnccl-net.so"});
  EXPECT_EQ(FilesTriedFor("tryst"), (std::vector<std::string>{"tryst", "libnccl-net-tryst.so"}));
  EXPECT_EQ(FilesTriedFor("/opt/x.so"), std::vector<std::string>{"/opt/x.so"});
  EXPECT_EQ(FilesTriedFor("liba.so,b"),
            (std::vector<std::string>{"liba.so", "b", "libnccl-net-b.so"}));
}

TEST(LoadCheckTest, AMissingPluginIsSaidWithWhatToDo) {
  const std::vector<LoadFinding> findings =
      CheckLoading({{"NCCL_NET_PLUGIN", "nobody-has-this"}}, "libnccl-nobody-has.so");
  ASSERT_FALSE(findings.empty());
  EXPECT_FALSE(findings.back().good);
  EXPECT_NE(findings.back().what.find("nobody-has-this"), std::string::npos);
  EXPECT_NE(findings.back().advice.find("NCCL_NET_PLUGIN"), std::string::npos);
}

}  // namespace
}  // namespace tryst::nccl
