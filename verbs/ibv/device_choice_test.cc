#include "verbs/ibv/device_choice.h"

#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/doubles/ibv/fake_ibv.h"

namespace tryst {
namespace {

using ::testing::HasSubstr;

class DeviceChoiceTest : public ::testing::Test {
 protected:
  DeviceChoiceTest() { options_.sysfs_root = "/does-not-exist"; }
  ~DeviceChoiceTest() override { EXPECT_EQ(fake_.live(), 0) << "something stays open"; }

  IbvChoice Choose() { return ChooseIbvPort(fake_.Calls(), options_); }
  std::string Chosen() {
    const IbvChoice choice = Choose();
    if (!choice.chosen) return std::string(choice.status.ToString());
    const IbvCandidate& best = choice.candidates[*choice.chosen];
    return best.device + ":" + std::to_string(best.port.number);
  }

  FakeIbv fake_;
  IbvChoiceOptions options_;
};

TEST_F(DeviceChoiceTest, NoDeviceSaysWhereToLook) {
  const IbvChoice choice = Choose();
  EXPECT_EQ(choice.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(choice.status.message()), HasSubstr("/dev/infiniband"));
}

TEST_F(DeviceChoiceTest, AKernelWithoutRdmaIsUnavailable) {
  fake_.Fail("ibv_get_device_list", ENOSYS);
  EXPECT_EQ(Choose().status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(DeviceChoiceTest, TakesTheActivePortAndExplainsTheOthers) {
  fake_.AddDevice("mlx5_0").ports[0].attributes.state = IBV_PORT_DOWN;
  fake_.AddDevice("iw0").verbs.transport_type = IBV_TRANSPORT_IWARP;
  fake_.AddDevice("mlx5_1");
  const IbvChoice choice = Choose();
  ASSERT_TRUE(choice.chosen.has_value()) << choice.status;
  EXPECT_EQ(
      choice.Explain(),
      "mlx5_0 port 1: rejected: the port is down (no cable, no carrier, or its network device is "
      "not up)\n"
      "iw0: rejected: it is iWARP, which Tryst does not use: the soft NIC (nic=soft) runs over its "
      "network device, and a NIC that knows RoCE as well can be switched to it "
      "(docs/OPERATIONS.md)\n"
      "mlx5_1 port 1: chosen: Ethernet, 25 Gb/s, MTU 4096, GID index 1, 10.0.0.1, RoCE v2: "
      "IPv4; preferred to 1 other\n");
}

// Alone it leaves a server with the soft NIC; by name it stops the server.
TEST_F(DeviceChoiceTest, IwarpIsRefusedAndSaysWhatToDo) {
  fake_.AddDevice("iw0").verbs.transport_type = IBV_TRANSPORT_IWARP;
  fake_.Fail("ibv_open_device", EIO);  // It is not even opened.
  IbvChoice choice = Choose();
  EXPECT_FALSE(choice.chosen.has_value());
  EXPECT_EQ(choice.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(choice.status.message()), HasSubstr("iw0: rejected: it is iWARP"));
  EXPECT_THAT(std::string(choice.status.message()), HasSubstr("nic=soft"));
  options_.settings.device = "iw0";
  choice = Choose();
  EXPECT_FALSE(choice.chosen.has_value());
  EXPECT_EQ(choice.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(choice.status.message()), HasSubstr("can be switched to it"));
  fake_.Fail("ibv_open_device", 0);
  fake_.AddDevice("mlx5_0");
  EXPECT_THAT(Chosen(), HasSubstr("iWARP")) << "what was named is not passed over";
  options_.settings.device.reset();
  EXPECT_EQ(Chosen(), "mlx5_0:1");
}

TEST_F(DeviceChoiceTest, TheFastestThenTheFirst) {
  fake_.AddDevice("a");
  fake_.AddDevice("b").ports[0].attributes.active_width = 2;  // 4 lanes.
  fake_.AddDevice("c").ports[0].attributes.active_width = 2;
  EXPECT_EQ(Chosen(), "b:1");
}

TEST_F(DeviceChoiceTest, EveryPortIsACandidate) {
  FakeIbv::Device& device = fake_.AddDevice("a");
  device.attributes.phys_port_cnt = 2;
  device.ports.push_back(device.ports[0]);
  device.ports[0].attributes.state = IBV_PORT_INIT;
  EXPECT_EQ(Chosen(), "a:2");
}

TEST_F(DeviceChoiceTest, DeviceAndPortCanBeNamed) {
  FakeIbv::Device& device = fake_.AddDevice("a");
  device.attributes.phys_port_cnt = 2;
  device.ports.push_back(device.ports[0]);
  fake_.AddDevice("b").ports[0].attributes.active_width = 2;
  options_.settings.device = "a";
  options_.settings.port = 2;
  EXPECT_EQ(Chosen(), "a:2");
  EXPECT_THAT(Choose().Explain(),
              HasSubstr("b: rejected: the setting RDMA_DEVICE names another device: a"));
}

TEST_F(DeviceChoiceTest, ANameThatIsNotThereIsTheUsersMistake) {
  fake_.AddDevice("a");
  options_.settings.device = "mlx5_7";
  const IbvChoice choice = Choose();
  EXPECT_EQ(choice.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(choice.status.message()), HasSubstr("no RDMA device named mlx5_7"));
  options_.settings.device = "a";
  options_.settings.port = 3;
  EXPECT_EQ(Choose().status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DeviceChoiceTest, AClosedDoorSaysWhichOne) {
  fake_.AddDevice("a");
  fake_.Fail("ibv_open_device", EACCES);
  const IbvChoice choice = Choose();
  EXPECT_EQ(choice.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(choice.status.message()), HasSubstr("/dev/infiniband/uverbs*"));
}

TEST_F(DeviceChoiceTest, ADeviceThatCannotBeQueriedIsRejected) {
  fake_.AddDevice("a");
  fake_.Fail("ibv_query_device", EIO);
  EXPECT_THAT(Chosen(), HasSubstr("ibv_query_device: Input/output error"));
  fake_.Fail("ibv_query_device", 0);
  fake_.Fail("ibv_query_port", EIO);
  EXPECT_THAT(Chosen(), HasSubstr("ibv_query_port: Input/output error"));
}

TEST_F(DeviceChoiceTest, TheNearestToTheGpuBeforeTheFastest) {
  std::string root = ::testing::TempDir() + "/choiceXXXXXX";
  ASSERT_NE(mkdtemp(&root[0]), nullptr);
  const auto add = [&](const std::string& path, const std::string& link) {
    ASSERT_EQ(std::system(("mkdir -p " + root + "/devices/" + path + " " + root + "/" + link +
                           " && rmdir " + root + "/" + link + " && ln -s " + root + "/devices/" +
                           path + " " + root + "/" + link)
                              .c_str()),
              0);
  };
  add("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0",
      "bus/pci/devices/0000:3d:00.0");
  add("pci0000:5d/0000:5d:00.0", "class/infiniband/far/device");
  add("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0",
      "class/infiniband/near/device");
  fake_.AddDevice("far").ports[0].attributes.active_width = 8;
  fake_.AddDevice("near");
  options_.sysfs_root = root;
  EXPECT_EQ(Chosen(), "far:1");  // There is no GPU, so the fastest is chosen.
  options_.near_bus_id = "0000:3D:00.0";
  EXPECT_EQ(Chosen(), "near:1");
  EXPECT_THAT(Choose().Explain(), HasSubstr("near port 1: chosen"));
  EXPECT_THAT(Choose().Explain(), HasSubstr("GPU: same PCIe switch"));
  std::ofstream(root + "/devices/pci0000:5d/0000:5d:00.0/numa_node") << "1\n";
  fake_.AddDevice("faster").ports[0].attributes.active_width = 8;
  options_.near_bus_id.clear();
  options_.near_numa_node = 1;
  EXPECT_EQ(Chosen(), "far:1");
  EXPECT_THAT(Choose().Explain(), HasSubstr("NUMA node 1"));
}

class GidChoiceTest : public DeviceChoiceTest {
 protected:
  GidChoiceTest() : gids_(fake_.AddDevice("a").ports[0].gids) { gids_.clear(); }
  void Add(uint32_t index, const std::string& address, uint32_t type = IBV_GID_TYPE_ROCE_V2) {
    gids_.push_back(FakeIbv::Gid(index, address, type));
  }
  // The chosen index, or -1.
  int Index() {
    const IbvChoice choice = Choose();
    return choice.chosen ? static_cast<int>(choice.candidates[0].port.gid.index) : -1;
  }

  std::vector<ibv_gid_entry>& gids_;
};

TEST_F(GidChoiceTest, PrefersWhatReachesFurthest) {
  Add(0, "fe80::1");
  EXPECT_EQ(Index(), 0);
  Add(1, "169.254.3.4");
  EXPECT_EQ(Index(), 1);
  Add(2, "fd00::1");
  EXPECT_EQ(Index(), 2);
  Add(3, "2001:db8::1");
  EXPECT_EQ(Index(), 3);
  Add(4, "10.1.2.3");
  EXPECT_EQ(Index(), 4);
  Add(5, "192.168.1.1");
  EXPECT_EQ(Index(), 4);
}

TEST_F(GidChoiceTest, NeverRoceV1NorLoopbackNorAnIndexThatDoesNotFit) {
  Add(0, "10.1.2.3", IBV_GID_TYPE_ROCE_V1);
  Add(1, "127.0.0.1");
  Add(300, "10.1.2.3");
  EXPECT_EQ(Index(), -1);
  EXPECT_THAT(Chosen(),
              HasSubstr("none of its 3 GIDs is RoCE v2: give the NIC's network device an IP"));
}

TEST_F(GidChoiceTest, AnIndexCanBeAskedForEvenOfRoceV1) {
  Add(0, "10.1.2.3", IBV_GID_TYPE_ROCE_V1);
  Add(1, "10.1.2.3");
  options_.settings.gid_index = 0;
  EXPECT_EQ(Index(), 0);
  options_.settings.gid_index = 7;
  const IbvChoice choice = Choose();
  EXPECT_EQ(choice.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(choice.status.message()),
      HasSubstr("GID index 7 holds no address; these do: index 0, 10.1.2.3, RoCE v1; index 1"));
}

TEST_F(GidChoiceTest, AnOldKernelIsAskedOneByOne) {
  Add(2, "10.1.2.3");
  fake_.Fail("_ibv_query_gid_table", EOPNOTSUPP);
  options_.settings.gid_index = 2;  // There is no sysfs here that could tell the type.
  EXPECT_EQ(Index(), 2);
}

TEST_F(GidChoiceTest, InfiniBandGoesByItsFirst) {
  Add(0, "fe80::2:c903", IBV_GID_TYPE_IB);
  Add(1, "fd00::2", IBV_GID_TYPE_IB);
  // The reference stays valid, because the devices are a list.
  FakeIbv other;
  FakeIbv::Device& device = other.AddDevice("ib0");
  device.ports[0].attributes.link_layer = IBV_LINK_LAYER_INFINIBAND;
  device.ports[0].gids = gids_;
  const IbvChoice choice = ChooseIbvPort(other.Calls(), options_);
  ASSERT_TRUE(choice.chosen.has_value());
  EXPECT_EQ(choice.candidates[0].port.gid.index, 0u);
  EXPECT_FALSE(choice.candidates[0].port.global_route);
}

TEST_F(DeviceChoiceTest, AnMtuMayBeLoweredAndEvenEqualTheActiveOne) {
  fake_.AddDevice("a").ports[0].attributes.active_mtu = IBV_MTU_2048;
  for (uint32_t bytes : {2048u, 1024u}) {
    options_.settings.mtu_bytes = bytes;
    const IbvChoice choice = Choose();
    ASSERT_TRUE(choice.chosen.has_value()) << choice.status;
    EXPECT_EQ(choice.candidates[0].port.mtu_bytes, bytes);
  }
  options_.settings.mtu_bytes = 4096;
  EXPECT_EQ(Choose().status.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tryst
