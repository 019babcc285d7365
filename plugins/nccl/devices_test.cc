#include "plugins/nccl/devices.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "verbs/ibv/peer_memory.h"

namespace tryst::nccl {
namespace {

TEST(DevicesTest, ANicThatCouldOnlyFailIsNotOffered) {
  EXPECT_TRUE(ServesNccl(NicLimits()).ok());
  NicLimits unordered;
  unordered.ordered = false;
  EXPECT_EQ(ServesNccl(unordered).code(), absl::StatusCode::kUnimplemented);
  NicLimits no_immediates;
  no_immediates.write_with_immediate = false;
  EXPECT_EQ(ServesNccl(no_immediates).code(), absl::StatusCode::kUnimplemented);
  NicLimits short_immediates;
  short_immediates.tells_length = false;
  EXPECT_EQ(ServesNccl(short_immediates).code(), absl::StatusCode::kUnimplemented);
}

TEST(DevicesTest, GpuMemoryIsClaimedOnlyWhereSomethingReachesIt) {
  NicLimits limits;
  EXPECT_EQ(PointerSupport(limits, true), kPointerHost);
  limits.device_pointers = true;
  EXPECT_EQ(PointerSupport(limits, false), kPointerHost);
  EXPECT_EQ(PointerSupport(limits, true), kPointerHost | kPointerCuda);
  limits.dma_buf = true;
  EXPECT_EQ(PointerSupport(limits, false), kPointerHost | kPointerDmaBuf);
  EXPECT_EQ(PointerSupport(limits, true), kPointerHost | kPointerCuda | kPointerDmaBuf);
}

TEST(DevicesTest, ThePeerMemoryModuleHasSeveralNames) {
  const std::string root = ::testing::TempDir() + "/sysfs";
  EXPECT_FALSE(HasPeerMemoryModule(root));
  for (const char* folder : {"", "/module", "/module/nvidia_peermem"}) {
    mkdir((root + folder).c_str(), 0700);
  }
  EXPECT_FALSE(HasPeerMemoryModule(root));
  std::ofstream(root + "/module/nvidia_peermem/version") << "1";
  EXPECT_TRUE(HasPeerMemoryModule(root));
}

}  // namespace
}  // namespace tryst::nccl
