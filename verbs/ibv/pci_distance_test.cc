#include "verbs/ibv/pci_distance.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

// A sysfs made for the test: real folders for the devices, and links for the classes.
class PciDistanceTest : public ::testing::Test {
 protected:
  PciDistanceTest() : root_(std::string(::testing::TempDir()) + "/sysXXXXXX") {
    EXPECT_NE(mkdtemp(&root_[0]), nullptr);
  }

  void MakePath(const std::string& path) {
    std::string made = root_;
    for (absl::string_view part : absl::StrSplit(path, '/')) {
      made += "/" + std::string(part);
      mkdir(made.c_str(), 0755);
    }
  }

  // Adds a PCIe function at `path` below the root complexes. Its bus id is the last component.
  void AddFunction(const std::string& path, int numa_node) {
    const std::string full = "devices/" + path;
    MakePath(full);
    std::ofstream(root_ + "/" + full + "/numa_node") << numa_node << "\n";
    MakePath("bus/pci/devices");
    const std::string id = path.substr(path.rfind('/') + 1);
    ASSERT_EQ(symlink((root_ + "/" + full).c_str(), (root_ + "/bus/pci/devices/" + id).c_str()), 0);
  }

  PciDistance Distance(const std::string& a, const std::string& b) {
    const PciTree tree(root_);
    return tree.Distance(tree.PathOfBusId(a), tree.PathOfBusId(b));
  }

  std::string root_;
};

TEST_F(PciDistanceTest, FollowsTheTree) {
  const std::string upstream = "pci0000:3a/0000:3a:00.0/0000:3b:00.0/";
  AddFunction(upstream + "0000:3c:00.0/0000:3d:00.0", 0);  // The GPU.
  AddFunction(upstream + "0000:3c:01.0/0000:3e:00.0", 0);
  AddFunction(upstream + "0000:3c:02.0/0000:3f:00.0/0000:40:00.0/0000:41:00.0", 0);
  AddFunction("pci0000:3a/0000:3a:01.0/0000:50:00.0", 0);
  AddFunction("pci0000:5d/0000:5d:00.0/0000:5e:00.0", 0);
  AddFunction("pci0000:80/0000:80:00.0/0000:81:00.0", 1);
  EXPECT_EQ(Distance("0000:3d:00.0", "0000:3e:00.0"), PciDistance::kSameSwitch);
  EXPECT_EQ(Distance("0000:3d:00.0", "0000:41:00.0"), PciDistance::kSwitches);
  EXPECT_EQ(Distance("0000:3d:00.0", "0000:50:00.0"), PciDistance::kHostBridge);
  EXPECT_EQ(Distance("0000:3d:00.0", "0000:5e:00.0"), PciDistance::kNode);
  EXPECT_EQ(Distance("0000:3d:00.0", "0000:81:00.0"), PciDistance::kSystem);
  // nvidia-smi writes upper case.
  EXPECT_EQ(Distance("0000:3D:00.0", "0000:81:00.0"), PciDistance::kSystem);
  EXPECT_EQ(Distance("0000:3d:00.0", "0000:99:00.0"), PciDistance::kUnknown);
}

TEST_F(PciDistanceTest, TheFirmwareMayNotKnowTheNode) {
  AddFunction("pci0000:3a/0000:3a:00.0", -1);
  AddFunction("pci0000:5d/0000:5d:00.0", 0);
  const PciTree tree(root_);
  EXPECT_FALSE(tree.NumaNode(tree.PathOfBusId("0000:3a:00.0")).has_value());
  EXPECT_EQ(tree.NumaNode(tree.PathOfBusId("0000:5d:00.0")), 0);
  EXPECT_EQ(Distance("0000:3a:00.0", "0000:5d:00.0"), PciDistance::kUnknown);
}

TEST_F(PciDistanceTest, AVirtualRdmaDeviceHasNoPlace) {
  MakePath("devices/virtual/infiniband/rxe0");
  MakePath("class/infiniband");
  ASSERT_EQ(symlink((root_ + "/devices/virtual/infiniband/rxe0").c_str(),
                    (root_ + "/class/infiniband/rxe0").c_str()),
            0);
  const PciTree tree(root_);
  EXPECT_EQ(tree.PathOfRdmaDevice("rxe0"), "");
  EXPECT_FALSE(tree.NumaNode("").has_value());
}

}  // namespace
}  // namespace tryst
