#include "channel/rdma/link_memory.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <memory>

#include "gtest/gtest.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {
namespace {

uint64_t MappedBytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST(LinkMemoryTest, GoesWithItsLink) {
  SimWorld world(1);
  const std::unique_ptr<Nic> nic = world.OpenNic(0, SimNicOptions());
  const LinkOptions options;
  const uint64_t before = MappedBytes();
  for (int i = 0; i < 200; ++i) {
    LinkMemory memory;
    ASSERT_TRUE(memory.Open(nic.get(), options).ok());
  }
  // One of them alone, or what else the process maps meanwhile, is far less than half of all.
  const uint64_t one = 2 * uint64_t{options.ring_slots} * options.message_bytes;
  EXPECT_LT(MappedBytes(), before + 100 * one);
}

}  // namespace
}  // namespace tryst
